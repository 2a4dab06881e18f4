"""Ranks that run other code or packages than the others, or are trained on other data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.diagnostics.catalogue import RANK_DIFFERS, finding_of
from toolkit.telemetry.diagnostics.finding import Finding, ranks_as_evidence
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.runfolder.evidence.batches import batches_file, read_batches
from toolkit.telemetry.runfolder.layout import rank_file
from toolkit.telemetry.runfolder.node_folders import head_of
from toolkit.telemetry.runfolder.untrusted import mapping_in, whole_in

_MOST_RANKS: Final = 256
_MOST_LOOKS: Final = 64
"""After so many looks, of a second or two each, ranks that have not started or have no batches are not waited for."""
_LEAST_BATCHES: Final = 20
_MOST_BATCH_BYTES: Final = 4 * 1024**2
"""Of a rank, as in its first minutes; a resumed run may have more, which is not read."""
_MOST_NAMED: Final = 5

_Compared = dict[tuple[str, str], str]
"""Digests and versions, by what they are of: code, packages or data, and a name."""


class RankDifferences:
    """Compares the start records of all ranks once all are there, and later which batches they got."""

    def __init__(self, folder: Path, *, session: int) -> None:
        self._folder, self._session = folder, session
        self._known: dict[int, _Compared] | None = {}
        self._has_batches, self._looks = False, 0

    def look(self, ranks: list[int], step: int) -> list[Finding]:
        """Return what is new; `ranks` have a file, and rank 0 is at `step`."""
        self._looks += 1
        found: list[Finding] = []
        if not ranks or self._looks > _MOST_LOOKS:
            return found
        everyone, is_last = [0, *ranks[:_MOST_RANKS]], self._looks == _MOST_LOOKS
        if self._known is not None and (self._read_starts(self._known, everyone) or is_last):
            found += [self._finding(*each, step) for each in _differences(self._known)]
            self._known = None
        # Seldom later on: a rank without batches is not going to have any.
        if not self._has_batches and self._looks & (self._looks - 1) == 0:
            shared = self._same_batches(everyone)
            self._has_batches = shared is not None
            found += [self._finding("batches", "batches", shared, step)] if shared else []
        return found

    def _read_starts(self, known: dict[int, _Compared], ranks: list[int]) -> bool:
        """Read the start records that are there; return whether all are."""
        world = 0
        for rank in (each for each in ranks if each not in known or not each):
            with suppress(OSError):
                head = head_of(rank_file(self._folder, rank), self._session)
                known |= {rank: _compared(head)} if "host" in head else {}
                world = world if rank else whole_in(head.get("world_size")) or 0
        return 0 < min(world, _MOST_RANKS) <= len(known)

    def _same_batches(self, ranks: list[int]) -> set[int] | None:
        """Return the ranks that get the batches of another one while most have their own; None if it is too early.

        Where a model is split over ranks all of them share theirs, in groups.
        """
        known: dict[int, dict[int, int]] = {}
        for rank in ranks:
            try:
                if os.stat(batches_file(self._folder, rank)).st_size > _MOST_BATCH_BYTES:
                    return set()
            except OSError:
                return set() if known else None
            of = read_batches(self._folder, rank)
            rows = zip(of.session, of.step, of.fingerprint, strict=True)
            known[rank] = {step: mark for its, step, mark in rows if its == self._session and step >= 0}
        common = sorted(set.intersection(*map(set, known.values())))
        if len(common) < _LEAST_BATCHES:
            return None
        groups: dict[tuple[int, ...], set[int]] = {}
        for rank, marks in known.items():
            groups.setdefault(tuple(marks[step] for step in common), set()).add(rank)
        shared = [group for group in groups.values() if len(group) > 1]
        return shared[0] if len(shared) == 1 and 2 * len(shared[0]) <= len(known) else set()

    def _finding(self, variant: str, what: str, ranks: set[int], step: int) -> Finding:
        incident = Incident(
            id=f"{self._session}-{RANK_DIFFERS}-{variant}-{min(ranks)}",
            kind=RANK_DIFFERS,
            metric=what,
            start_step=0,
            noticed_step=step,
            session=self._session,
            variant=variant,
            evidence=ranks_as_evidence(ranks),
        )
        return finding_of(incident)


def _differences(known: Mapping[int, _Compared]) -> Iterator[tuple[str, str, set[int]]]:
    """Yield what some ranks have otherwise than most: what it is of, its names, and the ranks."""
    odd: dict[str, dict[frozenset[int], list[str]]] = {}
    for kind, name in sorted({key for mine in known.values() for key in mine}):
        values = {rank: mine[kind, name] for rank, mine in known.items() if (kind, name) in mine}
        usual = Counter(values.values()).most_common(1)[0][0]
        ranks = frozenset(rank for rank, value in values.items() if value != usual)
        if ranks:
            odd.setdefault(kind, {}).setdefault(ranks, []).append(name)
    for kind, groups in odd.items():
        ranks, names = max(groups.items(), key=lambda group: len(group[1]))
        more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
        yield kind, ", ".join(names[:_MOST_NAMED]) + more, set(ranks)


def _compared(head: Mapping[str, Any]) -> _Compared:
    code = mapping_in(head.get("code_files")) or {"commit": mapping_in(head.get("git")).get("commit")}
    packages = {"python": head.get("python"), **mapping_in(head.get("packages"))}
    data = map(mapping_in, head["data"] if isinstance(head.get("data"), list) else ())
    hashes = {str(each.get("path")): each.get("hash") for each in data}
    return {
        (kind, name[:100]): str(value)
        for kind, values in (("code", code), ("packages", packages), ("data", hashes))
        for name, value in values.items()
        if value is not None
    }
