"""docs/architecture.md says where things are changed."""

import inspect

from tests.project import places
from tests.project.markdown import ROOT
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.records.folded_metrics import COLUMNS


def test_the_places_in_the_document_are_those_of_the_code():
    assert places.DOCUMENT.read_text("utf-8") == places.written(), "`make docs` writes it"


def test_the_well_known_fields_of_a_step_are_parameters_of_log_step():
    parameters = inspect.signature(TelemetryLogger.log_step).parameters

    assert set(COLUMNS) <= set(parameters), "the place that the document names for them is wrong"


def test_the_root_of_telemetry_holds_at_most_six_files():
    files = {path.name for path in (ROOT / "toolkit" / "telemetry").glob("*.py")}

    # `python -m toolkit.telemetry` needs a file of this name there.
    assert len(files - {"__main__.py"}) <= 6
