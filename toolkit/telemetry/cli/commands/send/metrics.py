"""`telemetry metrics`: show the runs of this machine to Prometheus."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolkit.telemetry.cli.argument_types import whole
from toolkit.telemetry.cli.chosen_run import CommandError, add_paths_argument, refuse
from toolkit.telemetry.cli.run_list import chosen_run, our_runs
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.runfolder.layout import MANIFEST, METRICS_JSONL
from toolkit.telemetry.runfolder.metrics import metrics_of
from toolkit.telemetry.runfolder.reader import Cursor, read_from
from toolkit.telemetry.runfolder.records import FINDING
from toolkit.telemetry.runfolder.status import LOST
from toolkit.telemetry.runs.store import RunCard

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PORT: Final = 9464
_SHOWN_AFTER_END_S: Final = 24 * 3600.0
_MOST_RUNS: Final = 1_000
_MOST_METRICS: Final = 200
"""Metrics of one run that are shown: each is a series of its own in Prometheus."""
_LONGEST_NAME: Final = 200
_SEVERITIES: Final = ("info", "warning", "critical")
_CLIENT_TIMEOUT_S: Final = 30

_Sample = tuple[str, Mapping[str, str], float]
"""Name, labels and value."""

_HELP: Final = {
    "telemetry_run_step": "The last step of a run.",
    "telemetry_run_heartbeat_timestamp_seconds": "When a run last showed a sign of life.",
    "telemetry_run_age_seconds": "How long ago a run last showed a sign of life.",
    "telemetry_run_status": "1 for the status that a run has.",
    "telemetry_run_live": "1 while a run is running or stalled, 0 after its end.",
    "telemetry_run_lost": "1 if the process of a run is gone and its end was not recorded.",
    "telemetry_run_last_value": "The last value of a metric of rank 0.",
    "telemetry_run_findings_open": "Open findings by severity.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folders, and where the metrics go."""
    add_paths_argument(parser, "folders of runs")
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=whole(0, 65535),
        help=f"where Prometheus scrapes (default: {PORT}; 0 is any free one)",
    )
    parser.add_argument(
        "--host",
        metavar="HOST",
        default="127.0.0.1",
        help="the address to listen on (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--textfile",
        metavar="PATH",
        type=Path,
        help="write them to a file that ends in .prom, for node_exporter's textfile collector; then nothing is served "
        "unless --port is given",
    )
    parser.add_argument(
        "--every", metavar="SECONDS", type=whole(), default=15, help="how often runs are read (default: 15)"
    )
    parser.add_argument("--once", action="store_true", help="with --textfile: write it and end, as for cron")
    parser.epilog = (
        "Runs are shown while they are live and for a day after, the newest 1,000. Nothing is changed. "
        "Exit code: 0; 2 if it cannot be done."
    )


def run(args: argparse.Namespace) -> int:
    """Show the runs until it is stopped; return 2 if that is not possible."""
    if args.once and args.textfile is None:
        return refuse("--once needs --textfile PATH")
    folders = [folder if folder.is_dir() else chosen_run(folder) for folder in args.paths]
    shown, runs = _Exposition(), _Runs(folders)
    shown.show(runs.samples(time.time()))
    if args.textfile is None or (args.port is not None and not args.once):
        port = shown.serve(args.host, PORT if args.port is None else args.port)
        print(f"serving http://{args.host}:{port}/metrics", flush=True)
    while True:
        if args.textfile is not None:
            shown.write(args.textfile)
        if args.once:
            return 0
        time.sleep(args.every)
        shown.show(runs.samples(time.time()))


class _Exposition:
    """Answers every scrape with the newest samples; it reads nothing itself."""

    def __init__(self) -> None:
        """Raise CommandError if prometheus-client is not installed."""
        try:
            import prometheus_client
        except ImportError as error:
            raise CommandError(f"needs prometheus-client: {install_extra('metrics')}") from error
        self._client = prometheus_client
        self._families: list[Metric] = []
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield what is shown now; prometheus-client calls this."""
        yield from self._families

    def show(self, samples: Iterable[_Sample]) -> None:
        """Show these from now on."""
        families: dict[str, Metric] = {}
        for name, labels, value in samples:
            if name not in families:
                families[name] = self._client.Metric(name, _HELP[name], "gauge")
            whole = {key: text.encode("utf-8", "replace").decode() for key, text in labels.items()}
            families[name].add_sample(name, whole, value)
        self._families = [families[name] for name in _HELP if name in families]

    def write(self, path: Path) -> None:
        """Write it to a file, which is replaced as a whole. Raises OSError if that is not possible."""
        self._client.write_to_textfile(str(path), self._registry)

    def serve(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises CommandError if the address is in use or not ours."""
        server: Any
        try:
            server, _ = self._client.start_http_server(port, addr=host, registry=self._registry)
        except OSError as error:
            raise CommandError(f"{host}:{port} cannot be used: {error.strerror or error}") from error
        handler: Any = server.RequestHandlerClass
        # A client that sends nothing is not waited for.
        handler.timeout = _CLIENT_TIMEOUT_S
        return int(server.server_port)


class _Followed:
    """The records of one run, of which each byte is read once."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._cursor = Cursor()
        self.last: dict[str, float] = {}
        self.open_findings: dict[str, Any] = {}

    def read(self) -> None:
        """Read what is new. Raises OSError if that is not possible."""
        while (chunk := read_from(self._log, self._cursor)).cursor != self._cursor:
            self._cursor = chunk.cursor
            if chunk.replaced:
                self.last, self.open_findings = {}, {}
            for record in chunk.records:
                self.last.update(metrics_of(record))
                if record.get("event") == FINDING:
                    # Whoever wrote the file may have put anything there.
                    name = str(record.get("id"))
                    if record.get("state") == "open":
                        self.open_findings[name] = record.get("severity")
                    else:
                        self.open_findings.pop(name, None)


class _Runs:
    """The runs of some folders that are live, or were lately."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._followed: dict[Path, _Followed] = {}

    def samples(self, now: float) -> Iterator[_Sample]:
        """Yield what is shown to Prometheus."""
        cards = dict(pair for path in self._folders for pair in our_runs(path))
        newest = sorted(((_written(folder), folder) for folder in cards), reverse=True)[:_MOST_RUNS]
        folders = [folder for written, folder in newest if now - written < _SHOWN_AFTER_END_S]
        self._followed = {
            folder: self._followed.get(folder) or _Followed(folder / METRICS_JSONL) for folder in folders
        }
        for folder, followed in self._followed.items():
            try:
                followed.read()
            except OSError:
                # A run that is being moved or made; its status says more.
                pass
            yield from _of_run(cards[folder], followed, now)


def _of_run(run: RunCard, followed: _Followed, now: float) -> Iterator[_Sample]:
    labels = {"run": run.name[:_LONGEST_NAME], "folder": run.place}
    yield "telemetry_run_status", {**labels, "status": run.status.name}, 1.0
    yield "telemetry_run_live", labels, float(run.live)
    yield "telemetry_run_lost", labels, float(run.status.name == LOST)
    if run.last_sign is not None:
        yield "telemetry_run_heartbeat_timestamp_seconds", labels, run.last_sign
        yield "telemetry_run_age_seconds", labels, max(0.0, now - run.last_sign)
    if run.step is not None:
        yield "telemetry_run_step", labels, float(run.step)
    values = [pair for pair in followed.last.items() if len(pair[0]) <= _LONGEST_NAME]
    for metric, value in values[:_MOST_METRICS]:
        yield "telemetry_run_last_value", {**labels, "metric": metric}, value
    severities = list(followed.open_findings.values())
    for severity in _SEVERITIES:
        yield "telemetry_run_findings_open", {**labels, "severity": severity}, severities.count(severity)


def _written(folder: Path) -> float:
    try:
        return os.stat(folder / MANIFEST).st_mtime
    except OSError:
        return 0.0
