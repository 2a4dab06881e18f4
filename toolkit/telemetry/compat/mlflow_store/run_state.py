"""What the records of a run say in MLflow's terms, and records of what MLflow logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from toolkit.telemetry.runfolder.codec import with_non_finite
from toolkit.telemetry.runfolder.reader import blocks_of, lines_of, parse_line
from toolkit.telemetry.runfolder.records import LOSS_JUMP, NAN_INF_DETECTED, RESERVED, START, STEP, Record

BLOCK: Final = "mlflow"
"""Field of a record with what MLflow keeps and a run folder has no other place for."""
ROOM: Final = 40 * 1024
"""A larger block is in a file of its own: a record has at most 64 KiB."""
_TAKEN: Final = frozenset({*RESERVED, "global_step", NAN_INF_DETECTED, LOSS_JUMP, BLOCK})
"""Fields with a meaning of ours: a metric of such a name is kept as `x_NAME`."""
_AHEAD_S: Final = 60.0
_FIRST_MS: Final = 10**12
"""Earlier times, before September 2001, are made up, as in tests."""
_ALL_PARAMS_BYTES: Final = 8 * 1024


class Point(NamedTuple):
    """One value of a metric, in the order by which MLflow finds the last one."""

    step: int
    timestamp: int
    value: float
    key: str
    dataset: tuple[str, str] | None = None
    model_id: str | None = None


class RunState:
    """A run by its records so far."""

    def __init__(self) -> None:
        self.about: dict[str, Any] = {"tags": {}, "datasets": {}, "model_inputs": {}, "model_outputs": {}}
        """What MLflow keeps of a run in addition to its params and metrics."""
        self.params: dict[str, str] = {}
        self.last: dict[str, Point] = {}
        self.session = 0
        self.session_began = 0.0

    def add(self, record: Record) -> None:
        """Add the next record."""
        event = record.get("event")
        if event == STEP:
            for point in points_in(record):
                known = self.last.get(point.key)
                if known is None or point[:3] > known[:3]:
                    self.last[point.key] = point
            return
        if event == START:
            session = record.get("session", self.session)
            if type(session) is int and session != self.session:
                self.session, self.session_began = session, record.get("time", 0.0)
            config = record.get("config")
            if isinstance(config, dict):
                self.params.update((key, str(value)) for key, value in config.items())
        for name, value in _block_of(record).items():
            inner = self.about.get(name)
            if isinstance(inner, dict):
                # Changed key by key, where None removes one.
                inner.update(value if isinstance(value, dict) else {})
                for key in [key for key, item in inner.items() if item is None]:
                    del inner[key]
            else:
                self.about[name] = value


def start_s(about: dict[str, Any], now: float) -> float:
    """Return when a run began, as far as MLflow's start of it can be believed."""
    start = about.get("start_time") or 0
    return start / 1000 if start >= _FIRST_MS else now


def points_in(record: Record) -> Iterator[Point]:
    """Yield the values that a step record has."""
    about = _block_of(record)
    step, time, timestamp = record.get("global_step", 0), record.get("time"), about.get("timestamp")
    if timestamp is None and isinstance(time, (float, int)):
        timestamp = round(time * 1000)
    if type(step) is not int or type(timestamp) is not int:
        return
    dataset = about.get("dataset")
    given = (dataset and (dataset[0], dataset[1]), about.get("model_id"))
    for name, value in with_non_finite(record).items():
        if name not in _TAKEN and type(value) in (float, int):
            yield Point(step, timestamp, float(value), name[2:] if _is_escaped(name) else name, *given)


def history_in(path: Path, key: str) -> Iterator[Point]:
    """Yield every value of a metric, in the order in which they were logged."""
    wanted = orjson.dumps(_field(key)) + b":"
    for block in blocks_of(path):
        if wanted in block.data:
            for position, line in lines_of(block):
                record = parse_line(position, line) if wanted in line else None
                if isinstance(record, dict) and record.get("event") == STEP:
                    yield from (point for point in points_in(record) if point.key == key)


def step_records(points: Iterable[Point], *, now: float, begin: float) -> Iterator[Record]:
    """Yield the records of some values, in their order: neighbours of the same step and time share one.

    A record has the time that MLflow says if it lies between `begin` and `now`, else `now`.
    """
    record: Record = {}
    shared: tuple[Any, ...] = ()
    room = 0
    for point in points:
        name = _field(point.key)
        about = (point.step, point.timestamp, point.dataset, point.model_id)
        room -= 2 * len(name) + 50
        if about != shared or name in record or room < 0:
            if record:
                yield record
            shared, room = about, ROOM // 2
            record = _step_record(point, now, begin)
        record[name] = point.value
    if record:
        yield record


def param_records(new: dict[str, str], known: dict[str, str]) -> Iterator[Record]:
    """Yield the start records that add the params `new`; each has all of them if they are not many."""
    together = {**known, **new}
    if len(orjson.dumps(together)) <= _ALL_PARAMS_BYTES:
        yield {"event": START, "config": together}
        return
    part: dict[str, str] = {}
    room = ROOM
    for key, value in new.items():
        size = len(orjson.dumps((key, value)))
        if part and size > room:
            yield {"event": START, "config": part}
            part, room = {}, ROOM
        part[key] = value
        room -= size
    yield {"event": START, "config": part}


def _step_record(point: Point, now: float, begin: float) -> Record:
    time = point.timestamp / 1000
    about: dict[str, Any] = {}
    if not (begin <= time <= now + _AHEAD_S and round(time * 1000) == point.timestamp):
        about["timestamp"], time = point.timestamp, now
    if point.dataset is not None:
        about["dataset"] = point.dataset
    if point.model_id is not None:
        about["model_id"] = point.model_id
    return {"event": STEP, "time": time, "global_step": point.step, **({BLOCK: about} if about else {})}


def _field(key: str) -> str:
    return f"x_{key}" if key in _TAKEN or _is_escaped(key) else key


def _is_escaped(name: str) -> bool:
    """Return whether a name is a taken one after one or more `x_`."""
    while name.startswith("x_"):
        name = name[2:]
        if name in _TAKEN:
            return True
    return False


def _block_of(record: Record) -> dict[str, Any]:
    block = record.get(BLOCK)
    return block if isinstance(block, dict) else {}
