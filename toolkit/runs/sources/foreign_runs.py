"""Finds runs of other tools below the log directories, and keeps what a list shows of them."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from toolkit.core.guard import Guard
from toolkit.importers.detect import LIMIT_S, find_sources
from toolkit.importers.formats.record_file import source_of_folder
from toolkit.importers.source import RunSource
from toolkit.importers.summary import plain
from toolkit.privacy.masking import mask_secrets
from toolkit.privacy.secret_shapes import mask_text
from toolkit.runfolder.key_values import Scalar, settings_from
from toolkit.runfolder.labels import Labels, LabelsError, read_labels, write_labels
from toolkit.runfolder.layout import TRASH, make_folders
from toolkit.runfolder.status import FAILED, FINISHED, RUNNING, Status
from toolkit.runs.formatting import ago, clean
from toolkit.runs.store import NO_END, STILL_LOOKING, Refused, RunCard
from toolkit.runs.summary import MAX_PAIRS, RunSummary

TITLES: Final = {
    "ai-toolkit-fork": "ai-toolkit fork",
    "tensorboard": "TensorBoard",
    "wandb": "W&B",
    "huggingface": "Hugging Face",
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
_BESIDE_OURS_S: Final = 0.2
"""With runs of our own to show, a page does not wait for those of others."""
_SCAN_EVERY_S: Final = 5.0
_SCAN_SHARE: Final = 20
"""At most one twentieth of the time goes into looking for runs."""
_QUIET_S: Final = 600.0
_LIVE_S: Final = 3_600.0
"""Without a sign for so long, a run is not called running, however rarely it logs."""
_QUIET_EVERY_S: Final = 60.0
_ENOUGH_PAIRS: Final = 20
"""Equal losses at equal steps with which two tools logged the same training."""
_MAX_ALIKE: Final = 10
_OURS_BYTES: Final = 1024**2
_OURS_S: Final = 1.0
"""For reading the first losses of our own runs, each time; the others follow."""
_HIDDEN: Final = "hidden_at"


@dataclass(slots=True)
class ForeignRun:
    """One run of another tool."""

    key: str
    source: RunSource
    """As it was found. Sources remember what they read, so each reader has a copy."""
    reading: RunSource
    labels: Labels = field(default_factory=Labels)
    labels_problem: str | None = None
    glance: RunSummary = field(default_factory=RunSummary)
    cursor: bytes | None = None
    read_at: float = -math.inf
    problem: str | None = None
    folders: frozenset[str] = frozenset()
    """Where it is, and every folder above that."""
    also_logged_by: tuple[str, ...] = ()
    """Other tools that logged the same training."""
    _config: Mapping[str, Scalar] = field(default_factory=dict)
    _config_of: tuple[int, float] = (-1, 0.0)

    @property
    def title(self) -> str:
        """What the tool is called."""
        return TITLES.get(self.source.info.format, self.source.info.format)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        info = self.source.info
        first = info.pieces[0].path if info.pieces else "."
        return clean(str(info.root if first == "." else info.root / first))

    @property
    def hidden_at(self) -> float | None:
        """When a user hid it; None if it is shown."""
        moment = self.labels.other.get(_HIDDEN)
        return float(moment) if isinstance(moment, (int, float)) else None

    def look(self, guard: Guard) -> None:
        """Read what is new, for the list."""
        while True:
            batch = guard.call("reading another tool's run", self.reading.read, self.cursor)
            if batch is None:
                self.problem = f"it could not be read: {', '.join(guard.counts)}"
                break
            self.problem = None
            if batch.replaced:
                self.glance = RunSummary()
            self.glance.take(batch, [piece.prefix for piece in self.reading.info.pieces])
            is_same = batch.cursor == self.cursor
            self.cursor = batch.cursor
            if not batch.more or is_same:
                break
        self.read_at = time.monotonic()

    def card(self, now: float, *, newest: RunSource | None = None) -> RunCard:
        """Return the run's card at `now`; `newest` is the same run, if a page has read more of it."""
        info, glance, labels = self.reading.info, self.glance, self.labels
        status, last_sign = self._status(now, newest or self.reading)
        first, last = glance.first_time, glance.last_time
        tags = [mask_text(tag) for tag in info.tags] if labels.tags is None else labels.tags
        return RunCard(
            key=self.key,
            place=self.place,
            name=clean(labels.display_name or mask_text(info.name)) or self.key,
            status=status,
            tags=tuple(clean(tag)[:100] for tag in tags),
            archived=labels.archived,
            project=clean(info.group) or None,
            created=first,
            last_sign=last_sign,
            duration_s=max(0.0, last - first) if first is not None and last is not None else None,
            step=glance.step,
            loss=glance.loss,
            lr=glance.lr,
            sessions=glance.sessions,
            config=self._settings(),
            evaluations=glance.key_values.evaluations,
            colour=labels.colour,
            problem=self.problem or self.labels_problem,
            logged_by=self.title,
            also_logged_by=self.also_logged_by,
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
        sign = self.glance.last_time if self.glance.last_time is not None else written
        if found.state in ("finished", "failed"):
            name = FINISHED if found.state == "finished" else FAILED
            status = Status(name=name, why=f"{self.title} recorded that it {name}", sure=True)
        elif found.state == "live" and written is not None and now - written < _LIVE_S:
            grew = f"its files still grow, last written {ago(now - written)}; by age"
            status, sign = Status(name=RUNNING, why=grew, sure=False), max(written, sign or written)
        elif found.state == "running":
            is_quiet = written is None or now - written >= _QUIET_S
            status = Status(
                name=NO_END if is_quiet else RUNNING, why=f"{self.title} says that it is running", sure=True
            )
        else:
            status = Status(name=NO_END, why="no end was written", sure=True)
        return replace(status, why=clean(status.why)), sign


class OwnRun:
    """A run folder of ours, with its first losses, to see whether another tool logged the same training."""

    title: Final = "telemetry"

    def __init__(self, key: str, folder: Path) -> None:
        self.key = key
        self.folder = folder
        self.glance = RunSummary()
        self.also_logged_by: tuple[str, ...] = ()
        self._reading = source_of_folder(folder)
        self._cursor: bytes | None = None

    def look(self, guard: Guard) -> None:
        """Read the first losses, or what was added to them."""
        if len(self.glance.pairs) >= MAX_PAIRS:
            return
        batch = guard.call(
            "reading the first losses", lambda: self._reading.read(self._cursor, max_bytes=_OURS_BYTES)
        )
        if batch is not None:
            if batch.replaced:
                self.glance = RunSummary()
            self.glance.take(batch)
            self._cursor = batch.cursor


class ForeignRuns:
    """The runs of other tools below some folders. Thread-safe; it reads in a thread of its own."""

    def __init__(
        self, roots: Sequence[Path], labels_dir: Path | None, ours: Callable[[], Sequence[RunCard]] = tuple
    ) -> None:
        """Look below `roots`; `ours` returns the cards of our own runs, newest first."""
        self._roots = roots
        self._ours = ours
        self._own: dict[str, OwnRun] = {}
        self.labels_dir = labels_dir
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

        A search for new runs takes at most a second of this call, and continues behind it.
        """
        thread = self._search()
        if thread is not None and self._scanned_at == -math.inf:
            thread.join(_BESIDE_OURS_S if has_ours else _FIRST_WAIT_S)
        notes = self._notes if self._is_listed else (STILL_LOOKING,)
        return [*self._runs.values()], notes

    def find(self, key: str) -> ForeignRun | None:
        """Return a run by its key."""
        run = self._runs.get(key)
        if run is None and key.partition("~")[0] in TITLES:
            # It may be new, or the dashboard was just started.
            thread, until = self._search(), time.monotonic() + LIMIT_S
            while thread is not None and thread.is_alive() and time.monotonic() < until:
                thread.join(0.05)
                if key in self._runs or self._is_listed:
                    break
            run = self._runs.get(key)
        if run is not None:
            self._look_at(run, again_after_s=math.inf)
        return run

    def _look_at(self, run: ForeignRun, *, again_after_s: float) -> None:
        with self._reading:
            if run.read_at == -math.inf or time.monotonic() - run.read_at > again_after_s:
                run.look(self._guard)

    def _search(self) -> threading.Thread | None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            if time.monotonic() - self._scanned_at < max(_SCAN_EVERY_S, _SCAN_SHARE * self._scan_s):
                return None
            self._thread = threading.Thread(target=self._look, name="other tools' runs", daemon=True)
            self._thread.start()
            return self._thread

    def _look(self) -> None:
        began = time.monotonic()
        runs: dict[str, ForeignRun] = {}
        notes: list[str] = []
        for root in self._roots:
            with suppress(OSError):
                found = find_sources(root)
                notes += [clean(note) for note in found.notes]
                for source in found.runs:
                    if not source.info.deleted and not _is_in_trash(root, source):
                        self._add(runs, source)
        self._runs, self._notes, self._is_listed = runs, tuple(notes), True
        for run in [*runs.values()]:
            sign = run.reading.status(time.time()).last_sign
            is_quiet = not (time.time() - sign < _QUIET_S)
            self._look_at(run, again_after_s=_QUIET_EVERY_S if is_quiet else 0.0)
        self._look_at_ours(runs.values())
        _find_same([*runs.values(), *self._own.values()])
        self._scan_s = time.monotonic() - began
        self._scanned_at = time.monotonic()

    def _look_at_ours(self, runs: Collection[ForeignRun]) -> None:
        """Read the first losses of our own runs that another tool may have logged too."""
        until = time.monotonic() + _OURS_S
        glances = [run.glance for run in runs if run.glance.pairs]
        # A run without times may be of any time.
        first = np.array(
            [-math.inf if glance.first_time is None else glance.first_time for glance in glances]
        )
        last = np.array([math.inf if glance.last_time is None else glance.last_time for glance in glances])
        own: dict[str, OwnRun] = {}
        for card in self._ours() if glances else ():
            if card.path is None or card.loss is None:
                continue
            began = -math.inf if card.created is None else card.created
            ended = math.inf if card.last_sign is None else card.last_sign
            if ((first <= ended) & (began <= last)).any():
                run = self._own.get(card.key)
                if run is None or run.folder != card.path:
                    run = OwnRun(card.key, card.path)
                own[card.key] = run
                if time.monotonic() < until:
                    run.look(self._guard)
        self._own = own

    def also_logged(self, key: str) -> tuple[str, ...]:
        """Return which other tools logged the same training as our own run with this key."""
        run = self._own.get(key)
        return run.also_logged_by if run is not None else ()

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
                key, source, copy.deepcopy(source), folders=frozenset(map(str, (place, *place.parents)))
            )
            self._read_labels(known)
        runs[key] = known

    # ------------------------------------------------------------ labels

    def _folder(self, run: ForeignRun) -> Path:
        if self.labels_dir is None:
            raise Refused("there is no folder for names and notes: this user has no home folder")
        return self.labels_dir / run.source.info.source_id

    def _read_labels(self, run: ForeignRun) -> None:
        if self.labels_dir is None:
            return
        try:
            run.labels, run.labels_problem = read_labels(self._folder(run)), None
        except LabelsError as error:
            run.labels_problem = clean(str(error))

    def label(self, run: ForeignRun, labels: Labels) -> None:
        """Save name, tags and notes of a run in the user's own folder."""
        folder = self._folder(run)
        if run.labels_problem is not None:
            raise Refused(run.labels_problem)
        try:
            make_folders(folder, 0o700)
            write_labels(folder, labels)
        except LabelsError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            raise Refused(f"{folder} could not be written: {error.strerror}") from error
        run.labels = labels

    def hide(self, run: ForeignRun) -> None:
        """Leave a run out of the list; its files stay."""
        self.label(run, replace(run.labels, other={**run.labels.other, _HIDDEN: time.time()}))

    def show(self, run: ForeignRun) -> None:
        """List a hidden run again."""
        rest = {name: value for name, value in run.labels.other.items() if name != _HIDDEN}
        self.label(run, replace(run.labels, other=rest))


def _find_same(runs: Collection[ForeignRun | OwnRun]) -> None:
    """Note on each run which other tools logged the same training."""
    with_pair: dict[int, list[ForeignRun | OwnRun]] = {}
    for run in runs:
        for pair in run.glance.pairs:
            with_pair.setdefault(pair, []).append(run)
    alike: dict[str, Counter[str]] = {}
    by_key = {run.key: run for run in runs}
    for found in with_pair.values():
        # A pair that many runs have, such as a loss of 1 at step 0, says nothing.
        for run in found if 1 < len(found) <= _MAX_ALIKE else ():
            alike.setdefault(run.key, Counter()).update(other.key for other in found)
    for run in runs:
        others = [by_key[key] for key, often in alike.get(run.key, {}).items() if often >= _ENOUGH_PAIRS]
        titles = {
            other.title
            for other in others
            if other.title != run.title and run.glance.shares_time_with(other.glance)
        }
        run.also_logged_by = tuple(sorted(titles))


def _folder_of(source: RunSource) -> Path:
    info = source.info
    return info.root / info.pieces[0].path if info.pieces else info.root


def _is_in_trash(root: Path, source: RunSource) -> bool:
    """Return whether it is in the trash of a log directory."""
    try:
        return _folder_of(source).relative_to(root).parts[:1] == (TRASH,)
    except ValueError:
        return False
