"""The RunStore for log directories that hold run folders and other tools' logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from toolkit.privacy.masking import mask_secrets
from toolkit.runfolder.labels import Labels
from toolkit.runfolder.manifest import Manifest
from toolkit.runfolder.records import START
from toolkit.runs.columns.column_queries import ColumnQueries
from toolkit.runs.findings.rank_signs import RankSigns
from toolkit.runs.formatting import clean
from toolkit.runs.listing.run_listing import FoundRun, now
from toolkit.runs.record_source import RecordSource
from toolkit.runs.sources.foreign_log import ForeignLog
from toolkit.runs.sources.foreign_runs import ForeignRun, ForeignRuns
from toolkit.runs.sources.local_store import LocalStore
from toolkit.runs.sources.store_queries import evict
from toolkit.runs.store import (
    Health,
    RankGrid,
    Refused,
    RunCard,
    RunMeta,
    TimeSpent,
    Trashed,
)

_HIDDEN: Final = "hidden~"
_NOT_ALL: Final = 0.99
"""How much was examined, while a run is still being read: that its end is not known does not make it whole."""


class AnyFormatStore(LocalStore):
    """Adds the runs of other tools to the run folders; their folders are only read."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        cache_dir: Path | None,
        labels_dir: Path | None,
        read_only: bool = False,
        read_only_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Show the runs below `roots`; names and notes of other tools' runs are saved in `labels_dir`."""
        super().__init__(roots, cache_dir=cache_dir, read_only=read_only, read_only_reason=read_only_reason)
        self._foreign = ForeignRuns(self.roots, labels_dir, self._own_cards)
        self._foreign_logs: dict[tuple[str, int], ForeignLog] = {}

    # ------------------------------------------------------------ listing

    def _others(self, moment: float) -> tuple[Sequence[RunCard], Sequence[str]]:
        runs, notes = self._foreign.all(has_ours=bool(self._runs))
        with self._lock:
            ours = {str(run.folder) for run in self._runs.values()}
            taken = set(self._runs)
        # A folder that is listed as ours is not listed again for the tables and mirrors in it.
        cards = [
            run.card(moment)
            for run in runs
            if run.hidden_at is None and run.key not in taken and ours.isdisjoint(run.folders)
        ]
        return cards, notes

    def _own_cards(self) -> Sequence[RunCard]:
        """Return the cards of our own runs, newest first."""
        with self._lock:
            runs = [*self._runs.values()]
        cards = [super(AnyFormatStore, self)._card(found, now()) for found in runs]
        return sorted(cards, key=lambda card: card.created or 0.0, reverse=True)

    def _card(
        self, found: FoundRun, moment: float, *, newest: tuple[float, int | None] | None = None
    ) -> RunCard:
        card = super()._card(found, moment, newest=newest)
        also = self._foreign.also_logged(found.key)
        return replace(card, also_logged_by=also) if also else card

    def _other(self, key: str) -> ForeignRun | None:
        """Return the run of another tool with this key."""
        if key in self._runs:
            return None
        run = self._foreign.find(key)
        return run if run is not None and run.hidden_at is None else None

    def card(self, key: str) -> RunCard:
        """Return one run's card."""
        run = self._other(key)
        if run is None:
            return super().card(key)
        log = self._foreign_logs.get((key, 0))
        card = run.card(now(), newest=log.run if log is not None and log.position[1] else None)
        newest = log.newest() if log is not None else None
        if newest is None or newest[1] is None or newest[0] < (run.glance.last_time or 0.0):
            return card
        moment, step = newest[0], newest[1]
        # The last record may be of an earlier step, which was logged again.
        return replace(
            card, step=max(step, card.step or step), last_sign=max(moment, card.last_sign or moment)
        )

    def trends(self, keys: Iterable[str], *, points: int = 40) -> Mapping[str, Sequence[float]]:
        """Return losses along each run."""
        wanted = list(keys)
        found = dict(super().trends(wanted, points=points))
        for key in wanted:
            run = self._other(key) if key not in found else None
            if run is not None and (trend := run.glance.trend(points)):
                found[key] = trend
        return found

    # ------------------------------------------------------------ one run

    def meta(self, key: str) -> RunMeta:
        """Return everything about a run except its curves."""
        run = self._other(key)
        if run is None:
            return super().meta(key)
        log = self._foreign_log(run)
        config = mask_secrets(log.config())
        return RunMeta(
            card=self.card(key),
            manifest=None,
            labels=run.labels,
            start={"event": START, "config": config} if config else {},
            environment={},
            writable=self._write_refusal() is None and self._foreign.labels_dir is not None,
            control_refusal=_no_control(run),
            origin=log.origin(),
        )

    def _foreign_log(self, run: ForeignRun) -> ForeignLog:
        with self._lock:
            log = self._foreign_logs.get((run.key, 0))
            if log is None or log.run.info.pieces != run.source.info.pieces:
                log = self._foreign_logs[run.key, 0] = ForeignLog(run.source)
                evict(self._foreign_logs, log)
            log.used_at = time.monotonic()
            return log

    def _log(self, key: str, rank: int = 0) -> ColumnQueries:
        run = self._other(key)
        return super()._log(key, rank) if run is None else self._foreign_log(run)

    def _source(self, key: str, rank: int = 0) -> RecordSource:
        run = self._other(key)
        return super()._source(key, rank) if run is None else self._foreign_log(run).source

    def _manifest(self, key: str) -> Manifest | None:
        return super()._manifest(key) if self._other(key) is None else None

    def _folder_name(self, key: str) -> str:
        run = self._other(key)
        return super()._folder_name(key) if run is None else run.source.info.name

    def refresh(self, key: str, *, wait_s: float = 2.0, rank: int = 0) -> Health:
        """Read new records, for at most about `wait_s`."""
        run = self._other(key)
        if run is None:
            return super().refresh(key, wait_s=wait_s, rank=rank)
        return self._foreign_log(run).refresh(wait_s)

    def examine(self, key: str, *, wait_s: float = 0.3) -> float:
        """Run the detectors on new records, for at most about `wait_s`."""
        is_complete = self._other(key) is None or self.refresh(key, wait_s=wait_s).complete
        fraction = super().examine(key, wait_s=wait_s)
        return fraction if is_complete else min(fraction, _NOT_ALL)

    def time_spent(self, key: str, *, wait_s: float = 0.05) -> TimeSpent:
        """Update the time ledger, for at most about `wait_s`."""
        is_complete = self._other(key) is None or self.refresh(key, wait_s=wait_s).complete
        spent = super().time_spent(key, wait_s=wait_s)
        return spent if is_complete else replace(spent, fraction=min(spent.fraction, _NOT_ALL))

    def ranks(self, key: str) -> Sequence[int]:
        """Return the ranks with their own records."""
        return super().ranks(key) if self._other(key) is None else [0]

    def rank_grid(self, key: str, metric: str, *, buckets: int = 64, wait_s: float = 2.0) -> RankGrid:
        """Return one metric of all ranks; another tool's run has one rank."""
        if self._other(key) is None:
            return super().rank_grid(key, metric, buckets=buckets, wait_s=wait_s)
        return RankGrid(metric=metric)

    def _signs_of(self, key: str) -> RankSigns | None:
        return super()._signs_of(key) if self._other(key) is None else None

    def read_file(self, key: str, relative: str, *, max_bytes: int) -> bytes:
        """Return a file that a record points to."""
        run = self._other(key)
        if run is None:
            return super().read_file(key, relative, max_bytes=max_bytes)
        try:
            return self._foreign_log(run).image(relative, max_bytes)
        except OSError as error:
            raise Refused(clean(str(error.strerror or error))) from error

    # ------------------------------------------------------------ requests and labels

    def ask(self, key: str, request: Mapping[str, Any]) -> str:
        """Write a request for the run and return its id."""
        self._require_write_access()
        run = self._other(key)
        if run is None:
            return super().ask(key, request)
        raise Refused(_no_control(run))

    def label(self, key: str, labels: Labels) -> None:
        """Save name, tags and notes of a run; of another tool's run, in the user's own folder."""
        self._require_write_access()
        run = self._other(key)
        if run is None:
            super().label(key, labels)
        else:
            self._foreign.label(run, labels)

    def delete(self, key: str) -> str:
        """Move a run to the trash; another tool's run is only hidden."""
        self._require_write_access()
        run = self._other(key)
        if run is None:
            return super().delete(key)
        self._foreign.hide(run)
        with self._lock:
            self._foreign_logs.pop((key, 0), None)
            self._forget_analyses(key)
        return f"{_HIDDEN}{key}"

    def trash(self) -> Sequence[Trashed]:
        """Return the deleted and the hidden runs, newest first."""
        hidden = [
            Trashed(
                token=f"{_HIDDEN}{run.key}",
                name=run.card(now()).name,
                deleted=run.hidden_at,
                bytes_held=0,
            )
            for run in self._foreign.all()[0]
            if run.hidden_at is not None
        ]
        return sorted((*super().trash(), *hidden), key=lambda item: item.deleted, reverse=True)

    def restore(self, token: str) -> str:
        """Restore a run and return its key."""
        self._require_write_access()
        if not token.startswith(_HIDDEN):
            return super().restore(token)
        run = self._foreign.find(token.removeprefix(_HIDDEN))
        if run is None or run.hidden_at is None:
            raise Refused("there is no such run in the trash")
        self._foreign.show(run)
        return run.key


def _no_control(run: ForeignRun) -> str:
    return f"This run was logged by {run.title}: it cannot be controlled from here."
