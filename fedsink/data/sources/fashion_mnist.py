"""Fashion-MNIST: it comes in MNIST's files, in a folder of its own."""

from __future__ import annotations

from fedsink.data.sources.mnist import read

__all__ = ["read"]
