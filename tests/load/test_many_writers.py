"""Very many processes that log into one directory at the same time."""

from __future__ import annotations

import os
import time

import pytest

from tests.lengths import in_make_faults, longer
from tests.load.writers import look_into, write_together
from toolkit.telemetry.runfolder.layout import PRIVATE, claim_folder

PROCESSES = longer(4, 64)


@pytest.mark.slow
@pytest.mark.timeout(longer(240, 1800))
def test_processes_that_start_together_in_one_directory_lose_and_mix_nothing(tmp_path, record_property):
    log_dir = tmp_path / "logs"
    # Half of them ask for one and the same name.
    wrote, watched = write_together(log_dir, processes=PROCESSES, steps=longer(60, 20_000), sharing=2)

    found = look_into(log_dir, wrote)
    record_property(
        "measured",
        f"{found.runs} processes at once, {found.records:,} records, {found.lost} lost, {found.foreign} mixed up, "
        f"{watched.looks} dashboard refreshes meanwhile",
    )
    assert found.runs == PROCESSES == len({one.folder for one in wrote})
    assert (found.lost, found.foreign, found.out_of_order) == (0, 0, 0)
    assert (found.rows_missing, found.not_finished, found.left_over) == (0, 0, 0)
    assert sum(os.path.basename(one.folder).startswith("all") for one in wrote) == PROCESSES // 2
    # How many runs a refresh saw depends on when it came: the writers may be done before the first.
    assert watched.most_runs <= PROCESSES
    assert (watched.bad_lines, watched.problems) == (0, 0)
    # Very many on two cores; this tells waiting for each other from waiting for the processor.
    assert max(one.start_s for one in wrote) < 60.0


@in_make_faults
def test_ten_thousand_runs_of_one_name_leave_the_next_one_a_folder(tmp_path, record_property):
    for number in range(1, 10_001):
        os.mkdir(tmp_path / ("sweep" if number == 1 else f"sweep-{number}"))
    began = time.perf_counter()

    folder = claim_folder(tmp_path, "sweep", PRIVATE)

    record_property(
        "measured", f"10,000 runs of one name, then {1000 * (time.perf_counter() - began):.0f} ms"
    )
    assert folder.name == "sweep-10001"


def test_a_free_name_in_front_is_taken_first(tmp_path):
    for name in ("r", "r-2", "r-4"):
        (tmp_path / name).mkdir()

    assert [claim_folder(tmp_path, "r", PRIVATE).name for _ in range(2)] == ["r-3", "r-5"]
