"""Video, audio, HTML and text that W&B scripts log: a file each in the run folder, and a record."""

# ruff: noqa: ARG002 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

import array
import io
import math
import os
import wave
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.compat.null_object import warn_once
from toolkit.telemetry.compat.wandb_media import MEDIA, Media, MediaTarget, Sample, no_run_guard
from toolkit.telemetry.logger.records.media import pixels_of
from toolkit.telemetry.logger.records.png import animation_of

_MOST_VIDEO_BYTES: Final = 64 * 1024 * 1024
"""Of pixels: encoding them takes about a second, during which the script waits."""
_LONGEST_TEXT: Final = 32 * 1024
_FRAMES_A_SECOND: Final = 4
"""W&B's default."""
_LOUDEST: Final = 32767


class Video(Sample):
    """A video: a path, or an array of frames, channels and pixels, which becomes an animated PNG."""

    def __init__(
        self,
        data_or_path: Any,
        caption: str | None = None,
        fps: int | None = None,
        format: str | None = None,  # noqa: A002 - W&B's name
    ) -> None:
        self.caption = caption
        self.format = (format or "gif").lower().lstrip(".")
        with no_run_guard.catch("reading a video"):
            if isinstance(data_or_path, (str, os.PathLike)):
                path = Path(data_or_path)
                self.format = path.suffix.lower().lstrip(".") or self.format
                self.data = path.read_bytes()
            elif hasattr(data_or_path, "read"):
                self.data = data_or_path.read()
            else:
                self.format, self.data = "png", _animated(data_or_path, fps or _FRAMES_A_SECOND)


def _animated(given: Any, fps: float) -> bytes:
    """Return frames as an animated PNG; several videos are placed side by side."""
    frames = pixels_of(given, is_image=False)
    if frames.ndim == 5:
        # Side by side: (video, frame, channel, height, width) to frames of the combined width.
        count, length, channels, height, width = frames.shape
        frames = frames.transpose(1, 2, 3, 0, 4).reshape(length, channels, height, count * width)
    if frames.ndim != 4:
        raise ValueError(
            f"an array of shape {tuple(frames.shape)} is not a video: frames, channels, height, width"
        )
    each = math.ceil(frames.size / _MOST_VIDEO_BYTES)
    if each > 1:
        warn_once("wandb.Video of many pixels", f"keeps every {each}th frame; log a file for all of them")
    return animation_of(frames[::each].transpose(0, 2, 3, 1), fps / each)


class Audio(Sample):
    """Audio: a path, a file's bytes, or an array of samples between -1 and 1, which becomes a WAV file."""

    def __init__(self, data_or_path: Any, sample_rate: int | None = None, caption: str | None = None) -> None:
        self.caption = caption
        self.format = "wav"
        with no_run_guard.catch("reading a sound"):
            if isinstance(data_or_path, bytes):
                self.data = data_or_path
            elif isinstance(data_or_path, (str, os.PathLike)):
                path = Path(data_or_path)
                self.format = path.suffix.lower().lstrip(".") or self.format
                self.data = path.read_bytes()
            elif sample_rate is None:
                warn_once("wandb.Audio of an array", "needs a sample_rate")
            else:
                self.data = _wav(data_or_path, int(sample_rate))


def _wav(given: Any, rate: int) -> bytes:
    samples = given.detach().cpu() if hasattr(given, "detach") else given
    rows = samples.tolist() if hasattr(samples, "tolist") else list(samples)
    channels = len(rows[0]) if rows and isinstance(rows[0], (list, tuple)) else 1
    flat = (
        [one for row in rows for one in row] if channels > 1 or (rows and isinstance(rows[0], list)) else rows
    )
    loud = array.array("h", (_level(one) for one in flat))
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(loud.tobytes())
    return buffer.getvalue()


def _level(sample: float) -> int:
    if not math.isfinite(sample):
        return 0
    # Integers are already 16-bit samples.
    loud = sample if isinstance(sample, int) else sample * _LOUDEST
    return max(-_LOUDEST, min(_LOUDEST, round(loud)))


class Html(Media):
    """An HTML page: its text, a path, or an open file. It is stored as it is, and not shown in the dashboard."""

    def __init__(self, data: Any, inject: bool = True, data_is_not_path: bool = False) -> None:
        self.html = ""
        with no_run_guard.catch("reading a page"):
            if hasattr(data, "read"):
                self.html = str(data.read())
            elif not data_is_not_path and isinstance(data, (str, os.PathLike)) and _is_file(data):
                self.html = Path(data).read_text(encoding="utf-8", errors="replace")
            else:
                self.html = str(data)

    def save(self, target: MediaTarget) -> Any:
        """Write the file and a record."""
        path = target.write(MEDIA, ".html", self.html.encode("utf-8", "replace"))
        target.log.log_event("html", name=target.key, global_step=target.step, path=path)
        return path


def _is_file(data: str | os.PathLike[str]) -> bool:
    try:
        return os.path.isfile(data)
    except ValueError:
        return False


class Text(Media):
    """A text, which becomes a record."""

    def __init__(self, text: str) -> None:
        self.text = text[:_LONGEST_TEXT]

    def save(self, target: MediaTarget) -> Any:
        """Write a record."""
        target.log.log_event("text", name=target.key, global_step=target.step, text=self.text)
        return self.text
