"""Many lines read at once give what the same lines give one by one, and no line goes unaccounted for."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.reader import Block, Cursor
from toolkit.telemetry.runs.columns import line_parser
from toolkit.telemetry.runs.columns.line_parser import LineParser
from toolkit.telemetry.runs.record_source import parse_event

# One example is hundreds of lines, so that they are worth reading at once.
few_tries = settings(max_examples=longer(10, 25), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def block(lines, start=0):
    data = b"".join(line + b"\n" for line in lines)
    return Block(
        data=data,
        start=start,
        cursor=Cursor(start + len(data)),
        long_line=None,
        replaced=False,
        pending_bytes=0,
    )


def one_by_one(lines):
    """Parse `lines` without ever reading several at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_parser, "_FEW_LINES", 10**9)
        return LineParser().parse(block(lines))


class AtOnce:
    """Parses with the quick path and counts how often it was taken."""

    def __init__(self):
        self.parser = LineParser()
        self.taken = 0
        inner = self.parser._parse_alike

        def counted(lines, alike):
            table = inner(lines, alike)
            self.taken += table is not None
            return table

        self.parser._parse_alike = counted

    def parse(self, lines):
        return self.parser.parse(block(lines))


def assert_same(one, other):
    for name in ("time", "elapsed", "step", "epoch", "session", "is_step"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert set(one.metrics) == set(other.metrics)
    for name in one.metrics:
        np.testing.assert_array_equal(one.metrics[name][0], other.metrics[name][0], err_msg=name)
        np.testing.assert_array_equal(one.metrics[name][1], other.metrics[name][1], err_msg=name)
    assert one.kinds == other.kinds
    assert first_rows(one) == first_rows(other)
    assert one.events == other.events
    assert one.bad == other.bad
    assert one.lost == other.lost
    assert one.records == other.records


def first_rows(parsed):
    return [int(rows[0]) for rows, _ in parsed.metrics.values()]


def step_line(step, **fields):
    return encode(
        {
            "event": "step",
            "seq": step,
            "session": 1,
            "time": 1000.0 + step,
            "elapsed": float(step),
            "global_step": step,
            "nan_inf_detected": False,
            **fields,
        }
    )[:-1]


def plain_lines(count=600, **fields):
    return [step_line(i, train_loss=1.0 / (i + 1), lr=1e-4, **fields) for i in range(count)]


values = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([2**53 + 1, 0, -0.0, 5e-324, 1.7976931348623157e308]),
)
odd_values = st.one_of(st.none(), st.booleans(), st.text(max_size=8), st.just([1, 2]), st.just({"a": 1.0}))
names = st.sampled_from(["train_loss", "lr", "grad_norm", "deep/psnr", "naïve ☃", "line\u2028sep", "epoch"])

odd_lines = st.one_of(
    st.builds(
        lambda event, fields: encode({"event": event, "time": 5.0, "session": 1, **fields})[:-1],
        st.sampled_from(["system", "eval", "epoch", "start", "end", "lost", "checkpoint", "anything"]),
        st.dictionaries(names, values | odd_values, max_size=4),
    ),
    st.builds(
        lambda step, fields: step_line(step, **fields),
        st.integers(0, 10**6),
        st.dictionaries(names, values | odd_values | st.sampled_from([math.nan, math.inf]), max_size=4),
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
            b'{"event":"step","text":"\xe2\x80\xa8\xc2\x85","train_loss":3}',
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


@st.composite
def mixed_logs(draw):
    """Return many step lines that are alike, with a few of any other kind at any place among them."""
    base = draw(
        st.fixed_dictionaries(
            {"train_loss": values},
            optional={"lr": values, "flag": st.booleans(), "note": st.text(max_size=5)},
        )
    )
    lines = [step_line(i, **{**base, "train_loss": i / 7}) for i in range(draw(st.integers(395, 480)))]
    for line, where in draw(st.lists(st.tuples(odd_lines, st.integers(0, 400)), max_size=8)):
        lines.insert(where, line)
    late = draw(st.none() | st.integers(0, 400))
    if late is not None:
        lines[late:] = [line[:-1] + b',"late":1.5}' if line.endswith(b"}") else line for line in lines[late:]]
    return lines


@few_tries
@given(lines=mixed_logs())
def test_at_once_and_one_by_one_are_the_same(lines):
    expected = one_by_one(lines)

    assert_same(AtOnce().parse(lines), expected)
    assert expected.records + len(expected.bad) == sum(1 for line in lines if line)


@few_tries
@given(first=mixed_logs(), second=mixed_logs())
def test_what_an_earlier_block_taught_does_not_show_in_a_later_one(first, second):
    parser = AtOnce()
    parser.parse(first)

    assert_same(parser.parse(second), one_by_one(second))
    assert_same(parser.parse(first), one_by_one(first))


def test_other_records_among_them_do_not_slow_the_rest():
    parser = AtOnce()
    lines = plain_lines()
    lines.insert(100, encode({"event": "system", "session": 1, "gpu": 50.0})[:-1])
    lines.insert(200, encode({"event": "eval", "session": 1, "global_step": 199, "val_loss": 2.0})[:-1])
    lines.insert(300, encode({"event": "epoch", "session": 1, "epoch": 1, "loss": 3.0})[:-1])
    lines.insert(400, step_line(1, train_loss=math.nan))
    lines.insert(500, b"torn")
    parsed = parser.parse(lines)

    assert parser.taken == 1
    assert_same(parsed, one_by_one(lines))
    assert list(parsed.metrics) == ["train_loss", "lr", "gpu", "val_loss", "epoch/loss"]
    assert parsed.kinds["epoch/loss"] == "epoch"
    assert [kind for kind, _, _ in parsed.events] == ["epoch"]
    assert math.isnan(parsed.metrics["train_loss"][1][397])
    assert len(parsed.bad) == 1


def test_a_field_that_comes_late_is_not_lost_and_the_next_block_is_quick_again():
    parser = AtOnce()
    lines = plain_lines()
    lines[300] = step_line(300, train_loss=1.0, lr=1.0, grad_norm=7.5)
    parsed = parser.parse(lines)

    assert parser.taken == 0
    assert parsed.metrics["grad_norm"][0].tolist() == [300]
    assert_same(parser.parse(lines), one_by_one(lines))
    assert parser.taken == 1


def test_places_of_events_and_of_bad_lines_are_places_in_the_file():
    lines = [b'{"event":"start"}', b"", b"junk", b'{"event":"end"}']
    parsed = LineParser().parse(block(lines, start=1000))

    assert parsed.events == [("start", 1000, 17), ("end", 1024, 15)]
    assert [(line.offset, line.length) for line in parsed.bad] == [(1019, 4)]


def test_an_event_is_read_with_what_json_could_not_carry():
    assert parse_event(encode({"event": "eval", "loss": math.inf}))["loss"] == math.inf
    assert parse_event(b"junk\n") is None
