"""Which shard of a cluster has a run, and the engine to talk to for it.

A shard is asked directly if its host is in the address, so that one that is down holds up its own runs only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from typing import Final

from toolkit.fleet.engine import Engine, RefusedError, UnreachableError, chunks, quote

_PATIENCE_S: Final = 5.0
LOCAL: Final = "_local"
"""Behind the name of a table: the part of it that a shard has."""


class Shards:
    """The shards of a cluster, chosen among as its Distributed tables do."""

    def __init__(self, engine: Engine, cluster: str | None) -> None:
        """Ask for the shards of `cluster`; None is a single engine.

        Raises:
            EngineError: the engine did not answer.
        """
        self._engine = engine
        self._ends = [1]
        self.engines = [engine]
        """The engine of each shard: its own, or one that passes everything on."""
        if cluster is not None:
            weights = engine.rows(
                "SELECT shard_num, max(shard_weight) FROM system.clusters "
                f"WHERE cluster = {quote(cluster)} GROUP BY shard_num ORDER BY shard_num",
                "UInt32",
                "UInt32",
            )
            if not weights:
                raise RefusedError(
                    f"the tables are on the cluster {cluster}, which the engine does not have any more"
                )
            self._ends = list(accumulate(weight for _, weight in weights))
            numbers = [number for number, _ in weights]
            hosts = _hosts_by_shard(engine, cluster, numbers)
            if hosts:
                self.engines = [
                    Engine(replace(engine.address, hosts=tuple(hosts[number])), suffix=LOCAL)
                    for number in numbers
                ]
                for one in self.engines:
                    one.insert_settings.update(engine.insert_settings)
            else:
                self.engines = [engine] * len(numbers)

    def of(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return the shard of each run, counted from 0.

        Raises:
            EngineError: the engine did not answer.
        """
        ids = list(dict.fromkeys(run_ids))
        if len(self._ends) == 1:
            return dict.fromkeys(ids, 0)
        found: dict[str, int] = {}
        for some in chunks(ids):
            texts = ", ".join(map(quote, some))
            rows = self._engine.iterate(
                f"SELECT x, toUInt64(cityHash64(x) % {self._ends[-1]}) FROM (SELECT arrayJoin([{texts}]) AS x)",
                "Bytes",
                "UInt64",
            )
            found.update({run_id.decode(): self._shard_at(place) for run_id, place in rows})
        return {run_id: found[run_id] for run_id in ids}

    def _shard_at(self, place: int) -> int:
        return next(number for number, end in enumerate(self._ends) if place < end)


def _hosts_by_shard(engine: Engine, cluster: str, numbers: list[int]) -> dict[int, list[tuple[str, int]]]:
    """Return the hosts of the address by the shard they are; nothing if a shard has none."""
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    silent = []
    for host in engine.address.hosts:
        one = Engine(replace(engine.address, hosts=(host,)), patience_s=_PATIENCE_S)
        try:
            own = one.rows(
                f"SELECT shard_num FROM system.clusters WHERE cluster = {quote(cluster)} AND is_local = 1",
                "UInt32",
            )
        except UnreachableError:
            silent.append(host)
            continue
        finally:
            one.close()
        if own:
            found[own[0][0]].append(host)
    missing = [number for number in numbers if number not in found]
    if len(missing) == len(silent) == 1 and len(engine.address.hosts) == len(numbers):
        # The only one that does not answer is the only shard that was not found.
        found[missing.pop()] = silent
    return {} if missing else dict(found)
