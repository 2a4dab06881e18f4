"""The journal is removed while its run lives, as by whoever cleans up shared memory when a user logs out."""

from __future__ import annotations

import pytest

from tests.faults.children import repair
from tests.faults.crash_checks import whole_run
from tests.records import with_event
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.journal.journal import pending_lines, shared_memory_folders
from toolkit.telemetry.runfolder.journal.repair import journals_of
from toolkit.telemetry.runfolder.manifest import read_manifest

LOGS_FOR_EVER = """
options = {"system": False, "flush_interval": 60, "journal": sys.argv[2]}
log_for_ever(TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, **options), pause_s=0.001)
"""


@pytest.mark.skipif(not shared_memory_folders(), reason="there is no shared memory")
@pytest.mark.parametrize("journal", ["shm", "folder"])
def test_a_journal_that_is_removed_while_the_run_lives_is_noticed_and_made_again(
    tmp_path, start, journal, record_property
):
    run = tmp_path / "run"
    child = start(LOGS_FOR_EVER, tmp_path, journal)
    child.wait_for_step(200)
    for _ in range(2):
        ((path, _),) = journals_of(run)
        assert (path.parent == run) == (journal == "folder")
        path.unlink()
        wait_until(lambda: journals_of(run))
        child.wait_for_step(child.acknowledged + 100)
    ((path, _),) = journals_of(run)
    held = []
    # It is empty for a while each time that the writer has been there.
    wait_until(lambda: held.extend(pending_lines(path)) or held)
    in_file = (run / "metrics.jsonl").read_bytes().count(b"\n")
    wait_until(lambda: read_manifest(run).latest.journal == str(path))
    child.kill()
    said = child.err
    repair(run)

    assert held[0][0] <= in_file, "what was in the old one is in the new one"
    assert said.count("keeping the journal failed") == 1, "said once"
    assert "was removed; the run continues in" in said
    records = whole_run(run, steps=range(child.acknowledged + 1))
    assert not with_event(records, "lost")
    assert any(error["doing"] == "keeping the journal" for error in with_event(records, "error"))
    record_property(
        "measured", f"removed twice, then killed: {child.acknowledged + 1:,} records acknowledged, 0 lost"
    )
