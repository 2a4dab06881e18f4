"""Rules of one's own: read, followed, and found like any other problem."""

from __future__ import annotations

import math
import random

import pytest

from tests.diagnostics.synthetic_runs import evaluated, run_of
from tests.made_runs import append
from toolkit.telemetry.diagnostics.catalogue import title_of
from toolkit.telemetry.diagnostics.examiner import Examiner, examine
from toolkit.telemetry.diagnostics.history import diagnose
from toolkit.telemetry.diagnostics.policy import PolicyError, policy_from, policy_of_run
from toolkit.telemetry.diagnostics.rules import read_rules
from toolkit.telemetry.runfolder.labels import ProjectSettings, write_project
from toolkit.telemetry.runfolder.manifest import Manifest, write_manifest


def _policy(*rules, **more):
    return policy_from({**more}, None, list(rules))


def _found(records, policy):
    return [finding for finding in examine(records, policy) if finding.kind.startswith("rule:")]


HIGH = {"name": "too high", "when": "mean(train_loss, 2) > 3", "for": 3, "severity": "critical"}
LOSSES = [2.0] * 20 + [4.0] * 10 + [2.0] * 60 + [5.0] * 4


def test_a_rule_is_broken_once_it_holds_for_so_many_records_and_until_it_does_not():
    first, second = _found(run_of(LOSSES), _policy(HIGH))

    assert (first.kind, first.severity, first.metric, first.state) == (
        *("rule:too high", "critical", "train_loss", "resolved"),
    )
    assert (first.start_step, first.noticed_step, first.end_step, first.resolved_step) == (22, 24, 30, 31)
    assert first.evidence == {"value": 4.0, "limit": 3.0}
    assert first.message == "mean(train_loss, 2) > 3 holds. Since step 22, 9 records: 4 against 3 at step 24."
    assert (second.start_step, second.is_open) == (91, True)
    assert title_of(first) == "too high"


@pytest.mark.parametrize("size", [1, 7, 37])
def test_the_findings_are_the_same_however_many_records_come_at_once(size):
    rng = random.Random(1)
    losses = [rng.choice([1.0, 2.0, 4.0, 9.0]) for _ in range(150)]
    records = evaluated(run_of(losses), [rng.random() for _ in range(10)], each=15)
    rules = [
        {"name": "a", "when": "ema(train_loss, 0.7) > 4 or val_loss > 0.9", "for": 2},
        {"name": "b", "when": "delta(train_loss) > 3 and step > 20"},
        {"name": "c", "when": "delta(train_loss) < -2 and train_loss != 1"},
        {"name": "d", "when": "other > 1"},
    ]
    whole = _found(records, _policy(*rules))
    examiner = Examiner(_policy(*rules))
    for first in range(0, len(records), size):
        examiner.take(records[first : first + size])

    assert {finding.kind for finding in whole} == {"rule:a", "rule:b", "rule:c"}
    assert [finding for finding in examiner.findings() if finding.kind.startswith("rule:")] == whole


def test_the_value_is_the_one_of_the_step_that_is_named():
    rule = {"name": "high", "when": "train_loss > 3", "for": 5}
    (found,) = _found(run_of([2.0, *(3.0 + place / 8 for place in range(1, 30))]), _policy(rule))

    assert found.message == "train_loss > 3 holds. Since step 2, 29 records: 3.625 against 3 at step 6."


def test_values_that_are_no_numbers_change_nothing():
    records = run_of(LOSSES)
    mixed = [
        *records[:25],
        {**records[24], "train_loss": "text"},
        {**records[24], "train_loss": None},
        *records[25:],
    ]

    assert [one.noticed_step for one in _found(mixed, _policy(HIGH))] == [24, 93]
    nan = {"name": "not a number", "when": "train_loss != train_loss"}
    assert [one.start_step for one in _found(run_of([1.0, math.nan, 1.0]), _policy(nan))] == [2]


def test_a_rule_may_use_a_setting_of_the_run():
    start = {"event": "start", "session": 1, "config": {"train": {"lr": 0.5}}}
    rule = {"name": "limit", "when": "train_loss > 6 * config.lr", "message": "Above {the} limit"}

    (found,) = _found([start, *run_of([2.0, 3.0, 4.0])], _policy(rule))

    assert found.message == "Above {the} limit. Since step 3, 1 records: 4 against 3 at step 3."
    assert _found(run_of([9.0]), _policy(rule)) == []


def test_a_rule_has_a_severity_an_action_and_a_name_like_any_kind():
    assert _found(run_of(LOSSES), policy_from({"rule:too high": "off"}, None, [HIGH])) == []
    assert policy_from(True, {"rule:too high": "stop"}, [HIGH]).actions == {"rule:too high": "stop"}
    with pytest.raises(PolicyError, match="is the kind of a rule, and `alerts` has none of this name"):
        policy_from(True, {"rule:other": "stop"}, [HIGH])
    own = {"alerts": [{**HIGH, "severity": "info"}], "plateau": "off"}
    assert [rule.severity for rule in policy_of_run(own, [HIGH]).rules] == ["info"]


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("loss > 1", "alerts is 'loss > 1'; it must be a list of rules"),
        ([1], "alerts[0] is 1; it must be a mapping of name, when, for, severity, message"),
        ([{"wen": 1}], "alerts[0].wen (with the value 1) is not an option; did you mean 'when'?"),
        ([{"when": "x > 1"}], "alerts[0].name is None; it must be a text of 1 to 60 characters"),
        ([{**HIGH, "name": "\x1b[0m"}], "alerts[0].name is '\\x1b[0m'; it must be a text of 1 to 60"),
        ([{**HIGH, "message": "\ud800"}], "alerts[0].message is '\\ud800'; it must be a text of 1 to 300"),
        (
            [{"name": "a", "when": 3}],
            "alerts[0].when is 3; it must be a formula such as 'loss > 10', of 1 to 500",
        ),
        (
            [{"name": "a", "when": "x >"}],
            "alerts[0].when is 'x >': A name, a number or ( is missing (character 4)",
        ),
        ([{"name": "a", "when": "x"}], "alerts[0].when is 'x'; it must be a comparison of a metric"),
        ([{"name": "a", "when": "1 > 2"}], "alerts[0].when is '1 > 2'; it must be a comparison of a metric"),
        ([{**HIGH, "for": 0}], "alerts[0].for is 0; it must be a whole number from 1 to 1000000"),
        ([{**HIGH, "for": True}], "alerts[0].for is True; it must be a whole number from 1 to 1000000"),
        ([{**HIGH, "severity": "bad"}], "alerts[0].severity is 'bad'; it must be one of 'info'"),
        ([HIGH, HIGH], "alerts[1].name is 'too high', which is the name of another rule"),
        ([nested(10_000)], "alerts[0] is a list of very many levels; it must be a mapping"),
    ],
)
def test_a_mistake_is_said_and_the_other_rules_stay(rules, said):
    if isinstance(rules, list):
        rules = [*rules, {"name": "right", "when": "loss > 1"}]
    found, problems = read_rules(rules)

    assert len(problems) == 1
    assert problems[0].startswith(said)
    assert not isinstance(rules, list) or found[-1].name == "right"


def test_very_many_rules_are_read_and_complained_about_within_bounds():
    wrong = [{"name": f"{number}", "when": "x >"} for number in range(10_000)]
    right = [{"name": f"{number}", "when": "x > 1"} for number in range(10_000)]

    assert (len(read_rules(wrong)[1]), read_rules(wrong)[1][-1]) == (6, "alerts has 496 more mistakes")
    assert len(read_rules(right)[0]) == 50
    assert read_rules(right)[1] == ["alerts[50] and what follows are too many; at most 50 rules are allowed"]


def test_lines_of_a_folded_text_are_one():
    ((rule,), _) = read_rules([{"name": "a", "when": "loss > 1\n  and loss < 9\n", "message": "two\nlines"}])

    assert (rule.when, rule.message) == ("loss > 1   and loss < 9", "two lines")


def test_the_doctor_follows_the_rules_of_the_run_and_of_its_project(tmp_path):
    folder = append(tmp_path / "run", run_of(LOSSES))
    own = {"name": "own", "when": "train_loss > 4.5"}
    manifest = Manifest(
        run_id="r", name="run", display_name="run", created=1.0, project="p", diagnostics={"alerts": [own]}
    )
    write_manifest(folder, manifest)
    write_project(tmp_path, "p", ProjectSettings(alerts=(HIGH,)))

    assert {finding.kind for finding in diagnose(folder).findings} >= {"rule:own", "rule:too high"}
