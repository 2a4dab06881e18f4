"""Which samples belong together."""

from __future__ import annotations

from tests.made_runs import append, write_run
from toolkit.telemetry.runs.files.samples import sample_series, samples_of_run
from toolkit.telemetry.runs.sources.local_store import LocalStore


def series_of(*records):
    """Return the series of records in the order in which they were logged; a store returns the newest first."""
    return sample_series([{"event": "sample", "time": 1.0, **record} for record in reversed(records)])


def steps(series):
    return [sample.step for sample in series.samples]


def test_a_prompt_is_a_series_oldest_first():
    found = series_of(
        *[
            {"path": f"{step}.png", "prompt": prompt, "global_step": step}
            for step in (0, 10, 20)
            for prompt in ("a cat", "a dog")
        ]
    )

    assert [(one.title, steps(one)) for one in found] == [("a cat", [0, 10, 20]), ("a dog", [0, 10, 20])]
    assert found[0].last_step == 20


def test_images_of_a_name_are_one_series_whatever_their_captions_are():
    found = series_of(
        {"path": "a.png", "name": "attention", "prompt": "attention", "caption": None, "global_step": 1},
        {"path": "b.png", "name": "attention", "prompt": "head 2", "caption": "head 2", "global_step": 2},
        {"path": "c.png", "prompt": "attention", "global_step": 2},
    )

    assert [(one.title, steps(one)) for one in found] == [("attention", [1, 2]), ("attention", [2])]
    assert [sample.caption for sample in found[0].samples] == ["", "head 2"]


def test_several_of_one_step_are_series_of_their_own():
    found = series_of(
        *[
            {"path": f"{step}_{seed}.png", "prompt": "a cat", "seed": seed, "global_step": step}
            for step in (0, 10)
            for seed in (7, 8)
        ]
    )

    assert [one.title for one in found] == ["a cat", "a cat (2)"]
    assert [[sample.about for sample in one.samples] for one in found] == [["seed 7"] * 2, ["seed 8"] * 2]


def test_a_list_logged_under_one_name_is_titled_by_its_captions():
    found = series_of(
        *[
            {"path": f"{step}{n}.png", "name": "val", "prompt": text, "caption": text, "global_step": step}
            for step in (0, 10)
            for n, text in enumerate(("a cat", "a dog"))
        ]
    )

    assert [(one.title, one.name, steps(one)) for one in found] == [
        ("a cat", "val", [0, 10]),
        ("a dog", "val", [0, 10]),
    ]


def test_a_step_that_was_done_again_by_a_later_session_stays_in_its_series():
    found = series_of(
        {"path": "a.png", "prompt": "a cat", "global_step": 10, "session": 1},
        {"path": "b.png", "prompt": "a cat", "global_step": 10, "session": 2},
    )

    assert [steps(one) for one in found] == [[10, 10]]


def test_records_that_are_no_samples_are_left_out_and_odd_values_stay_text():
    found = series_of(
        {"path": 7, "prompt": "a"},
        {"path": "a.png", "prompt": None, "global_step": "7", "seed": float("nan"), "size": [1], "cfg": 4.0},
        {"path": "b.png", "prompt": ["a"], "global_step": True, "session": [1]},
        {"path": "c.png", "prompt": "\ud83d \u202e", "global_step": 2**80},
    )

    assert [one.title for one in found] == ["(no prompt)", "\ufffd \ufffd"]
    assert found[0].samples[0].about == "seed NaN · cfg 4"
    assert {sample.step for one in found for sample in one.samples} == {None}


def test_samples_of_a_run_are_worked_out_again_once_there_are_new_ones(tmp_path):
    record = {"event": "sample", "time": 1.7e9, "path": "a.png", "prompt": "p", "global_step": 1}
    folder = write_run(tmp_path, "r", extra=[record])
    store = LocalStore([tmp_path], cache_dir=None)
    store.refresh("r", wait_s=60)

    first = samples_of_run(store, "r")

    assert samples_of_run(store, "r") is first
    append(folder, [{**record, "global_step": 2}])
    store.refresh("r", wait_s=60)
    assert [sample.step for sample in samples_of_run(store, "r")[0].samples] == [1, 2]
