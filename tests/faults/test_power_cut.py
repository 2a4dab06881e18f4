"""The power fails: what was synced is there, what was not is at most the newest, and the next session goes on.

On real file systems, cut off from their disk in the middle of their work; and, where none can be mounted, on a model of
one that keeps what was synced and of the rest whatever chance leaves.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.children import PROGRAMS, repair
from tests.faults.crash_checks import assert_nothing_is_missing, assert_table_matches
from tests.leftovers import remove_journals_of_runs_below
from tests.lengths import in_make_faults, longer
from tests.provision import NoTool, tool
from tests.records import with_event
from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.runfolder.codec import encode
from toolkit.telemetry.runfolder.journal.repair import journals_of, repair_run
from toolkit.telemetry.runfolder.manifest import ManifestError, read_manifest
from toolkit.telemetry.runfolder.reader import Cursor, read_from
from toolkit.telemetry.runfolder.table.csv_table import CsvTable, build_table

SYNC_INTERVAL_S = 0.4

_GOING_DOWN = 0x8004587D
"""The ioctl that cuts xfs, ext4 and others off from their disk."""
_WITHOUT_WRITING_THE_LOG = 2


class CutOff:
    """A file system in a file, whose power can be cut."""

    def __init__(self, folder, kind):
        self.kind = kind
        self.mounted = folder / kind
        self._image = folder / f"{kind}.img"
        self.mounted.mkdir()
        make = {"xfs": ("mkfs.xfs", "xfsprogs"), "ext4": ("mkfs.ext4", "e2fsprogs")}[kind]
        try:
            mkfs = tool(*make)
        except NoTool as missing:
            pytest.skip(str(missing))
        with self._image.open("wb") as image:
            image.truncate(400 << 20)
        quiet = ["-q"] if kind == "xfs" else ["-q", "-F"]
        subprocess.run([mkfs, *quiet, str(self._image)], check=True, capture_output=True)
        self.mount()

    def mount(self):
        done = subprocess.run(
            ["mount", "-t", self.kind, "-o", "loop", str(self._image), str(self.mounted)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"no {self.kind} in a file can be mounted here: {done.stderr.strip()}")

    def cut(self):
        """Let nothing reach the disk from now on, not even what is being written."""
        descriptor = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _GOING_DOWN, struct.pack("I", _WITHOUT_WRITING_THE_LOG))
        finally:
            os.close(descriptor)

    def unmount(self):
        # A process that was killed may still use it.
        unmount = ["umount", str(self.mounted)]
        wait_until(lambda: not subprocess.run(unmount, capture_output=True).returncode)


@pytest.mark.timeout(longer(240, 3_000))
@pytest.mark.root
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cuts"), [("xfs", longer(3, 30)), ("ext4", longer(2, 20))])
def test_a_power_cut_takes_nothing_that_was_synced(tmp_path, start, kind, cuts, record_property):
    disk = CutOff(tmp_path, kind)
    chosen = random.Random(kind)
    notes, cut_at, process = {}, {}, None
    try:
        for number in range(cuts):
            noted_at = tmp_path / f"noted{number}"
            noted_at.write_bytes(bytes(32))
            process = start(
                PROGRAMS / "log_and_note_syncs.py",
                *(disk.mounted / "logs", f"run{number}", noted_at, SYNC_INTERVAL_S),
                always_fork=True,
            )
            # One is cut right after its start, the others once they have synced.
            if number != 1:
                wait_until(lambda at=noted_at: struct.unpack("4q", at.read_bytes())[1], process)
            time.sleep(chosen.uniform(0.0, 0.1 if number == 1 else 1.5))
            disk.cut()
            cut_at[number] = time.time()
            notes[number] = struct.unpack("4q", noted_at.read_bytes())
            process.kill()
            disk.unmount()
            # What is in memory goes with the power.
            remove_journals_of_runs_below(disk.mounted / "logs" / f"run{number}")
            disk.mount()
        found = [
            _found_after(disk.mounted / "logs" / f"run{number}", notes[number]) for number in range(cuts)
        ]
        for number in range(1, cuts, 2):
            if (disk.mounted / "logs" / f"run{number}").exists():
                repair(disk.mounted / "logs" / f"run{number}")
        for number in range(cuts):
            _assert_it_goes_on(disk.mounted / "logs", f"run{number}", found[number])
    finally:
        if process is not None:
            process.kill()
        disk.unmount()

    worst = max(
        (cut_at[number] - notes[number][3] / 1e6 for number in notes if notes[number][3]), default=0.0
    )
    record_property(
        "measured",
        f"{kind}: {cuts} cuts, {sum(note[0] for note in notes.values()):,} records logged, "
        f"{sum(note[1] for note in notes.values()):,} acknowledged by sync, "
        f"{sum(one.synced_lost for one in found)} of these lost; at worst the last {worst:.1f} s were not synced "
        f"(sync_interval {SYNC_INTERVAL_S} s)",
    )
    assert not any(one.synced_lost for one in found)


_PAGE = 4096


@in_make_faults
@pytest.mark.timeout(longer(240, 3_000))
@pytest.mark.slow
def test_a_run_with_any_random_part_of_unsynced_data_is_read_and_resumed(tmp_path, start, record_property):
    cuts = longer(6, 400)
    state_file = tmp_path / "state.json"
    process = start(PROGRAMS / "remember_what_is_synced.py", tmp_path / "logs", state_file)
    process.end()
    assert state_file.exists(), process.err
    state = json.loads(state_file.read_text())
    for path, _ in journals_of(tmp_path / "logs" / "run"):
        # Any run that starts on this machine recovers the killed ones it finds.
        path.unlink(missing_ok=True)

    def cut(number):
        chosen = random.Random(number)
        run = tmp_path / f"cut{number}" / "run"
        run.mkdir(parents=True)
        for name in state["files"]:
            (run / name).write_bytes(_left_by_chance(name, state, chosen))
        has_zeros = b"\0" in (run / "metrics.jsonl").read_bytes()
        found = _found_after(
            run, (0, state["acknowledged"], len(_bytes(state["synced"]["metrics.jsonl"])), 0)
        )
        if number % 2:
            assert not repair_run(run).in_use
        _assert_it_goes_on(run.parent, "run", found)
        shutil.rmtree(run.parent)
        return has_zeros, found.synced_lost

    # Whoever follows the records of such a run waits a second for its bad lines to become good ones: all at once.
    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(cut, range(cuts)))
    zeros, lost = (sum(column) for column in zip(*outcomes, strict=True))
    record_property(
        "measured",
        f"{cuts} simulated cuts, {zeros} with zeros where records were, {state['acknowledged']} records acknowledged "
        f"by sync, {lost} of these lost",
    )
    assert not lost
    assert zeros


class Found:
    """What a reader finds of a run after the cut."""

    def __init__(self, records, bad, synced_lost, is_synced):
        self.records = records
        self.is_synced = is_synced
        self.bad = bad
        self.synced_lost = synced_lost


def _found_after(run, note):
    _, acknowledged, synced_bytes, _ = note
    if not (run / "metrics.jsonl").exists():
        assert not synced_bytes, "the record file was synced, and is gone"
        return Found([], 0, 0, False)
    assert (run / "metrics.jsonl").stat().st_size >= synced_bytes
    records, bad, cursor = [], 0, Cursor()
    while True:
        chunk = read_from(run / "metrics.jsonl", cursor)
        records += chunk.records
        bad += chunk.bad_count
        if chunk.cursor.offset == cursor.offset:
            break
        cursor = chunk.cursor
    seqs = [record["seq"] for record in records]
    assert seqs == sorted(set(seqs)), "each record once, in its order"
    steps = {record["global_step"] for record in with_event(records, "step")}
    assert all(record["twice"] == 2 * record["global_step"] for record in with_event(records, "step"))
    return Found(records, bad, len(set(range(acknowledged)) - steps), synced_bytes > 0)


def _assert_it_goes_on(log_dir, name, found):
    """The next session continues in the same folder, after all that survived, and its numbers are new ones."""
    if not found.is_synced:
        # What is cut off right after its start may have no run.json, and is then a run of its own.
        return
    with TelemetryLogger(name, log_dir=log_dir, log_every=1, system=False, resume=True) as log:
        log.log_step(1_000_000, train_loss=1.0)
    run = log_dir / name
    assert log.run_folder == run, "it did not go on in the folder of the run"
    data = (run / "metrics.jsonl").read_bytes()
    assert data.endswith(b"\n")
    records = []
    for line in data.split(b"\n"):
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    assert records[: len(found.records)] == found.records, "nothing that survived was changed"
    new = records[len(found.records) :]
    if new[0]["session"] == 1:
        # It lacked nothing but its newline, and is whole now.
        assert new[0]["seq"] > found.records[-1]["seq"]
        found.records.append(new.pop(0))
    assert {record["session"] for record in new} == {2}
    assert new[0]["seq"] > found.records[-1]["seq"]
    assert read_manifest(run).latest.status == "finished"
    assert_table_matches(run, records)
    if not found.bad:
        assert_nothing_is_missing(records)


def _left_by_chance(name, state, chosen):
    """Return what may be left of a file: what was synced, and of the rest as much as got there, some pages as zeros."""
    now = _bytes(state["files"][name])
    if name in state["renamed"] and name not in state["synced"]:
        synced = state["renamed"][name]
        return now if chosen.random() < 0.5 else (b"" if synced is None else _bytes(synced))
    synced = len(_bytes(state["synced"].get(name)))
    left = bytearray(now[: chosen.randint(synced, len(now))])
    for page in range(synced // _PAGE, len(left) // _PAGE + 1):
        if chosen.random() < 0.3:
            start, end = max(synced, page * _PAGE), min(len(left), (page + 1) * _PAGE)
            left[start:end] = bytes(max(0, end - start))
    return bytes(left)


def _bytes(text):
    return b"" if text is None else base64.b64decode(text)


def test_a_manifest_that_a_power_cut_emptied_is_reported(tmp_path):
    (tmp_path / "run.json").touch()

    with pytest.raises(ManifestError, match="run.json is not JSON"):
        read_manifest(tmp_path)


def _lines(seqs, session):
    return [
        encode({"event": "step", "time": 1.5 + seq, "seq": seq, "session": session, "global_step": seq})
        for seq in seqs
    ]


_LINES = _lines(range(8), session=1)


@pytest.mark.parametrize(
    "left",
    [
        pytest.param([*_LINES[:3], bytes(len(_LINES[3]) - 1) + b"\n", *_LINES[4:]], id="one in the middle"),
        pytest.param([*_LINES[:3], bytes(100) + _LINES[5][30:], *_LINES[6:]], id="some in the middle"),
        pytest.param(_LINES[:5], id="the newest"),
        pytest.param(
            [*_LINES[:5], *_lines(range(5, 9), session=2)],
            id="the newest, and their numbers were given again before the table was looked at",
        ),
    ],
)
@pytest.mark.parametrize("rows", [6, 8], ids=["the table lags behind", "the table has them all"])
def test_the_next_session_takes_rows_away_whose_records_went_with_the_power(tmp_path, left, rows):
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(_LINES[:rows]))
    build_table(tmp_path / "metrics.jsonl", tmp_path / "metrics.csv")
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(left))

    mirror = CsvTable(tmp_path / "metrics.jsonl", tmp_path / "metrics.csv")
    offset = mirror.start_at()
    mirror.write(read_from(tmp_path / "metrics.jsonl", offset).records)
    mirror.close()

    records = read_from(tmp_path / "metrics.jsonl").records
    table = assert_table_matches(tmp_path, records)
    assert table["session"].tolist() == [record["session"] for record in records]
