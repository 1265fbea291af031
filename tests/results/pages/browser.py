"""Pages in headless Chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is missing (Debian and Ubuntu: apt-get install chromium)"
)

_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
_MEASURE = """<script>
const page = document.documentElement;
page.dataset.measured = [innerWidth, page.scrollWidth, page.clientWidth].join(" ");
</script>"""


def screenshot(page: Path, width: int, height: int, *, dark: bool = False) -> Image.Image:
    """Returns a picture of a window of this size."""
    target = page.with_name(f"{page.stem}-{width}-{'dark' if dark else 'light'}.png")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    size = f"--window-size={width},{height}"
    _chromium(f"--screenshot={target}", size, scheme, page.as_uri())
    with Image.open(target) as picture:
        return picture.convert("RGB")


def printed(page: Path) -> bytes:
    """The page as a PDF."""
    target = page.with_suffix(".pdf")
    _chromium(f"--print-to-pdf={target}", "--no-pdf-header-footer", page.as_uri())
    return target.read_bytes()


def said(page: Path) -> str:
    """Console output while the page loads, for instance of refusals by the page's policy."""
    return _chromium("--enable-logging=stderr", "--dump-dom", page.as_uri()).stderr


def widths(page: Path, width: int) -> tuple[int, int, int]:
    """Widths of the window, of the page's content, and of its visible part, in CSS pixels.

    Measured by a script in a copy of the page without its policy.
    """
    text, removed = _POLICY.subn("", page.read_text())
    if removed != 1:
        raise ValueError("The page has no policy.")
    copy = page.with_name(f"{page.stem}-measured.html")
    copy.write_text(text.replace("</body>", f"{_MEASURE}</body>"))
    told = _chromium(f"--window-size={width},800", "--dump-dom", copy.as_uri()).stdout
    measured = re.search(r'data-measured="(\d+) (\d+) (\d+)"', told)
    if measured is None:
        raise ValueError("The page was not measured.")
    return int(measured[1]), int(measured[2]), int(measured[3])


def _chromium(*arguments: str) -> subprocess.CompletedProcess[str]:
    if CHROMIUM is None:
        raise FileNotFoundError("chromium")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    return subprocess.run(
        [CHROMIUM, *flags, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
