"""Journals planted by others: in shared memory, which everyone can write, or in a downloaded folder."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.attacks.hostile_folders import an_ordinary_run, as_line
from tests.made_runs import BEGAN
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.logger.writing import pipeline
from toolkit.telemetry.runfolder.journal.head import HEADER_BYTES, Owner
from toolkit.telemetry.runfolder.journal.journal import (
    PREFIX,
    SUFFIX,
    Journal,
    journals_in,
    shared_memory_folders,
)
from toolkit.telemetry.runfolder.journal.repair import discard_journals, recover_killed, repair_run
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.reader import read_from

SHM = shared_memory_folders()
pytestmark = pytest.mark.skipif(not SHM, reason="there is no shared memory that a journal could lie in")
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make another user's file"
)
NOBODY = 65534
FORGED = "forged-by-someone-else"


@pytest.fixture
def journals():
    """Creates journals of dead processes, and removes them."""
    made = []

    def journal(folder, record_file, lines, *, uid=None, mode=0o600, rank=0):
        # A copy: what this process makes itself it holds, and a dead one's is held by no process.
        with TemporaryDirectory() as place:
            owner = _owner_known_to_all(folder, Path(record_file).parent)._replace(rank=rank)
            original = Journal.create([Path(place)], Path(place) / "x", owner, segment_bytes=65536)
            for line in lines:
                original.append(line)
            original.close(remove=False)
            data = original.path.read_bytes()
        path = folder / f"{PREFIX}{os.urandom(8).hex()}{SUFFIX}"
        # Whole before it has the name of a journal: any run that begins meanwhile looks through all of these.
        half_made = path.with_suffix(".half-made")
        made.extend((half_made, path))
        half_made.write_bytes(data)
        _say(half_made, record_file)
        os.chmod(half_made, mode)
        if uid is not None:
            os.chown(half_made, uid, uid)
        half_made.rename(path)
        return path

    yield journal
    for path in made:
        path.unlink(missing_ok=True)


@pytest.fixture
def place(monkeypatch):
    """A folder on another disk than other tests have: every run that begins recovers killed ones of its disk."""
    monkeypatch.setattr(pipeline, "journals_in", journals_in)
    with TemporaryDirectory(dir=SHM[0]) as folder:
        yield Path(folder)


def _owner_known_to_all(*folders):
    """Return the newest session of the first of `folders` that has a run: its id is no secret."""
    for folder in folders:
        with suppress(OSError):
            manifest = read_manifest(folder)
            latest = manifest.latest
            return Owner(run_id=manifest.run_id, session=latest.session, started=latest.started)
    return Owner(run_id="made-up", session=1, started=BEGAN)


def _say(path, record_file):
    """Have the journal at `path` name `record_file`, by any way there."""
    data = path.read_bytes()
    about = json.loads(data[64:HEADER_BYTES].rstrip(b"\0")) | {"record_file": str(record_file)}
    head = data[:64] + json.dumps(about).encode()
    path.write_bytes(head.ljust(HEADER_BYTES, b"\0") + data[HEADER_BYTES:])


def forged(seq):
    return as_line(
        {"event": "step", "seq": seq, "session": 1, "time": BEGAN, "global_step": seq, "note": FORGED}
    )


def listing(folder):
    return {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def test_a_downloaded_run_writes_nowhere_but_into_its_own_records(tmp_path, journals):
    """Its folder holds journals that name files outside, by links of its own, by `..`, and by names of other files."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("# mine\n")
    folder = an_ordinary_run(tmp_path / "logs", "r")
    (folder / "ranks" / "00001.jsonl").unlink()
    (folder / "ranks").rmdir()
    (folder / "ranks").symlink_to(home)
    (folder / "deep").symlink_to(home)
    before = listing(home)
    for record_file in (
        home / ".bashrc",
        "/x/ranks/.bashrc",
        "/x/ranks/00009.jsonl",
        folder / "ranks" / ".bashrc",
        folder / "ranks" / "00001.jsonl",
        folder / "deep" / ".bashrc",
        f"{folder}/../../home/.bashrc",
        "../home/.bashrc",
        "/x/..",
        "/x/run.json",
        "/x/labels.json",
        folder / "control.json",
    ):
        for how in ({}, {"rank": 1}, {"rank": 9}):
            journals(folder, record_file, [forged(1_000 + number) for number in range(3)], **how)
    names = {path.name for path in folder.iterdir()}
    main(["repair", str(folder)])
    with TelemetryLogger("r", log_dir=tmp_path / "logs", system=False, csv=False, resume=True) as log:
        log.log_step(1, train_loss=1.0)

    assert listing(home) == before
    assert set(os.listdir(home)) == {".bashrc"}
    assert {path.name for path in folder.iterdir()} - names <= {"metrics.csv", "output.log", "output.times"}
    assert FORGED.encode() not in (folder / "run.json").read_bytes()


@as_root
def test_another_users_journal_is_neither_used_nor_in_the_way(place, journals, record_property):
    """In shared memory, readable by all, with the right name of our record file in it."""
    with TelemetryLogger("r", log_dir=place, system=False, csv=False) as log:
        log.log_step(1, train_loss=1.0)
    records = log.run_folder / "metrics.jsonl"
    before = records.read_bytes()
    planted = [
        journals(SHM[0], records, [forged(1_000)], uid=NOBODY, mode=mode) for mode in (0o600, 0o644, 0o666)
    ]
    began = time.monotonic()
    repaired = repair_run(log.run_folder)
    took_s = time.monotonic() - began

    assert not repaired.in_use, "a stranger can keep us from repairing a run"
    assert repaired.recovered == 0
    assert records.read_bytes() == before
    with TelemetryLogger("r", log_dir=place, system=False, csv=False, resume=True) as again:
        again.log_step(2, train_loss=0.5)
    assert again.run_folder == log.run_folder, "a stranger can keep us from going on with a run"
    assert FORGED.encode() not in records.read_bytes()
    assert all(path.exists() for path in planted), "what is not ours is not removed"
    journals(SHM[0], records, [forged(2_000)])
    assert repair_run(log.run_folder).recovered == 1, (
        "a journal of ours is not taken either, and the test proves nothing"
    )
    record_property("measured", f"{len(planted)} planted journals, 0 records taken from them, {took_s:.1f} s")


@as_root
def test_the_records_of_a_killed_run_do_not_go_to_another_users_folder_with_its_run_json(place, journals):
    with TelemetryLogger("r", log_dir=place, system=False, csv=False) as log:
        log.log_step(1, train_loss=1.0)
    records = log.run_folder / "metrics.jsonl"
    journal = journals(SHM[0], records, [forged(1_000)])
    stolen = log.run_folder
    shutil.copytree(log.run_folder, place / "copy")
    shutil.rmtree(log.run_folder)
    (place / "copy").rename(stolen)
    # Its records come right before those of the journal.
    (stolen / "metrics.jsonl").write_bytes(forged(999))
    for path in (stolen, *stolen.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    with TelemetryLogger("next", log_dir=place, system=False, csv=False) as after:
        after._run.pipeline.recover_abandoned()

    assert (stolen / "metrics.jsonl").read_bytes() == forged(999)
    assert journal.exists()
    for path in (stolen, *stolen.iterdir()):
        os.chown(path, 0, 0)
    recover_killed(journal, after.run_folder)
    assert (stolen / "metrics.jsonl").read_bytes() == forged(999) + forged(1_000), (
        "or the test proves nothing"
    )


@as_root
@pytest.mark.parametrize("how", ["repair", "delete"])
def test_another_users_folder_with_the_run_json_of_a_killed_run_takes_no_journal(place, journals, how):
    with TelemetryLogger("r", log_dir=place, system=False, csv=False) as log:
        log.log_step(1, train_loss=1.0)
    folder = log.run_folder
    journal = journals(SHM[0], folder / "metrics.jsonl", [forged(1_000)])
    shutil.copytree(folder, place / "copy")
    shutil.rmtree(folder)
    (place / "copy").rename(folder)
    act = repair_run if how == "repair" else discard_journals
    for path in (folder, *folder.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    act(folder)

    assert journal.exists()
    assert forged(1_000) not in (folder / "metrics.jsonl").read_bytes()
    for path in (folder, *folder.iterdir()):
        os.chown(path, 0, 0)
    act(folder)
    assert not journal.exists(), "or the test proves nothing"


def test_things_in_shared_memory_that_are_called_like_a_journal_are_left_alone(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(struct.pack("=4Q", 0x344C4E524A4B5441, 1024, 1, 1) + b"\0" * 20_000)
    before = victim.read_bytes()
    tag = os.urandom(4).hex()
    places = [SHM[0] / f"{PREFIX}{tag}{number}{SUFFIX}" for number in range(5)]
    try:
        places[0].symlink_to(victim)
        os.mkfifo(places[1])
        places[2].mkdir()
        places[3].write_bytes(b"no journal")
        with places[4].open("wb") as file:
            file.truncate(2**40)
        began = time.monotonic()
        with TelemetryLogger("r", log_dir=tmp_path / "logs", system=False, csv=False) as log:
            log.log_step(1, train_loss=1.0)
        repair_run(log.run_folder)

        assert time.monotonic() - began < 60
        assert [os.path.lexists(place) for place in places] == [True] * 5
        assert victim.read_bytes() == before
        assert read_from(log.run_folder / "metrics.jsonl").bad_count == 0
    finally:
        for place in places:
            if place.is_dir() and not place.is_symlink():
                place.rmdir()
            else:
                place.unlink(missing_ok=True)


@as_root
@pytest.mark.parametrize("what", ["folder", "link"])
def test_a_run_is_not_resumed_in_another_users_folder(tmp_path, what):
    """In a log directory that everyone may write to, another user planted a manifest under the run's name."""
    log_dir, trap = tmp_path / "logs", tmp_path / "trap"
    with TelemetryLogger("r", log_dir=log_dir, system=False, csv=False) as log:
        log.log_step(1, train_loss=1.0)
    os.chmod(log_dir, 0o1777)
    os.rename(log.run_folder, trap)
    if what == "folder":
        os.rename(trap, log.run_folder)
        trap = log.run_folder
        for path in (trap, *trap.iterdir()):
            os.chown(path, NOBODY, NOBODY)
            os.chmod(path, 0o777)
    else:
        log.run_folder.symlink_to(trap)
        os.chown(log.run_folder, NOBODY, NOBODY, follow_symlinks=False)
    before = (trap / "metrics.jsonl").read_bytes()
    with TelemetryLogger("r", log_dir=log_dir, system=False, csv=False, resume=True) as again:
        again.log_step(2, note="what no one else may read")

    assert (trap / "metrics.jsonl").read_bytes() == before
    assert again.run_folder.name == "r-2"
    assert b"what no one else" in (again.run_folder / "metrics.jsonl").read_bytes()


@as_root
@pytest.mark.parametrize("asked", ["by name", "by id"])
def test_a_run_planted_by_another_user_does_not_block_the_real_one(tmp_path, asked):
    log_dir = tmp_path / "logs"
    with TelemetryLogger("r", log_dir=log_dir, system=False, csv=False) as log:
        log.log_step(1, train_loss=1.0)
    os.chmod(log_dir, 0o1777)
    real, planted = log_dir / "r-5", log_dir / "r-4"
    os.rename(log.run_folder, real)
    shutil.copytree(real, planted)
    manifest = json.loads((planted / "run.json").read_text())
    (planted / "run.json").write_text(json.dumps({**manifest, "created": manifest["created"] + 1e6}))
    for path in (planted, *planted.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    how = {"resume": True} if asked == "by name" else {"run_id": manifest["run_id"]}
    with TelemetryLogger("r", log_dir=log_dir, system=False, csv=False, **how) as again:
        again.log_step(2, train_loss=1.0)

    assert again.run_folder == real


@as_root
def test_root_resumes_its_run_on_a_server_that_squashes_root(tmp_path, monkeypatch):
    log_dir = tmp_path / "logs"
    log_dir.mkdir()
    os.chown(log_dir, NOBODY, NOBODY)
    for _ in range(2):
        # What this process makes belongs to another number than it takes itself for, as on such a server.
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
        with TelemetryLogger("r", log_dir=log_dir, system=False, csv=False, resume=True) as log:
            log.log_step(1, train_loss=1.0)

    assert [path.name for path in log_dir.iterdir()] == ["r"]
    assert log.run_folder == log_dir / "r"
