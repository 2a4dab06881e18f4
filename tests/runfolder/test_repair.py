"""After a kill a run folder is made whole: nothing is lost, nothing comes twice, nothing is rewritten."""

import json
import os
import threading

import pytest

from tests.runfolder.plain_data import line
from toolkit.telemetry.runfolder.journal import journal, repair
from toolkit.telemetry.runfolder.journal.head import Owner
from toolkit.telemetry.runfolder.journal.journal import Journal, journals_in
from toolkit.telemetry.runfolder.journal.repair import (
    recover_killed,
    repair_run,
)
from toolkit.telemetry.runfolder.manifest import Manifest, Session, write_manifest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="recovery needs record locks")


OWNER = Owner(run_id="r1", session=1, started=1.7e9)


def say_which_run(folder, owner=OWNER):
    """Write the run.json of a run whose newest session is `owner`'s."""
    session = Session(session=owner.session, started=owner.started, pid=1)
    manifest = Manifest(
        run_id=owner.run_id, name="r", display_name="R", created=owner.started, sessions=(session,)
    )
    write_manifest(folder, manifest)


def leave_journal(folder, *lines, owner=OWNER, place=None):
    """Leave a journal in `folder` as a killed session of its run does."""
    made = Journal.create([place or folder], folder / "metrics.jsonl", owner, segment_bytes=65536)
    for text in lines:
        assert made.append(text)
    made.close(remove=False)
    return made.path


def seqs(folder):
    return [json.loads(text)["seq"] for text in (folder / "metrics.jsonl").read_bytes().splitlines()]


def test_repairing_twice_changes_nothing(tmp_path):
    leave_journal(tmp_path, line(0), line(1))
    repair_run(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    assert repair_run(tmp_path).recovered == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder in the place of shared memory."""
    shared = tmp_path / "shared"
    shared.mkdir()
    for module in (repair, journal):
        monkeypatch.setattr(module, "shared_memory_folders", lambda: [shared])
    return shared


def make_run(folder, owner=OWNER):
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes(line(0))
    say_which_run(folder, owner)
    return folder


@pytest.mark.parametrize(
    ("made_by", "is_its"),
    [
        pytest.param({}, True, id="this very session"),
        pytest.param({"run_id": "r2"}, False, id="another run"),
        pytest.param({"started": 1.6e9}, False, id="a run of the same id that was deleted and begun again"),
        pytest.param({"session": 2, "started": 1.8e9}, False, id="a session that the run does not know"),
    ],
)
@pytest.mark.parametrize("place", ["shared memory", "the run folder"])
def test_a_journal_is_a_run_s_if_run_json_has_its_id_and_session(tmp_path, shared, made_by, is_its, place):
    run = make_run(tmp_path / "run")
    path = leave_journal(
        run,
        line(1),
        owner=OWNER._replace(**made_by),
        place=shared if place == "shared memory" else run,
    )

    assert repair_run(run).recovered == int(is_its)
    assert path.exists() != is_its, "what is not its is kept"
    assert seqs(run) == ([0, 1] if is_its else [0])


def test_a_session_that_is_older_than_those_of_run_json_is_the_run_s(tmp_path, shared):
    run = make_run(tmp_path / "run", OWNER._replace(session=600, started=1.8e9))
    leave_journal(run, line(1), owner=OWNER._replace(session=3), place=shared)

    assert repair_run(run).recovered == 1


def test_the_ranks_of_a_run_get_what_is_theirs(tmp_path, shared):
    run = make_run(tmp_path / "run")
    (run / "ranks").mkdir()
    for rank in range(3):
        leave_journal(run, line(rank + 1, rank=rank), owner=OWNER._replace(rank=rank), place=shared)
    moved = run.rename(tmp_path / "moved")

    assert repair_run(moved).recovered == 1, "those of the others begin after what their files have"
    for rank in (1, 2):
        (moved / "ranks" / f"{rank:05d}.jsonl").write_bytes(line(rank))
    assert repair_run(moved).recovered == 2
    assert (moved / "ranks" / "00002.jsonl").read_bytes() == line(2) + line(3, rank=2)


def test_of_two_sessions_the_earlier_one_is_written_first_wherever_its_journal_is(tmp_path, shared):
    run = make_run(tmp_path / "run", OWNER._replace(session=9, started=1.9e9))
    leave_journal(run, line(1), owner=OWNER._replace(session=1))
    leave_journal(run, line(2), owner=OWNER._replace(session=2), place=shared)

    assert repair_run(run).recovered == 2
    assert seqs(run) == [0, 1, 2]


def test_many_threads_that_recover_the_same_runs_write_each_record_once(tmp_path, shared):
    runs = [make_run(tmp_path / f"run{number}", OWNER._replace(run_id=f"r{number}")) for number in range(6)]
    for number, run in enumerate(runs):
        leave_journal(
            run, *[line(seq) for seq in range(1, 50)], owner=OWNER._replace(run_id=f"r{number}"), place=shared
        )
    begin = threading.Barrier(6)

    def recover(near):
        begin.wait()
        while paths := list(journals_in(shared)):
            for path in paths:
                recover_killed(path, near)

    threads = [threading.Thread(target=recover, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [seqs(run) for run in runs] == [list(range(50))] * 6


def test_a_run_in_another_log_directory_is_left_to_its_own(tmp_path, shared):
    (tmp_path / "other").mkdir()
    run, elsewhere = make_run(tmp_path / "run"), make_run(tmp_path / "other" / "run")
    path = leave_journal(elsewhere, line(1), place=shared)
    recover_killed(path, run)

    assert path.exists()
    assert seqs(elsewhere) == [0]
