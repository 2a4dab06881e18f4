"""What breaks first, and when, with 1,000 nodes and 100,000 runs a day: `python -m benchmarks.fleet_simulation`.

Measured here: processor time of ClickHouse 26.9 for what real shippers and pages ask of it, as fast as this machine
takes it, with records of 24 numbers; parts and bytes on its disk; its memory. Computed from that, and from the fleet
below: what one server with cores like this machine's has to do, and for how many nodes it is enough.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks import fleet_lists
from benchmarks.fleet_data import trainer_values
from benchmarks.fleet_engine import PATIENCE_S, Meter
from tests.fleet.engines import Embedded
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.engine import Engine
from toolkit.telemetry.fleet.schema import set_up
from toolkit.telemetry.fleet.shipping.sender import EVERY_S, REPORT_S
from toolkit.telemetry.fleet.shipping.shipper import Shipper
from toolkit.telemetry.runs.sources.clickhouse.store import ClickHouseStore

NODES: Final = 1_000
RUNS_A_DAY: Final = 100_000
LIVE_A_NODE: Final = 4
RECORD_EVERY_S: Final = 10.0
PAGES: Final = 100
LISTS: Final = 20
PAGE_EVERY_S: Final = 5.0
"""Open pages of live runs, and lists that are opened, each as often as this."""
CORES: Final = 16
DISK_TB: Final = 4
"""Of the one server."""
LIST_MOST_MS: Final = 1_000.0
DAY_S: Final = 86_400.0
RECORDS_OF_A_RUN: Final = LIVE_A_NODE * NODES * DAY_S / RUNS_A_DAY / RECORD_EVERY_S


class _Node:
    """A shipper and its live runs, written by the real logger."""

    def __init__(self, logs: Path, address: Address, number: int) -> None:
        folder = logs / f"node-{number}"
        folder.mkdir(parents=True)
        self.loggers = [
            TelemetryLogger(
                f"run-{number}-{n}", log_dir=folder, log_every=1, system=False, diagnostics=False, quiet=True
            )
            for n in range(LIVE_A_NODE)
        ]
        self.sent = 0
        self._shipper = Shipper(Engine(address, patience_s=PATIENCE_S), [folder], node=f"node-{number}")
        self._shipper.start()
        self.store = ClickHouseStore(address, patience_s=PATIENCE_S)
        self.key = self.loggers[0].run_id or ""

    def send(self, records: int = 1) -> None:
        """Log so many records to one of the runs in turn, and ship them: an insert and its commit."""
        log = self.loggers[self.sent % LIVE_A_NODE]
        for _ in range(records):
            self.sent += 1
            log.log_step(self.sent, **trainer_values(self.sent))
        log.flush()
        while self._shipper.ship_round():
            pass

    def report(self) -> None:
        """Report the live runs and the shipper."""
        self._shipper.sender.report(all_runs=True)


def measure(seconds: float) -> dict[str, float]:
    """Return what each costs the engine in milliseconds, how many parts there are at worst, and bytes a record."""
    with tempfile.TemporaryDirectory(prefix="bench-simulation-", ignore_cleanup_errors=True) as place:
        engine = Embedded(Path(place) / "engine")
        engine.start()
        try:
            set_up(engine.address())
            return _measured(engine.address(), Meter(engine), Path(place) / "logs", seconds)
        finally:
            engine.stop()


def _measured(address: Address, meter: Meter, logs: Path, seconds: float) -> dict[str, float]:
    nodes = [_Node(logs, address, number) for number in range(4)]
    ask = Engine(address, patience_s=PATIENCE_S)
    found: dict[str, float] = {"parts": 0.0}
    parts = (
        "SELECT max(n) FROM (SELECT count() AS n FROM system.parts WHERE active GROUP BY table, partition)"
    )

    def repeated(name: str, call: Callable[[_Node], object]) -> None:
        def of_one(node: _Node) -> int:
            count = 0
            while time.monotonic() < until:
                call(node)
                count += 1
            return count

        meter.wait_until_idle(20.0)
        before, until = meter.seconds(), time.monotonic() + seconds
        with ThreadPoolExecutor(len(nodes)) as threads:
            counts = [threads.submit(of_one, node) for node in nodes]
            while time.monotonic() < until:
                time.sleep(0.5)
                found["parts"] = max(found["parts"], float(ask.query(parts)))
            count = sum(each.result() for each in counts)
        found[f"{name}_rate"] = count / seconds
        # Merges that are not over yet belong to it.
        meter.wait_until_idle()
        found[name] = (meter.seconds() - before) / count * 1e3

    def page(node: _Node) -> None:
        node.send()
        node.store.refresh(node.key, wait_s=PATIENCE_S)
        node.store.series(node.key, "train_loss", buckets=600)

    for node in nodes:
        node.send()
        node.report()
    repeated("batch", _Node.send)
    repeated("page", page)
    found["page"] = max(0.0, found["page"] - found["batch"])
    repeated("run", lambda node: node.send(records=round(RECORDS_OF_A_RUN)))
    repeated("report", _Node.report)
    for name in ("records", "points"):
        ask.query(f"OPTIMIZE TABLE {name} FINAL")
    stored = "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND table IN ('records', 'points')"
    found["bytes"] = float(ask.query(stored)) / float(ask.query("SELECT count() FROM records"))
    return found


def lines(found: dict[str, float], lists: dict[int, float]) -> Iterator[str]:
    """Yield what was measured, what it makes in the fleet, and what breaks first; `lists` are first pages in ms."""
    # Records come at random: a shipper sends a batch after each 2 s in which there was one.
    waiting = LIVE_A_NODE * EVERY_S / RECORD_EVERY_S
    most = max(lists)
    rates = {
        "batch": ("insert and commit of one record", NODES / EVERY_S * (1 - math.exp(-waiting))),
        "report": (f"report of {LIVE_A_NODE} live runs", NODES / REPORT_S),
        "page": ("page of a live run", PAGES / PAGE_EVERY_S),
        "list": (f"first page of {most:,} runs", LISTS / PAGE_EVERY_S),
    }
    found = {**found, "list": lists[most]}
    cores = {name: rate * found[name] / 1e3 for name, (_, rate) in rates.items()}
    yield f"{'':34}{'measured':>10}{'in the fleet':>16}{'cores':>8}"
    for name, (text, rate) in rates.items():
        yield f"{text:34}{found[name]:>7.1f} ms{rate:>14,.0f}/s{cores[name]:>8.1f}"
    yield f"{'in sum':60}{sum(cores.values()):>8.1f}"
    records = NODES * LIVE_A_NODE / RECORD_EVERY_S
    disk = records * DAY_S * found["bytes"]
    nodes = NODES * (CORES - cores["page"] - cores["list"]) / (cores["batch"] + cores["report"])
    # The cost of the list grows in a straight line between the two largest sizes.
    (small, one), (large, two) = sorted(lists.items())[-2:]
    slow = large + max(0.0, LIST_MOST_MS - two) / max((two - one) / (large - small), 1e-12)
    yield f"measured: {found['batch_rate']:.0f} such inserts/s here, at most {found['parts']:.0f} parts in a partition"
    yield f"computed, 1. processor: {CORES} cores are full at {nodes:,.0f} nodes"
    yield (
        f"computed, 2. list: after {slow / RUNS_A_DAY:,.0f} days, at {slow:,.0f} runs, its first page takes "
        f"{LIST_MOST_MS / 1e3:g} s of processor"
    )
    yield (
        f"computed, 3. disk: {found['bytes']:.0f} B a record are {disk / 1e9:.1f} GB a day; {DISK_TB} TB are full "
        f"after {DISK_TB * 1e12 / disk:,.0f} days"
    )
    first = "processor" if nodes < NODES else "list" if slow / RUNS_A_DAY < DISK_TB * 1e12 / disk else "disk"
    yield f"breaks first: {first}"
    yield (
        f"computed: sent once, at its end, a run of {RECORDS_OF_A_RUN:.0f} records takes {found['run']:.0f} ms, in sum "
        f"{found['run'] * RUNS_A_DAY / 1e3 / DAY_S:.1f} cores instead of {cores['batch']:.1f}"
    )


def main(arguments: list[str]) -> None:
    """Measure and print the lines."""
    parser = argparse.ArgumentParser(description="1,000 nodes, 100,000 runs a day: what breaks first.")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each measurement (default: 20)")
    parser.add_argument("--runs", type=int, nargs="+", default=[12_000, 200_000], help="sizes of the list")
    chosen = parser.parse_args(arguments)
    pages = [one for one in fleet_lists.measure(tuple(chosen.runs)) if one.question.startswith("first page,")]
    print("\n".join(lines(measure(chosen.seconds), {one.runs: one.engine_ms for one in pages})))


if __name__ == "__main__":
    main(sys.argv[1:])
