"""Files of samples as a browser may get them: checked by their content, images also smaller."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from typing import Final, Literal

from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.store import Refused, RunStore

SampleKind = Literal["image", "audio", "video", "text", "other"]

MAX_FILE: Final = 20_000_000
_MAX_PIXELS: Final = 40_000_000
_MAX_ASPECT: Final = 20
"""Height by width: a strip one pixel wide would be scaled to thousands of screens."""
_SMALL: Final = 384
"""The longer side of a small image, in pixels."""
_MAX_TEXT: Final = 20_000
_IMAGES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif")
_SIGNATURES: Final = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_MEDIA: Final = {
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".flac": "audio/flac",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
}
# Unpacked, one image takes up to 160 MB.
_decoding = threading.BoundedSemaphore(2)


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file and what it is."""

    data: bytes
    content_type: str


def kind_of(path: str) -> SampleKind:
    """Return how a sample is shown, by the ending of its path."""
    ending = _ending(path)
    if ending in _IMAGES:
        return "image"
    if ending in _MEDIA:
        return "audio" if _MEDIA[ending].startswith("audio") else "video"
    return "text" if ending == ".txt" else "other"


def sample_file(store: RunStore, key: str, path: str, *, small: bool = False) -> SampleFile:
    """Return the file of a sample; with `small`, a large image is scaled down.

    Raises:
        Refused: it cannot be read, is too large, or is not what its ending says.
        UnknownRun: there is no such run.
    """
    kind = kind_of(path)
    if kind == "other":
        raise Refused("a file of this kind cannot be shown")
    data = store.read_file(key, path, max_bytes=MAX_FILE)
    if kind == "image":
        return _image(data, small=small)
    if kind == "text":
        return SampleFile(clean(data[:_MAX_TEXT].decode("utf-8", "replace")).encode(), "text/plain")
    return SampleFile(data, _MEDIA[_ending(path)])


def _ending(path: str) -> str:
    return path[path.rfind(".") :].lower()


def _image(data: bytes, *, small: bool) -> SampleFile:
    from PIL import Image, UnidentifiedImageError  # Pillow comes with Streamlit, and only samples need it

    content_type = next((name for start, name in _SIGNATURES if data.startswith(start)), None)
    if content_type is None and data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        content_type = "image/webp"
    if content_type is None:
        raise Refused("not an image")
    try:
        with _decoding, Image.open(io.BytesIO(data)) as image:
            # Checked from the header, before the image is decoded.
            if image.width * image.height > _MAX_PIXELS or image.height > _MAX_ASPECT * image.width:
                raise Refused(f"{image.width:,} x {image.height:,} pixels, too large or too tall to show")
            if not small or max(image.size) <= _SMALL:
                image.load()
                return SampleFile(data, content_type)
            image.draft("RGB", (_SMALL, _SMALL))
            has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
            scaled = image.convert("RGBA" if has_alpha else "RGB")
            scaled.thumbnail((_SMALL, _SMALL))
    except Refused:
        raise
    except UnidentifiedImageError as error:
        raise Refused("not an image") from error
    except Image.DecompressionBombError as error:
        raise Refused("too many pixels, too large or too tall to show") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise Refused(f"not an image ({clean(str(error))[:80]})") from error
    packed = io.BytesIO()
    if scaled.mode == "RGBA":
        scaled.save(packed, "PNG")
        return SampleFile(packed.getvalue(), "image/png")
    scaled.save(packed, "JPEG", quality=88)
    return SampleFile(packed.getvalue(), "image/jpeg")
