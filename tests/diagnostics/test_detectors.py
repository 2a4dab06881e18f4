"""The list of detectors: every file is in it, every kind is documented, and adding one takes the promised places."""

from __future__ import annotations

import pickle
import pkgutil
import re
import sys

import pytest

from tests.diagnostics.synthetic_runs import run_of
from tests.project.markdown import ROOT
from toolkit.telemetry.diagnostics import detectors
from toolkit.telemetry.diagnostics.catalogue import CATALOGUE, Kind
from toolkit.telemetry.diagnostics.examiner import examine
from toolkit.telemetry.diagnostics.finding import WARNING
from toolkit.telemetry.diagnostics.incident import Incidents


def test_every_file_in_detectors_is_listed():
    assert sorted({place.partition(":")[0] for place in detectors.DETECTORS.values()}) == sorted(
        module.name for module in pkgutil.iter_modules(detectors.__path__)
    )


def test_every_kind_of_finding_is_named_and_explained_in_the_document():
    document = (
        (ROOT / "docs" / "detectors.md").read_text(encoding="utf-8").partition("## What is detected")[2]
    )
    rows = re.findall(r"^\| `(\w+)` \|(?: [^|]+ \|){2}$", document, re.MULTILINE)

    assert sorted(rows) == sorted(CATALOGUE)


TOY = """
from toolkit.telemetry.diagnostics.metric_aliases import LOSS


class Toy:
    signals = (LOSS,)
    all_ranks = False

    def __init__(self, incidents):
        self._incidents = incidents

    def take(self, row):
        if row.values[LOSS] == 42.0:
            self._incidents.open("toy", "loss", start_step=row.step, noticed_step=row.step)

    def restart(self, step):
        pass
"""


def test_a_detector_is_added_with_a_file_a_line_and_a_kind(tmp_path, monkeypatch):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(detectors, "__path__", [*detectors.__path__, str(tmp_path)])
    monkeypatch.setitem(detectors.DETECTORS, "toy", "toy:Toy")
    kind = Kind(
        title="Toy", severity=WARNING, message="{metric} is 42 at step {start}.", causes=(), advice=()
    )
    monkeypatch.setitem(CATALOGUE, "toy", kind)

    try:
        found = [finding for finding in examine(run_of([1.0, 42.0, 1.0])) if finding.kind == "toy"]
    finally:
        sys.modules.pop("toolkit.telemetry.diagnostics.detectors.toy", None)

    assert [finding.message for finding in found] == ["loss is 42 at step 2."]


@pytest.mark.parametrize("file", detectors.READ_SELDOM)
def test_a_detector_that_is_made_late_has_missed_nothing(file):
    fresh, restarted = (detectors.make_detector(file, Incidents()) for _ in range(2))
    restarted.restart(7)
    needs = detectors.READ_SELDOM[file]

    others = {(detectors.SEVERAL_RANKS,), (detectors.TIME_LIMIT,)}
    assert needs in others if fresh.all_ranks or fresh.signals == ("*",) else needs == fresh.signals
    assert _without_incidents(restarted) == _without_incidents(fresh)


def _without_incidents(detector):
    return pickle.dumps({name: value for name, value in vars(detector).items() if name != "_incidents"})
