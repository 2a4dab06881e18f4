"""Links, pipes, devices and terabytes of zeros in place of a run folder's files: never followed."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.attacks.entry_points import look_at_all
from tests.attacks.hostile_folders import (
    FILES,
    SECRET,
    an_ordinary_run,
    as_line,
    kinds_here,
    outside,
    put_in_place,
)
from tests.lengths import in_make_faults, is_long, longer
from tests.made_runs import BEGAN, step_record
from tests.records import read_records
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.evidence.batches import read_batches
from toolkit.telemetry.runfolder.evidence.output_log import OutputLog
from toolkit.telemetry.runfolder.labels import LabelsError, read_labels
from toolkit.telemetry.runfolder.reader import read_from
from toolkit.telemetry.runfolder.safefile import NotInside, UnsafeFile, read_inside

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither FIFOs nor O_NOFOLLOW")

GIB = 1024**3


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_links_pipes_and_devices_in_place_of_files_are_neither_read_nor_written_nor_waited_for(
    tmp_path, record_property
):
    secrets = outside(tmp_path)
    before = contents(secrets)
    root = tmp_path / "logs"
    places = 0
    for kind in kinds_here():
        # Without regular records nothing else is read, so this is a separate run.
        inner = tuple(name for name in FILES if name not in ("metrics.jsonl", "samples", "ranks"))
        together = [("metrics.jsonl",), inner, *([("samples", "ranks")] if "folder" in kind else [])]
        for number, names in enumerate([(name,) for name in FILES] if is_long() else together):
            folder = an_ordinary_run(root, f"{kind.replace(' ', '-')}-{number}")
            for name in names:
                put_in_place(folder / name, kind, secrets)
                places += 1
    report = look_at_all(root, room=tmp_path / "room", limit_s=30.0)

    assert report.broken == {}
    assert SECRET not in report.said
    assert os.environ.get("PATH", "no-path-here") not in report.said, "/proc/self/environ was read"
    assert contents(secrets) == before
    record_property("measured", f"{places} places, {report.looked} reads, 0 followed, 0 waits")


@pytest.mark.parametrize("whose", ["one user's", "another user's"])
def test_a_hard_link_to_a_file_outside_is_not_read(tmp_path, whose):
    """A backup may have its records as hard links of one user; all else, and another user's link, is refused."""
    if whose == "another user's" and os.geteuid() != 0:
        pytest.skip("only root can make another user's folder")
    secrets = outside(tmp_path)
    folder = an_ordinary_run(tmp_path / "logs", "r")
    table = {"event": "table", "seq": 90, "session": 1, "time": 1.0, "global_step": 3, "path": "tables/a.csv"}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(table) + "\n")
    (folder / "tables").mkdir()
    (secrets / "a.csv").write_text(f"{SECRET}\n1\n")
    names = ["labels.json", "control.json", "metrics.csv", "samples/0.png", "tables/a.csv"]
    if whose == "another user's":
        names += ["metrics.jsonl", "run.json", "ranks/00001.jsonl"]
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 12345, 12345)
    for name in names:
        (folder / name).unlink(missing_ok=True)
        os.link(secrets / Path(name).name, folder / name)
        with pytest.raises(NotInside, match="hard link"):
            read_inside(folder, name, max_bytes=10_000)

    with pytest.raises(LabelsError, match="hard link"):
        read_labels(folder)
    if whose == "another user's":
        with pytest.raises(UnsafeFile, match="hard link"):
            read_from(folder / "metrics.jsonl")
    if is_long():
        report = look_at_all(tmp_path / "logs", room=tmp_path / "room", limit_s=30.0)
        assert report.broken == {}
        assert SECRET not in report.said


@pytest.mark.parametrize("kind", [kind for kind in kinds_here() if kind != "socket"])
def test_a_run_whose_record_file_is_not_regular_is_not_resumed(tmp_path, kind):
    secrets = outside(tmp_path)
    before = contents(secrets)
    with TelemetryLogger("r", log_dir=tmp_path / "logs", system=False) as log:
        log.log_step(1, train_loss=1.0)
    put_in_place(log.run_folder / "metrics.jsonl", kind, secrets)
    with TelemetryLogger("r", log_dir=tmp_path / "logs", system=False, resume=True) as again:
        again.log_step(2, train_loss=0.5)

    assert again.run_folder != log.run_folder
    assert b'"global_step":2' in (again.run_folder / "metrics.jsonl").read_bytes()
    assert contents(secrets) == before


def test_a_pipe_that_replaces_the_records_of_a_live_run_receives_none(tmp_path):
    with TelemetryLogger("r", log_dir=tmp_path, system=False, log_every=1) as log:
        log.log_step(1, train_loss=1.0)
        log.flush()
        (log.run_folder / "metrics.jsonl").unlink()
        os.mkfifo(log.run_folder / "metrics.jsonl")
        reader = os.open(log.run_folder / "metrics.jsonl", os.O_RDONLY | os.O_NONBLOCK)
        until = time.monotonic() + 2.5
        step = 1
        while time.monotonic() < until:
            log.log_step(step := step + 1, note=SECRET)
            time.sleep(0.1)
        try:
            got = os.read(reader, 65536)
        except BlockingIOError:
            got = b""
        os.close(reader)
        (log.run_folder / "metrics.jsonl").unlink()

    assert got == b""
    # How many steps there were is a matter of the machine's speed; the last one is kept for a file in any case.
    assert step in [record["global_step"] for record in read_records(log.run_folder, "step")]


@in_make_faults
def test_a_terabyte_or_an_endless_line_takes_neither_memory_nor_time(tmp_path, record_property):
    """Sparse files of 1 TiB in place of each file, records after the first, in a child of 1 GiB."""
    root = tmp_path / "logs"
    sparse = ("metrics.jsonl", "metrics.csv", "run.json", "samples/0.png", "ranks/00001.jsonl")
    for name in sparse:
        folder = an_ordinary_run(root, name.replace("/", "-"))
        try:
            os.truncate(folder / name, 2**40)
        except OSError as error:
            pytest.skip(f"this file system takes no file of 1 TiB: {error.strerror}")
    with (root / "metrics.jsonl" / "metrics.jsonl").open("ab") as file:
        file.write(b"\n" + as_line(step_record(900, began=BEGAN, train_loss=0.25)))
    endless = longer(40, 1500)
    with (an_ordinary_run(root, "endless") / "metrics.jsonl").open("ab") as file:
        file.write(b'{"seq":99,"event":"step","note":"')
        for _ in range(endless):
            file.write(b"x" * 1_000_000)
    report = look_at_all(root, room=tmp_path / "room", limit_s=45.0, memory=GIB)

    assert report.broken == {}
    assert report.peak_mb < 600
    sent = f"{len(sparse)} files of 1 TiB and a line of {endless} MB"
    record_property("measured", f"{sent}: {report.looked} reads, {report.peak_mb:.0f} MB at most")


def test_the_bound_of_this_suite_can_be_reached(tmp_path):
    """A child limited to 1 GiB fails if it needs more, so the tests above can fail."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (2 * GIB, 2 * GIB))
        try:
            bytes(3 * GIB)
        except MemoryError:
            os._exit(7)
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


_RESUMED = """
import sys
from toolkit.telemetry import TelemetryLogger

with TelemetryLogger("r", log_dir=sys.argv[1], log_every=1, resume=True, system=False) as log:
    print("printed by the script")
    log.log_step(1, train_loss=1.0)
"""


@pytest.mark.parametrize("names", [["metrics.csv", "output.log"], ["output.times"], ["metrics.jsonl"]])
def test_nothing_is_appended_to_a_file_outside_that_a_run_has_as_a_hard_link(tmp_path, names):
    def log():
        subprocess.run([sys.executable, "-c", _RESUMED, tmp_path / "logs"], check=True, capture_output=True)

    log()
    for name in names:
        (tmp_path / "logs" / "r" / name).rename(tmp_path / name)
        os.link(tmp_path / name, tmp_path / "logs" / "r" / name)
    before = [(tmp_path / name).read_bytes() for name in names]

    log()

    assert [(tmp_path / name).read_bytes() for name in names] == before
    folders = sorted(path.name for path in (tmp_path / "logs").iterdir() if path.is_dir())
    assert folders == (["r", "r-2"] if "metrics.jsonl" in names else ["r"])


_BACKED_UP = """
import shutil, os, sys
from pathlib import Path
from toolkit.telemetry import TelemetryLogger

logs = Path(sys.argv[1])
with TelemetryLogger("r", log_dir=logs, log_every=1, one_logger_file=True, system=False) as log:
    for step, part in enumerate(("before", "after"), 1):
        print(part, "the backup")
        log.batch([part])
        log.log_step(step, train_loss=1.0)
        with log.span(part):
            pass
        log.flush()
        if part == "before":
            # As `cp -al` does.
            shutil.copytree(logs, logs.with_name("backup"), copy_function=os.link)
"""


def test_a_backup_of_hard_links_made_during_a_run_loses_nothing(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-c", _BACKED_UP, tmp_path / "logs"], capture_output=True, text=True
    )

    assert finished.returncode == 0, finished.stderr
    shutil.rmtree(tmp_path / "backup")
    run = tmp_path / "logs" / "r"
    with OutputLog(run) as output:
        assert [line.text for line in output.newest_first()][:2] == ["after the backup", "before the backup"]
    assert [read_batches(run).ids(at) for at in range(2)] == [["before"], ["after"]]
    [spans] = run.glob("*one_logger*")
    assert spans.read_text().count('"after"') == 1
