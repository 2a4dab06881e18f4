"""A sync that fails: the kernel may have thrown the data away, so it is written again and not merely synced again."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS
from tests.faults.crash_checks import assert_nothing_is_missing, assert_steps, whole_run
from tests.lengths import in_make_faults
from tests.provision import NoTool, tool
from tests.records import read_records, with_event
from tests.waiting import wait_until


def test_a_sync_that_fails_once_is_reported_and_its_bytes_are_written_again(tmp_path, start):
    ended = start(PROGRAMS / "fail_to_sync.py", tmp_path, 0.1, "once").end(code=7)

    assert ended.number("failures") == 1
    assert ended.number("slowest") < LONGEST_PAUSE_S
    assert ended.err.count("syncing the records failed (OSError: [Errno 5] Input/output error)") == 1
    records = whole_run(tmp_path / "run", steps=range(4000))
    (error,) = [record for record in with_event(records, "error") if record["doing"] == "syncing the records"]
    assert "Input/output error" in error["message"]


def test_a_sync_that_fails_at_the_very_end_loses_nothing(tmp_path, start):
    ended = start(PROGRAMS / "fail_to_sync.py", tmp_path, 3600, "at_the_end").end(code=7)

    assert ended.number("failures") == 1
    assert "syncing the records failed" in ended.err
    whole_run(tmp_path / "run", steps=range(1000))


def test_a_disk_that_never_syncs_harms_neither_the_loop_nor_what_is_still_held(tmp_path, start):
    ended = start(PROGRAMS / "fail_to_sync.py", tmp_path, 0.05, "always").end(code=7)

    assert ended.number("failures") > 3
    assert ended.number("slowest") < LONGEST_PAUSE_S
    assert ended.err.count("syncing the records failed") == 1, "said once, counted after that"
    whole_run(tmp_path / "run", steps=range(5000))


@in_make_faults
def test_bytes_that_were_not_synced_and_are_no_longer_held_are_named(tmp_path, start):
    ended = start(PROGRAMS / "fail_to_sync.py", tmp_path, 3600, "too_late").end(code=7)

    assert ended.number("failures") == 1
    assert "bytes were not synced and are no longer in memory" in ended.err
    data = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert data.count(0), "more was written than is held"
    assert not data[-200_000:].count(0), "what was held was written again"


@pytest.fixture
def disk_without_a_ground(tmp_path):
    """A disk in a file whose own disk can get full: what is written is taken, and lost when it is to be synced."""
    backing, mounted = tmp_path / "backing", tmp_path / "mounted"
    try:
        mkfs = tool("mkfs.ext2", "e2fsprogs")
    except NoTool as missing:
        pytest.skip(str(missing))
    for folder in (backing, mounted):
        folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(backing)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    image = backing / "image"
    with image.open("wb") as file:
        file.truncate(200 << 20)
    # Blocks of 4 KiB: one block of pointers covers a file of 4 MB. It is synced before the disk is full: without its
    # pointers a file has holes that no program can fill, whatever it writes again.
    subprocess.run([mkfs, "-q", "-F", "-b", "4096", "-N", "200", str(image)], check=True, capture_output=True)
    mount = ["mount", "-o", "loop", str(image), str(mounted)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        subprocess.run(["umount", str(backing)], check=True)
        pytest.skip(f"no disk in a file can be mounted here: {done.stderr.strip()}")
    try:
        _write_page_by_page(mounted)
    except OSError as error:
        for place in (mounted, backing):
            subprocess.run(["umount", "-l", str(place)], check=True)
        pytest.skip(f"the loop device takes no limit: {error}")
    yield backing, mounted, mount
    for place in (mounted, backing):
        subprocess.run(["umount", "-l", str(place)], check=True)


def _write_page_by_page(mounted):
    """Have the loop device write one page at a time: what it writes in part only, it takes for written."""
    device = next(
        line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if f" {mounted} " in line
    )
    Path("/sys/block", Path(device).name, "queue/max_sectors_kb").write_text("4")


STEPS_SYNCED = 600
"""Steps that are on the disk before it is full: more than the 48 KiB that a file has without a block of pointers."""


@pytest.mark.root
def test_what_a_real_disk_threw_away_at_a_sync_is_written_again(
    start, disk_without_a_ground, record_property
):
    backing, mounted, mount = disk_without_a_ground
    run = mounted / "run"
    child = start(PROGRAMS / "log_and_sync_once.py", mounted, STEPS_SYNCED)
    child.wait_for_step(STEPS_SYNCED)
    assert (run / "metrics.jsonl").stat().st_size > 64 * 1024
    with (backing / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(bytes(65536)):
            pass
    # Until a sync has failed.
    wait_until(lambda: b"syncing the records" in (run / "metrics.jsonl").read_bytes(), child)
    child.wait_for_step(child.acknowledged + 100)
    (backing / "ballast").unlink()
    child.wait_for_step(child.acknowledged + 100)
    ended = child.end(line="end", code=7)
    # Read from the disk itself, and not from what the kernel still remembers.
    subprocess.run(["umount", str(mounted)], check=True)
    subprocess.run(mount, check=True)

    assert ended.number("slowest") < LONGEST_PAUSE_S
    assert ended.err.count("syncing the records failed (OSError: ") == 1
    records = read_records(run)
    assert_nothing_is_missing(records)
    assert_steps(records, range(child.acknowledged + 1))
    record_property("measured", f"{len(records):,} records over a disk that failed to sync, 0 lost")
