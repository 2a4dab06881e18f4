"""Whatever a training script hands to whatever method, nothing comes back out of it as an exception."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import inspect
import pathlib
import threading
from collections import UserDict, UserList, UserString, deque, namedtuple

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.evil_values import EndlessList, EndlessMapping, EvilClass
from tests.faults.crash_checks import assert_nothing_is_missing, with_rows
from tests.lengths import in_make_faults, is_long, longer
from tests.records import read_records, with_event
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals

LIVE: list[TelemetryLogger] = []
"""The logger that evil values log to from within."""

ASKED = [
    *("__float__", "__int__", "__index__", "__bool__", "__len__", "__iter__", "__getitem__", "__contains__"),
    *(
        "__repr__",
        "__str__",
        "__format__",
        "__hash__",
        "__eq__",
        "__lt__",
        "__call__",
        "__fspath__",
        "__array__",
    ),
    *("__torch_function__", "keys", "items", "item", "tolist", "detach", "isoformat", "total_seconds"),
]


def _evil(name, does, base=object):
    """Return a class whose instances do `does` whenever they are asked for anything."""
    return type(name, (base,), {asked: lambda self, *_, **__: does(self) for asked in ASKED})


def _raise(error):
    def fail(_):
        raise error

    return fail


def _recurse(self):
    return str(self) + repr(self)


def _log_again(self):
    LIVE[0].log_event("from within")
    LIVE[0].log_step(7, train_loss=0.5)
    raise ValueError("and then it fails")


def _take_the_lock(self):
    with LIVE[0]._run.pipeline.record_queue.lock:
        return 1.0


def _close_a_span(self):
    span = internals(LIVE[0]).current_span()
    if span is not None:
        span.stop()
    return "text"


class EvilAttributes:
    def __getattribute__(self, name):
        raise RuntimeError(name)


class HalfMapping(UserDict):
    def items(self):
        yield "good", 1
        raise RuntimeError("evil")


class HalfList(list):
    def __iter__(self):
        yield 1
        raise RuntimeError("evil")


class LyingInt(int):
    def __int__(self):
        return "no number"

    __index__ = __float__ = __lt__ = __gt__ = __int__


class LyingFloat(float):
    def __float__(self):
        raise RuntimeError

    __lt__ = __gt__ = __le__ = __ge__ = __eq__ = __float__
    __hash__ = None


class Bomb(Exception):
    def __str__(self):
        raise RuntimeError("cannot be described")

    __repr__ = __str__


def in_itself():
    mapping = {"one": 1}
    mapping["again"] = [mapping]
    return mapping


def without_storage():
    tensor = torch.ones(8)
    tensor.untyped_storage().resize_(0)
    return tensor


def changing():
    """Return a mapping that another thread changes all the while, as long as someone holds it."""
    mapping = {f"k{number}": number for number in range(100)}

    def change():
        for number in range(2000):
            mapping[f"more{number % 50}"] = number
            mapping.pop(f"more{(number + 25) % 50}", None)

    threading.Thread(target=change, daemon=True).start()
    return mapping


Pair = namedtuple("Pair", "one other")  # noqa: PYI024

EVIL = {
    "raises": lambda: _evil("Raises", _raise(RuntimeError("evil")))(),
    "has no memory": lambda: _evil("NoMemory", _raise(MemoryError()))(),
    "stops an iteration": lambda: _evil("Stops", _raise(StopIteration()))(),
    "raises what cannot be described": lambda: _evil("Untold", _raise(Bomb()))(),
    "fails an assertion": lambda: _evil("Asserts", _raise(AssertionError()))(),
    "recurses": lambda: _evil("Recurses", _recurse)(),
    "logs again": lambda: _evil("LogsAgain", _log_again)(),
    "takes the lock": lambda: _evil("TakesTheLock", _take_the_lock)(),
    "stops a span": lambda: _evil("StopsASpan", _close_a_span)(),
    "returns itself": lambda: _evil("Itself", lambda self: self)(),
    "returns nothing": lambda: _evil("Nothing", lambda self: None)(),
    "is a text that raises": lambda: _evil("Text", _raise(RuntimeError("evil")), str)("text"),
    "is a list that raises": lambda: _evil("List", _raise(RuntimeError("evil")), list)([1]),
    "is a mapping that raises": lambda: _evil("Mapping", _raise(RuntimeError("evil")), dict)(a=1),
    "is half a mapping": lambda: HalfMapping(a=1),
    "is half a list": lambda: HalfList([1]),
    "has a key that raises": lambda: {Bomb(): 1},
    "has it deep inside": lambda: {"a": {"b": [Bomb()]}},
    "is a number that lies": lambda: LyingInt(3),
    "is a float that raises": lambda: LyingFloat(0.5),
    "has no attributes": EvilAttributes,
    "has no class": EvilClass,
    "is in itself": in_itself,
    "changes meanwhile": changing,
    "is a huge number": lambda: 10**6000,
    "is a long text": lambda: "x" * 2_000_000,
    "is half a character": lambda: "\ud800",
    "has a zero byte": lambda: "a\0b",
    "is a class": lambda: int,
    "is a function": lambda: in_itself,
    "is a module": lambda: inspect,
    "is a generator": lambda: (number for number in range(3)),
    "is a deque": lambda: deque([1], maxlen=1),
    "is a pair": lambda: Pair(1, object()),
    "is a user's text": lambda: UserString("a"),
    "is a user's list": lambda: UserList([1]),
    "is a decimal": lambda: decimal.Decimal("sNaN"),
    "is a date": lambda: datetime.datetime.max,
    "is an exception": lambda: Bomb(),
    "is a lock": lambda: threading.Lock(),
    "is the logger": lambda: LIVE[0],
    "is an array of objects": lambda: np.array(object(), dtype=object),
    "is an array of nothing": lambda: np.array(None),
    "is an array of complex numbers": lambda: np.array([1j]),
    "is an array of records": lambda: np.zeros(1, dtype=[("a", "f4"), ("b", "O")]),
    "is a masked array": lambda: np.ma.masked_array([1.0], mask=[True]),
    "is no time": lambda: np.datetime64("NaT"),
    "is a big array": lambda: np.zeros((1000, 100)),
    "is a complex tensor": lambda: torch.tensor(1j),
    "is a tensor with a graph": lambda: torch.ones(3, requires_grad=True).sum(),
    "is a meta tensor": lambda: torch.empty((), device="meta"),
    "is a sparse tensor": lambda: torch.eye(2).to_sparse(),
    "is a quantised tensor": lambda: torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.quint8),
    "is a tensor of eight bits": lambda: torch.ones(()).to(torch.float8_e5m2),
    "is a tensor of sixteen bits": lambda: torch.ones(1, dtype=torch.bfloat16),
    "is a tensor with gaps": lambda: torch.arange(64.0).reshape(8, 8).t()[::3, ::2],
    "is a conjugate": lambda: torch.tensor([1j]).conj(),
    "is a negative view": lambda: torch.tensor([1j]).conj().imag,
    "is an empty tensor": lambda: torch.zeros(0, 3),
    "is a tensor without storage": without_storage,
    "is a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "is a parameter": lambda: torch.nn.Parameter(torch.ones(1)),
    "is a model": lambda: torch.nn.Linear(1, 1),
    "is a type of numbers": lambda: torch.float8_e4m3fn,
}

if is_long():
    # Twenty thousand names, each looked at for secrets, before it is cut off.
    EVIL["is endless"] = lambda: EndlessMapping(a=1)
    EVIL["is an endless list"] = lambda: EndlessList([1])

evil = st.sampled_from(sorted(EVIL))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5)
    | st.just(pathlib.PurePosixPath("a/b")) | evil.map(lambda name: ("EVIL", name)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
names = st.text(max_size=8).filter(lambda name: name != "self")


def come_true(value):
    """Return `value` with each wish for something evil fulfilled."""
    if type(value) is tuple and len(value) == 2 and value[0] == "EVIL":
        return EVIL[value[1]]()
    if type(value) is dict:
        return {key: come_true(item) for key, item in value.items()}
    if type(value) is list:
        return [come_true(item) for item in value]
    return value


def _in_span(log, span, values, fields):
    with span:
        span.set_all(values[1])
        span.event_with(values[0], fields, values[2])
        span.fail(values[1])
        with contextlib.suppress(TypeError):
            span.set(**fields)
            span.event(values[0], **fields)


METHODS = {
    "log_step": lambda log, v, f: log.log_step(*v, **f),
    "log_start": lambda log, v, f: log.log_start(*v, **f),
    "log_eval": lambda log, v, f: log.log_eval(*v[:2], **f),
    "log_epoch": lambda log, v, f: log.log_epoch(*v[:2], **{"global_step": v[2], **f}),
    "log_checkpoint": lambda log, v, f: log.log_checkpoint(*v[:3], **{"seconds": v[0], **f}),
    "log_sample": lambda log, v, f: log.log_sample(*v[:2], **{"prompt": v[2], **f}),
    "log_completion": lambda log, v, f: log.log_completion(*v, **{"reward": v[0], "chosen": v[1], **f}),
    "log_event": lambda log, v, f: log.log_event(v[0], **f),
    "event_outside_spans": lambda log, v, f: internals(log).event_outside_spans(*v),
    "set_tags": lambda log, v, f: internals(log).set_tags(perf_tag=v[0], session_tag=v[1]),
    "span": lambda log, v, f: _in_span(log, log.span(v[0], **f), v, f),
    "device_span": lambda log, v, f: _in_span(log, log.device_span(v[0], **f), v, f),
    "start_span": lambda log, v, f: log.start_span(v[0], attributes=v[1], start_time=v[2]).stop(v[0], v[1]),
    "timed": lambda log, v, f: log.timed(v[0], **f)(len)([]),
    "profile": lambda log, v, f: log.profile(name=v[0], min_duration_ms=v[1], log_interval=v[2])(len)([]),
    "profile_block": lambda log, v, f: log.profile_block(v[0], min_duration_ms=v[1]).__enter__(),
    "flush": lambda log, v, f: log.flush(0.01),
    "latest_loss": lambda log, v, f: internals(log).latest_loss(),
    "current_span": lambda log, v, f: internals(log).current_span(),
    "close": None,
}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    # The table gets a column for every odd name, and may be far behind at the end.
    with TelemetryLogger("run", log_dir=logs, log_every=1, system=False, close_timeout=120.0) as made:
        LIVE[:] = [made]
        yield made
    LIVE.clear()


tried: dict[str, int] = {}


def method_of(log, name):
    return getattr(log if hasattr(log, name) else internals(log), name)


def call(log, method, values, fields):
    tried[method] = tried.get(method, 0) + 1
    METHODS[method](log, values, fields)


@pytest.mark.parametrize("name", sorted(EVIL))
def test_an_evil_value_handed_to_any_method_in_any_place_raises_nothing(log, name):
    for method in METHODS:
        if METHODS[method] is not None:
            for place in range(3):
                values = [1, {"a": 1}, 0.5]
                values[place] = EVIL[name]()
                call(log, method, values, {"field": EVIL[name]()})
    log.log_event("handed over", before=1, of=name, evil=EVIL[name](), list=[EVIL[name](), 2], after=3)

    assert log.is_live


@in_make_faults
@settings(
    max_examples=longer(15, 2000),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=longer(1, 0) == 1,
)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(sorted(method for method in METHODS if METHODS[method] is not None)),
            st.lists(anything, min_size=3, max_size=3),
            st.dictionaries(names, anything, max_size=2),
        ),
        min_size=5,
        max_size=15,
    )
)
def test_no_combination_of_calls_and_values_raises(log, calls):
    for method, values, fields in calls:
        taken = {name for name in fields if name in inspect.signature(method_of(log, method)).parameters}
        kept = {name: come_true(value) for name, value in fields.items() if name not in taken}
        call(log, method, [come_true(value) for value in values], kept)

    assert log.is_live


def test_the_run_is_whole_after_all_that_and_says_what_it_could_not_take(log, record_property):
    log.log_step(10**9, train_loss=0.25)
    log.log_event("after it all")
    log.close()
    calls = sum(tried.values())

    record_property(
        "measured", f"{calls:,} calls of {len(tried)} methods, {len(EVIL)} evil kinds of values, 0 raised"
    )
    records = read_records(log.run_folder, of_any_type=True)
    assert_nothing_is_missing(records)
    # An event may be called `=1`, which is in the table as text.
    assert pd.read_csv(log.run_folder / "metrics.csv", low_memory=False)["seq"].tolist() == [
        record["seq"] for record in with_rows(log.run_folder, records)
    ]
    assert calls > 1000
    assert with_event(records, "after it all")
    handed_over = with_event(records, "handed over")
    # A value loses no more than itself.
    assert {record["of"] for record in handed_over} == set(EVIL)
    assert {(record["before"], record["after"]) for record in handed_over} == {(1, 3)}
    assert with_event(records, "end")[0]["telemetry_errors"] == log.guard.total > 0


# ---------------------------------------------------------------- what was found this way


class Untold(torch.Tensor):
    """A tensor that is never to be written out: one on a GPU would wait for it, a freed one takes the process along."""

    asked = 0

    def __repr__(self):
        Untold.asked += 1
        return "reported"

    __str__ = __format__ = __repr__


def test_a_tensor_in_the_place_of_a_name_is_not_asked_for_its_text(tmp_path):
    tensor = torch.ones(3).as_subclass(Untold)
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_event(tensor, n=1)
        internals(log).set_tags(perf_tag=tensor)
        log.log_start(lora={tensor: 1}, training={tensor: 2})
        with log.span(tensor) as span:
            span.fail(tensor)
        with log.profile_block(tensor):
            pass

    assert Untold.asked == 0
    assert with_event(read_records(tmp_path / "run"), "<Untold>")[0]["n"] == 1


def test_a_span_with_a_name_that_is_no_text_is_named_after_its_class(tmp_path):
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False) as log:
        with log.span(EVIL["raises"]()), log.device_span(EVIL["raises"]()):
            pass
        with log.profile_block(EVIL["raises"]()), log.span(["a", "list"]):
            pass

    spans = with_event(read_records(tmp_path / "run" / "metrics.jsonl"), "span")
    names = [span["name"] for span in spans]
    assert names == ["<Raises>", "<Raises>", "<list>"]


def test_a_bug_while_the_run_is_set_up_leaves_a_logger_that_does_nothing(tmp_path, monkeypatch, caplog):
    def bug(*_, **__):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("toolkit.telemetry.logger.session.live_run.SpanRecorder", bug)
    log = TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False)
    log.log_step(1, train_loss=0.5)
    with log.span("forward"), log.profile_block("block"):
        pass
    log.close()

    assert not log.is_live
    assert (log.run_folder, log.should_stop, log.take_requests()) == (None, False, [])
    assert caplog.text.count("setting up the run failed (RuntimeError: a bug of ours)") == 1


@pytest.mark.parametrize("part", ["CsvTable", "FindingsSink"])
def test_a_part_that_cannot_be_set_up_does_not_affect_the_others(tmp_path, monkeypatch, part):
    def bug(*_, **__):
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(f"toolkit.telemetry.logger.writing.pipeline.{part}", bug)
    with TelemetryLogger("run", log_dir=tmp_path, log_every=1, system=False, tags=["a"]) as log:
        log.log_step(1, train_loss=0.5)

    assert len(with_event(read_records(tmp_path / "run"), "step")) == 1
