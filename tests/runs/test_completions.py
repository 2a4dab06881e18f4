"""Completions in a record file: the newest first, those that arrive meanwhile, searched, sorted and compared."""

from __future__ import annotations

import math
import random

import pytest

pytest.importorskip("numpy")

from tests.made_runs import append, completion, step_record, write_run
from toolkit.telemetry.runs.columns.completion_reader import CompletionReader
from toolkit.telemetry.runs.columns.run_log import RunLog
from toolkit.telemetry.runs.completions import CompletionQuery, completion_of, parse_steps
from toolkit.telemetry.runs.files.word_diff import DiffPart, word_diff


@pytest.fixture
def write(tmp_path):
    """Write records as a run and return a reader of its completions."""

    def write_records(records):
        return CompletionReader(RunLog(write_run(tmp_path, "r", records) / "metrics.jsonl", None))

    return write_records


def steps(found):
    return [row.step for row in found.rows]


def find(reader, *, first=0, count=50, **query):
    """Return what is found once everything has been read and searched."""
    while True:
        found = reader.find(CompletionQuery(**query), first=first, count=count, wait_s=1.0)
        if found.fraction_read == found.fraction_searched == 1.0:
            return found


# ---------------------------------------------------------------- finding them


def test_the_newest_of_many_are_found_first(write):
    reader = write([completion(step) for step in range(4_000)])
    find(reader)
    fresh = CompletionReader(reader.log)

    found = fresh.find(CompletionQuery(), wait_s=0.0)

    assert steps(found)[:3] == [3999, 3998, 3997]
    assert found.known < 4_000
    assert find(fresh).known == 4_000
    assert steps(find(fresh, first=3_950))[-1] == 0


def test_steps_and_rewards_sort_and_filter_them(write):
    rewards = [0.5, math.nan, -1.0, None, 2.0, 0.5]
    fields = [{} if reward is None else {"reward": reward} for reward in rewards]
    reader = write([completion(step, **more) for step, more in enumerate(fields)])

    assert steps(find(reader, sort="Highest reward"))[:4] == [4, 5, 0, 2]
    assert steps(find(reader, sort="Lowest reward"))[:4] == [2, 5, 0, 4]
    assert set(steps(find(reader, sort="Lowest reward"))[4:]) == {1, 3}
    assert steps(find(reader, steps=(2, 4))) == [4, 3, 2]
    assert find(reader, steps=(50, 60)).matching == 0


def test_a_text_is_found_in_prompts_and_answers_whatever_its_case(write):
    reader = write(
        [
            completion(0, "the SKY is blue"),
            completion(1, "no", prompt="What of the sky?"),
            completion(2, "nothing"),
            {"event": "completion", "global_step": 3, "chosen": "x", "rejected": "Sky-high"},
            completion(4, "STRASSE", prompt="straße"),
        ]
    )

    assert steps(find(reader, text="sky")) == [3, 1, 0]
    assert steps(find(reader, text=" Straße ")) == [4]
    append(reader.log.path.parent, [completion(5, "a new sky"), completion(6, "sky")])
    assert steps(find(reader, text="sky")) == [6, 5, 3, 1, 0]
    assert find(reader, text="elephant").matching == 0


def test_a_search_continues_where_it_was_and_finds_all(write):
    reader = write([completion(step, "yes" if step % 3 == 0 else "no") for step in range(3_000)])
    find(reader)
    looks = 0
    while (found := reader.find(CompletionQuery(text="yes"), wait_s=0.0)).fraction_searched < 1.0:
        looks += 1

    assert looks > 1
    assert found.matching == 1_000
    assert steps(found)[:3] == [2997, 2994, 2991]


def test_only_where_a_completion_begins_there_is_one(write):
    text = 'x\n{"event":"completion","completion":"not a record of its own"}\n'
    reader = write([step_record(1), completion(2, text)])
    place = find(reader).rows[0].place
    size = reader.log.path.stat().st_size

    assert reader.at(place).answer == text
    assert [other for other in range(-2, size + 10) if other != place and reader.at(other) is not None] == []
    assert reader.at(2**80) is None


def test_the_newest_word_on_those_dropped_counts(write):
    def dropped(first, count, **more):
        return {"event": "completions_dropped", "session": 1, "from_step": first, "dropped": count, **more}

    reader = write(
        [dropped(0, 1), completion(0), dropped(0, 30), dropped(100, 1), dropped(100, 2, split="eval")]
    )
    assert find(reader).dropped == 33

    append(reader.log.path.parent, [dropped(100, 50), dropped(200, "many"), dropped(300, -5)])
    assert find(reader).dropped == 82


@pytest.mark.parametrize(
    ("record", "kind", "is_pair", "reward"),
    [
        (
            {"completion": "a", "kind": "grpo", "reward": 1.0, "advantage": 0.5},
            "grpo",
            False,
            ("reward", 1.0),
        ),
        ({"chosen": "a", "rejected": "b", "reward_diff": 0.3}, "pair", True, ("reward_diff", 0.3)),
        ({"completion": "a", "label": True}, "labelled", False, ("", None)),
        ({"completion": "a", "advantage": -1}, "completion", False, ("advantage", -1.0)),
        (
            {"completion": "a", "reward": None, "non_finite": {"reward": "-Infinity"}},
            "completion",
            False,
            ("reward", -math.inf),
        ),
    ],
)
def test_a_record_is_recognized_by_its_form(record, kind, is_pair, reward):
    row = completion_of(record, 0)

    assert (row.kind, row.is_pair, (row.reward_name, row.reward)) == (kind, is_pair, reward)


@pytest.mark.parametrize(
    ("text", "steps_wanted"),
    [
        ("", None),
        ("  ", None),
        ("300", (300, 300)),
        ("1,000", (1000, 1000)),
        ("100-200", (100, 200)),
        ("200 to 100", (100, 200)),
        ("100-", (100, 10**15)),
        ("-200", (0, 200)),
    ],
)
def test_steps_are_asked_for_as_people_write_them(text, steps_wanted):
    assert parse_steps(text) == steps_wanted


@pytest.mark.parametrize("text", ["-", "abc", "1-2-3", "1e3", "9" * 30, "<b>"])
def test_what_are_no_steps_is_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match="write 300, 100-200"):
        parse_steps(text)


# ---------------------------------------------------------------- words that differ


def marked(parts):
    return "".join(f"[{part.text}]" if part.only_here else part.text for part in parts)


@pytest.mark.parametrize(
    ("before", "after", "left", "right"),
    [
        ("the sky is blue", "the sky was green", "the sky [is blue]", "the sky [was green]"),
        ("a b c", "a b c", "a b c", "a b c"),
        ("", "new words", "", "[new words]"),
        ("a b", "a x b", "a b", "a [x ]b"),
        ("It is, so.", "It is so!", "It is[,] so[.]", "It is so[!]"),
        ("空は青い", "空は緑だ", "空は[青い]", "空は[緑だ]"),
        ("one\ntwo", "one two", "one[\n]two", "one[ ]two"),
        ("<b>x</b>", "<b>y</b>", "<b>[x]</b>", "<b>[y]</b>"),
    ],
)
def test_the_words_that_only_one_text_has_are_marked(before, after, left, right):
    diff = word_diff(before, after)

    assert (marked(diff.before), marked(diff.after)) == (left, right)
    assert diff.is_same == (before == after)


def test_no_letter_is_lost_and_the_common_words_are_the_same():
    random.seed(3)
    for _ in range(300):
        # Without blanks between them, so that only the words decide.
        old, new = ("".join(random.choices("あいうえ", k=random.randint(0, 14))) for _ in range(2))
        diff = word_diff(old, new)

        assert "".join(part.text for part in diff.before) == old
        assert "".join(part.text for part in diff.after) == new
        common = [
            "".join(part.text for part in side if not part.only_here) for side in (diff.before, diff.after)
        ]
        assert common[0] == common[1]


def test_texts_with_nothing_in_common_are_not_marked_and_take_no_time():
    random.seed(5)
    before, after = (" ".join(str(random.random()) for _ in range(8_000)) for _ in range(2))
    diff = word_diff(before, after)

    assert diff.too_different
    assert not diff.is_same
    assert diff.before == (DiffPart(before, False),)
