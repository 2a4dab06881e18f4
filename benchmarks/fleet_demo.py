"""A whole fleet on this machine, until Ctrl-C (`make fleet`).

ClickHouse inside a process (chdb), two nodes with a log directory and a `telemetry ship` each, 200 runs of the real
logger, one training that runs now, and the dashboard on the engine.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.child import ROOT
from benchmarks.fleet_server import NoEngineError, Server
from dashboard.access.access_options import READER_TOKEN_VARIABLE, TOKEN_VARIABLE
from dashboard.access.tokens import AccessTokens
from dashboard.launcher import (
    LaunchError,
    PreparedDashboard,
    exit_on_signals,
    open_browser,
    parse_options,
    prepare,
    raise_exit_on_signals,
    startup_message,
    wait_for_page_threads,
)
from toolkit.telemetry.fleet.address import Address
from toolkit.telemetry.fleet.engine import Engine, EngineError
from toolkit.telemetry.fleet.schema import set_up

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
        except (NoEngineError, LaunchError) as error:
            print(f"make fleet: {error}", file=sys.stderr)
            return 1
        demo.serve(prepared, chosen.runs)
        # The folders go once nothing writes into them.
    wait_for_page_threads()
    return 0


class Demo:
    """The processes of a fleet; `ended` ends each of them, the last started first."""

    def __init__(self, folder: Path, ended: ExitStack) -> None:
        self.folder = folder
        self._ended = ended
        self._options = folder / "fleet.toml"
        self._address: Address

    def start(self, port: int | None) -> PreparedDashboard:
        """Start the engine and the shippers; return the dashboard, which listens.

        Raises:
            NoEngineError: there is no such ClickHouse, and it cannot be installed.
            LaunchError: the dashboard cannot start.
        """
        print("Starting ClickHouse 26.9, embedded …", flush=True)
        engine = Server(self.folder / "engine")
        self._ended.callback(engine.stop)
        engine.start()
        self._address = engine.address()
        set_up(self._address)
        shared = self.folder / "shared"
        shared.mkdir()
        self._options.write_text(
            f'engine = "{self._address}"\nobjects = "{shared.as_uri()}"\n'
            f"folders = {[f'{node}/logs' for node in NODES]}\ndeliver-requests = true\n"
        )
        for node in NODES:
            (self.folder / node / "logs").mkdir(parents=True)
            ship = ("-m", "toolkit.telemetry.cli", "ship", "logs", "--config", str(self._options))
            self._run(node, *ship)
        which = () if port is None else ("--port", str(port))
        return prepare(parse_options(["--config", str(self._options), *which]))

    def serve(self, prepared: PreparedDashboard, runs: int) -> None:
        """Log `runs` runs, train, and serve pages until a signal."""
        has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        stop = "Ctrl-C stops everything." if has_terminal else f"To stop: kill {os.getpid()}"

        def begin() -> None:
            print(startup_message(prepared, stop))
            print(
                f"  {runs} runs are being logged, and a training is running on node-1; they appear in seconds."
            )
            print(f"  engine   {self._address}")
            for node in NODES:
                print(f"  {node}   {self.folder / node / 'logs'}, output in {node}/out", flush=True)
            half = runs // 2
            loggers = [
                self._run(node, "-m", "benchmarks.fleet_runs", "logs", str(first), str(count))
                for node, first, count in zip(NODES, (0, half), (half, runs - half), strict=True)
            ]
            # The example with steps for hours: it is there to be watched and stopped.
            training = self.folder / NODES[0] / CONFIG.name
            training.write_text(CONFIG.read_text("utf-8").replace("steps: 500\n", "steps: 100000\n"), "utf-8")
            self._run(NODES[0], str(ROOT / "run.py"), str(training), stop_with=signal.SIGINT)
            threading.Thread(target=self._say_when_shipped, args=(loggers, runs), daemon=True).start()
            if has_terminal and not isinstance(prepared.access, AccessTokens):
                open_browser(prepared.listener.url)

        prepared.server.serve_until_stopped(on_ready=begin)
        print("Stopping the training, the shippers and the engine …", flush=True)

    def _say_when_shipped(self, loggers: list[subprocess.Popen[bytes]], runs: int) -> None:
        codes = [logger.wait() for logger in loggers]
        if any(codes):
            return
        engine = Engine(self._address)
        shipped = "SELECT uniqExact(run_id) FROM runs WHERE status NOT IN ('running', 'starting')"
        try:
            while int(engine.query(shipped)) < runs:
                time.sleep(1.0)
        except EngineError:
            # It was stopped meanwhile.
            return
        telemetry = shlex.quote(str(Path(sys.executable).with_name("telemetry")))
        options, pulled = (
            f"--config {shlex.quote(str(self._options))}",
            shlex.quote(str(self.folder / "pulled")),
        )
        print(
            f"All {runs} runs are in the engine. In another terminal:",
            f"  {telemetry} ship --status {options}",
            f"  {telemetry} copy sweep-00007 {options} --to {pulled}",
            f"  {telemetry} show {pulled}/sweep-00007",
            sep="\n",
            flush=True,
        )

    def _run(
        self, node: str, *arguments: str, stop_with: signal.Signals = signal.SIGTERM
    ) -> subprocess.Popen[bytes]:
        place = self.folder / node
        tokens = (TOKEN_VARIABLE, READER_TOKEN_VARIABLE)
        with (place / "out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=place,
                env={
                    **{name: value for name, value in os.environ.items() if name not in tokens},
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
