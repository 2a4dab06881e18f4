"""Run everything that reads a run folder in one process: each command, and each query of a page.

`python -m tests.attacks.entry_points ROOT OUT` looks at every run below ROOT that way, each under an alarm, and
leaves in OUT, as JSON, what came of it: unexpected errors, how long it took, and how much memory.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fork_server import start_python
from tests.lengths import longer

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Report:
    """The result of running every entry point."""

    looked: int
    """How many times an entry point was run."""
    broken: dict[str, str]
    """The entry point with its run, and the traceback or `hung`."""
    said: str
    """Everything printed, and everything the store returned, as text."""
    slowest: tuple[str, float]
    peak_mb: float
    code: int
    errors: str


def look_at_all(
    root: Path,
    *,
    room: Path,
    limit_s: float = 60.0,
    memory: int | None = None,
    only: str = "",
    timeout_s: float | None = None,
) -> Report:
    """Run every entry point with the runs below `root` in a child process; commands write to `room`.

    `memory` bounds the child's address space, beyond what the libraries themselves take.
    """
    room.mkdir(exist_ok=True)
    out = room / f"report-{os.urandom(4).hex()}.json"
    # The libraries start a thread for each core, and each of those reserves address space.
    quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_NUM_THREADS"), "1")
    # Arrow's own allocator reserves a gigabyte of it at its first use.
    quiet["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    child = start_python(
        ["-m", "tests.attacks.entry_points", root, out, str(limit_s), str(memory or 0), only],
        cwd=room,
        env={**os.environ, **quiet, "PYTHONPATH": str(ROOT), "HOME": str(room), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        _, errors = child.communicate(timeout=timeout_s or longer(220.0, 3000.0))
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise
    found = json.loads(out.read_text()) if out.exists() else {"broken": {"the child": errors}}
    return Report(
        looked=found.get("looked", 0),
        broken=found["broken"],
        said=found.get("said", ""),
        slowest=tuple(found.get("slowest", ("", 0.0))),
        peak_mb=found.get("peak_mb", 0.0),
        code=child.returncode,
        errors=errors,
    )


# ---------------------------------------------------------------- in the child


class Hung(BaseException):
    """An entry point did not return."""


def commands(run: Path, room: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield a name and the arguments of each command that is given `run`."""
    to = room / os.urandom(6).hex()
    yield "show", ["show", str(run)]
    for words in (["doctor"], ["time"], ["show", "--errors"]):
        yield " ".join(words), [*words, str(run)]
        yield f"{' '.join(words)} --json", [*words, "--json", str(run)]
    yield "time --spans", ["time", "--spans", str(run)]
    yield "logs", ["logs", "--grep", "o", str(run)]
    yield "show --completions", ["show", "--completions", "--full", str(run)]
    yield "show --completions --json", ["show", "--completions", "--json", str(run)]
    yield "setup usage", ["setup", "usage", str(run)]
    yield "setup message", ["setup", "message", "--show", str(run)]
    yield "export --to zip --preview", ["export", "--to", "zip", "--preview", str(run)]
    yield "export --to zip", ["export", "--to", "zip", str(run), "-o", f"{to}.zip"]
    yield "export --to trace", ["export", "--to", "trace", str(run), "-o", f"{to}.json"]
    yield "status", ["status", str(run)]
    yield "repair", ["repair", str(run)]


def questions(store: Any, key: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a name and a call for each query that a page makes about a run."""
    from toolkit.telemetry.runfolder.labels import Labels
    from toolkit.telemetry.runs import spans
    from toolkit.telemetry.runs.completions import CompletionQuery

    def curves() -> Any:
        names = [metric.name for metric in store.metrics(key)][:60]
        odd = [store.series(key, name, axis=axis) for name in names for axis in ("step", "time", "epoch")]
        return [odd, [store.recent(key, name, 50) for name in names], store.table(key, names[:20])]

    def files() -> Any:
        found = [store.events(key, limit=2000)]
        paths = {str(value) for record in found[0] for name, value in record.items() if "path" in str(name)}
        for path in [*sorted(paths)[:50], *NAMES_THAT_LEAD_OUT]:
            with contextlib.suppress(*expected()):
                found.append(store.read_file(key, path, max_bytes=1_000_000))
        return found

    def completions() -> Any:
        reader = store.completions(key)
        found = reader.find(CompletionQuery(), wait_s=30.0)
        return [found, [reader.siblings(one) for one in found.rows[:5]]]

    yield "card", lambda: store.card(key)
    yield "trends", lambda: store.trends([key])
    yield "refresh", lambda: store.refresh(key, wait_s=30.0)
    yield "meta", lambda: store.meta(key)
    yield "curves", curves
    yield "sessions", lambda: [store.sessions(key), store.manifest_sessions(key), store.count_events(key)]
    yield "events", lambda: store.events(key)
    yield "spans", lambda: spans.totals(store.spans(key))
    yield "completions page", completions
    yield "trace page", lambda: sum(map(len, store.trace(key)))
    yield "examine", lambda: [store.examine(key, wait_s=30.0), store.findings(key)]
    yield "time spent", lambda: store.time_spent(key, wait_s=30.0)
    yield "ranks", lambda: [store.refresh(key, rank=rank).records for rank in store.ranks(key)[:4]]
    yield "rank grid", lambda: store.rank_grid(key, "sec_per_step", wait_s=30.0).slowest()
    # As much as a page offers for download.
    yield "records", lambda: sum(map(len, itertools.islice(store.record_lines(key), 500)))
    yield "files", files
    yield "ask", lambda: store.ask(key, {"log_every": 7})
    yield "label", lambda: store.label(key, Labels(notes="seen"))
    yield "delete", lambda: store.restore(store.delete(key))


NAMES_THAT_LEAD_OUT = (
    "../secret",
    "../../secret",
    "/etc/hostname",
    "samples/../../secret",
    "samples/0.png",
    "samples/../../../etc/hostname",
    "..\\secret",
    "\\\\host\\share\\x",
    "C:\\secret",
    "//host/share",
    "file:///etc/hostname",
    "~/secret",
    "/proc/self/environ",
    "a\0b",
    "",
    ".",
    "..",
    "CON",
    "x" * 5000,
    "a/" * 2000,
    "\udcff",
)


def expected() -> tuple[type[Exception], ...]:
    """Return the exceptions that the store promises to raise when it refuses."""
    from toolkit.telemetry.runs.store import Refused, UnknownRun

    return Refused, UnknownRun


def main(root: Path, out: Path, limit_s: float, memory: int, only: str) -> None:
    """Run every entry point with every run below `root`."""
    from toolkit.telemetry.cli.main import main as telemetry
    from toolkit.telemetry.runs.sources.local_store import LocalStore

    walk = _Walk(limit_s)
    with contextlib.suppress(ModuleNotFoundError):
        import pandas as pd  # noqa: F401 - before memory is bounded: it takes much itself
        import yaml  # noqa: F401
    if memory:
        # Libraries that are already mapped count too.
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + memory, mapped + memory))
    room = Path.cwd()
    names = sorted(name for name in os.listdir(root) if not name.startswith("."))
    if "commands" in only or not only:
        for name in names:
            for command, arguments in commands(root / name, room):
                walk.take(f"{command}: {name!a}", lambda arguments=arguments: telemetry(arguments))
        for command in ("show", "doctor", "time"):
            walk.take(f"{command}: of all", lambda command=command: telemetry([command, str(root)]))
    if "store" in only or not only:
        store = LocalStore([root], cache_dir=room / "cache")
        walk.take("list: all", store.list_runs)
        for card in store.list_runs().cards:
            for question, ask in questions(store, card.key):
                walk.take(f"{question}: {card.key!a}", ask)
        for key in NAMES_THAT_LEAD_OUT:
            walk.take(f"unknown: {key[:50]!a}", lambda key=key: store.meta(key))
        walk.take("trash", lambda: [store.trash(), store.empty_trash()])
        store.wait_until_saved(10.0)
        walk.take("again: all", LocalStore([root], cache_dir=room / "cache").list_runs)
    out.write_text(
        json.dumps(
            {
                "looked": walk.looked,
                "broken": walk.broken,
                "said": walk.said.getvalue(),
                "slowest": walk.slowest,
                "peak_mb": peak_mb(),
            }
        )
    )


def peak_mb() -> float:
    """Return the peak memory of this process; getrusage would include its parent's."""
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


class _Walk:
    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.looked = 0
        self.broken: dict[str, str] = {}
        self.said = io.StringIO()
        self.slowest = ("", 0.0)
        signal.signal(signal.SIGALRM, self._ring)

    def take(self, entrance: str, call: Callable[[], Any]) -> None:
        self.looked += 1
        began = time.monotonic()
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
        try:
            signal.setitimer(signal.ITIMER_REAL, self.limit_s)
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                given = call()
        except expected():
            given = None
        except (Exception, Hung, SystemExit) as error:  # noqa: BLE001 - unexpected errors are what is looked for
            given = None
            what = "hung at\n" if isinstance(error, Hung) else ""
            self.broken[entrance] = what + traceback.format_exc(limit=-4)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        printed.flush()
        self.said.write(printed.buffer.getvalue().decode("utf-8", "backslashreplace"))
        self.said.write(f"\n{str(given)[:20_000]!a}\n")
        took = time.monotonic() - began
        if took > self.slowest[1]:
            self.slowest = (entrance, took)

    def _ring(self, *_: object) -> None:
        raise Hung


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
