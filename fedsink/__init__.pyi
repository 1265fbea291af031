from fedsink.api import Run as Run
from fedsink.api import load as load
from fedsink.api import resume as resume
from fedsink.api import simulate as simulate

__all__ = ["Run", "__version__", "load", "resume", "simulate"]

__version__: str
