"""Small files that would take gigabytes or never end take neither, and hide no other run."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.attacks.bombs import BOMBS, GOOD
from tests.fork_server import run_python
from tests.lengths import longer

MOST_MEGABYTES = 300.0
MOST_SECONDS = 30.0
"""Of the processor, far above what is measured: the figure is what counts."""
LISTS = ("toolkit.telemetry.cli.run_list", "toolkit.telemetry.runs.listing.foreign_runs")


@pytest.mark.parametrize("group", sorted({name.partition("_")[0] for name in BOMBS}))
def test_a_small_file_takes_neither_gigabytes_nor_long_and_hides_no_run(group, tmp_path, record_property):
    # Those of YAML take no time.
    names = [name for name in BOMBS if name.startswith(group)][: longer(14 if group == "yaml" else 1, 100)]
    for name in names:
        (tmp_path / "all" / name / name).mkdir(parents=True)
        (tmp_path / "all" / name / "good").mkdir()
        (tmp_path / "all" / name / "good" / "metrics.csv").write_text(GOOD)
        BOMBS[name](tmp_path / "all" / name / name)

    done = run_python(
        ["-m", "tests.attacks.bombs", tmp_path / "all", tmp_path / "result"],
        LISTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    found = json.loads((tmp_path / "result").read_text()) if (tmp_path / "result").exists() else {}
    assert done.returncode == 0, (list(found)[-1:], done.stdout[-2000:])
    assert len(found) == 2 * len(names)
    for look, (has_good, seconds, megabytes) in found.items():
        assert has_good, look
        assert megabytes <= MOST_MEGABYTES, look
        assert seconds <= MOST_SECONDS, look
    worst = max(seconds for _, seconds, _ in found.values())
    largest = max(megabytes for _, _, megabytes in found.values())
    record_property("measured", f"{len(names)} of {group}, at most {worst:.1f} s and {largest:.0f} MB")
