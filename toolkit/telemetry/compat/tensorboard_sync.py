"""`wandb.init(sync_tensorboard=True)`: records what a script writes with a SummaryWriter in its run as well.

Both writers, torch's and tensorboardX's, pass finished summaries through one method: numbers, encoded images, counted
histograms. They are read there, after the writer's own call, so nothing is computed twice.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from typing import Any, Final, Protocol

from toolkit.telemetry.compat.null_object import warn_once
from toolkit.telemetry.compat.wandb_media import Audio, Histogram, Image, Text
from toolkit.telemetry.core.guard import Guard

_WRITERS: Final = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
"""Modules with the class that all summaries go through."""
_SETTINGS: Final = frozenset({"hparams", "custom_scalars"})
"""Plugins that only configure TensorBoard's pages."""


class RowSink(Protocol):
    """Where the rows go: a run."""

    guard: Guard

    def log_at(self, row: dict[str, Any], step: int) -> None:
        """Write a row of values at a step of the writer's own."""


class TensorBoardSync:
    """Collects what writers write at one step, and passes it to the run as one row when the next step begins."""

    def __init__(self, run: RowSink) -> None:
        self._run = run
        self._row: dict[str, Any] = {}
        self._step = 0
        self._prefixes: dict[str, str] = {}
        self._lock = threading.RLock()

    def start(self) -> None:
        """Listen to every SummaryWriter, including existing ones."""
        found = [_listen_to(name) for name in _WRITERS]
        if not any(found):
            why = "found no SummaryWriter to listen to: torch's or tensorboardX's"
            warn_once("wandb.init(sync_tensorboard=True)", why)
        if "tensorflow" in sys.modules:
            why = "reads what torch's and tensorboardX's SummaryWriter write; tf.summary is not listened to"
            warn_once("wandb.init(sync_tensorboard=True) with tensorflow", why)
        _active.append(self)

    def close(self) -> None:
        """Write what is left, and stop listening."""
        self.after_fork_in_child()
        self.flush()

    def after_fork_in_child(self) -> None:
        """Stop listening: the run is the parent's."""
        if self in _active:
            _active.remove(self)

    def add(self, logdir: str, summary: Any, step: Any) -> None:
        """Add a summary that was written; never raises into the script."""
        with self._run.guard.catch("reading what a SummaryWriter wrote"), self._lock:
            number = self._step if step is None else int(step)
            if number != self._step:
                self.flush()
                self._step = number
            for value in summary.value:
                found = _value_of(value)
                if found is not None:
                    self._row[self._name(os.path.normpath(logdir), value.tag)] = found

    def flush(self) -> None:
        """Write what was collected."""
        with self._lock:
            row, self._row = self._row, {}
            if row:
                self._run.log_at(row, self._step)

    def _name(self, logdir: str, tag: str) -> str:
        above, folder = os.path.split(logdir)
        # The first writer's tags have no prefix; those of another folder begin with its name.
        prefix = self._prefixes.setdefault(logdir, f"{folder}/" if self._prefixes else "")
        # `add_scalars("loss", {"train": …})` writes "loss" into its own folder: "loss_train" in torch,
        # "loss/train" in tensorboardX.
        main = tag.replace("/", "_") + "_"
        if prefix and folder.startswith(main):
            return f"{tag}/{folder[len(main) :]}"
        if prefix and above.endswith(os.sep + tag.replace("/", os.sep)):
            return f"{tag}/{folder}"
        return prefix + tag


def _value_of(value: Any) -> Any:
    """Return one value of a summary as `wandb.log` accepts it; None if it is not recorded."""
    plugin, kind = value.metadata.plugin_data.plugin_name, value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "image":
        return Image(bytes(value.image.encoded_image_string))
    if kind == "histo":
        return _histogram(value.histo)
    if kind == "audio":
        return Audio(bytes(value.audio.encoded_audio_string))
    if kind == "tensor" and plugin == "scalars":
        numbers = value.tensor.float_val or value.tensor.double_val
        return float(numbers[0]) if len(numbers) else None
    if kind == "tensor" and plugin == "text":
        return Text("\n".join(part.decode("utf-8", "replace") for part in value.tensor.string_val))
    if plugin not in _SETTINGS:
        warn_once(f"a SummaryWriter's {plugin or kind}", "is not recorded in the run")
    return None


def _histogram(counted: Any) -> Histogram | None:
    limits, counts = list(counted.bucket_limit), list(counted.bucket)
    if not limits or len(limits) != len(counts):
        return None
    # The last bucket may end at the largest float, and the first one start at the smallest.
    edges = [min(counted.min, limits[0]), *limits[:-1], min(limits[-1], max(counted.max, limits[-2:][0]))]
    return Histogram(np_histogram=(counts, edges))


_active: list[TensorBoardSync] = []
_heard: set[str] = set()


def _listen_to(module: str) -> bool:
    """Pass what the writers of a module write to every run that listens; False if it is not installed."""
    try:
        writer = importlib.import_module(module).FileWriter
    except ImportError:
        # torch without tensorboard: the script has no writer either.
        return False
    if module not in _heard:
        _heard.add(module)
        # It stays for the rest of the process: without a run that listens it only passes the call on.
        original = writer.add_summary

        @functools.wraps(original)
        def add_summary(of: Any, summary: Any, global_step: Any = None, *args: Any, **keywords: Any) -> Any:
            answer = original(of, summary, global_step, *args, **keywords)
            for sync in tuple(_active):
                sync.add(str(of.get_logdir()), summary, global_step)
            return answer

        writer.add_summary = add_summary
    return True
