"""Pages as a browser shows them: headless Chromium, its measurements and its pictures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIGHT, DARK = 1, 0

# What a reader's eyes would find out: whether the page is wider than its window, and the least
# contrast of any text with its background (WCAG 2.2, relative luminance).
_MEASURE = """
const parse = text => text.match(/[\\d.]+/g).map(Number);
const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const luminance = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
const behind = node => {
  for (; node; node = node.parentElement) {
    const colour = parse(getComputedStyle(node).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let contrast = 21, least = "";
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim(), holder = walker.currentNode.parentElement;
  if (!text || ["SCRIPT", "STYLE"].includes(holder.tagName)) continue;
  const pair = [luminance(parse(getComputedStyle(holder).color)), luminance(behind(holder))];
  const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  if (ratio < contrast) { contrast = ratio; least = text.slice(0, 40); }
}
const broken = [...document.images].filter(image => !image.naturalWidth).map(image => image.alt);
const outcome = {
  window: innerWidth, page: document.documentElement.scrollWidth, contrast, least, broken,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
};
document.body.dataset.outcome = JSON.stringify(outcome);
"""


def browser() -> str:
    """Chromium's command; without Chromium the test is skipped with a message."""
    for name in NAMES:
        if path := shutil.which(name):
            return path
    pytest.skip(f"no browser: install Debian's package chromium (tried {', '.join(NAMES)})")


def measured(page: Path, folder: Path, width: int, scheme: int) -> dict[str, Any]:
    """Measures the layout in a window of that width, in a light or a dark scheme.

    The page allows no script: the function measures a copy that allows only the script above.
    """
    text = page.read_text()
    allowing = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    if allowing == text:
        raise ValueError(f"{page} states no policy.")
    copy = folder / f"measured-{width}-{scheme}.html"
    copy.write_text(
        allowing.replace(
            "</body>", f"<script>addEventListener('load', () => {{{_MEASURE}}});</script></body>"
        )
    )
    shown = _chromium(folder, "--dump-dom", *_window(width, 900, scheme), copy.as_uri()).stdout
    outcome = re.search(r'data-outcome="([^"]*)"', shown)
    if outcome is None:
        raise RuntimeError(f"Chromium did not measure {page}: {shown[:500]}")
    found: dict[str, Any] = json.loads(unescape(outcome.group(1)))
    return found


def complaints(page: Path, folder: Path) -> list[str]:
    """Output of Chromium's console while it shows the page itself."""
    arguments = ("--enable-logging=stderr", "--dump-dom", *_window(1400, 900, LIGHT))
    log = _chromium(folder, *arguments, page.as_uri()).stderr
    return [line for line in log.splitlines() if "CONSOLE" in line]


def screenshot(page: Path, to: Path, width: int, height: int, scheme: int) -> Image.Image:
    """The top of a page in a window of a given size, in CSS pixels."""
    _chromium(to.parent, f"--screenshot={to}", *_window(width, height, scheme), page.as_uri())
    with Image.open(to) as image:
        image.load()
        return image.convert("RGB")


def printed(page: Path, to: Path) -> bytes:
    """The page as a PDF."""
    _chromium(to.parent, f"--print-to-pdf={to}", "--no-pdf-header-footer", page.as_uri())
    return to.read_bytes()


def _window(width: int, height: int, scheme: int) -> tuple[str, str]:
    return f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={scheme}"


def _chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            f"--user-data-dir={folder / 'profile'}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
