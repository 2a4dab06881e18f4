"""Which columns a list of runs has, what their cells show, and how runs are grouped."""

from __future__ import annotations

from toolkit.telemetry.runfolder.labels import ProjectSettings
from toolkit.telemetry.runfolder.manifest import Evaluation
from toolkit.telemetry.runfolder.status import Status
from toolkit.telemetry.runs.listing.run_table import (
    Primary,
    cell,
    columns_of,
    default_columns,
    differences_of,
    groups_of,
    primary_of,
)
from toolkit.telemetry.runs.store import RunCard


def card(key, *, val=None, config=None, **changes):
    evaluations = {"train_loss": Evaluation(last=1.0, best=0.5, direction="min")}
    if val is not None:
        evaluations["val_loss"] = Evaluation(last=val, best=val / 2, best_step=3, direction="min")
    known = {"evaluations": evaluations, "config": config or {}, **changes}
    return RunCard(key=key, place=key, name=key, status=Status(name="finished", why="", sure=True), **known)


SWEEP = [
    card("a", val=0.4, config={"learning_rate": 1e-4, "lora_rank": 4, "optimizer": "adamw", "seed": 1}),
    card("b", val=0.2, config={"learning_rate": 1e-3, "lora_rank": 4, "optimizer": "adamw", "seed": 1}),
    card("c", val=0.6, config={"learning_rate": 1e-3, "lora_rank": 8, "optimizer": "adamw", "seed": 1}),
    card("d", config={"learning_rate": 1e-3, "lora_rank": 8, "seed": 1}),
    card("e"),
]


def test_settings_that_differ_are_columns_and_the_others_can_be_chosen():
    found = differences_of(SWEEP)
    primary = primary_of(SWEEP, ProjectSettings())

    # Only one run lacks the optimizer; a run without any configuration does not count.
    assert found.every == ("learning_rate", "lora_rank", "optimizer")
    assert found.telling == ("learning_rate", "lora_rank")
    assert default_columns(SWEEP, primary)[:7] == [
        *(
            "name",
            "status",
            "best:val_loss",
            "last:val_loss",
            "loss",
            "config:learning_rate",
            "config:lora_rank",
        )
    ]
    assert "config:seed" in columns_of(SWEEP, primary)
    assert set(default_columns(SWEEP, primary)) <= set(columns_of(SWEEP, primary))


def test_cells_show_numbers_as_people_write_them():
    run = card("r", val=0.25, config={"learning_rate": 1e-4, "quantize": True, "model": "flux"})

    shown = [cell(run, name, 0.0) for name in ("best:val_loss", "last:val_loss", "config:learning_rate")]
    assert shown == ["0.125", "0.25", "1e-4"]
    assert [cell(run, name, 0.0) for name in ("config:quantize", "config:none", "best:x", "loss")] == [
        *("true", "", "", "")
    ]


def test_groups_have_mean_spread_and_best_and_a_search_that_finds_them():
    groups = groups_of(SWEEP, "lora_rank", Primary(metric="val_loss", direction="min"))

    assert [(group.text, group.runs, group.known, group.search) for group in groups] == [
        ("4", 2, 2, "lora_rank=4"),
        ("8", 2, 1, "lora_rank=8"),
        ("(none)", 1, 0, ""),
    ]
    assert groups[0].mean == (0.2 + 0.1) / 2
    assert groups[0].best.key == "b"
    assert groups[1].spread is None
