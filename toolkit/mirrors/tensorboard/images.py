"""Reads a sample that is a PNG or JPEG image."""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

LARGEST_IMAGE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SampleImage:
    """A PNG or JPEG file and its size in pixels."""

    width: int
    height: int
    data: bytes


def read_image(run_folder: Path, path: Any) -> SampleImage | None:
    """Return the image at `path` in the absolute `run_folder`, or None if it is no PNG or JPEG of a reasonable size."""
    if not isinstance(path, str) or not path:
        return None
    file = Path(os.path.abspath(run_folder / path))
    # Files outside the run folder are not copied.
    if not file.is_relative_to(run_folder):
        return None
    data = _read_plain_file(file)
    size = None if data is None else _png_size(data) or _jpeg_size(data)
    return None if data is None or size is None else SampleImage(width=size[0], height=size[1], data=data)


def _read_plain_file(file: Path) -> bytes | None:
    # Links are not followed, and pipes do not block.
    flags = (
        os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    try:
        descriptor = os.open(file, flags)
    except OSError:
        return None
    with open(descriptor, "rb") as opened:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST_IMAGE_BYTES:
            return None
        return opened.read(LARGEST_IMAGE_BYTES)


def _png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 24 or not data.startswith(b"\x89PNG\r\n\x1a\n") or data[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walk a JPEG's segments to the frame header, which holds the size."""
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
