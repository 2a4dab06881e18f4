"""Which folder a rank on another node writes to: the part of its run, and never another one."""

import json
import os
import shutil
import time
from dataclasses import replace

import pytest

from tests.records import read_records, with_event
from tests.two_nodes import RUN_ID, write_two_nodes
from tests.waiting import TIME_TO_CLOSE_S, wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.ranks import Rank
from toolkit.telemetry.logger.options import TelemetryOptions
from toolkit.telemetry.logger.writing import rank_folder, sessions
from toolkit.telemetry.logger.writing.announcement import announced
from toolkit.telemetry.runfolder.journal.journal import is_being_written
from toolkit.telemetry.runfolder.manifest import Manifest, Session, encode_manifest, read_manifest


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TelemetryOptions.__init__.__kwdefaults__, "close_timeout", TIME_TO_CLOSE_S)
        write_two_nodes(patch, folder / "a", folder / "b")
    return folder


@pytest.fixture
def two_nodes(monkeypatch, tmp_path, written):
    """The folders of the run on both nodes; this process is on the second one."""
    for name, value in {"TELEMETRY_RUN_ID": RUN_ID, "MASTER_ADDR": "A", "TELEMETRY_NODE": "B"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_folder, "_WAIT_FOR_FOLDER_S", 0.0)
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return tmp_path / "a" / "run", tmp_path / "b" / "run@B"


def rank_2(log_dir, **options):
    return TelemetryLogger(
        "run", log_dir=log_dir, log_every=1, ranks="all", system=False, rank=Rank(2, 4), **options
    )


def test_a_folder_of_that_name_with_another_run_is_left_alone(two_nodes):
    _, part = two_nodes
    about = json.loads((part / "run.json").read_text())
    (part / "run.json").write_text(json.dumps({**about, "run_id": "another"}))
    before = (part / "ranks" / "00002.jsonl").read_bytes()

    with rank_2(part.parent) as log:
        log.log_step(0, train_loss=1.0)

    assert log.run_folder == part.with_name("run@B-2")
    assert (part / "ranks" / "00002.jsonl").read_bytes() == before


@pytest.mark.parametrize("there", ["a file", "a link", "someone's folder"])
def test_what_is_no_part_is_left_alone(tmp_path, monkeypatch, two_nodes, there):
    elsewhere, log_dir = tmp_path / "elsewhere", tmp_path / "c"
    elsewhere.mkdir()
    log_dir.mkdir()
    match there:
        case "a file":
            (log_dir / "run@B").write_text("mine")
        case "a link":
            os.symlink(elsewhere, log_dir / "run@B")
        case _:
            (log_dir / "run@B").mkdir()
            (log_dir / "run@B" / "notes.txt").write_text("mine")

    with rank_2(log_dir) as log:
        log.log_step(0, train_loss=1.0)

    assert log.run_folder == log_dir / "run@B-2"
    assert [*elsewhere.iterdir()] == []


def test_a_part_that_an_earlier_session_still_writes_is_left_alone(two_nodes, monkeypatch, caplog):
    _, part = two_nodes
    monkeypatch.setattr(sessions, "WAIT_FOR_OTHERS_S", 0.1)
    with rank_2(part.parent) as earlier:
        earlier.log_step(30, train_loss=1.0)
        assert earlier.flush()
        wait_until(lambda: is_being_written(part / "ranks" / "00002.jsonl"))
        monkeypatch.setenv("MASTER_PORT", "2")
        with rank_2(part.parent) as log:
            log.log_step(0, train_loss=1.0)

    assert earlier.run_folder == part
    assert log.run_folder == part.with_name("run@B-2")
    assert "run@B is still being written" in caplog.text


def test_without_variables_of_a_launcher_the_ranks_of_a_node_have_one_part(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_folder, "_WAIT_FOR_FOLDER_S", 0.0)
    monkeypatch.setattr(sessions, "WAIT_FOR_OTHERS_S", 3600.0)
    monkeypatch.setenv("TELEMETRY_RUN_ID", RUN_ID)
    monkeypatch.setenv("TELEMETRY_NODE", "B")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    loggers = [
        TelemetryLogger("run", log_dir=tmp_path, log_every=1, ranks="all", system=False, rank=Rank(rank, 5))
        for rank in (2, 3, 4)
    ]
    for log in loggers:
        log.log_step(0, train_loss=1.0)
        assert log.flush()
    for log in reversed(loggers):
        log.close()

    assert {log.run_folder for log in loggers} == {tmp_path / "run@B"}
    assert sorted(path.name for path in (tmp_path / "run@B" / "ranks").glob("*.jsonl")) == [
        *("00002.jsonl", "00003.jsonl", "00004.jsonl")
    ]


def test_parts_that_are_still_written_are_waited_for_once(two_nodes, monkeypatch):
    _, part = two_nodes
    monkeypatch.setattr(sessions, "WAIT_FOR_OTHERS_S", 0.1)
    asked = []
    still_locked = rank_folder.still_locked
    monotonic = time.monotonic

    def took_long(folder):
        asked.append(folder.name)
        found = still_locked(folder)
        monkeypatch.setattr(rank_folder.time, "monotonic", lambda: monotonic() + 100.0 * len(asked))
        return found

    monkeypatch.setattr(rank_folder, "still_locked", took_long)
    opened = []
    for launch in ("1", "2", "3"):
        monkeypatch.setenv("MASTER_PORT", launch)
        opened.append(rank_2(part.parent))
        opened[-1].log_step(30, train_loss=1.0)
        assert opened[-1].flush()
        wait_until(lambda: is_being_written(opened[-1].run_folder / "ranks" / "00002.jsonl"))
    for log in reversed(opened):
        log.close()

    assert [log.run_folder.name for log in opened] == ["run@B", "run@B-2", "run@B-3"]
    assert asked == ["run@B", "run@B", "run@B"]


def test_rank_0_on_another_node_than_before_counts_the_sessions_on(two_nodes):
    whole, part = two_nodes

    with TelemetryLogger("run", log_dir=part.parent, log_every=1, system=False, rank=Rank(0, 4)) as log:
        log.log_step(30, train_loss=1.0)

    assert log.run_folder == part.parent / "run"
    assert log.run_id == RUN_ID == read_manifest(whole).run_id
    assert {record["session"] for record in read_records(log.run_folder)} == {2}
    assert read_manifest(part).latest.session == 1


def test_a_log_directory_that_cannot_be_written_to_stops_no_training(tmp_path, two_nodes, caplog):
    (tmp_path / "file").write_text("")

    log = rank_2(tmp_path / "file" / "logs")
    log.log_step(0, train_loss=1.0)
    log.close()

    assert not log.is_live
    assert "finding rank 0's folder failed (FileExistsError" in caplog.text
    assert "thousands of folders" not in caplog.text, "not every name is tried"


def test_rank_0_finds_its_own_folder_and_no_part_when_it_resumes(two_nodes, tmp_path):
    whole, part = two_nodes
    part.rename(whole.parent / part.name)

    with TelemetryLogger(
        "run", log_dir=whole.parent, log_every=1, system=False, resume=True, rank=Rank(0, 4)
    ) as log:
        log.log_step(30, train_loss=1.0)

    assert log.run_folder == whole
    assert [step["session"] for step in with_event(read_records(whole), "step")][-1] == 2


@pytest.mark.parametrize("wrong", [{"name": "../run"}, {"sessions": ()}])
def test_an_announcement_that_names_a_path_or_no_session_is_refused(wrong):
    session = Session(session=1, started=1.0, pid=1)
    run = Manifest(run_id="a", name="run-2", display_name="a", created=1.0, sessions=(session,))

    assert announced(encode_manifest(run)) == run
    with pytest.raises(ValueError, match="cannot be called"):
        announced(encode_manifest(replace(run, **wrong)))


def test_without_a_run_id_or_a_process_group_a_rank_waits_for_nothing_and_says_why(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.delenv("TELEMETRY_RUN_ID", raising=False)
    monkeypatch.setattr(rank_folder, "_WAIT_FOR_RANK_ZERO_S", 3600.0)

    log = rank_2(tmp_path / "b")
    log.log_step(0, train_loss=1.0)
    log.close()

    assert not (tmp_path / "b").exists()
    assert "have the launcher set TELEMETRY_RUN_ID" in caplog.text
