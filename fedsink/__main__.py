"""`python -m fedsink` is `fedsink`."""

from __future__ import annotations

from fedsink.commands.cli import main

main()
