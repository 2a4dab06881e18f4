"""docs/architecture.md says where things are changed; the rooms of the code import each other without a circle."""

import inspect

import pytest

from tests.project import rooms
from tests.project.markdown import ROOT
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.records.folded_metrics import COLUMNS


def test_the_places_in_the_document_are_those_of_the_code():
    assert rooms.DOCUMENT.read_text("utf-8") == rooms.written(), "`make docs` writes it"


def test_the_well_known_fields_of_a_step_are_parameters_of_log_step():
    parameters = inspect.signature(TelemetryLogger.log_step).parameters

    assert set(COLUMNS) <= set(parameters), "the place that the document names for them is wrong"


def test_rooms_do_not_import_each_other_in_a_circle():
    assert rooms.layers(rooms.imports())


def test_a_circle_of_rooms_is_found():
    with pytest.raises(AssertionError, match="a circle: a -> b -> a"):
        rooms.layers({"a": {"b"}, "b": {"a"}})


def test_the_root_of_telemetry_holds_at_most_six_files():
    files = {path.name for path in (ROOT / "toolkit" / "telemetry").glob("*.py")}

    # `python -m toolkit.telemetry` needs a file of this name there.
    assert len(files - {"__main__.py"}) <= 6
