"""The runs below log directories: run folders, and those that other tools logged. The Runs page and `ls` list these."""

from __future__ import annotations

import difflib
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from toolkit.telemetry.importers.formats.record_file import OURS
from toolkit.telemetry.importers.source import RunSource
from toolkit.telemetry.runfolder.folder_list import Signature, folders_in
from toolkit.telemetry.runfolder.key_values import KeyValues, ValuesThatCount
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL, TRASH
from toolkit.telemetry.runfolder.status import FAILED, FINISHED, STOPPED
from toolkit.telemetry.runs.formatting import clean
from toolkit.telemetry.runs.listing.foreign_runs import ForeignRun, ForeignRuns, OnRun
from toolkit.telemetry.runs.listing.run_listing import FoundRun, RootListing, card_of, now
from toolkit.telemetry.runs.listing.search import list_of
from toolkit.telemetry.runs.store import RunCard, RunList, RunQuery, UnknownRun, card_labels

_SCAN_EVERY_S: Final = 0.5
_MOST_NEAR: Final = 10
_OLD_RUNS_BUDGET_S: Final = 0.2
_ALL_OLD_RUNS_S: Final = 10.0
"""For reading the settings of runs that an earlier version logged, if the caller waits for all of them."""


class RunFolders:
    """The runs below some folders. Thread-safe."""

    def __init__(
        self,
        listings: Sequence[RootListing],
        others: ForeignRuns | None = None,
        *,
        unknown: Mapping[Path, Sequence[str]] | None = None,
        namesakes: Sequence[str] = (),
    ) -> None:
        """List the run folders of `listings`, and the runs of `others`."""
        self.unknown = unknown or {}
        """Names that no run has, each with the most similar ones."""
        self.namesakes = namesakes
        """A sentence for each name that several runs have: which one is listed."""
        self.roots = tuple(listing.root for listing in listings)
        self.places = tuple(clean(str(root)) for root in self.roots)
        self.others = others
        self._listings = listings
        self._lock = threading.RLock()
        self._tags = _tags_of(self.roots)
        self.keys: dict[tuple[int, str], str] = {}
        """The key of each run, by the position of its log directory and the name of its folder."""
        self._runs: dict[str, FoundRun] = {}
        self._problems: tuple[str, ...] = ()
        self._scanned_at = -1.0
        self._scan_ms = 0.0
        self._values = ValuesThatCount()
        self._cards: dict[Path, tuple[Signature, KeyValues | None, RunCard]] = {}

    def list_runs(self, query: RunQuery | None = None) -> RunList:
        """Return the runs that `query` finds, without one all of them."""
        query = query or RunQuery()
        with self._lock:
            self.scan()
            time_now = now()
            cards = [self.card_of(found, time_now) for found in self._runs.values()]
            problems, read_ms = self._problems, self._scan_ms
            truncated = tuple(clean(str(listing.root)) for listing in self._listings if listing.is_truncated)
        if self.others is not None:
            runs, notes = self._foreign()
            cards += [run.card(time_now) for run in runs]
            problems = (*problems, *notes)
        listed = list_of(cards, query, time_now, self.places)
        return replace(listed, problems=problems, truncated=truncated, read_ms=read_ms)

    def read_all(self, on_run: OnRun) -> None:
        """Read what a list shows of every run, in this thread."""
        with self._lock:
            self.scan(budget_s=_ALL_OLD_RUNS_S)
        if self.others is not None:
            self.others.read_all(on_run)

    def named(self, name: str) -> tuple[RunCard | None, str]:
        """Return the run that `name` means, and which one that is if several are called so.

        Each run has a key, a label, a folder and an id of its own; of those with the same name it is the newest.
        """
        if self.others is not None:
            self.others.find_all()
        cards = self.list_runs().cards
        card, namesakes = _called(name, cards)
        if self.others is not None and (card is None or namesakes):
            # A label has the settings that differ, and the newest is known by the records.
            self.others.read_all()
            cards = self.list_runs().cards
            card, namesakes = _called(name, cards)
        if card is None or not namesakes:
            return card, ""
        which = f"this is the newest, {card.place}"
        if card is not namesakes[0]:
            which = f"this is {card.place}; the newest is {namesakes[0].place}"
        return card, f"{len(namesakes)} runs are called {name}: {which}"

    def near(self, name: str) -> list[str]:
        """Return the keys of the runs with the most similar names."""
        known = {one: card.key for card in self.list_runs().cards for one in (card.key, card.name)}
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        return list(dict.fromkeys(known[one] for one in close))

    def _foreign(self) -> tuple[list[ForeignRun], Sequence[str]]:
        """Return the runs of other tools that are listed, and what could not be looked at."""
        if self.others is None:
            return [], ()
        runs, notes = self.others.all(has_ours=bool(self._runs))
        with self._lock:
            ours = {str(run.folder) for run in self._runs.values()}
            taken = set(self._runs)
        # A folder that is listed as ours is not listed again for the tables and mirrors in it.
        shown = [
            run
            for run in runs
            if run.hidden_at is None and run.key not in taken and ours.isdisjoint(run.folders)
        ]
        return shown, notes

    def scan(self, *, again: bool = False, budget_s: float = _OLD_RUNS_BUDGET_S) -> None:
        """Look for new and changed run folders, unless that was done just now."""
        with self._lock:
            began = time.perf_counter()
            # On a slow file system at most a tenth of the time goes into listing.
            pause_s = max(_SCAN_EVERY_S, self._scan_ms / 100)
            if not again and time.monotonic() - self._scanned_at < pause_s:
                return
            scanned, problems = [], list[str]()
            for listing in self._listings:
                found, skipped = listing.scan()
                scanned.append(found)
                problems.extend(skipped)
            runs = self._with_keys(scanned, problems)
            until = time.monotonic() + budget_s
            self._runs = {run.key: self._with_values(run, until) for run in runs}
            self._problems = tuple(problems)
            if len(self._cards) > 2 * len(self._runs) + 100:
                self._cards.clear()
            self._scanned_at = time.monotonic()
            self._scan_ms = (time.perf_counter() - began) * 1000

    def _with_values(self, run: FoundRun, until: float) -> FoundRun:
        """Return a run with what its records say in place of run.json; what takes longer follows at the next scan."""
        if run.part is not None or run.problem is not None:
            return run
        found = self._values.read(run.folder / METRICS_JSONL, run.manifest, until)
        return run if found is run.key_values else replace(run, key_values=found)

    def _with_keys(self, scanned: Sequence[Sequence[FoundRun]], problems: list[str]) -> Iterable[FoundRun]:
        """Return the runs, each with a key of its own."""
        names = Counter(name for found in scanned for name in {run.key for run in found})
        runs: dict[str, FoundRun] = {}
        self.keys = {}
        for number, listed in enumerate(scanned):
            for run in listed:
                name = run.key
                if names[name] > 1:
                    # Whatever the order of the log directories: an address stays that of its run.
                    run = replace(run, key=f"{self._tags[number]}~{name}")
                if runs.setdefault(run.key, run) is run:
                    self.keys[number, name] = run.key
                elif runs[run.key].folder != run.folder:
                    problems.append(f"two folders have the name {run.key}; only one of them is shown")
        return runs.values()

    def find(self, key: str) -> FoundRun | ForeignRun:
        """Return a run by its key. Raises UnknownRun."""
        other = self._other(key)
        return self._own(key) if other is None else other

    def source(self, key: str) -> RunSource | None:
        """Return what reads another tool's run; None for a run folder. Raises UnknownRun."""
        run = self.find(key)
        return run.source if isinstance(run, ForeignRun) else None

    def _other(self, key: str) -> ForeignRun | None:
        if self.others is None or key in self._runs:
            return None
        run = self.others.find(key)
        return run if run is not None and run.hidden_at is None else None

    def _own(self, key: str) -> FoundRun:
        with self._lock:
            self.scan()
            found = self._runs.get(key)
            if found is None and time.monotonic() - self._scanned_at > self._scan_ms / 1000:
                # It may have started since the last scan. Searches for missing runs get at most half of the time:
                # with ten thousand runs a scan takes a while, and every other tab waits for it.
                self.scan(again=True)
                found = self._runs.get(key)
            if found is None:
                # It may be of a time with other log directories, in which the name was unique, or was not.
                tag, _, name = key.partition("~")
                near = {
                    known: None
                    for (number, folder), known in self.keys.items()
                    if folder in (key, name if tag else key)
                    and (tag not in self._tags or tag == self._tags[number])
                }
                if len(near) == 1:
                    return self._runs[next(iter(near))]
                if near:
                    raise UnknownRun(key, list(near)[:_MOST_NEAR])
                for listing in self._listings:
                    if (older := listing.older(key)) is not None:
                        return older
                raise UnknownRun(key, difflib.get_close_matches(key, self._runs, n=3, cutoff=0.3))
            return found

    def card_of(
        self, found: FoundRun, time_now: float, *, newest: tuple[float, int | None] | None = None
    ) -> RunCard:
        """Return the card of a run folder; `newest` is time and step of the last record, if they were read.

        That of a run that has ended is made once, for a list of ten thousand.
        """
        known = self._cards.get(found.folder) if newest is None else None
        if (
            known is not None
            and known[:2] == (found.signature, found.key_values)
            and known[2].key == found.key
        ):
            card = known[2]
        else:
            card = card_of(found, time_now, newest=newest)
            is_over = card.status.name in (FINISHED, FAILED, STOPPED) and not card.is_cut
            if is_over and found.signature and not found.parts:
                self._cards[found.folder] = (found.signature, found.key_values, card)
        return card


def run_folders(roots: Iterable[Path], *, labels_dir: Path | None = None, other_tools: bool) -> RunFolders:
    """Return the runs in log directories; names and notes of other tools' runs are in `labels_dir`."""
    places = [Path(os.path.abspath(root)) for root in roots]
    others = ForeignRuns(places, labels_dir) if other_tools else None
    return RunFolders([RootListing(place) for place in places], others)


def runs_at(
    paths: Iterable[Path],
    *,
    labels_dir: Path | None,
    only: str | None = None,
    deleted: bool = False,
    logs: Path | None = None,
) -> RunFolders:
    """Return the runs at `paths`, each a run, a file of another tool, a folder of runs, or the name of a run in `logs`.

    `only` is the name of a format; with `deleted`, also runs in the trash, and those that their own tool deleted.
    """
    places: list[Path] = []
    sources: list[RunSource] = []
    unknown: dict[Path, Sequence[str]] = {}
    namesakes: list[str] = []
    known: RunFolders | None = None
    for path in paths:
        if logs is None or os.path.lexists(path):
            places.append(Path(os.path.abspath(path)))
            continue
        if (inside := _run_inside(path, labels_dir)) is not None:
            sources.append(inside.source)
            continue
        known = known or run_folders([logs], labels_dir=labels_dir, other_tools=True)
        card, which = known.named(str(path))
        run = None if card is None else known.find(card.key)
        namesakes += [which] if which else []
        if isinstance(run, ForeignRun):
            sources.append(run.source)
        elif run is not None:
            places.append(run.folder)
        elif os.path.lexists(logs / path):
            places.append(Path(os.path.abspath(logs / path)))
        else:
            unknown[path] = known.near(str(path))
    listings: list[RootListing] = []
    for place in places if only in (None, OURS) else ():
        is_run = any(os.path.lexists(place / name) for name in (MANIFEST, METRICS_JSONL))
        if is_run:
            listings.append(RootListing(place.parent, only=place.name))
        elif place.is_dir():
            listings.append(RootListing(place))
        if deleted and not is_run:
            listings += [RootListing(trash, is_trash=True) for trash in _trashed(place)]
    others = None
    if only != OURS:
        others = ForeignRuns(places, labels_dir, only=only, deleted=deleted, sources=sources)
    return RunFolders(listings, others, unknown=unknown, namesakes=namesakes)


def _run_inside(path: Path, labels_dir: Path | None) -> ForeignRun | None:
    """Return one of several runs that are together, as lists name it: by their place, and after that its own name."""
    wanted = Path(os.path.abspath(path))
    for place in wanted.parents[:2] if len(path.parts) > 1 and os.path.lexists(path.parent) else ():
        # Some are recognised by the folder alone in which their own one is.
        others = ForeignRuns([place], labels_dir)
        others.find_all()
        for run in others.all(has_ours=False)[0]:
            if run.path == wanted:
                return run
    return None


def _called(name: str, cards: Sequence[RunCard]) -> tuple[RunCard | None, list[RunCard]]:
    """Return the run that `name` means, and all runs that are called so, if there are several, the newest first."""
    labels = card_labels(cards)

    def own_names(card: RunCard) -> tuple[str, ...]:
        label = labels[card.key]
        return card.key, card.id, label.text, label.folder or label.name, f"{label.name} ({label.folder})"

    exact = next((card for card in cards if name in own_names(card)), None)
    same = [card for card in cards if name == card.name or card is exact]
    return exact or next(iter(same), None), same if len(same) > 1 else []


def _trashed(place: Path) -> list[Path]:
    trash = place / TRASH
    try:
        return [trash / name for name in folders_in(trash)]
    except OSError:
        return []


def _tags_of(roots: Sequence[Path]) -> list[str]:
    """Return a name for each log directory: its last part, and a few digits of its path if another has the same."""
    names = Counter(root.name for root in roots)
    return [
        clean(root.name)
        if names[root.name] == 1
        else clean(f"{root.name}-{zlib.crc32(os.fsencode(root)):08x}"[:-4])
        for root in roots
    ]
