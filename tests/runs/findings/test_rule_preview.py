"""Rules of a project: followed in every run of it, and tried before they are kept."""

from __future__ import annotations

import math
import random

import pytest

from tests.made_runs import write_run
from toolkit.telemetry.diagnostics.examiner import examine
from toolkit.telemetry.diagnostics.policy import policy_of_run
from toolkit.telemetry.diagnostics.rules import Rule
from toolkit.telemetry.runfolder.labels import parse_project
from toolkit.telemetry.runs.findings.rule_preview import preview
from toolkit.telemetry.runs.sources.local_store import LocalStore


@pytest.mark.parametrize("lasts", [1, 3])
@pytest.mark.parametrize(
    "when",
    [
        "ema(train_loss, 0.5) > 4",
        "delta(train_loss) > 2 or flag == 1",
        "val_loss / train_loss > 1 and epoch > 1",
        "max(train_loss, 3) > 2 * best(train_loss)",
        "epoch/train_loss < mean(train_loss, 4) - 0.5",
    ],
)
def test_the_page_says_what_the_live_rule_finds(tmp_path, when, lasts):
    rng = random.Random(f"{when} {lasts}")
    records, step = [], 0
    for session in (1, 2, 3):
        records.append({"event": "start", "session": session})
        # A resumed run repeats steps, and this one goes back once more by itself.
        step = max(0, step - 7)
        for number in range(60):
            step = step - 5 if session == 2 and number == 30 else step + 1
            value = rng.choice([1.0, 2, 5.0, 9.0, math.nan, math.inf, "text", None, True])
            record = {"event": "step", "session": session, "global_step": step, "train_loss": value}
            record |= {"flag": rng.random() < 0.1} if rng.random() < 0.5 else {}
            records.append(record | ({"epoch": number // 20} if number % 3 == 0 else {}))
            if number % 9 == 8:
                kind = rng.choice(["eval", "epoch"])
                more = {"val_loss": 4 * rng.random()} if kind == "eval" else {"train_loss": 4 * rng.random()}
                records.append({"event": kind, "session": session, "global_step": step, **more})
    write_run(tmp_path, "r", records)
    store = LocalStore([tmp_path], cache_dir=None)
    store.refresh("r", wait_s=60.0)
    rule = Rule(name="own", when=when, lasts=lasts)

    found = examine(records, policy_of_run({"alerts": [rule.to_mapping()]}))
    times = sum(1 + finding.repeats for finding in found if finding.kind == rule.kind)
    said = preview(store, "r", rule)
    assert times
    assert said.startswith("Would have fired " + ("once" if times == 1 else f"{times} times"))


def test_settings_with_anything_in_them_are_read_as_far_as_they_go():
    found = parse_project(
        b'{"alerts": [1, {"name": "a"}], "views": {"v": {"charts": []}, "w": 3}, "more": 1}'
    )

    assert (found.alerts, found.views, found.other) == (({"name": "a"},), {"v": {"charts": []}}, {"more": 1})
