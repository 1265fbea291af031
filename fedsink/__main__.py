"""`python -m fedsink` is `fedsink`."""

from __future__ import annotations

from fedsink.cli import main

main()
