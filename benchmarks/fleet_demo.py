"""A whole fleet on this machine, until Ctrl-C (`make fleet`).

A ClickHouse cluster of two shards, two nodes with a log directory and a `telemetry ship` each, 200 runs of the real
logger, one training that runs now, and the dashboard on the cluster.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.child import ROOT
from dashboard.access.access_options import without_tokens
from dashboard.launcher import (
    LaunchError,
    LaunchOptions,
    PreparedDashboard,
    exit_on_signals,
    open_browser,
    prepare,
    raise_exit_on_signals,
    startup_message,
    wait_for_page_threads,
)
from dashboard.settings import DashboardSettings, EngineSettings
from tests.fleet.engines import Cluster, NoEngine
from toolkit.fleet.schema import set_up

CONFIG = ROOT / "config" / "examples" / "train_lora_tiny_cpu_with_telemetry.yaml"
NODES = ("node-1", "node-2")
_END_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Start everything, serve the pages until Ctrl-C or SIGTERM, and end everything."""
    parser = argparse.ArgumentParser(prog="make fleet", description="A whole fleet on this machine.")
    parser.add_argument("--runs", type=int, default=200, help="runs that are logged (default: 200)")
    parser.add_argument(
        "--port", type=int, help="port of the dashboard (default: 8501, or the next free one)"
    )
    parser.add_argument("--no-training", action="store_true", help="without the training that runs now")
    chosen = parser.parse_args(argv)
    exit_on_signals()
    # Takes seconds to import, and a signal may not be raised inside an import.
    import dashboard.server  # noqa: F401

    raise_exit_on_signals()
    with ExitStack() as ended:
        folder = Path(tempfile.mkdtemp(prefix="telemetry-fleet-"))
        ended.callback(shutil.rmtree, folder, ignore_errors=True)
        demo = Demo(folder, ended)
        try:
            prepared = demo.start(chosen.port)
        except (NoEngine, LaunchError) as error:
            print(f"make fleet: {error}", file=sys.stderr)
            return 1
        demo.serve(prepared, runs=chosen.runs, trains=not chosen.no_training)
        # The folders go once nothing writes into them.
    wait_for_page_threads()
    return 0


class Demo:
    """The processes of a fleet; `ended` ends each of them, the last started first."""

    def __init__(self, folder: Path, ended: ExitStack) -> None:
        self.folder = folder
        self._ended = ended
        self._address = ""

    def start(self, port: int | None) -> PreparedDashboard:
        """Start the cluster and the shippers; return the dashboard, which listens.

        Raises:
            NoEngine: there is no ClickHouse, and it cannot be installed.
            LaunchError: the dashboard cannot start.
        """
        print("Starting a ClickHouse cluster of two shards …", flush=True)
        cluster = Cluster(
            self.folder / "engine", name="server" if os.environ.get("CLICKHOUSE_BIN") else "18.16"
        )
        self._ended.callback(cluster.stop)
        cluster.start()
        address = cluster.address()
        set_up(address, cluster.cluster)
        hosts = ",".join(f"{host}:{number}" for host, number in address.hosts)
        self._address = f"clickhouse://{hosts}/{address.database}"
        shared = self.folder / "shared"
        shared.mkdir()
        key = self.folder / "control.key"
        # The folder is the user's alone, and so is the file.
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_hex(32).encode())
        ship = ("-m", "toolkit.cli", "ship", "logs", "--to", self._address)
        more = ("--objects", shared.as_uri(), "--deliver-requests", str(key))
        for node in NODES:
            (self.folder / node / "logs").mkdir(parents=True)
            self._run(node, *ship, *more)
        engine = EngineSettings(url=self._address, objects=shared.as_uri(), request_key=key)
        settings = DashboardSettings(engine=engine)
        return prepare(LaunchOptions(settings=settings, port=port))

    def serve(self, prepared: PreparedDashboard, *, runs: int, trains: bool) -> None:
        """Log `runs` runs, train, and serve pages until a signal."""
        has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        stop = "Ctrl-C stops everything." if has_terminal else f"To stop: kill {os.getpid()}"

        def begin() -> None:
            print(startup_message(prepared, stop))
            print(self._where_to_look(runs, trains=trains), flush=True)
            half = runs // len(NODES)
            parts = [(0, half), (half, runs - half)]
            loggers = [
                self._run(node, "-m", "benchmarks.fleet_runs", "logs", str(first), str(count))
                for node, (first, count) in zip(NODES, parts, strict=True)
            ]
            if trains:
                self._run(NODES[0], str(ROOT / "run.py"), str(self._long_training()), stop_with=signal.SIGINT)
            threading.Thread(target=self._say_when_logged, args=(loggers, runs), daemon=True).start()
            if has_terminal and prepared.opens_without_token:
                open_browser(prepared.listener.url)

        prepared.server.serve_until_stopped(on_ready=begin, on_signal=lambda _number: prepared.server.stop())
        print("Stopping the training, the shippers and the cluster …", flush=True)

    def _long_training(self) -> Path:
        """Return the example's configuration with steps for hours: it is there to be watched and stopped."""
        path = self.folder / NODES[0] / CONFIG.name
        path.write_text(
            CONFIG.read_text("utf-8").replace("steps: 500\n", "steps: 100000\n"), encoding="utf-8"
        )
        return path

    def _where_to_look(self, runs: int, *, trains: bool) -> str:
        now = ", and a training is running on node-1" if trains else ""
        return "\n".join(
            [
                f"  {runs} runs are being logged{now}; they appear within seconds.",
                f"  engine   {self._address}",
                *(f"  {node}   {self.folder / node / 'logs'}, output in {node}/out" for node in NODES),
                f"  a folder back:   telemetry pull sweep-00007 --from {self._address} --to pulled",
                f"  how far behind:  telemetry ship --status {self.folder}/node-*/logs --to {self._address}",
            ]
        )

    def _say_when_logged(self, loggers: list[subprocess.Popen[bytes]], runs: int) -> None:
        codes = [logger.wait() for logger in loggers]
        if not any(codes):
            print(f"All {runs} runs are logged.", flush=True)

    def _run(
        self, node: str, *arguments: str, stop_with: signal.Signals = signal.SIGTERM
    ) -> subprocess.Popen[bytes]:
        place = self.folder / node
        with (place / "out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=place,
                env={
                    **without_tokens(os.environ),
                    "TELEMETRY_NODE": node,
                    "PYTHONPATH": str(ROOT),
                    "TMPDIR": str(self.folder),
                },
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches this process alone, which ends the others in order.
                start_new_session=True,
            )
        self._ended.callback(_end, process, stop_with)
        return process


def _end(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(number)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
