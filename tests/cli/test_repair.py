"""`telemetry repair` reports what it recovered, what it could not, and who owns that."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.runs import main_as
from tests.runfolder.plain_data import line
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.journal.head import Owner
from toolkit.telemetry.runfolder.journal.journal import Journal, journals_in, shared_memory_folders
from toolkit.telemetry.runfolder.manifest import Manifest, Session, read_manifest, write_manifest

OWNER = Owner(run_id="r1", session=1, started=1.7e9)
NOBODY = 65534
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make another user's file"
)
in_shared_memory = pytest.mark.skipif(not shared_memory_folders(), reason="there is no shared memory")


@pytest.fixture
def place():
    """A folder that every user can read, on a disk where no other run looks for killed runs."""
    with TemporaryDirectory(dir=shared_memory_folders()[0]) as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def killed(place):
    """A run that was killed with three records in the file and two more in its journal in shared memory."""
    run = place / "logs" / "run"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_bytes(b"".join(line(seq) for seq in range(3)))
    journal = Journal.create(shared_memory_folders(), run / "metrics.jsonl", OWNER)
    for seq in range(2, 5):
        journal.append(line(seq))
    journal.close(remove=False)
    session = Session(session=1, started=OWNER.started, pid=2**22 + 1, journal=str(journal.path))
    write_manifest(
        run,
        Manifest(run_id="r1", name="run", display_name="run", created=OWNER.started, sessions=(session,)),
        mode=0o644,
    )
    yield run, journal.path
    journal.path.unlink(missing_ok=True)


@pytest.fixture
def repair(telemetry):
    return partial(telemetry, "repair")


def give(user, folder):
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)


@in_shared_memory
def test_without_a_run_the_newest_in_logs_is_repaired_and_recovered_records_are_counted(
    killed, monkeypatch, repair
):
    run, _ = killed
    older = run.parent / "older"
    older.mkdir()
    (older / "metrics.jsonl").write_bytes(line(0))
    os.utime(older / "metrics.jsonl", (1.6e9, 1.6e9))
    monkeypatch.chdir(run.parent.parent)

    assert repair() == (
        0,
        (
            "logs/run: run.json now says lost: it ended without an end record\n"
            "logs/run: 2 records recovered, 5 rows in metrics.csv, 0 unreadable lines\n"
        ),
        "",
    )
    assert read_manifest(run).latest.status == "lost"


def test_a_failure_is_printed_to_stderr_and_the_other_runs_are_repaired(tmp_path, repair):
    good = tmp_path / "good"
    good.mkdir()
    (good / "metrics.jsonl").write_bytes(line(0))
    code, out, err = repair(tmp_path / "gone", good)

    assert code == 2
    assert out.startswith(f"{good}: 0 records recovered, 1 rows")
    assert err == f"{tmp_path / 'gone'} is not a folder\n"


@as_root
@in_shared_memory
def test_a_journal_of_another_user_is_reported_with_its_owner(killed, repair):
    run, journal = killed
    os.chown(journal, NOBODY, NOBODY)
    code, out, err = repair(run)

    assert code == 1
    assert "a running process" not in out + err
    assert f"{run}: 0 records recovered, 3 rows" in out
    assert f"{journal} may hold more records of this run and belongs to user {NOBODY}" in err


@as_root
@in_shared_memory
def test_a_journal_of_root_in_a_folder_of_another_user_is_reported_as_root_s(killed, repair):
    run, journal = killed
    give(NOBODY, run.parent)
    code, printed = main_as(NOBODY, "repair", run)

    assert code == 1
    assert f"{run}: 0 records recovered" in printed
    assert f"{journal} may hold more records of this run and belongs to user 0" in printed
    # Root owns it, and can recover it.
    assert repair(run)[1].startswith(f"{run}: 2 records recovered")
    assert (run / "metrics.csv").stat().st_uid == NOBODY, "its owner can read the table"
    assert main_as(NOBODY, "repair", run)[0] == 0


@as_root
@in_shared_memory
def test_a_record_file_created_by_root_belongs_to_the_owner_of_the_folder(killed, repair):
    run, _ = killed
    (run / "metrics.jsonl").unlink()
    give(NOBODY, run.parent)
    assert repair(run)[0] == 0

    assert {path.stat().st_uid for path in run.iterdir()} == {NOBODY}


@in_shared_memory
@pytest.mark.parametrize(
    "journal", ["/etc/passwd", "../../x.journal", "/dev/shm/x", "relative", "/proc/1/mem"]
)
def test_a_journal_path_in_run_json_that_is_not_a_journal_is_never_opened(
    killed, journal, monkeypatch, repair
):
    run, _ = killed
    manifest = read_manifest(run)
    write_manifest(run, replace(manifest, sessions=(replace(manifest.latest, journal=journal),)))
    looked = []
    plain = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path, **more: looked.append(str(path)) or plain(path, **more))

    assert repair(run)[0] == 0
    assert journal not in looked


@in_shared_memory
def test_a_journal_whose_run_was_moved_is_kept_until_the_run_is_named_where_it_is_now(killed, repair):
    run, journal = killed
    moved = run.rename(run.parent / "moved")
    with TelemetryLogger("other", log_dir=run.parent, system=False) as log:
        log.log_step(0, train_loss=1.0)
    repair(log.run_folder)

    assert journal in list(journals_in(journal.parent))
    assert "2 records recovered" in repair(moved)[1]
    assert journal not in list(journals_in(journal.parent))


@in_shared_memory
def test_missing_records_that_were_not_declared_lost_are_counted(killed, repair):
    run, journal = killed
    journal.unlink()
    lost = {"event": "lost", "seq": 13, "records": 5, "from_seq": 8, "to_seq": 12}
    (run / "metrics.jsonl").write_bytes(
        line(0) + b"half a line of another process" + line(1) + line(2) + line(7) + encode(lost)
    )

    code, out, _ = repair(run)

    assert code == 0
    # The lost ones are only in the record file.
    assert ": 0 records recovered, 3 rows in metrics.csv, 1 unreadable lines" in out
    assert out.endswith("5 records missing and not declared lost\n")


def test_of_a_folder_of_runs_the_reason_says_to_name_one(tmp_path, repair):
    with TelemetryLogger("a-run", log_dir=tmp_path, system=False) as log:
        log.log_step(0, train_loss=1.0)

    code, _, errors = repair(tmp_path)

    assert code == 2
    assert f"is a folder of runs; name one, such as {log.run_folder}" in errors
