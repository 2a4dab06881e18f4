"""Functions of ours that raise on demand, found by watching which of them a piece of work reaches."""

from __future__ import annotations

import dis
import gc
import inspect
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType

import toolkit.telemetry

_OURS = os.path.dirname(toolkit.telemetry.__file__) + os.sep

_NEVER = re.compile(
    # The guard cannot guard itself, and neither can a block around the training's own code.
    r"core/guard\.py .*|logger/errors/capture\.py .*|logger/logger_internals\.py is_live"
    # Options are checked when a logger is made, and a mistake in them is raised.
    r"|logger/options/.*|(core|mirrors)/.*(checks|fields|options|toggle_block)\.py .*"
    r"|mirrors/registry\.py <lambda>|runfolder/untrusted\.py is_number"
    # What a logger begins with, before it can fail: empty lists and a lock. And a guarded block with nothing around it.
    r"|(core/lifetime|logger/records/folded_metrics|logger/records/step_gate)\.py __init__"
    r"|logger/spans/span\.py event_with"
)


class Failpoint:
    """One function of ours, under every name and in every object that holds it."""

    def __init__(self, code: CodeType, functions: list[FunctionType], *, is_of_training: bool) -> None:
        self.name = f"{code.co_filename.removeprefix(_OURS)}:{code.co_firstlineno} {code.co_name}"
        self.is_of_training = is_of_training
        """Whether the training's own thread gets there; else only threads of ours do."""
        self._code = code
        self._functions = functions

    @contextmanager
    def armed(self, raising: str = "RuntimeError('failpoint')") -> Iterator[None]:
        """Have every call of it raise, wherever it is called from."""
        bad = _raising(self._code, raising)
        for function in self._functions:
            function.__code__ = bad
        try:
            yield
        finally:
            for function in self._functions:
                function.__code__ = self._code


def reached_by(work: Callable[[Callable[[str], None]], object]) -> dict[str, list[Failpoint]]:
    """Return the functions of ours that `work` reaches, by the part of it that reaches them.

    `work` is given a function that takes the name of each part. What it calls itself does not count: a function
    that raises instead of doing anything cannot guard itself.
    """
    part = ""
    reached: dict[CodeType, set[tuple[str, bool]]] = defaultdict(set)
    called_by_the_work: set[CodeType] = set()
    own_thread = threading.get_ident()

    def begin(name: str) -> None:
        nonlocal part
        part = name

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_OURS):
            return
        is_own = threading.get_ident() == own_thread
        reached[code].add((part, is_own))
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename.endswith("contextlib.py"):
            caller = caller.f_back
        is_of_base_class = (
            caller is not None
            and caller.f_code in called_by_the_work
            and (caller.f_code.co_name == code.co_name)
        )
        if is_own and (caller is None or is_of_base_class or not caller.f_code.co_filename.startswith(_OURS)):
            called_by_the_work.add(code)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        work(begin)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    gc.unfreeze()
    functions: dict[CodeType, list[FunctionType]] = defaultdict(list)
    for found in gc.get_objects():
        if type(found) is FunctionType and found.__code__ in reached:
            functions[found.__code__].append(found)
    parts: dict[str, list[Failpoint]] = defaultdict(list)
    for code in sorted(functions, key=lambda code: (code.co_filename, code.co_firstlineno)):
        if code in called_by_the_work or _NEVER.fullmatch(
            f"{code.co_filename.removeprefix(_OURS)} {code.co_name}"
        ):
            continue
        if code.co_name == "__init__" and _only_keeps(code):
            continue
        for name in sorted({name for name, _ in reached[code]}):
            parts[name].append(Failpoint(code, functions[code], is_of_training=(name, True) in reached[code]))
    return dict(parts)


def _only_keeps(code: CodeType) -> bool:
    """Say whether a function does nothing but put its arguments into attributes, in which nothing can fail."""
    return not any(
        instruction.opname.startswith(("CALL", "BINARY", "COMPARE", "LOAD_GLOBAL", "LOAD_ATTR", "GET_ITER"))
        for instruction in dis.get_instructions(code)
    )


def _raising(code: CodeType, raising: str) -> CodeType:
    """Return code that takes what `code` takes, closes over what it does, and raises."""
    made = compile(f"def fail():\n    raise {raising}", code.co_filename, "exec").co_consts[0]
    lazily = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    same = {name: getattr(made, name) for name in ("co_code", "co_consts", "co_names", "co_linetable")}
    if hasattr(made, "co_exceptiontable"):
        same["co_exceptiontable"] = made.co_exceptiontable
    return code.replace(
        **same, co_stacksize=max(code.co_stacksize, made.co_stacksize), co_flags=code.co_flags & ~lazily
    )
