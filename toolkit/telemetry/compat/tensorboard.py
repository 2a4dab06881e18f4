"""A `SummaryWriter` with the calls of torch's, writing a run folder: `writer = SummaryWriter("runs/first")`."""

# ruff: noqa: ARG002 - the parameters are torch's, and some have no meaning here

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.compat.null_object import NOT_SUPPORTED, null_object, warn_once
from toolkit.telemetry.compat.wandb_media import Audio, Media, MediaTarget, Video
from toolkit.telemetry.core.guard import MisuseError, guarded
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.options import OptionsError, TelemetryOptions
from toolkit.telemetry.runfolder.records import STEP

_MOST_WHOLE: Final = 2**63
_LATEST: Final = 1e11
"""Seconds since 1970, in the year 5138: milliseconds are beyond it."""
_LONGEST_TEXT: Final = 32 * 1024


class SummaryWriter:
    """Torch's writer, with the run folder at `log_dir`. Only making one may raise, if its folder cannot hold a run.

    `telemetry` has options of the `telemetry:` block; `writer.telemetry` is the underlying logger.
    """

    is_live = True

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
        *,
        telemetry: Mapping[str, Any] | None = None,
    ) -> None:
        if not log_dir:
            name = f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{comment}"
            log_dir = os.path.join("runs", name)
        self.log_dir = os.fspath(log_dir)
        if "://" in self.log_dir:
            raise OptionsError(f"log_dir must be a folder of this machine, got {self.log_dir!r}")
        self.purge_step, self.max_queue, self.flush_secs = purge_step, max_queue, flush_secs
        self.filename_suffix = filename_suffix
        above, self._name = os.path.split(os.path.abspath(self.log_dir))
        # As with event files: every value is kept, and another writer of the same folder continues it.
        usual = {"log_dir": above, "log_every": 1, "resume": True}
        self._options = TelemetryOptions.from_mapping({**usual, **(telemetry or {})})
        self._newest = -1
        self._steps: dict[str, int] = {}
        self._settings: dict[str, Any] | None = None
        self._is_closed = False
        self._pid, self._of_process = os.getpid(), threading.RLock()
        self.telemetry = self._begin()

    def _begin(self) -> TelemetryLogger:
        log = TelemetryLogger(self._name or "run", self._options)
        self.guard = log.guard
        folder = log.run_folder
        if folder is not None and str(folder) != os.path.abspath(self.log_dir):
            # Another writer has that folder open, or its name is invalid for a folder.
            self.log_dir = str(folder)
        if self.purge_step is not None:
            log.log_start(training={"resumed_from_step": max(int(self.purge_step) - 1, 0)})
            self.purge_step = None
        return log

    def _log(self) -> TelemetryLogger:
        with self._lock():
            if self._is_closed:
                # A value after `close` begins another event file in torch, and another session here.
                self.telemetry, self._is_closed = self._begin(), False
                self._newest, self._steps = -1, {}
            return self.telemetry

    def _lock(self) -> threading.RLock:
        if self._pid != os.getpid():
            # In a forked process no thread is left to release it.
            self._pid, self._of_process = os.getpid(), threading.RLock()
        return self._of_process

    def get_logdir(self) -> str:
        """Return the run folder."""
        return self.log_dir

    # Numbers.

    @guarded
    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Any = None,
        walltime: Any = None,
        new_style: bool = False,
        double_precision: bool = False,
    ) -> None:
        """Record a number, at full precision."""
        self._row({str(tag): scalar_value}, global_step, walltime)

    @guarded
    def add_scalars(
        self, main_tag: str, tag_scalar_dict: Mapping[str, Any], global_step: Any = None, walltime: Any = None
    ) -> None:
        """Record several numbers of a step, named `main_tag/tag`."""
        values = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
        self._row(values, global_step, walltime)

    @guarded
    def add_hparams(
        self,
        hparam_dict: Mapping[str, Any],
        metric_dict: Mapping[str, Any],
        hparam_domain_discrete: Mapping[str, Sequence[Any]] | None = None,
        run_name: str | None = None,
        global_step: Any = None,
    ) -> None:
        """Record the settings of the run and its results: the summary, and values at `global_step` if given."""
        log, settings = self._log(), dict(hparam_dict)
        if self._settings is not None and self._settings != settings:
            warn_once(
                "add_hparams with other settings", "replaces the earlier ones: make a writer for each run"
            )
        if self._settings != settings:
            log.log_start(config=settings)
        self._settings = settings
        log.summary.update(metric_dict)
        if global_step is not None:
            self._row(dict(metric_dict), global_step, None)

    def _row(self, values: dict[str, Any], global_step: Any, walltime: Any) -> None:
        log, step, wall = self._log(), _number(global_step), self._wall_time(walltime)
        own: dict[str, Any] = {}
        for name, value in values.items():
            shape = getattr(value, "shape", ())
            if not hasattr(value, "__float__") or any(size != 1 for size in shape):
                what = f"of shape {tuple(shape)}" if shape else f"a {type(value).__name__}"
                self.guard.report_misuse(f"add_scalar takes a number, and {name!r} is {what}; it is left out")
                continue
            is_odd = isinstance(value, bool) or (isinstance(value, int) and abs(value) >= _MOST_WHOLE)
            # Every record has a field of that name.
            own["x_global_step" if name == "global_step" else name] = float(value) if is_odd else value
        # One thread after the other, so that the logger gets the steps in order.
        with self._lock():
            counts_up = all(step >= self._steps.get(name, -1) for name in own)
            self._steps.update(dict.fromkeys(own, step))
            if not own:
                pass
            elif wall is not None or (step < self._newest and counts_up):
                # Tags have a step each in TensorBoard: one that counts epochs does not take the run back.
                internals(log).put(STEP, {"global_step": step, **own}, wall=wall)
            else:
                self._newest = step
                log.write_step(step, **own)

    def _wall_time(self, walltime: Any) -> float | None:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if walltime is None or 0 <= float(walltime) < _LATEST:
                return None if walltime is None else float(walltime)
        self.guard.report_misuse(
            f"walltime must be seconds since 1970, got {walltime!r:.60}; the time of the call is used",
            "walltime",
        )
        return None

    # Distributions.

    @guarded
    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: Any = None,
        bins: Any = "tensorflow",
        walltime: Any = None,
        max_bins: int | None = None,
    ) -> None:
        """Count values in bins of equal width: `bins` of them if that is a number, else `max_bins` or 64."""
        count = bins if isinstance(bins, int) else max_bins or 64
        self._log().log_histogram(tag, values, bins=count, step=_number(global_step))

    # Media.

    @guarded
    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: Any = None,
        dataformats: str = "CHW",
    ) -> None:
        """Keep an image in `samples/`; of a batch in an array of numpy, each."""
        images = _images(img_tensor, dataformats.upper())
        for index, image in enumerate(images):
            more: dict[str, Any] = {"index": index} if len(images) > 1 else {}
            self._log().log_image(tag, image, step=_number(global_step), **more)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: Any = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Keep a batch of images."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    @guarded
    def add_figure(
        self, tag: str, figure: Any, global_step: int | None = None, close: bool = True, walltime: Any = None
    ) -> None:
        """Keep a figure of matplotlib, or each of a list, as an image."""
        figures = figure if isinstance(figure, list) else [figure]
        for one in figures:
            self._log().log_image(tag, one, step=_number(global_step))
        pyplot = sys.modules.get("matplotlib.pyplot")
        if close and pyplot is not None:
            for one in figures:
                pyplot.close(one)

    @guarded
    def add_video(
        self, tag: str, vid_tensor: Any, global_step: Any = None, fps: float = 4, walltime: Any = None
    ) -> None:
        """Keep frames as an animated PNG; several videos are placed side by side."""
        self._save(Video(vid_tensor, fps=fps), tag, global_step)

    @guarded
    def add_audio(
        self,
        tag: str,
        snd_tensor: Any,
        global_step: Any = None,
        sample_rate: int = 44100,
        walltime: Any = None,
    ) -> None:
        """Keep samples between -1 and 1 as a WAV file."""
        self._save(Audio(_array(snd_tensor).squeeze(), sample_rate=sample_rate), tag, global_step)

    @guarded
    def add_text(self, tag: str, text_string: str, global_step: Any = None, walltime: Any = None) -> None:
        """Record a text."""
        text = str(text_string)[:_LONGEST_TEXT]
        self._log().log_event("text", name=str(tag), global_step=_number(global_step), text=text)

    def _save(self, media: Media | None, tag: str, global_step: Any) -> None:
        log = self._log()
        if media is not None and log.run_folder is not None:
            media.save(MediaTarget(log=log, key=str(tag), step=_number(global_step)))

    # Not kept: graphs, embeddings, meshes, tensors, boxes of images, counted histograms, curves, page layouts.

    def _get_file_writer(self) -> SummaryWriter:
        # Scripts ask it for `get_logdir()`.
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return null_object(f"SummaryWriter.{name}", NOT_SUPPORTED)

    # The end.

    @guarded
    def flush(self) -> None:
        """Wait until what was recorded is in the files, at most some seconds."""
        if not self._is_closed:
            self.telemetry.flush()

    def close(self) -> None:
        """End the run."""
        self.__exit__(None, None, None)

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._lock():
            log, is_closed, self._is_closed = self.telemetry, self._is_closed, True
        if not is_closed:
            # Not in the lock: other threads do not wait for a disk. Their values are in a session of their own.
            log.__exit__(kind, error, trace)


def _number(step: Any) -> int:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        # An event without a step has step 0 in TensorBoard.
        if abs(number := 0 if step is None else int(step)) < _MOST_WHOLE:
            return number
    raise MisuseError(
        f"global_step must be a whole number of 64 bits, got {step!r:.60}; the call is left out"
    )


def _numpy() -> Any:
    # Who has an array or a tensor has numpy.
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise MisuseError("this call needs numpy: `import numpy` before it; it is left out")
    return numpy


def _array(given: Any) -> Any:
    return _numpy().asarray(given.detach().cpu() if hasattr(given, "detach") else given)


def _images(given: Any, axes: str) -> list[Any]:
    """Return images whose axes are named, such as NCHW, as `log_image` takes them."""
    if sorted(axes) not in (sorted("HW"), sorted("CHW"), sorted("NHW"), sorted("NCHW")):
        raise MisuseError(f"dataformats is {axes!r}; allowed are N, C, H and W in any order, such as 'CHW'")
    if not hasattr(given, "detach"):
        array = _array(given)
        array = array.transpose(
            [axes.index(axis) for axis in ("NHWC" if "C" in axes else "NHW") if axis in axes]
        )
        return list(array) if "N" in axes else [array]
    given = given.permute([axes.index(axis) for axis in "NCHW" if axis in axes])
    return [given.unsqueeze(1) if axes.startswith("N") and "C" not in axes else given]
