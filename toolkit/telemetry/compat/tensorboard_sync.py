"""`wandb.init(sync_tensorboard=True)`: records what a script writes with a SummaryWriter in its run as well.

Both writers, torch's and tensorboardX's, pass finished summaries through one method: numbers, encoded images, counted
histograms. They are taken there, after the writer's own call, so nothing is computed twice.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from toolkit.telemetry.compat.null_object import warn_once
from toolkit.telemetry.compat.wandb_files_media import Audio, Text
from toolkit.telemetry.compat.wandb_media import Histogram, Image
from toolkit.telemetry.core.guard import Guard

_WRITERS: Final = (("torch", "torch.utils.tensorboard.writer"), ("tensorboardX", "tensorboardX.writer"))
"""A package, and its module with the class that all of its summaries go through."""
_LONGEST_WAIT_S: Final = 1.0
"""How long values of one step are collected before they are written, if no other step begins."""
_TEXT: Final = "text"
_SCALARS: Final = "scalars"
_SETTINGS: Final = frozenset({"hparams", "custom_scalars"})
"""Plugins that only configure TensorBoard's pages."""


class RowSink(Protocol):
    """Where the rows go: a run."""

    guard: Guard

    def log_at(self, row: dict[str, Any], step: int) -> None:
        """Write a row of values at a step of the writer's own."""


class TensorBoardSync:
    """Collects what writers write at one step, and passes it to the run as one row."""

    def __init__(self, run: RowSink) -> None:
        self._run = run
        self._row: dict[str, Any] = {}
        self._step = 0
        self._began = 0.0
        self._prefixes: dict[str, str] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen to every SummaryWriter, including existing ones."""
        with _patching:
            if not _active:
                _patch(self._run.guard)
            _active.append(self)

    def close(self) -> None:
        """Write what is left, and stop listening."""
        with _patching:
            if self in _active:
                _active.remove(self)
            if not _active:
                _unpatch()
        self._closing.set()
        self.flush()

    def after_fork_in_child(self) -> None:
        """Stop listening: the run is the parent's."""
        self._lock = threading.RLock()
        self._row = {}
        if self in _active:
            _active.remove(self)

    def take(self, writer: Any, summary: Any, step: Any) -> None:
        """Take a summary that was written; never raises into the script."""
        with self._run.guard.catch("taking what a SummaryWriter wrote"), self._lock:
            number = self._step if step is None else int(step)
            if number != self._step:
                self.flush()
                self._step = number
            logdir = str(writer.get_logdir())
            for value in summary.value:
                found = _value_of(value)
                if found is None:
                    continue
                if not self._row:
                    self._began = time.monotonic()
                    self._start_thread()
                self._row[self._name(logdir, value.tag)] = found

    def flush(self) -> None:
        """Write what was collected."""
        with self._lock:
            row, self._row = self._row, {}
            if row:
                self._run.log_at(row, self._step)

    def _name(self, logdir: str, tag: str) -> str:
        logdir = os.path.normpath(logdir)
        above, folder = os.path.split(logdir)
        if logdir not in self._prefixes:
            # The first writer's tags have no prefix; those of another folder begin with its name.
            self._prefixes[logdir] = f"{folder}/" if self._prefixes else ""
        if self._prefixes[logdir]:
            # `add_scalars("loss", {"train": …})` writes "loss" into its own folder: "loss_train" in torch,
            # "loss/train" in tensorboardX.
            main = tag.replace("/", "_") + "_"
            if folder.startswith(main):
                return f"{tag}/{folder[len(main) :]}"
            if above.endswith(os.sep + tag.replace("/", os.sep)):
                return f"{tag}/{folder}"
        return self._prefixes[logdir] + tag

    def _start_thread(self) -> None:
        if self._thread is None:
            # Writes the last row before a long pause.
            self._thread = threading.Thread(
                target=self._flush_late, name="telemetry-tensorboard", daemon=True
            )
            self._thread.start()

    def _flush_late(self) -> None:
        while not self._closing.wait(_LONGEST_WAIT_S):
            if self._row and time.monotonic() - self._began >= _LONGEST_WAIT_S:
                with self._run.guard.catch("writing what a SummaryWriter wrote"):
                    self.flush()


def _value_of(value: Any) -> Any:
    """Return one value of a summary as `wandb.log` would take it; None if it is not recorded."""
    plugin = value.metadata.plugin_data.plugin_name
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "image":
        return Image(bytes(value.image.encoded_image_string))
    if kind == "histo":
        return _histogram(value.histo)
    if kind == "audio":
        return Audio(bytes(value.audio.encoded_audio_string))
    if kind == "tensor" and plugin == _SCALARS:
        numbers = value.tensor.float_val or value.tensor.double_val
        return float(numbers[0]) if len(numbers) else None
    if kind == "tensor" and plugin == _TEXT:
        return Text("\n".join(part.decode("utf-8", "replace") for part in value.tensor.string_val))
    if plugin not in _SETTINGS:
        warn_once(f"a SummaryWriter's {plugin or kind}", "is not taken into the run")
    return None


def _histogram(counted: Any) -> Histogram | None:
    limits, counts = list(counted.bucket_limit), list(counted.bucket)
    if not limits or len(limits) != len(counts):
        return None
    # The last bucket may end at the largest float, and the first one start at the smallest.
    edges = [min(counted.min, limits[0]), *limits[:-1], min(limits[-1], max(counted.max, limits[-2:][0]))]
    return Histogram(np_histogram=(counts, edges))


# ------------------------------------------------------------ the writers

_active: list[TensorBoardSync] = []
_patched: list[_Wrapped] = []
_patching = threading.Lock()


def _patch(guard: Guard) -> None:
    for package, name in _WRITERS:
        with guard.catch(f"listening to {name}"):
            module = _module(package, name)
            if module is not None:
                _patched.append(_Wrapped(module.FileWriter))
    if not _patched:
        warn_once(
            "wandb.init(sync_tensorboard=True)",
            "found no SummaryWriter to listen to: torch's or tensorboardX's",
        )
    if "tensorflow" in sys.modules:
        warn_once(
            "wandb.init(sync_tensorboard=True)",
            "takes what torch's and tensorboardX's SummaryWriter write; tf.summary is not listened to",
        )


def _module(package: str, name: str) -> Any:
    """Return the module with the writers; None if it is not installed."""
    if name not in sys.modules and importlib.util.find_spec(package) is None:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        # torch without tensorboard: the script has no writer either.
        return None


class _Wrapped:
    """One patched class of writers."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._original: Callable[..., Any] = writer.add_summary
        self._is_on = True

        def add_summary(of: Any, *args: Any, **keywords: Any) -> Any:
            answer = self._original(of, *args, **keywords)
            if self._is_on:
                given = dict(zip(("summary", "global_step"), args, strict=False)) | keywords
                for sync in tuple(_active):
                    sync.take(of, given.get("summary"), given.get("global_step"))
            return answer

        self._ours = writer.add_summary = add_summary

    def undo(self) -> None:
        """Stop listening. If another wrapper was added since, ours stays below it and passes everything on."""
        self._is_on = False
        if self._writer.add_summary is self._ours:
            self._writer.add_summary = self._original


def _unpatch() -> None:
    for wrapped in _patched:
        wrapped.undo()
    _patched.clear()
