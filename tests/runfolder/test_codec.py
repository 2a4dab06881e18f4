"""Every record becomes one line that a strict parser accepts, and no line can do harm."""

import json
import math

import pytest

from tests.runfolder.plain_data import nested
from toolkit.telemetry.runfolder.codec import (
    RecordError,
    decode,
    encode,
    with_non_finite,
)
from toolkit.telemetry.runfolder.records import MAX_RECORD_BYTES


def strictly_parsed(line):
    """Return the one object that `line` holds, read as `jq` or `JSON.parse` would."""

    def refuse(word):
        raise AssertionError(f"not strict JSON: {word}")

    def without_repeats(pairs):
        assert len(dict(pairs)) == len(pairs), "duplicate key"
        return dict(pairs)

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert len(line) <= MAX_RECORD_BYTES
    parsed = json.loads(line.decode("utf-8"), parse_constant=refuse, object_pairs_hook=without_repeats)
    assert isinstance(parsed, dict)
    return parsed


# ---------------------------------------------------------------- a record to a line


@pytest.mark.parametrize(
    ("number", "word"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_a_number_that_is_not_finite_is_null_and_named(number, word):
    found = strictly_parsed(encode({"event": "step", "train_loss": number, "lr": 0.1}))

    assert found == {
        "event": "step",
        "train_loss": None,
        "lr": 0.1,
        "nan_inf_detected": True,
        "non_finite": {"train_loss": word},
    }


def test_a_number_that_is_not_finite_is_named_where_it_is_nested():
    found = strictly_parsed(encode({"a": [1.0, math.nan], "b": {"c": {"d": -math.inf}}, "x": (math.inf,)}))

    assert found["non_finite"] == {"a/1": "NaN", "b/c/d": "-Infinity", "x/0": "Infinity"}
    assert found["a"] == [1.0, None]


def test_a_false_alarm_is_not_kept_next_to_a_real_one():
    found = strictly_parsed(encode({"nan_inf_detected": False, "grad_norm": math.nan}))

    assert found["nan_inf_detected"] is True


@pytest.mark.parametrize("theirs", ["text", 5, ["a"], None, math.nan, {"other": "NaN"}])
def test_a_field_of_the_callers_that_is_called_like_ours_does_no_harm(theirs):
    found = strictly_parsed(encode({"train_loss": math.inf, "non_finite": theirs}))

    assert found["non_finite"]["train_loss"] == "Infinity"


@pytest.mark.parametrize("named", [None, 3, [], {"loss": 5}, {"loss": "nonsense"}, {"absent": "NaN"}])
def test_a_foreign_list_of_non_finite_numbers_restores_nothing(named):
    record = {"loss": None, "non_finite": named}

    assert with_non_finite(record) == record


@pytest.mark.parametrize(
    "number",
    [2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**400, -(10**400), 10**5000],
    ids=lambda number: f"{number.bit_length()} bits",
)
def test_an_integer_of_any_size_is_kept_in_some_form(number):
    found = strictly_parsed(encode({"a": number, "in": {"side": [number]}}))

    if -(2**63) <= number < 2**64:
        assert found["a"] == number
    elif abs(number) < 2**1000:
        assert found["a"] == str(number)
    else:
        assert "bits" in found["a"]
    assert found["in"]["side"] == [found["a"]]


def test_half_a_character_is_written_out():
    found = strictly_parsed(encode({"\ud800": "a\udfffb", "in": ["\ud83d"]}))

    assert found == {"\\ud800": "a\\udfffb", "in": ["\\ud83d"]}


def test_an_over_long_text_or_list_is_cut_and_named_and_the_rest_kept():
    record = {
        "event": "step",
        "seq": 3,
        "prompt": "x" * 10**6,
        "values": list(range(100_000)),
        "train_loss": 0.5,
    }
    found = strictly_parsed(encode(record))

    assert sorted(found["cut"]) == ["prompt", "values"]
    assert found["prompt"].endswith("… [1000000 characters]")
    assert found["values"][:3] == [0, 1, 2]
    assert found["values"][-1].endswith("more")
    assert (found["event"], found["seq"], found["train_loss"]) == ("step", 3, 0.5)


def test_a_record_of_too_many_fields_names_what_it_left_out():
    record = {"event": "step", "seq": 3, "global_step": 9, **{f"metric/{i}": i / 7 for i in range(20_000)}}
    line = encode(record)
    found = strictly_parsed(line)

    assert decode(line) == found
    assert (found["event"], found["seq"], found["global_step"]) == ("step", 3, 9)
    assert "more fields" in found["unencodable"]["…"]
    assert len(line) > MAX_RECORD_BYTES // 3


def test_a_record_of_many_small_fields_is_one_that_the_reader_takes():
    line = encode({"seq": 1, **{f"{i:x}": 1 for i in range(4500)}})

    assert len(decode(line)) <= 4096
    assert decode(line)["unencodable"] == {"…": "413 more fields"}


def test_notes_of_what_could_not_be_kept_survive_the_cutting():
    notes = {"model": "Tensor: shape (3, 4), not one number"}
    found = strictly_parsed(encode({"unencodable": notes, **{f"{i}": "é" * 300 for i in range(3000)}}))

    assert found["unencodable"]["model"] == notes["model"]


def test_names_are_cut_without_two_becoming_one():
    record = {"n" * 5000 + str(i): "v" * 5000 for i in range(20)}
    found = strictly_parsed(encode(record))

    assert sum(name.startswith("nnn") for name in found) == 20


@pytest.mark.parametrize("kind", [list, dict])
@pytest.mark.parametrize("depth", [31, 32, 40, 300, 2000])
def test_a_record_of_any_depth_is_one_that_the_reader_takes(depth, kind):
    line = encode({"seq": 1, "config": nested(depth, kind=kind)})

    assert decode(line)["seq"] == 1
    assert ("cut" in decode(line)) == (depth > 31)


def test_nothing_that_a_record_is_known_by_gives_way_to_its_payload():
    payload = {f"k{i}": ["\x00" * 64] * 16 for i in range(500)}
    found = strictly_parsed(encode({"event": "e" * 128, "time": 1.5, "seq": 1, "global_step": 4, **payload}))

    assert {"event", "time", "seq", "global_step"} <= found.keys()


# ---------------------------------------------------------------- a line to a record


def test_the_bare_words_of_other_programs_are_numbers_that_json_cannot_carry():
    line = b'{"event": "step", "loss": NaN, "norms": {"a": [1.5, -Infinity]}, "lr": Infinity, "text": "NaN"}'
    record = decode(line)

    assert record == {
        "event": "step",
        "loss": None,
        "norms": {"a": [1.5, None]},
        "lr": None,
        "text": "NaN",
        "nan_inf_detected": True,
        "non_finite": {"loss": "NaN", "norms/a/1": "-Infinity", "lr": "Infinity"},
    }
    assert decode(encode(record)) == record
    restored = with_non_finite(record)
    assert math.isnan(restored["loss"])
    assert restored["lr"] == math.inf


def test_a_line_of_nothing_but_bare_words_has_no_more_names_than_a_record_has_fields():
    record = decode(b'{"a":[' + b",".join([b"NaN"] * 200_000) + b"]}")

    assert len(record["non_finite"]) <= 4_096


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"null",
        b"[]",
        b'[{"event":"step"}]',
        b'"text"',
        b"5",
        b"NaN",
        b'{"a":nan}',
        b'{"a":+Infinity}',
        b'{"a":NaN',
        b'{"a":NaN}{"b":2}',
        b'{"a":NaN,"b":"\\ud800"}',
        b'{"a":NaN,"b":"\xff"}',
        b'{"a":NaN,"b":' + b"9" * 30 + b"}",
        b'{"a":NaN,"b":' + b"9" * 5000 + b"}",
        b'{"a":NaN,"b":' + b"[" * 32 + b"]" * 32 + b"}",
        b'{"a":NaN,"b":' + b"[" * 100_000,
        b'{"a":NaN,' + b",".join(b'"%d":1' % i for i in range(4097)) + b"}",
        b'[NaN,{"a":1}]',
        b'{"a":1e999}',
        b"{'a':1}",
        b'{"a":1',
        b'{"a":1}}',
        b'{"a":1}{"b":2}',
        b'{"a":01}',
        b'{"a":1,}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\x00"}',
        b"\x00" * 4096,
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b'{"a":' + b"[" * 32 + b"]" * 32 + b"}",
        b'{"a":' + b"9" * 5000 + b"}",
        b"{" + b",".join(b'"%d":1' % i for i in range(4097)) + b"}",
    ],
    ids=lambda line: ascii(line[:24]),
)
def test_a_line_that_is_no_record_is_refused_with_a_reason(line):
    with pytest.raises(RecordError) as refusal:
        decode(line)

    assert str(refusal.value)


def test_a_line_at_the_limits_is_taken():
    line = b'{"a":' + b"[" * 31 + b"]" * 31 + b"," + b",".join(b'"%d":1' % i for i in range(4095)) + b"}"

    assert len(decode(line)) == 4096
