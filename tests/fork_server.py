"""Python processes by fork from one that has the logger imported: some milliseconds each instead of a start.

The server itself never makes a logger, so what it forks is as clean as a new interpreter. What a new interpreter does
first (flags, `PYTHON...` variables, imports) is not tried by a fork; a test of that starts one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.lengths import is_long
from tests.waiting import TIME_TO_CLOSE_S

ROOT = Path(__file__).parents[1]

_LONGEST_ORDER = 1 << 20

_USUAL_RUN = """
import json, sys
from toolkit.telemetry import TelemetryLogger
with TelemetryLogger("run", log_dir=sys.argv[1], log_every=1) as log:
    log.log_start()
    log.log_step(0, train_loss=1.0)
print(json.dumps(sorted(name for name in sys.modules if name != "__main__")))
"""


# ---------------------------------------------------------------- what tests call


A_RUN = ("toolkit.telemetry",)
A_TRAINING = (*A_RUN, "torch.distributed", "torch.utils.data", "torch.optim")
A_DASHBOARD = ("tests.dashboard.warm_server",)


def start_python(
    arguments: list[object], imported: tuple[str, ...] = A_RUN, *, always_fork: bool = False, **how: Any
) -> subprocess.Popen[Any]:
    """Do what `subprocess.Popen([sys.executable, *arguments], **how)` does; the only flags are `-c` and `-m`.

    It is forked from a process that has `imported` all that.
    It is started under `make faults`, unless `always_fork`, and where its environment has something that only a new
    interpreter sees.
    """
    if (is_long() and not always_fork) or _seen_at_the_start(how.get("env") or {}):
        return subprocess.Popen([sys.executable, *map(str, arguments)], **how)
    return _server(imported).fork([str(argument) for argument in arguments], **how)


def run_python(
    arguments: list[object],
    imported: tuple[str, ...] = A_RUN,
    *,
    timeout: float = 200.0,
    check: bool = False,
    capture_output: bool = False,
    **how: Any,
) -> subprocess.CompletedProcess[Any]:
    """Do what `subprocess.run([sys.executable, *arguments], **how)` does, by fork as `start_python`."""
    if capture_output:
        how.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with start_python(arguments, imported, **how) as process:
        try:
            said = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    ended = subprocess.CompletedProcess(arguments, process.returncode, *said)
    if check:
        ended.check_returncode()
    return ended


def _seen_at_the_start(env: dict[str, str]) -> bool:
    for name in env:
        if name.startswith(("PYTHON", "LD_", "OMP_", "MALLOC_")):
            before, after = ({*places.get(name, "").split(os.pathsep)} for places in (os.environ, env))
            if after - before - {str(ROOT)}:
                return True
    return False


class Forked(subprocess.Popen[Any]):
    """A process that the server forked: all that Popen can do, but for what only a start can."""

    def __init__(self, orders: socket.socket, arguments: list[str], **how: Any) -> None:
        self._orders = orders
        self._ended = -1
        super().__init__(arguments, **how)

    def _execute_child(self, args: Any, *how: Any) -> None:
        cwd, env, pipes = how[4], how[5], how[9:15]
        status, its_status = os.pipe()
        # Ends that were not asked for are those of this process.
        ends = [
            end if end != -1 else own
            for end, own in zip(pipes[::2][:1] + pipes[3::2], (0, 1, 2), strict=True)
        ]
        order = {
            "argv": args,
            "cwd": str(cwd or os.getcwd()),
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in (env or os.environ).items()},
        }
        socket.send_fds(self._orders, [json.dumps(order).encode()], [*ends, its_status])
        os.close(its_status)
        self._ended = status
        self.pid = struct.unpack("i", _read(status))[0]
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG:
            ready = select.poll()
            ready.register(self._ended, select.POLLIN | select.POLLHUP)
            if not ready.poll(0):
                return 0, 0
        status = struct.unpack("i", _read(self._ended))[0]
        os.close(self._ended)
        return self.pid, status

    def _internal_poll(self, _deadstate: Any = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _read(descriptor: int) -> bytes:
    read = os.read(descriptor, 4)
    assert len(read) == 4, "the fork server is gone"
    return read


class ForkServer:
    """A process that forks others which run a script."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._orders, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_end:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", "import tests.fork_server; tests.fork_server.serve()"),
                    *(str(its_end.fileno()), *modules),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[its_end.fileno()],
            )
        assert self._orders.recv(5) == b"ready"

    def fork(self, arguments: list[str], **how: Any) -> Forked:
        """Fork a process that runs a script with arguments."""
        return Forked(self._orders, arguments, **how)


@functools.cache
def _server(modules: tuple[str, ...]) -> ForkServer:
    # It ends by itself when this process does.
    return ForkServer(modules)


# ---------------------------------------------------------------- the server


def serve() -> None:
    """Fork a process for each order, until whoever gives them is gone; in that process, run its script."""
    number, *modules = sys.argv[1:]
    for name in modules:
        _import(name)
    if "toolkit.telemetry.logger.machine.environment" in sys.modules:
        from tests.leftovers import recover_only_runs_below
        from toolkit.telemetry.logger.options import TelemetryOptions

        recover_only_runs_below()
        TelemetryOptions.__init__.__kwdefaults__["close_timeout"] = TIME_TO_CLOSE_S
    gc.freeze()
    # Nobody waits for those that wait.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=int(number)) as orders:
        orders.send(b"ready")
        while True:
            order, descriptors, _, _ = socket.recv_fds(orders, _LONGEST_ORDER, 4)
            if not order:
                return
            if not os.fork():
                break
            for descriptor in descriptors:
                os.close(descriptor)
    *ends, status = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        _report_end(pid, status, ends)
    os.close(status)
    _run(json.loads(order), ends)


def _import(name: str) -> None:
    importlib.import_module(name)
    if name in A_RUN:
        # A run imports much of itself when it begins.
        with tempfile.TemporaryDirectory() as folder:
            said = subprocess.check_output(
                [sys.executable, "-c", _USUAL_RUN, folder], stderr=subprocess.DEVNULL
            )
        for needed in json.loads(said.splitlines()[-1]):
            with contextlib.suppress(ImportError):
                importlib.import_module(needed)


def _report_end(pid: int, status: int, ends: list[int]) -> None:
    """Wait for the process that runs the script, as only its parent can, and say how it ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    for end in {*ends, 0, 1, 2}:
        os.close(end)
    os.write(status, struct.pack("i", pid))
    with contextlib.suppress(BrokenPipeError):
        os.write(status, struct.pack("i", os.waitpid(pid, 0)[1]))
    os._exit(0)


def _run(order: dict[str, Any], ends: list[int]) -> None:
    """Run a script as `python SCRIPT` does: no frame of ours is in its tracebacks, and it ends the same way."""
    for number, end in enumerate(ends):
        os.dup2(end, number)
    for end in set(ends) - {0, 1, 2}:
        os.close(end)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        # Those of the server remember what it was started with: whether one can seek in it, for one.
        how = {"mode": "r" if name == "stdin" else "w", "buffering": 1 if name == "stderr" else -1}
        before = getattr(sys, name)
        stream = open(number, encoding=before.encoding, errors=before.errors, closefd=False, **how)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    vars(sys.modules["__main__"]).pop("tests", None)
    first, *rest = order["argv"]
    if first in ("-c", "-m"):
        source, sys.path[0] = rest[0], ""
        sys.argv = [first, *rest[1:]]
        if first == "-m":
            source = f"import runpy; runpy._run_module_as_main({source!r})"
        failed = ctypes.pythonapi.PyRun_SimpleStringFlags(source.encode(), None)
    else:
        sys.argv = order["argv"]
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        file = ctypes.c_void_p(libc.fopen(os.fsencode(first), b"rb"))
        assert file, f"no script {first}"
        failed = ctypes.pythonapi.PyRun_SimpleFileExFlags(file, os.fsencode(first), 1, None)
    if failed and getattr(sys, "last_type", None) is not KeyboardInterrupt:
        sys.exit(1)
