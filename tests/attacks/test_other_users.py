"""In a log directory of several users nothing of another user is taken, joined or written to."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.attacks.hostile_folders import an_ordinary_run
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.core.ranks import Rank
from toolkit.telemetry.logger.writing import rank_folder
from toolkit.telemetry.runfolder.safefile import why_not_ours
from toolkit.telemetry.runfolder.trash import TrashError, list_trash, move_to_trash

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make another user's file"
)
OTHER = 12345
QUIET = {"system": False, "csv": False, "log_every": 1}


def give_away(*folders):
    """Make folders and all in them another user's, open to everyone."""
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            # A logger that goes on may be replacing one of its files.
            with contextlib.suppress(FileNotFoundError):
                os.chown(path, OTHER, OTHER)
                os.chmod(path, 0o777)


@pytest.fixture
def log_dir(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    os.chmod(folder, 0o1777)
    return folder


@pytest.mark.parametrize("planted", ["run of the launch", "empty part"])
def test_a_rank_does_not_join_another_users_folder(log_dir, monkeypatch, planted):
    for name, value in (
        ("MASTER_ADDR", "A"),
        ("MASTER_PORT", "1"),
        ("TELEMETRY_RUN_ID", "e" * 16),
        ("TELEMETRY_NODE", "B"),
    ):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank_folder, "_WAIT_FOR_FOLDER_S", 0.0)
    how = {"log_dir": log_dir, "ranks": "all", **QUIET}
    trap = log_dir / ("run" if planted == "run of the launch" else "run@B")
    if planted == "run of the launch":
        zero = TelemetryLogger("run", rank=Rank(0, 2), **how)
        zero.log_step(1, train_loss=1.0)
        assert zero.flush()
        assert trap == zero.run_folder
    else:
        trap.mkdir()
    give_away(trap)
    with TelemetryLogger("run", rank=Rank(1, 2), **how) as log:
        log.log_step(1, note="what no one else may read")

    assert log.run_folder is not None
    assert log.run_folder != trap
    # Rank 0 may still write files of its own there.
    assert not list(trap.rglob("ranks/*"))
    assert planted == "run of the launch" or not list(trap.iterdir())
    if planted == "run of the launch":
        zero.close()


def test_a_deleted_run_does_not_go_into_another_users_trash(log_dir):
    run = an_ordinary_run(log_dir, "r")
    trash = log_dir / ".trash"
    (trash / "1-00000000" / "planted").mkdir(parents=True)
    give_away(trash)

    with pytest.raises(TrashError, match=r"\.trash belongs to another user \(uid 12345\)"):
        move_to_trash(log_dir, run.name)
    assert run.is_dir()
    assert list_trash(log_dir) == []


@pytest.mark.parametrize(
    ("log_dir_of", "folder_of", "may_join"),
    [(0, 0, True), (OTHER, OTHER, True), (0, OTHER, False), (OTHER, 4711, False)],
)
def test_whose_folders_are_joined(log_dir, log_dir_of, folder_of, may_join):
    folder = log_dir / "r"
    folder.mkdir()
    os.chown(folder, folder_of, -1)
    os.chown(log_dir, log_dir_of, -1)

    assert (why_not_ours(log_dir, folder) is None) is may_join


def test_doctor_says_which_runs_may_not_be_read(capfd, monkeypatch, request):
    # The folders of pytest belong to this user alone.
    log_dir = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(log_dir))
    os.chmod(log_dir, 0o1777)
    an_ordinary_run(log_dir, "theirs")
    open_to_all = an_ordinary_run(log_dir, "open")
    for path in (open_to_all, *open_to_all.rglob("*")):
        os.chmod(path, 0o777)
    os.chmod(log_dir / "theirs", 0o700)
    monkeypatch.chdir(log_dir)
    places = (".", "theirs")
    for place in places:
        main(["doctor", place])
    capfd.readouterr()
    if not (child := os.fork()):
        code = 255
        try:
            # All is imported by now: another user may not be able to read this checkout.
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            code = sum(main(["doctor", place]) << 4 * i for i, place in enumerate(places))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = capfd.readouterr()

    assert code >> 4 == 2
    assert "open: " in said.out
    assert said.err.count("theirs cannot be listed (Permission denied)") == 2
