"""Encodes an array of pixels as a PNG file, or frames as an animated one, with the standard library alone."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

from toolkit.telemetry.core.guard import MisuseError

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES: Final = {1: 0, 3: 2, 4: 6}
"""Grey, RGB and RGBA, by number of channels."""
_LEVEL: Final = 3
"""Of zlib: nearly as small as the highest level, in a fraction of the time."""
_LEVEL_OF_FRAMES: Final = 1
_SLACK: Final = 0.05
"""How far a network's output may lie outside of its nominal range."""


def png_of(array: Any) -> bytes:
    """Return an array like numpy's, of height, width and optionally 1, 3 or 4 channels, as a PNG.

    Integers range from 0 to 255. Floats between 0 and 1, or between -1 and 1, or nearly so, are scaled to that range;
    NaN is black.

    Raises:
        MisuseError: the shape is another.
    """
    if array.ndim > 3:
        array = array.squeeze()
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in _COLOUR_TYPES or 0 in array.shape:
        raise MisuseError(f"an array of shape {tuple(array.shape)} is not an image")
    height, width = array.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    return _file((b"IHDR", header), (b"IDAT", _packed(_as_bytes(array), _LEVEL)))


def animation_of(frames: Any, fps: float) -> bytes:
    """Return frames of height, width and 1, 3 or 4 channels as an animated PNG. Raises MisuseError for other shapes."""
    if frames.ndim != 4 or frames.shape[3] not in _COLOUR_TYPES or 0 in frames.shape:
        raise MisuseError(f"an array of shape {tuple(frames.shape)} is not a video")
    count, height, width, channels = frames.shape
    pixels = _as_bytes(frames)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    # The number of frames, and 0 for endless repetition.
    chunks = [(b"IHDR", header), (b"acTL", struct.pack(">II", count, 0))]
    delay_ms = max(1, min(60_000, round(1000.0 / fps))) if fps > 0 else 1000
    number = 0
    for frame in range(count):
        chunks.append((b"fcTL", struct.pack(">IIIIIHHBB", number, width, height, 0, 0, delay_ms, 1000, 0, 0)))
        number += 1
        packed = _packed(pixels[frame], _LEVEL_OF_FRAMES)
        if frame == 0:
            # Viewers without animation support show the first frame.
            chunks.append((b"IDAT", packed))
        else:
            chunks.append((b"fdAT", struct.pack(">I", number) + packed))
            number += 1
    return _file(*chunks)


def _packed(pixels: Any, level: int) -> bytes:
    # Each row begins with its filter type: 0, none.
    return zlib.compress(b"".join(b"\0" + row.tobytes() for row in pixels), level)


def _as_bytes(array: Any) -> Any:
    if array.dtype.kind == "b":
        return array.astype("uint8") * 255
    if array.dtype.kind == "f":
        array = array.astype("float64")
        numbers = array[array == array]
        low, high = (numbers.min(), numbers.max()) if numbers.size else (0.0, 0.0)
        if -1.0 - _SLACK <= low < -_SLACK and high <= 1.0 + _SLACK:
            # The range of a diffusion model's images.
            array, low = (array + 1.0) / 2.0, 0.0
        array[array != array] = 0.0
        if low >= -_SLACK and high <= 1.0 + _SLACK:
            array = (array * 255.0).round()
    return array.clip(0, 255).astype("uint8")


def _file(*chunks: tuple[bytes, bytes]) -> bytes:
    parts = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (*chunks, (b"IEND", b""))
    ]
    return _SIGNATURE + b"".join(parts)
