"""Is it really better: the test on numbers, and what is said of runs."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from dataclasses import replace

import pytest

from tests.made_runs import append
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.answers.order import depends_on_order
from toolkit.telemetry.answers.repeats import Result, _options, _recorded, groups_of
from toolkit.telemetry.answers.sequential_test import (
    ALPHA,
    Noise,
    chance,
    forecast,
    judge,
    limit,
    pooled,
    share_of_try,
)
from toolkit.telemetry.answers.verdict import best_against, pick_groups, verdict
from toolkit.telemetry.cli.main import main

NOISE = [-0.9, 0.4, 1.1, -0.3, 0.2, -1.2, 0.8, -0.1, 0.6, 0.4]


def runs(name, values, *, first=0.0, **more):
    """Runs of one change, one after the other, each with another seed."""
    given = {"step": 100, **more}
    return [
        Result(
            key=f"{name}{seed}",
            name=f"{name}{seed}",
            value=value,
            settings={"change": name, "seed": seed},
            created=first + seed,
            **given,
        )
        for seed, value in enumerate(values)
    ]


def said(new, best, others=(), *, goal="max", **more):
    return verdict(new, best, others, metric="score", goal=goal, **more)


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("sizes", [(3, 3), (4, 10), (16, 10), (40, 40)])
def test_the_chance_of_a_result_is_the_level_at_whose_limit_it_is(sizes):
    freedom = sum(sizes)
    for level in (0.02, 0.005, 0.0005):
        t = limit(level, *sizes, freedom)
        assert chance(t, *sizes, freedom) == pytest.approx(level)
        assert chance(1.1 * t, *sizes, freedom) < level
    assert chance(-9.0, *sizes, freedom) > 0.99
    assert chance(0.0, *sizes, freedom) >= 0.5


def test_all_shares_of_all_tries_add_up_to_no_more_than_one():
    assert sum(map(share_of_try, range(1, 100_000))) <= 1


def test_the_noise_of_groups_is_pooled_and_that_of_equal_values_is_unknown():
    assert pooled([[1.0, 3.0], [10.0, 12.0], [5.0]]) == Noise(math.sqrt(2), 2)
    assert pooled([[1.0, 1.0], [2.0]]) is None


def test_an_effect_of_two_deviations_is_found_more_often_with_every_run_and_no_effect_is_hardly_ever():
    source = random.Random(5)

    def found(effect, most, loops):
        number = {4: 0, 8: 0, most: 0}
        for _ in range(loops):
            best = [source.gauss(0, 1) for _ in range(10)]
            new, outcome = [], ""
            while len(new) < most:
                new.append(source.gauss(effect, 1))
                if outcome != "better":
                    outcome = judge(new, best, pooled([best, new])).outcome
                if len(new) in number:
                    number[len(new)] += outcome == "better"
        return [count / loops for count in number.values()]

    four, eight, many = found(2.0, 32, 300)
    assert four >= 0.5
    assert eight >= 0.8
    assert many >= 0.97
    assert found(0.0, 32, 300)[-1] <= 0.05


def test_two_lucky_runs_are_not_yet_better_and_the_own_noise_of_the_groups_counts():
    noise = Noise(0.1, 50)
    even, uneven = ([2.0, 2.1, 1.9, 2.0], [0.0, 0.1, -0.1]), ([2.0, 0.1, 5.8, 0.1], [0.0, 0.1, -0.1])

    assert judge(even[0][:2], even[1], noise).outcome == "not decided"
    assert judge(*even, noise).outcome == "better"
    assert judge(*uneven, noise).outcome == "not decided"


@pytest.mark.parametrize("of_best", [2, 10])
@pytest.mark.parametrize(
    "draw",
    [
        lambda one: one.gauss(0, 1) / math.sqrt(one.gammavariate(1.5, 2.0) / 3),
        lambda one: one.expovariate(1.0) - 1,
    ],
    ids=["heavy tails", "long better tail"],
)
def test_noise_with_long_tails_makes_hardly_a_false_better(draw, of_best):
    source, false = random.Random(3), 0
    for _ in range(40):
        best = [draw(source) for _ in range(of_best)]
        groups = [best]
        found = False
        for number in range(1, 11):
            new = [draw(source) for _ in range(4)]
            for look in range(1, 5):
                noise = pooled([*groups, new[:look]])
                found |= (
                    noise is not None and judge(new[:look], best, noise, tries=number).outcome == "better"
                )
            groups.append(new)
        false += found

    assert false <= 2 * 40 * ALPHA


def test_a_forecast_rises_with_the_difference_and_with_the_runs():
    best, noise = NOISE[:5], Noise(0.8, 20)
    by_size = [sum(forecast([size, size], best, noise, more=2)[1]) for size in (0.0, 1.5, 4.0)]

    assert by_size[0] < by_size[1] < by_size[2] <= 1
    better = [chance for chance, _ in forecast([1.5], best, noise, more=4)]
    assert better[0] == 0 < better[1] < better[2] <= better[3]


# ---------------------------------------------------------------- what is said


def test_what_is_within_the_noise_is_discarded_or_run_again():
    best = runs("b", NOISE)
    hopeless, promising = said(runs("n", [0.1]), best), said(runs("n", [2.0], first=50), best)

    assert (hopeless.answer, hopeless.exit_code) == ("not better", 1)
    assert (promising.answer, promising.exit_code) == ("not decided", 3)
    assert "more seeds decide with" in promising.sentence
    assert promising.needed.startswith("Run ")
    assert "more seed" in promising.needed


def test_the_tries_of_the_folder_are_counted_and_its_repeats_show_the_noise():
    best, new = runs("b", [0.0], first=0), runs("n", [3.0, 3.1, 3.2], first=50)
    tries = [
        run
        for number in range(6)
        for run in runs(f"t{number}", NOISE[number : number + 2], first=10 * number)
    ]
    found = said(new, best, tries)

    assert found.numbers["tries"] == 7, "those that began later are other tries"
    assert "15 repeated runs in 7 groups" in found.rests_on[0]
    assert (
        said(new, best, tries, tries=50).numbers["improvement_needed"] > found.numbers["improvement_needed"]
    )
    assert "by luck" in found.rests_on[-1]


def test_without_repeats_nothing_is_decided_however_far_two_runs_are_apart():
    for far in (1.0, 99.0, -99.0):
        found = said(runs("n", [far]), runs("b", [0.0]))

        assert found.answer == "not decided"
        assert "how much repeated runs differ is not known" in found.sentence
        assert "Run 2 more seeds" in found.needed


def test_runs_that_are_not_whole_or_diverged_are_no_result():
    best = runs("b", NOISE)
    short = said(runs("n", [9.0], step=10, is_finished=False), best)
    live = said(runs("n", [9.0], is_finished=False, is_live=True, progress=0.1), best)
    lost = said(runs("n", [math.nan]), best)
    partly = said([*runs("n", [9.0, 9.1, 9.2]), *runs("n", [9.0, 9, 9, math.inf])[3:]], best)

    assert short.answer == live.answer == "not decided"
    assert short.evidence[0]["why"] == "it ended at 10 % of the steps"
    assert "still runs at 10 %" in live.evidence[0]["why"]
    assert lost.answer == "worse"
    assert partly.answer == "not decided"
    assert "diverged" in partly.needed
    assert json.dumps(lost.as_json(), allow_nan=False)


def test_runs_in_which_nothing_recorded_differs_are_compared_and_that_is_said():
    best = runs("b", NOISE)
    again = [
        replace(run, key=f"x{run.key}", name=f"x{run.key}", created=99.0)
        for run in runs("b", [9.0, 9.1, 9.2, 9.4])
    ]
    same = replace(best[0], key="y", name="y", created=99.0)

    found = said(again, best)
    assert found.answer == "better"
    assert "Nothing that was recorded differs" in " ".join(found.rests_on)
    assert "share a run" in said(best[:1], best).sentence
    assert said(runs("n", [1.0]), [*best, same]).evidence[-1]["why"] == "it has the seed and the value of b0"


def test_equal_settings_and_seed_without_the_code_are_another_try_and_with_it_a_repeat():
    settings = {"change": "b", "seed": 1}
    pair = [Result(key=key, name=key, value=1.0, settings=settings, created=0.0) for key in "ab"]

    assert len(set(groups_of(pair).values())) == 2
    assert len(set(groups_of([replace(run, code="c") for run in pair]).values())) == 1


def test_what_a_run_logged_divides_groups_only_where_it_is_a_constant():
    def logged(number, **values):
        settings = {"change": "b", "seed": number, **{f"logged.{name}": values[name] for name in values}}
        return Result(key=str(number), name=str(number), value=1.0, settings=settings)

    pairs = (
        ([logged(1, lr=0.1), logged(2, lr=0.1)], 1),
        ([logged(1, lr=0.1), logged(2, lr=0.2)], 2),
        ([logged(1, temperature=0.1), logged(2, temperature=None)], 1),
    )
    for pair, number in pairs:
        assert len(set(groups_of(pair).values())) == number


def test_runs_that_were_evaluated_or_trained_differently_are_warned_of():
    new, best = runs("n", [1.0]), runs("b", NOISE, is_finished=True)
    other = [
        Result(
            key=run.key,
            name=run.name,
            value=run.value,
            step=300,
            settings={**run.settings, "eval_samples": 9},
        )
        for run in new
    ]
    texts = " ".join(said(other, best).rests_on)

    assert "Evaluated differently: eval_samples 9 against not set" in texts
    assert "Trained for 300 steps against 100" in texts


def test_of_a_folder_the_best_group_is_taken_and_a_run_comes_with_its_repeats():
    good, bad, new = runs("g", [2.0, 2.1]), runs("b", NOISE), runs("n", [3.0, 3.1], first=50)
    every = [*good, *bad, *new]
    picked = pick_groups(new[:1], every, every, "max", [True, True])
    named = pick_groups(new[:1], good[:1], every, "max", [True, True])

    assert [[run.name for run in group] for group in picked] == [["n0", "n1"], ["g0", "g1"]]
    assert named == picked


def test_a_result_that_is_there_twice_counts_once_whether_its_seed_is_known_or_not():
    twice = [
        Result(
            key=f"{name}{at}",
            name=f"{name}{at}",
            value=value,
            settings={"change": name},
            code="c",
            created=float(at),
        )
        for name, value in (("n", 1.0), ("b", 0.0), ("o", 0.5))
        for at in range(3)
    ]
    found = said(twice[:3], twice[3:6], twice[6:])

    assert [row["counted"] for row in found.evidence] == [True, False, False] * 2
    assert "no other seed and the value of n" in found.evidence[1]["why"]
    assert "not known" in found.sentence, "equal results show no noise"


# ---------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    place = tmp_path_factory.mktemp("verdict")
    for name, lr, values in (("base", 1e-3, NOISE[:5]), ("good", 2e-3, [9.0, 9.1, 8.9, 9.2])):
        for seed, value in enumerate(values):
            with TelemetryLogger(f"{name}{seed}", log_dir=place, log_every=1, system=False) as log:
                log.log_start(config={"lr": lr, "seed": seed})
                log.log_step(1, train_loss=1.0)
                log.log_eval(1, accuracy=value, odd=value)
    (place / "other").mkdir()
    (place / "other" / "results.csv").write_text("step,train/loss\n1,0.5\n")
    return place


def test_the_command_says_keep_or_discard_by_its_exit_code(logs, capsys):
    assert main(["verdict", str(logs / "good0"), "--against", str(logs / "base0")]) == 0
    text = capsys.readouterr().out
    assert "good0 (4 runs) is better than base0 (5 runs): accuracy 9.05 against" in text
    assert "Next: Keep good0 (4 runs)." in text
    assert main(["verdict", str(logs / "base0"), "--against", str(logs), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["answer"], found["exit_code"], found["metric"]) == ("worse", 1, "accuracy")
    assert main(["verdict", str(logs / "base1"), "--against", str(logs / "base0")]) == 3
    assert "Nothing that was recorded differs" in capsys.readouterr().out


def test_five_lines_with_a_learning_rate_from_the_command_line_are_two_groups(tmp_path, capsys, monkeypatch):
    logs = tmp_path / "logs"
    for lr, seed in itertools.product(("1e-3", "1e-4"), range(4)):
        name, noise = f"{lr}_{seed}", random.Random(seed)
        given = ["train.py", "--lr", lr, f"seed={seed}", "--name", name, str(logs)]
        monkeypatch.setattr(sys, "argv", given)
        with TelemetryLogger(name, log_dir=logs, log_every=10) as log:
            for step in range(1, 101):
                loss = (0.5 if lr == "1e-3" else 1.0) + 1 / step + noise.gauss(0, 0.01)
                log.log_step(step, train_loss=loss, lr=float(lr))
            # A training takes longer than the description of the machine, which has the command line.
            records = log.run_folder / "metrics.jsonl"
            wait_until(lambda records=records: '"command_line"' in records.read_text())
    recorded = _recorded(logs / "1e-3_0", (0, 0, 0))
    assert (recorded["command line.lr"], recorded["logged.lr"]) == ("1e-3", 1e-3)

    assert main(["verdict", str(logs / "1e-3_0"), "--against", str(logs / "1e-4_0")]) == 0
    text = capsys.readouterr().out
    assert "1e-3_0 (4 runs) is better than 1e-4_0 (4 runs)" in text
    assert "They differ in lr 0.001 against 0.0001." in text
    assert main(["verdict", str(logs / "1e-4_2"), "--against", str(logs)]) == 1
    assert "(4 runs) is worse than" in capsys.readouterr().out


@pytest.mark.parametrize(("warm_up", "known"), [(6000, None), (500, 1e-3)])
def test_a_learning_rate_that_still_rises_where_reading_stops_is_not_known(tmp_path, warm_up, known):
    recorded = []
    for name, loss in (("short", 0.5), ("long", 0.123456789)):
        steps = [
            {"event": "step", "seq": step, "session": 1, "time": 1.7e9 + step, "global_step": step}
            | {"train_loss": loss, "momentum": 0.9, "lr": 1e-3 * min(1, step / warm_up) * (step < 8000)}
            for step in range(9000)
        ]
        recorded.append(_recorded(append(tmp_path / name, steps), (0, 0, 0)))

    assert recorded == [{"logged.momentum": 0.9, "logged.lr": known}] * 2


def test_a_command_line_that_is_known_after_many_steps_counts(tmp_path):
    steps = [{"event": "step", "session": 1, "global_step": step, "loss": step / 7} for step in range(20_000)]
    steps.insert(
        10_000, {"event": "environment", "session": 1, "host": "a", "command_line": ["a.py", "--wd=1"]}
    )

    assert _recorded(append(tmp_path / "late", steps), (0, 0, 0))["command line.wd"] == "1"


def test_options_and_flags_of_a_command_line_count_and_paths_do_not():
    line = "/a/train.py --config conf/x.yaml --out /tmp/a0 --fp16 --lr=1e-3 model.width=64 -v --seed 3 data/b".split()

    assert dict(_options(line)) == {
        "argument 0": "train.py",
        "config": "x.yaml",
        "fp16": "given",
        "lr": "1e-3",
        "model.width": "64",
        "v": "given",
        "seed": "3",
    }


def test_every_run_that_is_added_lowers_what_is_needed_for_better(logs, capsys):
    needed = []
    for of_best, size in ((3, 3), (3, 4), (4, 4), (5, 4)):
        new = [str(logs / f"good{at}") for at in range(size)]
        best = [str(logs / f"base{at}") for at in range(of_best)]
        main(["verdict", *new, "--against", *best, "--json"])
        needed.append(json.loads(capsys.readouterr().out)["improvement_needed"])
    assert needed == sorted(set(needed), reverse=True)


def test_two_runs_of_the_same_name_are_called_by_their_folders(tmp_path, capsys):
    for place, lr in (("old", 1e-3), ("new", 2e-3)):
        with TelemetryLogger("twin", log_dir=tmp_path / place, log_every=1, system=False) as log:
            log.log_start(config={"lr": lr})
            log.log_eval(1, accuracy=lr)
    capsys.readouterr()
    main(["verdict", str(tmp_path / "new" / "twin"), "--against", str(tmp_path / "old" / "twin")])

    assert "Not decided whether new/twin lr=0.002 is better than old/twin lr=0.001" in capsys.readouterr().out


def test_what_cannot_be_compared_is_said_in_one_sentence(logs, tmp_path, capsys):
    torn = tmp_path / "torn"
    torn.mkdir()
    (torn / "metrics.jsonl").write_text('{"event": "step", "global_step": 1, "train_l')
    for paths, sentence in (
        ([logs / "gone", "--against", logs / "base0"], "gone"),
        ([logs / "good0", "--against", logs / "other"], "share no metric"),
        (
            [logs / "good0", "--against", logs / "base0", "--metric", "nothing", "--goal", "min"],
            "has no run with nothing",
        ),
        ([logs / "good0", "--against", logs / "base0", "--metric", "odd"], "--goal min or"),
        ([torn, "--against", logs / "base0"], "share no metric"),
        ([logs, "--against", logs], "no other run"),
    ):
        assert main(["verdict", *map(str, paths)]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert error.count("\n") == 1
    assert main(
        ["verdict", str(logs / "other"), "--against", str(logs / "base0"), "--metric", "train_loss"]
    ) in (2, 3)


# ---------------------------------------------------------------- the order of the runs


def drifting(count, *, first, step=0.5):
    return [step * (first + at) + 0.2 * noise for at, noise in zip(range(count), NOISE, strict=False)]


def test_runs_that_drift_with_time_are_not_better_for_being_later():
    found = said(runs("new", drifting(8, first=8), first=8.0), runs("best", drifting(8, first=0), first=0.0))

    assert (found.answer, found.exit_code) == ("not decided", 3)
    assert "drift with the time at which they were started" in found.sentence
    assert "in turns" in found.needed


def test_runs_that_are_like_the_one_before_them_decide_nothing():
    low_and_high = [0.0, 0.1, 0.05, 1.0, 1.1, 1.05, 1.0, 0.1, 0.0, 0.05]
    found = said(
        runs("new", [3 + value for value in low_and_high], first=20.0), runs("best", low_and_high, first=0.0)
    )

    assert found.answer == "not decided"
    assert "more like the one before them" in found.sentence


def test_a_drift_does_not_matter_where_both_were_run_in_turns():
    new, best = drifting(10, first=0.0), drifting(10, first=0.0)
    new = [
        replace(run, value=(run.value or 0.0) + 9.0, created=2.0 * at + 1.0)
        for at, run in enumerate(runs("new", new))
    ]
    best = [replace(run, created=2.0 * at) for at, run in enumerate(runs("best", best))]

    assert said(new, best).answer == "better"


def test_runs_that_depend_on_nothing_are_seldom_refused():
    refused = 0
    for number in range(100):
        source = random.Random(number)
        groups = [
            [(float(at), source.gauss(0.0, 1.0)) for at in range(first, first + 8)] for first in (0, 8, 16)
        ]
        refused += bool(depends_on_order(groups))

    assert refused <= 10


def test_runs_without_a_start_time_are_compared_as_before():
    new = [replace(run, created=None) for run in runs("new", drifting(8, first=8))]
    best = [replace(run, created=None) for run in runs("best", drifting(8, first=0))]

    assert said(new, best).answer == "better"


def test_the_run_that_a_page_names_is_the_one_that_is_compared():
    lucky, steady = runs("lucky", [0.0, 9.0, 0.5]), runs("steady", [5.0, 5.1, 4.9], first=5)

    assert best_against([*lucky, *steady], metric="score", goal="max").sentence.startswith("steady1 (3 runs)")
    named = best_against([*lucky, *steady], metric="score", goal="max", head=lucky[1].key)
    assert "lucky1 (3 runs)" in named.sentence.split(" than ")[0], "of equal ones the best is named"
