"""Run one measurement in its own process and return its result through a file."""

from __future__ import annotations

import compileall
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def measure_in_child(function: Callable[..., Any], /, *args: Any, timeout_s: float = 900.0) -> Any:
    """Call `function(folder, *args)` in a fresh interpreter and return its result.

    `folder` is a new, empty folder that is removed afterwards; arguments and result pass through JSON.
    The function must be at the top level of a module under `benchmarks`.

    Raises:
        RuntimeError: the child failed or returned nothing.
    """
    _compile_once()
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as name:
        answer = Path(name) / "answer.json"
        work = Path(name) / "work"
        work.mkdir()
        command = [sys.executable, "-m", "benchmarks.child", f"{_module_of(function)}:{function.__name__}"]
        finished = subprocess.run(
            [*command, str(work), str(answer), json.dumps(args)],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if finished.returncode != 0 or not answer.exists():
            end = finished.stderr[-2000:]
            raise RuntimeError(f"{command[-1]}{args} ended with {finished.returncode}:\n{end}")
        return json.loads(answer.read_text(encoding="utf-8"))


@functools.cache
def _compile_once() -> None:
    """Write our byte code: an installed package has it, and a child that compiles would be charged with that."""
    compileall.compile_dir(ROOT / "toolkit", quiet=2)
    compileall.compile_dir(ROOT / "benchmarks", quiet=2)


def _module_of(function: Callable[..., Any]) -> str:
    # Started with `python -m benchmarks.x`, the module's name is __main__.
    spec = sys.modules[function.__module__].__spec__
    return spec.name if spec is not None else function.__module__


def _main() -> None:
    target, folder, answer, args = sys.argv[1:]
    module, name = target.split(":")
    result = getattr(importlib.import_module(module), name)(Path(folder), *json.loads(args))
    Path(answer).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    _main()
