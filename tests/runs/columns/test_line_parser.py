"""What is read in columns is what each line says, and no line goes unaccounted for."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.metrics import metrics_of, position_of
from toolkit.telemetry.runfolder.reader import BadLine, Block, Cursor, parse_line
from toolkit.telemetry.runs.columns.line_parser import parse_block
from toolkit.telemetry.runs.record_source import parse_event

tries = settings(max_examples=longer(30, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def block(lines, start=0):
    data = b"".join(line + b"\n" for line in lines)
    return Block(data=data, start=start, cursor=Cursor(start + len(data)))


def step_line(step, **fields):
    known = {"event": "step", "seq": step, "session": 1, "time": 1000.0 + step, "elapsed": float(step)}
    return encode({**known, "global_step": step, "nan_inf_detected": False, **fields})[:-1]


values = st.one_of(
    st.floats(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([2**53 + 1, 0, -0.0, 5e-324, 1.7976931348623157e308]),
)
odd_values = st.one_of(st.none(), st.booleans(), st.text(max_size=8), st.just([1, 2]), st.just({"a": 1.0}))
names = st.sampled_from(["train_loss", "lr", "grad_norm", "deep/psnr", "naïve ☃", "line\u2028sep", "epoch"])
kinds = st.sampled_from(["step", "system", "eval", "epoch", "start", "end", "lost", "checkpoint", "anything"])

any_line = st.one_of(
    st.builds(
        lambda event, fields: encode({"event": event, "time": 5.0, "session": 1, **fields})[:-1],
        kinds,
        st.dictionaries(names, values | odd_values, max_size=4),
    ),
    st.builds(
        lambda step, fields: step_line(step, **fields),
        st.integers(0, 10**6),
        st.dictionaries(names, values | odd_values, max_size=4),
    ),
    st.sampled_from(
        [
            b"",
            b" ",
            b"garbage",
            b"[]",
            b"{}",
            b'{"event":7}',
            b'{"event":"step","global_st',
            b'{"event":"step","train_loss":1}{"event":"step","train_loss":2}',
            b'{"event":"step","train_loss":NaN}',
            b'{"event":"step","train_loss":-Infinity}',
            b'{"event":"step","train_loss":1e999}',
            b'{"event":"step","text":"\xff"}',
            b'{"event":"step","train_loss":1,"train_loss":2}',
            b'{"event":"step","time":"noon","train_loss":3}',
            b'{"event":"step","session":"1","global_step":"9","train_loss":3}',
            b'{"event":"step","session":true,"train_loss":3}',
            b'{"event":"step","session":1e300,"train_loss":3}',
            b'{"event":"step","session":-5,"train_loss":3}',
            b'{"event": "step", "train_loss": 4.5}',
            b'{"event":"step","train_loss":3}\r',
            b'{"event":"lost","records":7,"reason":"queue full"}',
            b"\x00\x01\x02",
        ]
    ),
)


@tries
@given(lines=st.lists(any_line, max_size=30))
def test_columns_have_what_each_line_says(lines):
    parsed = parse_block(block(lines))

    records = [found for line in lines if line and not isinstance(found := parse_line(0, line), BadLine)]
    named = [record for record in records if isinstance(record.get("event"), str)]
    rows = [record for record in named if record["event"] in ("step", "eval", "epoch", "system")]
    metrics, first = {}, {}
    for row, record in enumerate(rows):
        for name, value in metrics_of(record):
            metrics.setdefault(name, []).append((row, value))
            first.setdefault(name, record["event"])
    found = {
        name: list(zip(at.tolist(), values.tolist(), strict=True))
        for name, (at, values) in parsed.metrics.items()
    }
    assert repr(found) == repr(metrics)
    assert list(found) == list(metrics)
    assert parsed.kinds == first
    columns = (parsed.time, parsed.elapsed, parsed.step, parsed.epoch, parsed.session)
    places = list(zip(*(column.tolist() for column in columns), strict=True))
    assert repr(places) == repr([tuple(position_of(record)) for record in rows])
    assert parsed.is_step.tolist() == [record["event"] == "step" for record in rows]
    events = [record["event"] for record in named if record["event"] == "epoch" or record not in rows]
    assert [kind for kind, _, _ in parsed.events] == events
    assert parsed.lost == [record for record in named if record["event"] == "lost"]
    assert parsed.records + len(parsed.bad) == sum(1 for line in lines if line)


def test_places_of_records_events_and_bad_lines_are_places_in_the_file():
    lines = [b'{"event":"start"}', b"", b"junk", b'{"event":"end"}', b'{"event":"step","loss":1}']
    parsed = parse_block(block(lines, start=1000))

    assert parsed.events == [("start", 1000, 17), ("end", 1024, 15)]
    assert [(line.offset, line.length) for line in parsed.bad] == [(1019, 4)]
    assert parsed.at.tolist() == [1040]


def test_a_line_that_was_too_long_is_the_first_bad_one():
    long_line = BadLine(0, 2**21, "longer than 1048576 bytes")

    assert parse_block(block([b"junk"])._replace(long_line=long_line)).bad[0] == long_line


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_event_is_read_with_what_json_could_not_carry(value):
    assert parse_event(encode({"event": "eval", "loss": value}))["loss"] == value
    assert parse_event(b"junk\n") is None
