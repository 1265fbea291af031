"""Fashion-MNIST comes in files like MNIST's, and is read by the same code."""

from __future__ import annotations

from fedsink.data.sources.mnist import read

__all__ = ["read"]
