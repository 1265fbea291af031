"""Pages as a browser shows them: headless Chromium, and what its screenshots look like."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser() -> str:
    """Chromium's command; the test is skipped where there is none, and says so."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser: install Debian's package chromium (tried {', '.join(NAMES)})")


def screenshot(page: Path, to: Path, width: int, height: int, *, dark: bool = False) -> Image.Image:
    """The top of a page in a window of a given size, in CSS pixels."""
    scheme = "dark" if dark else "light"
    _chromium(
        to.parent,
        f"--screenshot={to}",
        f"--window-size={width},{height}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        page.as_uri(),
    )
    if not to.is_file():
        raise RuntimeError(f"Chromium made no screenshot of {page} ({scheme}).")
    with Image.open(to) as image:
        image.load()
        return image.convert("RGB")


def printed(page: Path, to: Path) -> bytes:
    """The page as a PDF."""
    _chromium(to.parent, f"--print-to-pdf={to}", "--no-pdf-header-footer", page.as_uri())
    return to.read_bytes()


def document(page: Path, folder: Path, width: int) -> str:
    """The document after it was laid out in a window of that width."""
    return _chromium(folder, "--dump-dom", f"--window-size={width},900", page.as_uri())


def _chromium(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=180,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout
