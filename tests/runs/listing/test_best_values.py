"""Best values in lists are of steps that count, whoever logged the run and wherever the list comes from."""

from __future__ import annotations

import pytest

from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.fleet.address import address_of
from toolkit.telemetry.fleet.run_folders import read_run_folder
from toolkit.telemetry.fleet.run_rows import RunReport, send
from toolkit.telemetry.runfolder.listed_run import decode_fields
from toolkit.telemetry.runs.listing.run_folders import runs_at

POINTS = ((0, 1, 0.5), (0, 5, 0.1), (0, 9, 0.01), (1, 5, 0.4), (1, 6, 0.3))
"""Session, step and loss."""


@pytest.fixture
def resumed(tmp_path):
    """A run whose second session began again at step 5; the score was evaluated at step 9 alone."""
    for first, losses in ((1, [0.5, 0.5, 0.5, 0.5, 0.1, 0.1, 0.1, 0.1, 0.01]), (5, [0.4, 0.3])):
        with TelemetryLogger("again", log_dir=tmp_path, log_every=1, system=False, resume=first > 1) as log:
            for step, loss in enumerate(losses, first):
                log.log_step(step, val_loss=loss, **({"eval_score": 0.9} if step == 9 else {}))
    return tmp_path / "again"


def best_of(path):
    folders = runs_at([path], labels_dir=None)
    folders.read_all(lambda *_: None)
    (card,) = folders.list_runs().cards
    return {name: (found.best, found.best_step, found.last) for name, found in card.evaluations.items()}


def test_what_only_steps_that_were_done_again_had_is_no_value_of_the_run(resumed):
    assert best_of(resumed) == {"val_loss": (0.3, 6, 0.3)}


def test_the_best_value_of_another_tools_run_is_of_a_step_that_counts(tmp_path):
    table = tmp_path / "train.csv"
    rows = [
        f"run,{session},eval,{step},,{name},{value}"
        for session, step, loss in POINTS
        for name, value in (("val_loss", loss), ("val_acc", 1 - loss))
    ]
    table.write_text("\n".join(["run,session,event,step,time,metric,value", *rows, ""]))

    assert best_of(table) == {"val_loss": (0.3, 6, 0.3), "val_acc": (0.7, 6, 0.7)}


def test_what_is_shipped_of_a_run_has_the_same_values_as_a_list_of_its_folder(resumed):
    sent = []

    class Engine:
        address = address_of("clickhouse://127.0.0.1/t")

        def insert_rows(self, _table, types, rows):
            sent.extend(dict(zip(types, row, strict=True)) for row in rows)

    run = read_run_folder(resumed)
    send(Engine(), "node", [(RunReport(is_known=True), run, 0, "")], all_runs=False)

    (row,) = sent
    found = decode_fields(row["card"])["evaluations"]
    assert {name: (one.best, one.best_step, one.last) for name, one in found.items()} == best_of(resumed)
