"""docs/architecture.md says what the code is: its rooms, their imports, and where things are changed."""

import re

import pytest

from tests.project import rooms
from tests.project.markdown import ROOT

CHANGES = re.findall(r"^\| ([^|]+) \| `([^`|]+)` \|$", rooms.DOCUMENT.read_text("utf-8"), re.MULTILINE)


def test_the_rooms_in_the_document_are_those_of_the_code():
    assert rooms.DOCUMENT.read_text("utf-8") == rooms.written(), "`make docs` writes it"


def test_rooms_do_not_import_each_other_in_a_circle():
    assert rooms.layers(rooms.imports())


def test_a_circle_of_rooms_is_found():
    with pytest.raises(AssertionError, match="a circle: a -> b -> a"):
        rooms.layers({"a": {"b"}, "b": {"a"}})


def test_the_root_of_telemetry_holds_at_most_six_files():
    files = {path.name for path in (ROOT / "toolkit" / "telemetry").glob("*.py")}

    # `python -m toolkit.telemetry` needs a file of that name there.
    assert len(files - {"__main__.py"}) <= 6


def test_each_of_the_sixteen_changes_has_one_place():
    assert len(CHANGES) == 16
    assert [path for _, path in CHANGES if not (ROOT / path).exists()] == []
