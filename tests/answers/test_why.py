"""`telemetry why`: where two runs depart, what is named as the cause, and what is listed apart."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from tests.made_runs import append
from toolkit.telemetry.answers.departure import Curve, find_departure
from toolkit.telemetry.answers.differences import (
    COSMETIC,
    DATA,
    DTYPE,
    LR,
    SCHEDULE,
    SEED,
    SETTING,
    kind_of_setting,
)
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.why import Why, why
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.evidence.batches import BatchRow, batches_file, encode_rows


def _loss(step: int) -> float:
    return 1.0 / math.sqrt(step + 3) + 0.05 * math.sin(step * step)


def write(folder: Path, *, steps=range(1, 61), loss=_loss, lr=None, start=None, later=(), events=()) -> Path:
    """Write a run; `later` has the steps of its second session."""
    config = {"name": folder.name, "learning_rate": 1e-3, "seed": 1, **(start or {}).pop("config", {})}
    lines = [{"event": "start", "session": 1, "config": config, **(start or {})}]
    for session, these in ((1, steps), (2, later)):
        for step in these:
            rate = 1e-3 if lr is None else lr(step)
            lines.append(
                {
                    "event": "step",
                    "session": session,
                    "global_step": step,
                    "train_loss": loss(step),
                    "lr": rate,
                }
            )
    lines += [{"session": 1, **event} for event in events]
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    return append(folder, lines)


def keep_code(folder: Path, text: str) -> None:
    (folder / "code" / "1").mkdir(parents=True)
    (folder / "code" / "1" / "train.py").write_text(text)
    about = {"session": 1, "kind": "files", "script": "train.py", "files": {"train.py": "1/train.py"}}
    (folder / "code" / "1.json").write_text(json.dumps(about))


def keep_batches(folder: Path, seed: int, steps=range(1, 61)) -> None:
    rows = [(step, BatchRow(4, ids=random.Random(seed * 1000 + step).sample(range(99), 4))) for step in steps]
    batches_file(folder).write_bytes(encode_rows(1, rows))


_NOT_A_NUMBER = (
    '{"event":"step","session":1,"global_step":1,"train_loss":null,"non_finite":{"train_loss":"NaN"}}\n'
)
_ODD_FIELDS = (
    '{"event":"start","session":1,"config":[1],"packages":3,"seeds":[],"data":[4],"cpu":null}\n'
    '{"event":"step","session":1,"global_step":2,"train_loss":9.5,"lr":"high"}\n'
)


def asked(one: Path, two: Path) -> Why:
    return why(read_evidence(one), read_evidence(two))


def changed_after(last: int, by: float = 1e-3):
    return lambda step: _loss(step) * (1 + by * (step > last))


@pytest.fixture
def pair(tmp_path):
    return tmp_path / "a", tmp_path / "b"


def test_runs_that_are_equal_to_the_last_digit_are_equal_whatever_else_differs(pair):
    answer = asked(write(pair[0]), write(pair[1], start={"config": {"log_every": 5, "weight_decay": 0.1}}))

    assert answer.answer == "equal"
    assert "to the last digit in the 60 records" in answer.sentence
    assert {one.what for one, _ in answer.apart} >= {"log_every", "weight_decay"}


def test_the_first_rate_that_differs_and_its_setting_are_named(pair):
    one = write(pair[0], start={"config": {"warmup_steps": 30, "seed": 1}})
    two = write(
        pair[1],
        start={"config": {"warmup_steps": 40, "seed": 2, "notes": "again"}},
        lr=lambda step: 1e-3 if step <= 30 else 2e-3,
        loss=changed_after(31),
    )
    answer = asked(one, two)

    assert (answer.answer, answer.step) == ("differ", 31)
    assert "to the last digit up to step 30; at step 31 the learning rate differs" in answer.sentence
    assert answer.causes[0].difference.text == "warmup_steps 30 → 40"
    # A seed acts from the first step on, and there the digits are the same.
    assert {one.what for one, _ in answer.apart} == {"seed", "notes", "name"}


def test_a_resume_is_the_cause_of_what_begins_at_its_first_steps(pair):
    one = write(pair[0])
    two = write(pair[1], steps=range(1, 26), later=range(21, 61), loss=changed_after(21))
    answer = asked(one, two)

    assert answer.step == 22
    assert answer.causes[0].difference.what == "the resume of run b at step 21"


def test_a_request_from_the_page_is_a_cause(pair):
    asked_for = {"event": "control_change", "status": "applied", "global_step": 30, "knobs/lr_scale/new": 0.5}
    answer = asked(write(pair[0]), write(pair[1], loss=changed_after(30), events=[asked_for]))

    assert answer.causes[0].difference.what == "the request to run b at step 30: lr_scale 0.5"


def test_a_line_of_code_and_an_imported_package_are_causes_and_comments_and_others_are_not(pair):
    start = {"packages": {"steady": "1.0", "colours": "2.0"}}
    newer = {"packages": {"steady": "1.1", "colours": "3.0"}}
    one, two = write(pair[0], start=dict(start)), write(pair[1], start=newer, loss=changed_after(0))
    keep_code(one, "import steady\nsteady.go(1)\n")
    keep_code(two, "# Goes.\nimport steady\nsteady.go(1)\n")
    by_package = asked(one, two)
    (two / "code" / "1" / "train.py").write_text("import steady\nsteady.go(2)\n")
    write(two, start=dict(start), loss=changed_after(0))
    by_code = asked(one, two)

    assert by_package.causes[0].difference.text == "steady 1.0 → 1.1"
    assert ("train.py", "comments and layout only") in [(d.what, d.note) for d, _ in by_package.apart]
    assert by_package.causes[0].share > 10 * by_package.causes[1].share
    assert by_code.causes[0].difference.what == "train.py"
    assert "+steady.go(2)" in by_code.code[0].unified_diff


def test_another_order_of_the_data_is_seen_in_the_batches_and_follows_from_a_seed(pair):
    one, two = write(pair[0]), write(pair[1], loss=changed_after(0))
    keep_batches(one, 1)
    keep_batches(two, 2)
    without_setting = asked(one, two)
    write(two, loss=changed_after(0), start={"config": {"seed": 5}})
    with_seed = asked(one, two)
    keep_batches(two, 1)
    same_batches = asked(one, two)

    assert without_setting.causes[0].difference.kind == DATA
    assert with_seed.causes[0].difference.kind == SEED
    assert ("batches", "the same up to step 60") in same_batches.evidence


def test_noise_is_not_a_difference_and_a_jump_in_it_is(pair):
    noise = random.Random(5)
    noisy = {step: _loss(step) * (1 + 1e-7 * noise.gauss(0, 1)) for step in range(1, 61)}
    equal = asked(write(pair[0]), write(pair[1], loss=noisy.__getitem__))
    differ = asked(pair[0], write(pair[1], loss=lambda step: noisy[step] * (1 + 0.01 * (step > 40))))

    assert equal.answer == "equal"
    assert "within noise" in equal.sentence
    assert differ.answer == "differ"
    assert differ.departure.how == "jump"
    assert differ.departure.after <= 40 < (differ.departure.at or 0) <= 42


def test_rounding_that_grows_is_noise_and_a_level_that_slowly_departs_is_not():
    noise = random.Random(1)
    one = {step: 1 + 0.05 * noise.gauss(0, 1) for step in range(1, 401)}
    grown = {step: 10 ** (-max(0, 250 - step) / 40) for step in one}
    chaos = {step: value * (1 + 0.02 * noise.gauss(0, 1) * grown[step]) for step, value in one.items()}

    def departure(two):
        curves = ({"train_loss": Curve().then(list(each), list(each.values()))} for each in (one, two))
        return find_departure(*curves, half=False)

    assert departure(chaos).how is None
    for sign in (1, -1):
        moved = {step: value * (1 + sign * 0.2 * grown[step]) for step, value in one.items()}
        found = departure(moved)
        assert found.how == "level"
        assert 150 <= found.after <= 300


def test_steps_counted_from_zero_and_other_intervals_are_compared_where_both_have_a_record(pair):
    one = write(pair[0])
    two = write(pair[1], steps=range(0, 60, 3), loss=lambda step: changed_after(30)(step + 1))
    answer = asked(one, two)

    assert (answer.departure.after, answer.step) == (28, 31)
    assert len(answer.departure.steps) == 20


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        *[
            ("train.lr", LR),
            ("optimizer.learning_rate", LR),
            ("lr_warmup_steps", SCHEDULE),
            ("num_epochs", SCHEDULE),
        ],
        *[("config.process[0].train.dtype", DTYPE), ("bf16", DTYPE), ("seed", SEED), ("data_seed", DATA)],
        *[
            ("logging_steps", COSMETIC),
            ("eval_interval", COSMETIC),
            ("telemetry.csv", COSMETIC),
            ("output_dir", COSMETIC),
        ],
        *[
            ("weight_decay", SETTING),
            ("lora_alpha", SETTING),
            ("gradient_checkpointing", SETTING),
            ("", SETTING),
        ],
    ],
)
def test_the_name_of_a_setting_says_its_kind(key, kind):
    assert kind_of_setting(key) == kind


def test_the_command_prints_the_answer_and_returns_it_as_its_code(pair, capsys):
    one, two = write(pair[0]), write(pair[1], start={"config": {"seed": 7}}, loss=changed_after(0))

    assert main(["why", str(one), str(one)]) == 0
    assert capsys.readouterr().out.startswith("equal, nearly sure")
    assert main(["why", str(one), str(two), "--full"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("differ, ")
    assert "seed 1 → 7" in out
    assert main(["why", str(one), str(two), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["causes"][0]["kind"] == "seed"
    assert main(["why", str(one), str(pair[0].parent / "gone")]) == 2
    assert "it does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ('{"event":"start","session":1}\n', 3, "has no record of a step"),
        ('{"event":"step","session":1,"global_step":1,"train_loss":0.3', 3, "no record of a step"),
        ('{"event":"step","session":1,"global_step":70,"train_loss":0.5}\n', 3, "no step in common"),
        ('{"event":"step","session":1,"global_step":1,"mood":0.5}\n', 3, "no result in common"),
        (
            f'{{"event":"step","session":1,"global_step":1,"train_loss":{_loss(1)!r}}}\n',
            3,
            "They share one record",
        ),
        (_NOT_A_NUMBER, 1, "step 1"),
        (_ODD_FIELDS, 3, "step 2"),
    ],
)
def test_runs_that_say_little_get_one_sentence(pair, capsys, text, code, said):
    pair[1].mkdir()
    (pair[1] / "metrics.jsonl").write_text(text)

    assert main(["why", str(write(pair[0])), str(pair[1])]) == code
    assert said in capsys.readouterr().out


def test_the_log_of_another_tool_is_compared_as_far_as_it_goes(pair, capsys, tmp_path):
    table = tmp_path / "progress.csv"
    table.write_text("step,loss\n" + "".join(f"{step},{_loss(step):.4f}\n" for step in range(1, 61)))
    other = tmp_path / "other.csv"
    other.write_text(
        "step,loss\n" + "".join(f"{step},{changed_after(30, 0.1)(step):.4f}\n" for step in range(1, 61))
    )

    assert main(["why", str(table), str(other)]) == 1
    out = capsys.readouterr().out
    assert "in every digit that was logged up to step 30" in out
    assert "settings of both runs" in out


def test_noise_without_a_recorded_difference_is_not_called_a_difference(pair):
    dice = random.Random(5)
    noise = {step: 1 + 0.03 * dice.gauss(0, 1) * min(1, step / 8) for step in range(1, 61)}
    one, two = write(pair[0]), write(pair[1], loss=lambda step: _loss(step) * noise[step])

    found = why(read_evidence(one), read_evidence(two))

    assert (found.answer, found.causes) == ("cannot be said", [])
    assert "environment variables" in found.needed


def test_a_difference_that_begins_above_rounding_and_grows_is_no_noise(pair):
    def grown(step, start=6e-6):
        return _loss(step) * (1 + start * (step > 1) * 1.15 ** min(step, 60) * (-1) ** step)

    start = {"command_line": ["train.py", "--wd", "0.05"]}
    one = write(pair[0], start={"command_line": ["train.py", "--wd", "0"]})
    named = asked(one, write(pair[1], loss=grown, start=start))
    assert (named.answer, named.causes[0].difference.text) == ("differ", "wd 0 → 0.05")
    assert "which is more than rounding" in named.sentence

    unknown = asked(write(pair[0]), write(pair[1], loss=grown))
    assert (unknown.answer, unknown.causes) == ("cannot be said", [])

    rounded = asked(one, write(pair[1], loss=lambda step: grown(step, 1e-9), start=start))
    assert rounded.answer == "equal"
    far = asked(one, write(pair[1], loss=lambda step: grown(step, 3e-7), start=start))
    assert far.answer == "cannot be said", "it may be a small setting, or rounding that grew"


def test_digits_that_part_after_equal_ones_differ_also_without_a_cause(pair):
    one, two = write(pair[0]), write(pair[1], loss=changed_after(30, 0.1))

    found = why(read_evidence(one), read_evidence(two))

    assert (found.answer, found.step, found.sure) == ("differ", 31, "nearly sure (0.99)")
    assert any("data" in what for what in found.needed)


def test_a_package_that_no_code_imports_and_an_evaluation_are_no_answer(pair):
    for start in ({"packages": {"colours": "2.0"}}, {"config": {"eval_every": 10}}):
        one = write(pair[0], start={"packages": {"colours": "1.0"}, "config": {"eval_every": 20}})
        two = write(pair[1], loss=changed_after(0), start={"packages": {"colours": "1.0"}, **start})
        for run in (one, two):
            if not (run / "code").exists():
                keep_code(run, "import steady\n")
                keep_batches(run, 1)
        found = asked(one, two)
        assert (found.answer, found.departure.after) == ("cannot be said", 0)
        assert "the content of the data (`log_start(data=[…])`)" in found.needed


def test_a_setting_that_is_off_and_one_that_is_not_set_do_not_differ(pair):
    one = write(pair[0], start={"config": {"use_ema": False, "resume_from": None}, "unanswered": ["cpu"]})
    two = write(pair[1], loss=changed_after(30, 0.1))

    found = why(read_evidence(one), read_evidence(two))

    named = [cause.difference.what for cause in found.causes] + [row.what for row, _ in found.apart]
    assert not {"use_ema", "resume_from", "unanswered[0]"} & set(named)


def _sweep(folder: Path, settings, seeds=(1, 2, 3), noise=0.022) -> None:
    """Write a run for each of the settings and each seed: the loss ends where both of them say."""
    chance = random.Random(3)
    for at, one in enumerate(settings):
        for seed in seeds:
            end = 0.5 + 0.1 * math.log10(one["lr"] / 1e-3) + 0.002 * (256 - one["width"]) / 10
            end += chance.gauss(0, noise)
            start = {"config": {**one, "seed": seed}, "run_name": f"{at}-{seed}"}
            wobble = random.Random(100 * at + seed)
            write(
                folder / f"{at}-{seed}",
                start=start,
                lr=lambda step, rate=one["lr"]: rate,
                loss=lambda step, end=end, wobble=wobble: (
                    end + (3 - end) * math.exp(-step / 5) + wobble.gauss(0, 1e-4)
                ),
            )


def test_other_runs_of_a_sweep_say_how_much_seeds_and_each_setting_explain(tmp_path, capsys):
    grid = [{"lr": rate, "width": width} for rate in (3e-4, 1e-3, 4.7e-3) for width in (64, 128, 256)]
    _sweep(tmp_path, grid)

    assert main(["why", str(tmp_path / "1-1"), str(tmp_path / "8-2"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    shares = {share["what"]: share for share in found["explained"]["shares"]}
    truth = {
        "learning_rate": 0.1 * math.log10(4.7e-3 / 3e-4),
        "width": -0.002 * 12.8,
        "seeds alone": 0.0,
    }
    assert set(shares) == set(truth)
    for what, size in truth.items():
        assert shares[what]["low"] <= size <= shares[what]["high"], what
    assert shares["learning_rate"]["low"] > 0
    assert (
        "in the last train_loss, by 27 runs in 9 groups of equal settings: seeds alone: -"
        in found["sentence"]
    )
    assert "Most likely because" not in found["sentence"]


def test_settings_that_no_other_run_tells_apart_are_not_separable(tmp_path, capsys):
    both = [{"lr": 1e-3, "width": 64, "depth": 2}, {"lr": 4.7e-3, "width": 256, "depth": 3}]
    _sweep(tmp_path, [*both, {"lr": 1e-3, "width": 128, "depth": 2}])

    assert main(["why", str(tmp_path / "0-1"), str(tmp_path / "1-2"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["explained"]
    shares = {share["what"]: share["note"] for share in found["shares"]}
    assert any("not separable" in note or "changed together" in note for note in shares.values()), shares


def test_an_option_of_the_command_line_is_a_cause(pair):
    lines = [{"command_line": ["train.py", "--wd", wd, "--out", f"runs/{wd}"]} for wd in ("0", "0.05")]
    one, two = write(pair[0], start=lines[0]), write(pair[1], start=lines[1], loss=changed_after(1, 4e-5))

    found = asked(one, two)

    assert (found.answer, found.causes[0].difference.text) == ("differ", "wd 0 → 0.05")
    assert "out" not in [row.what for row, _ in found.apart]


def test_rounding_in_the_first_records_is_not_where_few_records_depart(pair):
    def rounded(step):
        return _loss(step) * (1.05 if step > 18 else 1 + 1e-8)

    one = write(pair[0], steps=range(1, 61, 10), start={"packages": {"colours": "1.0"}})
    two = write(
        pair[1],
        steps=range(1, 21, 10),
        later=range(18, 61),
        loss=rounded,
        start={"packages": {"colours": "2.0"}},
    )

    found = asked(one, two)

    assert (found.departure.after, found.departure.at) == (11, 21)
    assert found.causes[0].difference.what == "the resume of run b at step 18"
