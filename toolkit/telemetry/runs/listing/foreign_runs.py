"""Finds the runs of other tools below folders, and keeps what a list shows of them."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.importers.detect import LIMIT_S, find_sources, names_of
from toolkit.telemetry.importers.source import RunSource
from toolkit.telemetry.importers.summary import abandoned_from, plain
from toolkit.telemetry.privacy.masking import mask_secrets
from toolkit.telemetry.privacy.secret_shapes import mask_name
from toolkit.telemetry.runfolder.key_values import Scalar, settings_from
from toolkit.telemetry.runfolder.labels import Labels, LabelsError, read_labels, write_labels
from toolkit.telemetry.runfolder.layout import TRASH, make_folders
from toolkit.telemetry.runfolder.status import FAILED, FINISHED, RUNNING, Status
from toolkit.telemetry.runs.formatting import ago, clean
from toolkit.telemetry.runs.listing.run_summary import RunSummary
from toolkit.telemetry.runs.store import NO_END, STILL_LOOKING, Refused, RunCard

_TITLES: Final = {
    "ai-toolkit-fork": "ai-toolkit fork",
    "tensorboard": "TensorBoard",
    "wandb": "W&B",
    "huggingface": "Hugging Face",
    "rollouts": "Rollouts",
    "ai-toolkit": "ai-toolkit",
    "mlflow": "MLflow",
    "trackio": "Trackio",
    "swanlab": "SwanLab",
    "neptune": "Neptune",
    "comet": "Comet",
    "aim": "Aim",
    "dvclive": "DVCLive",
    "table": "CSV or JSONL",
}
_FIRST_WAIT_S: Final = 1.0
_WITH_OURS_S: Final = 0.2
"""With runs of our own to show, a page does not wait for those of others."""
_SCAN_EVERY_S: Final = 5.0
_SCAN_SHARE: Final = 20
"""At most one twentieth of the time goes into looking for runs."""
_QUIET_S: Final = 600.0
_LIVE_S: Final = 3_600.0
"""Without a sign for so long, a run is not called running, however rarely it logs."""
_QUIET_EVERY_S: Final = 60.0
_HIDDEN: Final = "hidden_at"

OnRun = Callable[[str, int, int], None]
"""Called with the name of a run before it is read, its number, and how many there are."""


@dataclass(slots=True)
class ForeignRun:
    """One run of another tool."""

    key: str
    source: RunSource
    """As it was found. Sources remember what they read, so each reader has a copy."""
    reading: RunSource
    labels_folder: Path | None
    """Where its labels are kept: the user's own folder."""
    labels: Labels = field(default_factory=Labels)
    labels_problem: str | None = None
    summary: RunSummary = field(default_factory=RunSummary)
    cursor: Any = None
    read_at: float = -math.inf
    problem: str | None = None
    passed_over: str | None = None
    folders: frozenset[str] = frozenset()
    """Where it is, and every folder above that."""
    _config: Mapping[str, Scalar] = field(default_factory=dict)
    _config_of: tuple[int, float] = (-1, 0.0)

    @property
    def title(self) -> str:
        """What the tool is called."""
        return _TITLES.get(self.source.info.format, self.source.info.format)

    @property
    def path(self) -> Path:
        """Where it is."""
        return _folder_of(self.source)

    @property
    def hidden_at(self) -> float | None:
        """When a user hid it; None if it is shown."""
        hidden = self.labels.other.get(_HIDDEN)
        return float(hidden) if isinstance(hidden, (int, float)) else None

    def read_labels(self) -> None:
        """Read name, tags and notes."""
        if self.labels_folder is not None:
            try:
                self.labels, self.labels_problem = read_labels(self.labels_folder), None
            except LabelsError as error:
                self.labels_problem = clean(str(error))

    def label(self, labels: Labels) -> None:
        """Save name, tags and notes in the user's own folder. Raises Refused."""
        if self.labels_folder is None:
            raise Refused("there is no folder for names and notes: this user has no home folder")
        if self.labels_problem is not None:
            raise Refused(self.labels_problem)
        try:
            make_folders(self.labels_folder, 0o700)
            write_labels(self.labels_folder, labels)
        except LabelsError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(f"{self.labels_folder} could not be written: {error.strerror}") from error
        self.labels = labels

    def hide(self) -> None:
        """Leave it out of the list; its files stay."""
        self.label(replace(self.labels, other={**self.labels.other, _HIDDEN: time.time()}))

    def show(self) -> None:
        """List it again."""
        rest = {name: value for name, value in self.labels.other.items() if name != _HIDDEN}
        self.label(replace(self.labels, other=rest))

    def read(self, guard: Guard) -> None:
        """Read what is new, for the list."""
        while True:
            batch = guard.call("reading another tool's run", self.reading.read, self.cursor)
            if batch is None:
                self.problem = f"it could not be read: {', '.join(guard.counts)}"
                break
            self.problem = None
            if batch.replaced:
                self.summary, self.passed_over = RunSummary(self.summary.limits), None
            for (_, reason), count in batch.passed_over.most_common(1):
                self.passed_over = f"not read: {count:,} {reason}"
            self.summary.add(self.reading.info, batch)
            is_same = batch.cursor == self.cursor
            self.cursor = batch.cursor
            if batch.more and not is_same:
                continue
            limits = abandoned_from(self.summary.sessions)
            if limits == self.summary.limits:
                break
            # A later session did steps again: what was read of them does not count.
            self.reading, self.cursor, self.summary = copy.deepcopy(self.source), None, RunSummary(limits)
        self.read_at = time.monotonic()

    def card(self, now: float, *, newest: RunSource | None = None) -> RunCard:
        """Return the run's card at `now`; `newest` is the same run, if a page has read more of it."""
        info, summary, labels = self.reading.info, self.summary, self.labels
        status, last_sign = self._status(now, newest or self.reading)
        first, last = summary.first_time, summary.last_time
        tags = [mask_name(tag) for tag in info.tags] if labels.tags is None else labels.tags
        return RunCard(
            id=clean(info.run_id or info.source_id),
            key=self.key,
            place=clean(str(self.path)),
            path=self.path,
            name=clean(labels.display_name or mask_name(info.name)) or self.key,
            status=status,
            tags=tuple(clean(tag)[:100] for tag in tags),
            archived=labels.archived,
            project=clean(info.group) or None,
            created=first,
            last_sign=last_sign,
            duration_s=max(0.0, last - first) if first is not None and last is not None else None,
            step=summary.step,
            loss=summary.loss,
            loss_metric=summary.loss_name,
            lr=summary.lr,
            sessions=summary.sessions_seen,
            config=self._settings(),
            evaluations=summary.key_values.evaluations,
            colour=labels.colour,
            problem=self.problem or self.passed_over or self.labels_problem,
            format=info.format,
            deleted=info.deleted,
            logged_by=self.title,
        )

    def _settings(self) -> Mapping[str, Scalar]:
        config = self.reading.info.config
        # A source adds to its configuration while it is read.
        if self._config_of != (len(config), self.read_at):
            self._config_of = (len(config), self.read_at)
            self._config = settings_from({}, mask_secrets(plain(config)))
        return self._config

    def _status(self, now: float, source: RunSource) -> tuple[Status, float | None]:
        found = source.status(now)
        written = None if math.isnan(found.last_sign) else found.last_sign
        # A copy of a log has new file times, so the times in it count.
        sign = self.summary.last_time if self.summary.last_time is not None else written
        if found.state in ("finished", "failed"):
            name = FINISHED if found.state == "finished" else FAILED
            status = Status(name=name, why=f"{self.title} recorded that it {name}", sure=True)
        elif found.state == "live" and written is not None and now - min(written, sign or now) < _LIVE_S:
            grew = f"its files still grow, last written {ago(now - written)}; by age"
            status, sign = Status(name=RUNNING, why=grew, sure=False), max(written, sign or written)
        elif found.state == "running":
            is_quiet = written is None or now - written >= _QUIET_S
            status = Status(
                name=NO_END if is_quiet else RUNNING, why=f"{self.title} says that it is running", sure=True
            )
        else:
            status = Status(name=NO_END, why="no end was written", sure=True)
        return status._replace(why=clean(status.why)), sign


class ForeignRuns:
    """The runs of other tools below some folders. Thread-safe; it reads in a thread of its own."""

    def __init__(
        self,
        roots: Sequence[Path],
        labels_dir: Path | None,
        *,
        only: str | None = None,
        deleted: bool = False,
        sources: Sequence[RunSource] = (),
    ) -> None:
        """Look below `roots`, and have `sources` too.

        `only` is for one format; with `deleted`, runs that their tool deleted are listed.
        """
        self._roots = roots
        self._sources = sources
        self._only = only
        self._deleted = deleted
        self.left_out: Counter[Path] = Counter()
        """How many deleted runs are below each of the folders."""
        self._labels_dir = labels_dir
        self._guard = Guard()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._thread: threading.Thread | None = None
        self._runs: dict[str, ForeignRun] = {}
        self._notes: tuple[str, ...] = ()
        self._scanned_at = -math.inf
        self._scan_s = 0.0
        self._is_listed = False

    def all(self, *, has_ours: bool = False) -> tuple[list[ForeignRun], tuple[str, ...]]:
        """Return the runs, hidden ones included, and what could not be looked at.

        A search for new runs takes at most a second of this call, and continues after it.
        """
        thread = self._search()
        if thread is not None and self._scanned_at == -math.inf:
            thread.join(_WITH_OURS_S if has_ours else _FIRST_WAIT_S)
        notes = self._notes if self._is_listed else (STILL_LOOKING,)
        return [*self._runs.values()], notes

    def find(self, key: str) -> ForeignRun | None:
        """Return a run by its key."""
        run = self._runs.get(key)
        if run is None and key.partition("~")[0] in names_of():
            # It may be new, or the dashboard was just started.
            thread, until = self._search(), time.monotonic() + LIMIT_S
            while thread is not None and thread.is_alive() and time.monotonic() < until:
                thread.join(0.05)
                if key in self._runs or self._is_listed:
                    break
            run = self._runs.get(key)
        if run is not None:
            self._read(run, again_after_s=math.inf)
        return run

    def _read(self, run: ForeignRun, *, again_after_s: float) -> None:
        with self._reading:
            if run.read_at == -math.inf or time.monotonic() - run.read_at > again_after_s:
                run.read(self._guard)

    def _search(self) -> threading.Thread | None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            if time.monotonic() - self._scanned_at < max(_SCAN_EVERY_S, _SCAN_SHARE * self._scan_s):
                return None
            self._thread = threading.Thread(target=self.read_all, name="other tools' runs", daemon=True)
            self._thread.start()
            return self._thread

    def read_all(self, on_run: OnRun = lambda _name, _at, _of: None) -> None:
        """Find the runs and read what is new in each."""
        began = time.monotonic()
        runs = self.find_all()
        for at, run in enumerate([*runs.values()]):
            sign = run.reading.status(time.time()).last_sign
            is_quiet = not (time.time() - sign < _QUIET_S)
            on_run(run.source.info.name, at, len(runs))
            self._read(run, again_after_s=_QUIET_EVERY_S if is_quiet else 0.0)
        self._scan_s = time.monotonic() - began
        self._scanned_at = time.monotonic()

    def find_all(self) -> dict[str, ForeignRun]:
        """Find the runs, without reading them."""
        runs: dict[str, ForeignRun] = {}
        for source in self._sources:
            self._add(runs, source)
        notes: list[str] = []
        self.left_out.clear()
        for root in self._roots:
            with suppress(OSError):
                found = find_sources(root, only=self._only)
                notes += [clean(note) for note in found.notes]
                for source in found.runs:
                    if source.info.deleted and not self._deleted:
                        self.left_out[root] += 1
                    elif not _is_in_trash(root, source):
                        self._add(runs, source)
        self._runs, self._notes, self._is_listed = runs, tuple(notes), True
        self._scanned_at = time.monotonic()
        return runs

    def _add(self, runs: dict[str, ForeignRun], source: RunSource) -> None:
        key = f"{source.info.format}~{source.info.source_id[:12]}"
        number = 2
        while key in runs:
            key = f"{source.info.format}~{source.info.source_id[:12]}-{number}"
            number += 1
        known = self._runs.get(key)
        if known is None or known.source.info.pieces != source.info.pieces:
            place = _folder_of(source)
            known = ForeignRun(
                key,
                source,
                copy.deepcopy(source),
                None if self._labels_dir is None else self._labels_dir / source.info.source_id,
                folders=frozenset(map(str, (place, *place.parents))),
            )
            known.read_labels()
        runs[key] = known


def _folder_of(source: RunSource) -> Path:
    info = source.info
    return info.root / info.pieces[0].path if info.pieces else info.root


def _is_in_trash(root: Path, source: RunSource) -> bool:
    """Return whether it is in the trash of a log directory."""
    try:
        return _folder_of(source).relative_to(root).parts[:1] == (TRASH,)
    except ValueError:
        return False
