"""Which files of a run are never stored for others."""

import pytest

from toolkit.telemetry.fleet.objects import checked_path
from toolkit.telemetry.runfolder.safefile import NotInside


@pytest.mark.parametrize(
    "path", ["code/1/train.py", "code/1.diff", "run.json", "ranks/00001.jsonl", "samples/.x"]
)
def test_the_code_and_the_runs_own_files_are_not_stored_whatever_a_record_says(path):
    with pytest.raises(NotInside):
        checked_path(path)


def test_samples_are_stored():
    assert checked_path("samples/1.png") == ("samples", "1.png")
