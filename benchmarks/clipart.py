"""Lays out Debian's clip art as pictures to learn from: a folder for each split and class.

The package `openclipart-png` (1:0.18) holds 8,121 drawings that people have given to the public
domain, sorted by subject. Seven of the eight subjects with over 300 drawings are taken, not the
icons of `computer`, and none of the 18 files of more than 16 million pixels: 4,805 drawings, on
white. Every sixth, in the order of their paths, is for tests. A drawing of one split may be one of
the other in another colour.

    apt-get download openclipart-png && dpkg-deb -x openclipart-png_*.deb PACKAGE   # needs no root
    python benchmarks/clipart.py PACKAGE/usr/share/openclipart/png DIR
    fedsink simulate experiment=clipart data.root=DIR
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from PIL import Image

SUBJECTS = (
    "animals", "food", "people", "recreation", "shapes", "signs_and_symbols", "transportation",
)  # fmt: skip
MOST_PIXELS = 1 << 24


def main() -> None:
    source, target = (Path(word) for word in sys.argv[1:])
    for subject in SUBJECTS:
        found = sorted((source / subject).rglob("*.png"))
        for number, path in enumerate(path for path in found if pixels(path) <= MOST_PIXELS):
            folder = target / ("test" if number % 6 == 5 else "train") / subject
            folder.mkdir(parents=True, exist_ok=True)
            with Image.open(path) as opened:
                drawing = opened.convert("RGBA")
            drawing.thumbnail((128, 128))
            on_white = Image.new("RGBA", drawing.size, "white")
            on_white.alpha_composite(drawing)
            on_white.convert("RGB").save(folder / f"{number}.png")


def pixels(png: Path) -> int:
    """Returns the number of pixels by a file's head: Pillow refuses to open very large ones."""
    with png.open("rb") as file:
        width, height = struct.unpack(">II", file.read(24)[16:])
    return width * height


if __name__ == "__main__":
    main()
