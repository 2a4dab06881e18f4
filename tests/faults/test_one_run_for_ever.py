"""What a killed run left in its journal stays its own: a run that takes its name or its place gets nothing of it."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from tests.faults.children import repair
from tests.faults.crash_checks import whole_run
from tests.records import with_event
from tests.waiting import wait_until
from toolkit.telemetry.runfolder.journal.journal import head_of, pending_lines, shared_memory_folders
from toolkit.telemetry.runfolder.journal.repair import journals_of
from toolkit.telemetry.runfolder.trash import empty_trash, move_to_trash

SHM = shared_memory_folders()
pytestmark = pytest.mark.skipif(not SHM, reason="there is no shared memory that a journal could lie in")

IN_ITS_JOURNAL = """
options = {"run_id": sys.argv[3]} if len(sys.argv) > 3 else {}
log = TelemetryLogger(
    "run", log_dir=sys.argv[1], log_every=1, system=False, flush_interval=60, journal="shm", **options
)
log.log_start()
log.flush(60)
for step in range(300):
    log.log_step(step, train_loss=1.0, of="the first")
open(sys.argv[2], "w").close()
signal.pause()
"""

AGAIN = """
options = {"run_id": sys.argv[3]} if len(sys.argv) > 3 else {}
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, journal="shm", **options)
for step in range(200):
    log.log_step(step, train_loss=2.0, of="the second")
log._run.pipeline.recover_abandoned()
log.close()
"""


@pytest.fixture
def killed(tmp_path, start):
    """Start a run, kill it while most of its records are in its journal alone, and return its folder and journal.

    `first` is called with both before the kill: any run that starts on this machine recovers the killed ones whose
    folders it finds.
    """

    def kill_one(*run_id, first=None):
        writer = start(IN_ITS_JOURNAL, tmp_path / "logs", tmp_path / "logged", *run_id)
        wait_until((tmp_path / "logged").exists, writer)
        run = tmp_path / "logs" / "run"
        ((journal, _),) = journals_of(run)
        os.kill(writer.pid, signal.SIGSTOP)
        if first is not None:
            first(run, journal)
        writer.kill()
        return run, journal

    return kill_one


@pytest.fixture
def begin_again(tmp_path, start):
    """Run another one under the same name, which recovers what killed ones left."""

    def begin(*run_id):
        start(AGAIN, tmp_path / "logs", "-", *run_id).end()

    return begin


@pytest.mark.parametrize("what", ["moved away", "deleted", "deleted, and begun again under the same id"])
def test_a_run_that_takes_the_name_of_a_killed_one_gets_nothing_of_it(
    tmp_path, killed, begin_again, what, record_property
):
    run_id = ["mine"] if "same id" in what else []
    seen = []

    def put_away(run, journal):
        seen.append(len(pending_lines(journal)))
        if what == "moved away":
            run.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(run)

    run, journal = killed(*run_id, first=put_away)
    (left,) = seen
    begin_again(*run_id)

    records = whole_run(run, steps=range(200))
    assert {step["of"] for step in with_event(records, "step")} == {"the second"}
    assert head_of(journal) is not None, "it is kept"
    report = repair(run)
    assert ": 0 records recovered, " in report
    assert journal.exists()
    whole_run(run, steps=range(200))

    if what == "moved away":
        assert f"elsewhere: {left} records recovered" in repair(tmp_path / "elsewhere")
        recovered = whole_run(tmp_path / "elsewhere", steps=range(300))
        assert {step["of"] for step in with_event(recovered, "step")} == {"the first"}
        assert not journal.exists()
    record_property("measured", f"{left} records of a killed run, 0 in the next one of its name, 0 lost")


def test_a_copy_that_was_made_before_the_kill_gets_nothing_though_the_original_is_gone(tmp_path, start):
    writer = start(IN_ITS_JOURNAL, tmp_path / "logs", tmp_path / "logged")
    wait_until((tmp_path / "logged").exists, writer)
    run = tmp_path / "logs" / "run"
    shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns(".*"))
    # As if the writer had come to its file since: what is between lies in the original alone.
    (tmp_path / "copy" / "metrics.jsonl").write_bytes(b"")
    ((journal, _),) = journals_of(run)
    os.kill(writer.pid, signal.SIGSTOP)
    run.rename(tmp_path / "unmounted")
    writer.kill()

    assert ": 0 records recovered" in repair(tmp_path / "copy")
    assert journal.exists()
    repair(tmp_path / "unmounted")
    whole_run(tmp_path / "unmounted", steps=range(300))


def test_a_deleted_run_comes_back_whole_from_the_trash_and_leaves_nothing_behind_for_good(tmp_path, killed):
    seen = []

    def delete(run, journal):
        seen.extend((len(pending_lines(journal)), move_to_trash(run.parent, "run")))

    run, journal = killed(first=delete)
    left, token = seen
    trashed = run.parent / ".trash" / token / "run"

    assert [path for path, _ in journals_of(trashed)] == [journal]
    assert left > 200
    assert empty_trash(run.parent) == 1
    assert not journal.exists(), "whoever deletes a run for good deletes what it left in shared memory too"


def test_a_run_without_run_json_is_known_by_its_start_record(killed):
    run, _ = killed()
    (run / "run.json").unlink()

    repair(run)

    whole_run(run, steps=range(300))


def test_what_was_logged_before_anything_could_be_written_is_recovered_where_it_was_meant_for(
    tmp_path, start
):
    writer = start(
        """
import toolkit.telemetry.logger.writing.record_appender as r

def full(*_):
    raise OSError(28, "No space left on device")

import toolkit.telemetry.runfolder.safefile as safefile
r.RecordFile.open = full
safefile.write_all = full
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False, csv=False, journal="shm")
for step in range(300):
    log.log_step(step, train_loss=1.0)
open(sys.argv[2], "w").close()
signal.pause()
""",
        tmp_path / "logs",
        tmp_path / "logged",
    )
    wait_until((tmp_path / "logged").exists, writer)
    writer.kill()
    run = tmp_path / "logs" / "run"
    # The kill may leave the temporary file of a run.json.
    assert all(path.suffix == ".tmp" for path in run.iterdir())

    repair(run)

    whole_run(run, steps=range(300))
