"""Converts records to TensorBoard events."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.mirrors.shared.scalars import scalars_of, without_envelope
from toolkit.telemetry.mirrors.tensorboard.event_file import EventFile
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.runfolder.records import ENVIRONMENT, SAMPLE, START, Record
from toolkit.telemetry.runfolder.safefile import NotInside, read_inside

_LARGEST_STEP: Final = 2**63 - 1


class TensorBoardExporter:
    """Writes event files into `folder`: scalars, the start record as text, samples as images.

    Needs only TensorBoard's protobuf messages: not torch, TensorFlow or TensorBoard's own writer, whose thread and
    queue would hide a failing disk from `write`. Each exporter starts a new file, so a resumed run overwrites nothing.
    Samples are looked up in `run_folder`, by default the parent of `folder`.
    """

    name = "tensorboard"

    def __init__(self, folder: Path, *, run_folder: Path | None = None) -> None:
        # The training script may change its working folder later.
        self._folder = Path(os.path.abspath(folder))
        self._run_folder = self._folder.parent if run_folder is None else Path(os.path.abspath(run_folder))
        self._file: EventFile | None = None
        self._last_step = 0

    def write(self, batch: Sequence[Record]) -> None:
        """Write `batch`, all of it or, if the disk fails, none of it."""
        try:
            from tensorboard.compat.proto.event_pb2 import Event
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"tensorboard: true needs TensorBoard, which is not installed: {install_extra('tensorboard')}"
            ) from error
        events = [
            fields for record in batch for fields in [self._event(record)] if fields["summary"]["value"]
        ]
        if not events:
            return
        if self._file is not None and self._file.is_lost():
            lost, self._file = self._file, None
            lost.abandon()
        if self._file is None:
            first = Event(wall_time=events[0]["wall_time"], file_version="brain.Event:2")
            self._file = EventFile(self._folder, first.SerializeToString())
        self._file.append([Event(**fields).SerializeToString() for fields in events])

    def close(self) -> None:
        """Sync the file to disk and close it. Raises OSError if the disk did not take it."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def _event(self, record: Record) -> dict[str, Any]:
        """Return the fields of TensorBoard's message about a record; without values where there is nothing to show."""
        step = record.get("global_step")
        if isinstance(step, int) and abs(step) <= _LARGEST_STEP:
            self._last_step = step
        values = {"value": self._values(record)}
        return {"wall_time": record.get("time", 0.0), "step": self._last_step, "summary": values}

    def _values(self, record: Record) -> list[dict[str, Any]]:
        event = record.get("event")
        if event in (START, ENVIRONMENT):
            return [_text("config" if event == START else "environment", _as_markdown(record))]
        if event == SAMPLE:
            image = read_image(self._run_folder, record.get("path"))
            if image is None:
                return []
            (width, height), data = image
            shown = {"width": width, "height": height, "colorspace": 3, "encoded_image_string": data}
            return [{"tag": _sample_tag(record), "image": shown}]
        # A 32-bit field: a number beyond its range becomes infinity.
        return [{"tag": tag, "simple_value": value} for tag, value in scalars_of(record).items()]


def _text(tag: str, text: str) -> dict[str, Any]:
    return {
        "tag": f"{tag}/text_summary",
        "metadata": {"plugin_data": {"plugin_name": "text"}},
        "tensor": {
            "dtype": "DT_STRING",
            "tensor_shape": {"dim": [{"size": 1}]},
            "string_val": [text.encode("utf-8", "replace")],
        },
    }


def _as_markdown(record: Record) -> str:
    text = json.dumps(mask_secrets(without_envelope(record)), indent=2, ensure_ascii=False, default=str)
    # Indented: a fenced block could be closed by its content.
    return "\n".join(f"    {line}" for line in text.splitlines())


def _sample_tag(record: Record) -> str:
    """Return one tag per prompt, so that TensorBoard shows its samples as one series over the steps."""
    prompt = record.get("prompt")
    return f"sample/{prompt[:80]}" if isinstance(prompt, str) and prompt else "sample"


_LARGEST_IMAGE_BYTES: Final = 4 * 1024 * 1024


def read_image(run_folder: Path, path: Any) -> tuple[tuple[int, int], bytes] | None:
    """Return width, height and content of a PNG or JPEG in `run_folder`; None without one of a reasonable size."""
    try:
        data = read_inside(run_folder, str(path), max_bytes=_LARGEST_IMAGE_BYTES)
    except NotInside:
        return None
    size = _png_size(data) or _jpeg_size(data)
    return None if size is None else (size, data)


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
