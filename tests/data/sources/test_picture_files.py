"""Files as strangers have them: what each is read as, or the sentence that says why it is not."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedsink.data.sources import load, notes, picture_files
from fedsink.data.sources.picture_files import FORMATS, MOST_PIXELS, read_picture
from fedsink.data.spec import DataSpec
from fedsink.errors import DataError

Make = Callable[[Path], Any]
RAMP = np.linspace(0, 255, 8).round().astype(np.uint8)[None]
RAMP_12, RAMP_16 = (RAMP / 255 * 4095).astype(np.uint16), RAMP.astype(np.uint16) * 257
BITS_12 = (0.0, 4095.0)


def save(pixels: np.ndarray, form: str, mode: str | None = None, **options: Any) -> Make:
    picture = Image.fromarray(pixels)
    return lambda path: (picture if mode is None else picture.convert(mode)).save(
        path, form, **options
    )


def write(content: bytes) -> Make:
    return lambda path: path.write_bytes(content)


def png(samples: np.ndarray, colour: int, *more: tuple[bytes, bytes]) -> Make:
    """A PNG of 16 bits a sample, (1, 8, channels); Pillow writes only grey ones."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], 16, colour, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    chunks = [(b"IHDR", header), *more, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return write(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in chunks))


def tiff(
    pixels: Any, kind: int = 1, bits: int | None = None, order: str = "<", **tags: int
) -> Make:
    """A TIFF of one row, grey, uncompressed; `kind` is 1 unsigned, 2 signed, 3 floating point."""
    data = pixels if isinstance(pixels, bytes) else pixels.astype(pixels.dtype.newbyteorder(order))
    content = data if isinstance(data, bytes) else data.tobytes()
    bits = bits or pixels.dtype.itemsize * 8
    entries = {
        256: 8, 257: 1, 258: bits, 259: 1, 262: tags.get("polarity", 1), 273: 8, 277: 1, 278: 1,
        279: len(content), 339: kind,
    }  # fmt: skip
    if "maximum" in tags:
        entries[281] = tags["maximum"]
    start = 8 + len(content)
    whole = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, start) + content
    whole += struct.pack(f"{order}H", len(entries))
    for tag, value in sorted(entries.items()):
        whole += struct.pack(f"{order}HHI", tag, 3, 1) + struct.pack(f"{order}HH", value, 0)
    return write(whole + struct.pack(f"{order}I", 0))


def pgm(pixels: np.ndarray, maximum: int, plain: bool = False) -> Make:
    head = f"{'P2' if plain else 'P5'} 8 1 {maximum}\n".encode()
    kind = "u1" if maximum < 256 else ">u2"
    text = " ".join(map(str, pixels.flatten())).encode()
    return write(head + (text if plain else pixels.astype(kind).tobytes()))


def several(form: str, **options: Any) -> Make:
    first, second = Image.fromarray(RAMP), Image.fromarray(255 - RAMP)
    return lambda path: first.save(path, form, save_all=True, append_images=[second], **options)


def planes(*channels: np.ndarray) -> np.ndarray:
    return np.stack(channels, axis=-1)


PACKED = int("".join(f"{value:012b}" for value in RAMP_12[0]), 2).to_bytes(12, "big")
OPAQUE = np.full_like(RAMP_16, 65535)
FLOATS = (RAMP_16 / 65535).astype(np.float32)
SIGNED = (RAMP_12.astype(np.int32) - 1024).astype(np.int16)
LIMITS = {"range_12": BITS_12, "range_signed": (-1024.0, 3071.0), "range_32": (0.0, 65535.0)}

READ: dict[str, Make] = {
    # Whatever the ending.
    "png.png": save(RAMP, "PNG"), "png.PNG": save(RAMP, "PNG"), "png named.jpg": save(RAMP, "PNG"),
    "png.txt": save(RAMP, "PNG"), "png.npy": save(RAMP, "PNG"), "png": save(RAMP, "PNG"),
    "gif.gif": save(RAMP, "GIF"), "bmp.bmp": save(RAMP, "BMP"), "bmp.dib": save(RAMP, "BMP"),
    "tiff.tif": save(RAMP, "TIFF"), "tiff": save(RAMP, "TIFF", compression="tiff_lzw"),
    "deflate.tiff": save(RAMP, "TIFF", compression="tiff_adobe_deflate"),
    "webp.webp": save(RAMP, "WEBP", "RGB", lossless=True),
    "pgm.pgm": pgm(RAMP, 255), "plain.pgm": pgm(RAMP, 255, plain=True), "ppm.ppm": save(RAMP,
    "PPM", "RGB"),
    "jp2.jp2": save(RAMP, "JPEG2000", irreversible=False), "jp2.j2k": save(RAMP, "JPEG2000"),
    "jpeg.jpeg": save(RAMP, "JPEG", quality=100), "jpeg.jfif": save(RAMP, "JPEG", quality=100),
    "jpeg.jpe": save(RAMP, "JPEG", quality=100), "jpeg": save(RAMP, "JPEG", quality=100),
    "progressive.jpg": save(RAMP, "JPEG", quality=100, progressive=True),
    "avif.avif": save(RAMP, "AVIF", quality=100),
    # Modes of 8 bits.
    "rgb.png": save(RAMP, "PNG", "RGB"), "rgba.png": save(RAMP, "PNG", "RGBA"),
    "la.png": save(RAMP, "PNG", "LA"), "palette.png": save(RAMP, "PNG", "P"),
    "palette.gif": save(RAMP, "GIF", "P"), "cmyk.tif": save(RAMP, "TIFF", "CMYK"),
    "ycbcr.tif": save(RAMP, "TIFF", "YCbCr"), "rgba.tif": save(RAMP, "TIFF", "RGBA"),
    # More than 8 bits, from 0 to what their bits or their file say.
    "grey 16.png": save(RAMP_16, "PNG"), "own grey 16.png": png(planes(RAMP_16), 0),
    "grey 16 without ending": save(RAMP_16, "PNG"),
    "alpha 16.png": png(planes(RAMP_16, OPAQUE), 4), "rgb 16.png": png(planes(*[RAMP_16] * 3), 2),
    "rgba 16.png": png(planes(*[RAMP_16] * 3, OPAQUE), 6),
    "twelve significant.png": png(planes(RAMP_12 << 4 | RAMP_12 >> 8), 0, (b"sBIT", b"\x0c")),
    "little.tif": tiff(RAMP_16), "big.tif": tiff(RAMP_16, order=">"),
    "lzw 16.tif": save(RAMP_16, "TIFF", compression="tiff_lzw"),
    "packed 12.tif": tiff(PACKED, bits=12), "stated 12.tif": tiff(RAMP_12, maximum=4095),
    "largest value 3000.tif": tiff(RAMP_16, maximum=3000),
    "white is zero.tif": tiff(65535 - RAMP_16, polarity=0),
    "grey 16.pgm": pgm(RAMP_16, 65535), "grey 12.pgm": pgm(RAMP_12, 4095),
    "plain 12.pgm": pgm(RAMP_12, 4095, plain=True),
    "grey 1000.pgm": pgm(RAMP * (1000 / 255) // 1, 1000),
    "grey 16.jp2": save(RAMP_16, "JPEG2000", irreversible=False),
    "float.tif": tiff(FLOATS, 3), "big float.tif": tiff(FLOATS, 3, order=">"),
    "float.pfm": write(b"Pf\n8 1\n-1.0\n" + FLOATS.tobytes()),
    # A public range.
    "range_12.png": save(RAMP_12, "PNG"), "range_12.tif": tiff(RAMP_12),
    "range_12.pgm": pgm(RAMP_12, 4095),
    "range_12 beside 8.png": save(RAMP, "PNG"),
    "range_12 float.tif": tiff(RAMP_12.astype(np.float32), 3),
    "range_signed.tif": tiff(SIGNED, 2), "range_signed 32.tif": tiff(SIGNED.astype(np.int32), 2),
    "range_32.tif": tiff(RAMP_16.astype(np.uint32)),
    "range_32 signed.tif": tiff(RAMP_16.astype(np.int32), 2),
    # Further pages.
    "pages.tif": several("TIFF"), "frames.gif": several("GIF"), "frames.png": several("PNG"),
    "frames.webp": several("WEBP", lossless=True),
}  # fmt: skip
"""Files that are read as `RAMP`; limits by the beginning of the name."""

LOSSY = ("jpeg", "progressive", "avif", "cmyk", "ycbcr", "frames.webp", "grey 1000")


@pytest.mark.parametrize("name", READ)
def test_a_ramp_is_read_as_a_ramp(name: str, tmp_path: Path) -> None:
    READ[name](tmp_path / name)
    limits = next((LIMITS[key] for key in LIMITS if name.split(" ")[0].startswith(key)), None)
    read = read_picture(tmp_path / name, (1, 1, 8), limits=limits)[0]
    apart = (read.int() - torch.from_numpy(RAMP).int()).abs().max()
    assert int(apart) <= (12 if name.startswith(LOSSY) else 1), read.tolist()
    if not name.startswith(LOSSY):
        assert (int(read[0, 0]), int(read[0, -1])) == (0, 255)


def _header(width: int, height: int) -> bytes:
    """The begin of a PNG: so many pixels in some bytes."""
    data = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + data + struct.pack(">I", zlib.crc32(data))
    return head + struct.pack(">I", 99) + b"IDAT" + zlib.compress(bytes(50))


UNREADABLE, MANY = "is not a readable picture; replace", "has too many pixels to be read"
OUTSIDE, SIGN = r"holds values from .* outside \[.*\]: state data\.range", "a sign or 32 bits"
REFUSED: dict[str, tuple[Make, str]] = {
    "int16.tif": (tiff(SIGNED, 2), SIGN), "int16 big.tif": (tiff(SIGNED, 2, order=">"), SIGN),
    "int32.tif": (tiff(RAMP_16.astype(np.int32), 2), SIGN),
    "uint32.tif": (tiff(RAMP_16.astype(np.uint32)), SIGN),
    "int8.tif": (tiff(RAMP.astype(np.int8), 2), SIGN),
    "float 255.tif": (tiff(FLOATS * 255, 3), r"from 0 to 255, outside \[0, 1\]"),
    "float below.tif": (tiff(FLOATS - 0.001, 3), OUTSIDE),
    "float above.tif": (tiff(FLOATS * np.float32(1.0001), 3), OUTSIDE),
    "nan.tif": (tiff(FLOATS * np.float32("nan"), 3), OUTSIDE),
    "infinite.tif": (tiff(FLOATS / np.float32(0), 3), OUTSIDE),
    "float 255.pfm": (write(b"Pf\n8 1\n-1.0\n" + (FLOATS * 255).tobytes()), OUTSIDE),
    "more than stated.tif": (tiff(RAMP_16, maximum=4095), r"outside \[0, 4095\]"),
    "range_12 16.png": (save(RAMP_16, "PNG"), r"from 0 to 65535, outside \[0, 4095\]"),
    "range_12 colour.png": (png(planes(*[RAMP_16] * 3), 2), "colours of 16 bits"),
    "range_signed low.tif": (tiff(SIGNED - 1, 2), OUTSIDE),
    "range_32 high.tif": (tiff(RAMP_16.astype(np.uint32) + 1), OUTSIDE),
    "range_32 vast.tif": (tiff(RAMP_16.astype(np.uint32) + 2**31), OUTSIDE),
    "empty.png": (write(b""), UNREADABLE), "text.jpg": (write(b"no picture"), UNREADABLE),
    "cut.png": (write(_header(8, 8)[:-2]), UNREADABLE),
    "apple double": (write(b"\0\5\x16\7" * 9), UNREADABLE),
    "wide.png": (write(_header(2**27, 2)), MANY),
    "square.png": (write(_header(2**15, 2**15)), MANY),
    "none.png": (write(_header(0, 8)), UNREADABLE), "eps.eps": (save(RAMP, "EPS"), UNREADABLE),
    "eps.png": (save(RAMP, "EPS"), UNREADABLE), "icon.ico": (save(RAMP, "ICO"), UNREADABLE),
    "targa.tga": (save(RAMP, "TGA"), UNREADABLE), "pcx.pcx": (save(RAMP, "PCX"), UNREADABLE),
    "pdf.pdf": (save(RAMP, "PDF"), UNREADABLE),
    "array.npy": (lambda p: np.save(p, RAMP), UNREADABLE),
    "heic.heic": (write(b"\0\0\0\x18ftypheic" + bytes(99)), UNREADABLE),
    "dicom.dcm": (write(bytes(128) + b"DICM" + bytes(99)), UNREADABLE),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_truly_is_refused_by_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # somebody else's program may say so
    make, message = REFUSED[name]
    make(tmp_path / name)
    limits = next((LIMITS[key] for key in LIMITS if name.split(" ")[0].startswith(key)), None)
    with pytest.raises(DataError, match=message) as caught:
        read_picture(tmp_path / name, (1, 1, 8), limits=limits)
    assert str(tmp_path / name) in str(caught.value)


def test_nothing_reads_postscript() -> None:
    assert "EPS" not in FORMATS
    assert set(FORMATS) == set(picture_files._formats())


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_a_picture_is_turned_as_its_exif_data_say(form: str, tmp_path: Path) -> None:
    """Eight orientations of one scene, whose top left is bright and whose top right is half so."""
    upright = np.zeros((16, 24), dtype=np.uint8)
    upright[:8, :12], upright[:8, 12:] = 240, 120
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.T, 6: np.rot90(upright), 7: upright[::-1, ::-1].T, 8: np.rot90(upright, 3),
    }  # fmt: skip
    root = tmp_path / "cat"
    root.mkdir()
    for number, pixels in stored.items():
        exif = Image.Exif()
        exif[274] = number
        picture = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")
        picture.save(root / f"{number}.{form.lower()}", form, exif=exif, quality=95)
    spec = DataSpec("image_folder", (1, 16, 24), ("cat",), 8, str(tmp_path))
    values = load(spec).values[:, 0]
    assert len(values) == 8
    for read in values:
        assert int((read.int() - torch.from_numpy(upright).int()).abs().float().mean()) < 4
    assert "7 of 8 pictures are turned, as the EXIF data say." in notes(spec)


def test_exif_data_with_errors_turn_nothing(tmp_path: Path) -> None:
    for number, exif in enumerate((b"Exif\0\0II*\0", b"Exif\0\0garbage", b"\xff" * 40)):
        path = tmp_path / f"{number}.jpg"
        Image.fromarray(RAMP).save(path, quality=100, exif=exif)
        assert read_picture(path, (1, 1, 8)).shape == (1, 1, 8)


def test_a_thin_strip_is_cropped_before_it_is_scaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scaled whole, 10⁸ × 1 pixels would fill gigabytes; what remains is the same."""
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4000), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "strip.png")
    Image.fromarray(pixels.T.copy()).save(tmp_path / "tall.png")
    for name in ("strip.png", "tall.png"):
        whole = read_picture(tmp_path / name, (1, 16, 16))
        with monkeypatch.context() as patch:
            patch.setattr(picture_files, "_MOST_RESIZED", 16 * 16)
            part = read_picture(tmp_path / name, (1, 16, 16))
        assert int((whole.int() - part.int()).abs().max()) <= 16  # half a pixel of the target
    Image.new("L", (MOST_PIXELS // 8, 1), 77).save(tmp_path / "vast.png")
    resized: list[tuple[int, int]] = []
    original = Image.Image.resize

    def watched(self: Image.Image, size: tuple[int, int], *more: Any) -> Image.Image:
        resized.append(size)
        return original(self, size, *more)

    monkeypatch.setattr(Image.Image, "resize", watched)
    assert read_picture(tmp_path / "vast.png", (1, 32, 32)).unique().tolist() == [77]
    assert resized == [(32, 32)]


@pytest.mark.medium
@pytest.mark.parametrize(
    "form", ["PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF", "PPM", "AVIF", "JPEG2000"]
)
def test_a_damaged_file_is_read_or_refused(form: str, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    exif = Image.Exif()
    exif[274] = 6
    options: dict[str, Any] = {} if form in ("BMP", "GIF", "PPM", "JPEG2000") else {"exif": exif}
    pixels = random.integers(0, 256, (20, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "whole", form, **options)
    whole = (tmp_path / "whole").read_bytes()
    for _ in range(300):
        content = bytearray(whole)
        for place in random.integers(0, min(len(whole), 400), 3):
            content[place] = random.integers(256)
        (tmp_path / "damaged").write_bytes(content[: random.integers(1, len(whole) + 1)])
        with contextlib.suppress(DataError):
            read_picture(tmp_path / "damaged", (3, 8, 8))
