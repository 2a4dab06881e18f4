"""`telemetry repair` says what it recovered, what it could not, and whose that is."""

from __future__ import annotations

import os
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from toolkit.cli.main import main
from toolkit.runfolder.codec import encode
from toolkit.runfolder.journal import Journal, journals_in, shared_memory_folders
from toolkit.runfolder.journal_head import Owner
from toolkit.runfolder.manifest import Manifest, Session, read_manifest, write_manifest
from toolkit.telemetry import TelemetryLogger

OWNER = Owner(run_id="r1", session=1, started=1.7e9)
NOBODY = 65534
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make another user's file"
)
in_shared_memory = pytest.mark.skipif(not shared_memory_folders(), reason="there is no shared memory")


def line(seq, **fields):
    return encode({"event": "step", "time": 1.7e9 + seq, "seq": seq, "session": 1, **fields})


@pytest.fixture
def place():
    """A folder that every user can read, on a disk where no other run looks for killed ones."""
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


def repaired(*folders):
    said = StringIO()
    with redirect_stdout(said):
        code = main(["repair", *map(str, folders)])
    return code, said.getvalue()


def repaired_by(user, folder):
    """Return what the command says to another user."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setgid(user)
        os.setuid(user)
        code, said = repaired(folder)
        os.write(writing, said.encode())
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def give(user, folder):
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)


@in_shared_memory
def test_what_was_recovered_is_counted(killed):
    run, _ = killed

    assert repaired(run) == (
        0,
        f"{run}: 2 records recovered, 5 rows in metrics.csv, 0 lines that are no record\n",
    )


@as_root
@in_shared_memory
def test_a_journal_of_another_user_is_said_to_be_theirs_and_not_to_be_in_use(killed):
    run, journal = killed
    os.chown(journal, NOBODY, NOBODY)
    code, said = repaired(run)

    assert code == 1
    assert "a living process" not in said
    assert f"{run}: 0 records recovered, 3 rows" in said
    assert f"{journal} may hold more records of it and belongs to user {NOBODY}" in said


@as_root
@in_shared_memory
def test_the_journal_of_a_folder_that_root_gave_away_is_said_to_be_root_s(killed):
    run, journal = killed
    give(NOBODY, run.parent)
    code, said = repaired_by(NOBODY, run)

    assert code == 1
    assert f"{run}: 0 records recovered" in said
    assert f"{journal} may hold more records of it and belongs to user 0" in said
    # Root, whose it is, recovers it.
    assert repaired(run)[1].startswith(f"{run}: 2 records recovered")
    assert (run / "metrics.csv").stat().st_uid == NOBODY, "its owner can read the table"
    assert repaired_by(NOBODY, run)[0] == 0


@as_root
@in_shared_memory
def test_a_record_file_that_root_makes_in_a_folder_of_another_user_is_theirs(killed):
    run, _ = killed
    (run / "metrics.jsonl").unlink()
    give(NOBODY, run.parent)
    assert repaired(run)[0] == 0

    assert {path.stat().st_uid for path in run.iterdir()} == {NOBODY}


@in_shared_memory
@pytest.mark.parametrize(
    "journal", ["/etc/passwd", "../../x.journal", "/dev/shm/x", "relative", "/proc/1/mem"]
)
def test_a_run_json_that_names_any_file_for_its_journal_has_none_of_them_looked_at(
    killed, journal, monkeypatch
):
    run, _ = killed
    manifest = read_manifest(run)
    write_manifest(run, replace(manifest, sessions=(replace(manifest.latest, journal=journal),)))
    looked = []
    plain = os.lstat
    monkeypatch.setattr(os, "lstat", lambda path, **more: looked.append(str(path)) or plain(path, **more))

    assert repaired(run)[0] == 0
    assert journal not in looked


@in_shared_memory
def test_a_journal_without_a_run_is_kept_and_spoken_of(killed):
    run, journal = killed
    shutil.rmtree(run)
    with TelemetryLogger("run", log_dir=run.parent, system=False) as log:
        log.log_step(0, train_loss=1.0)
    code, said = repaired(log.run_folder)

    assert code == 0
    assert f"{journal} keeps 3 records of run r1, whose folder is not at {run} any more" in said
    assert journal in list(journals_in(journal.parent))


@in_shared_memory
def test_records_that_are_missing_and_not_declared_lost_are_counted(killed):
    run, journal = killed
    journal.unlink()
    lost = {"event": "lost", "seq": 13, "records": 5, "from_seq": 8, "to_seq": 12}
    (run / "metrics.jsonl").write_bytes(
        line(0) + b"half a line of another process" + line(1) + line(2) + line(7) + encode(lost)
    )

    code, said = repaired(run)

    assert code == 0
    # The lost ones are in the record file alone.
    assert ": 0 records recovered, 3 rows in metrics.csv, 1 lines that are no record" in said
    assert said.endswith("5 records missing and not declared lost\n")
