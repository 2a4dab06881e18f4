"""Somebody removes, replaces, cuts or locks the files that a run is writing."""

from __future__ import annotations

import csv
import errno
import itertools
import json
import os
import shutil
import subprocess
import time

import pandas as pd
import pytest

from tests.faults.children import LONGEST_PAUSE_S, PROGRAMS, repair
from tests.faults.crash_checks import (
    assert_nothing_is_missing,
    assert_table_matches,
    whole_rows,
    whole_run,
    with_rows,
)
from tests.records import read_records, with_event
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.logger.options import OptionsError
from toolkit.telemetry.runfolder.journal.journal import pending_lines
from toolkit.telemetry.runfolder.journal.repair import journals_of
from toolkit.telemetry.runfolder.manifest import read_manifest
from toolkit.telemetry.runfolder.table.columns import SHORT
from toolkit.telemetry.runfolder.table.csv_table import CsvTable


@pytest.mark.parametrize("removed", ["the run folder", "all of log_dir"])
def test_a_removed_folder_is_created_again_and_the_loss_is_recorded(tmp_path, start, removed):
    run = tmp_path / "logs" / "run"
    child = start(PROGRAMS / "log_until_end.py", tmp_path / "logs")
    _wait_until_written(run, 100)
    _remove(run if removed == "the run folder" else run.parent)
    gone_at = child.acknowledged
    noticed_after = _seconds_until(lambda: (run / "metrics.jsonl").exists())
    child.wait_for_step(child.acknowledged + 100)
    _end_unharmed(child)

    assert noticed_after < 4.0 + LONGEST_PAUSE_S
    records = whole_run(run)
    (lost,) = with_event(records, "lost")
    assert lost["from_seq"] == 0
    assert lost["records"] > 100
    steps = {record["global_step"] for record in with_event(records, "step")}
    after = max(steps) + 1 - min(steps)
    assert len(steps) == after, "from the first record in the new file on, none is missing"
    assert min(steps) > 100
    assert max(steps) == child.acknowledged > gone_at
    assert read_manifest(run).latest.status == "finished"


def test_a_record_file_that_is_replaced_by_an_empty_one_continues_there(tmp_path, start):
    run = tmp_path / "run"
    child = start(PROGRAMS / "log_until_end.py", tmp_path)
    child.wait_for_step(100)
    (run / "metrics.jsonl").rename(tmp_path / "taken.jsonl")
    (run / "metrics.jsonl").touch(0o600)
    _seconds_until(lambda: (run / "metrics.jsonl").stat().st_size > 0)
    child.wait_for_step(child.acknowledged + 50)
    _end_unharmed(child)

    taken = read_records(tmp_path / "taken.jsonl")
    records = read_records(run)
    assert_nothing_is_missing(records)
    _assert_table_has_them_all(run, records)
    (lost,) = with_event(records, "lost")
    assert (lost["from_seq"], lost["to_seq"]) == (0, taken[-1]["seq"]), (
        "all that is in the other file, and no more"
    )


def test_a_truncated_record_file_continues_and_the_gap_is_recorded(tmp_path, start):
    run = tmp_path / "run"
    child = start(PROGRAMS / "log_until_end.py", tmp_path)
    _wait_until_written(run, 150)
    data = (run / "metrics.jsonl").read_bytes()
    cut = data.find(b"\n", len(data) // 2) + 1
    os.truncate(run / "metrics.jsonl", cut)
    child.wait_for_step(child.acknowledged + 150)
    _end_unharmed(child)

    records = read_records(run)
    assert_nothing_is_missing(records)
    _assert_table_has_them_all(run, records)
    (lost,) = with_event(records, "lost")
    assert lost["from_seq"] == json.loads(data[:cut].splitlines()[-1])["seq"] + 1


@pytest.mark.parametrize("how", ["log_dir is renamed", "log_dir is a link that is switched"])
def test_a_folder_that_goes_elsewhere_keeps_what_it_has_and_the_rest_is_at_the_old_place(
    tmp_path, start, how
):
    logs, other = tmp_path / "logs", tmp_path / "other"
    if how == "log_dir is renamed":
        taken = other
    else:
        taken = tmp_path / "first"
        for folder in (taken, other):
            folder.mkdir()
        logs.symlink_to("first")
    child = start(PROGRAMS / "log_until_end.py", logs)
    child.wait_for_step(100)
    if how == "log_dir is renamed":
        logs.rename(other)
    else:
        (tmp_path / "new").symlink_to("other")
        os.replace(tmp_path / "new", logs)
    _seconds_until(lambda: (logs / "run" / "metrics.jsonl").exists())
    child.wait_for_step(child.acknowledged + 50)
    _end_unharmed(child)

    before, records = (read_records(place / "run") for place in (taken, logs))
    assert_nothing_is_missing(records)
    _assert_table_has_them_all(logs / "run", records)
    (lost,) = with_event(records, "lost")
    assert (lost["from_seq"], lost["to_seq"]) == (0, before[-1]["seq"]), "all that is elsewhere, and no more"
    steps = [record["global_step"] for record in with_event(before + records, "step")]
    assert steps == list(range(child.acknowledged + 1)), "both together have everything, once"


def test_a_folder_that_is_removed_while_the_disk_is_full_is_recorded_too(tmp_path, start):
    run = tmp_path / "run"
    child = start(PROGRAMS / "log_until_end.py", tmp_path)
    _wait_until_written(run, 100)
    child.limit_files((run / "metrics.jsonl").stat().st_size)
    # It has found the disk full once it has put that into its journal.
    _seconds_until(
        lambda: any(
            b"writing records" in line for path, _ in journals_of(run) for _, line in pending_lines(path)
        )
    )
    written = len(read_records(run))
    _remove(run)
    child.limit_files(None)
    _seconds_until(lambda: (run / "metrics.jsonl").exists())
    child.wait_for_step(child.acknowledged + 100)
    _end_unharmed(child)

    records = whole_run(run)
    (lost,) = with_event(records, "lost")
    assert (lost["from_seq"], lost["records"]) == (0, written)


def test_a_script_that_changes_its_working_directory_takes_nothing_away(tmp_path, start):
    (tmp_path / "elsewhere").mkdir()
    ended = start(
        """
        log = TelemetryLogger("run", log_dir="logs", log_every=1, system=False)
        for step in range(1000):
            log.log_step(step, train_loss=1.0, **({"made_later": step} if step > 200 else {}))
            if step == 100:
                os.chdir("elsewhere")
            time.sleep(0.0005)
        log.close()
        sys.exit(7)
        """
    ).end(code=7)

    assert not ended.trouble
    assert not list((tmp_path / "elsewhere").iterdir())
    records = whole_run(tmp_path / "logs" / "run", steps=range(1000))
    assert not with_event(records, "lost")


@pytest.mark.root
def test_a_folder_that_becomes_read_only_is_waited_for(tmp_path, start):
    run = tmp_path / "run"
    child = start(PROGRAMS / "log_until_end.py", tmp_path)
    child.wait_for_step(300)
    with _immutable(run / "metrics.jsonl", run):
        child.tell("new")
        child.wait_for_step(child.acknowledged + 1000)
        size = (run / "metrics.jsonl").stat().st_size
        child.wait_for_step(child.acknowledged + 200)
        time.sleep(0.5)
        stays = (run / "metrics.jsonl").stat().st_size == size
    resumed_after = _seconds_until(lambda: (run / "metrics.jsonl").stat().st_size > size)
    _end_unharmed(child)

    assert stays, "the folder was not read-only after all"
    assert resumed_after < 3.0 + LONGEST_PAUSE_S
    records = whole_run(run, steps=range(child.acknowledged + 1))
    assert not with_event(records, "lost")
    assert "made_later" in pd.read_csv(run / "metrics.csv").columns


@pytest.mark.skipif(
    os.geteuid() == 0, reason="root may write to any folder; the immutable one is tested instead"
)
def test_a_folder_without_write_permission_is_waited_for(tmp_path, start):
    run = tmp_path / "run"
    child = start(PROGRAMS / "log_until_end.py", tmp_path)
    child.wait_for_step(300)
    run.chmod(0o500)
    child.tell("new")
    child.wait_for_step(child.acknowledged + 1000)
    run.chmod(0o700)
    child.wait_for_step(child.acknowledged + 1000)
    _end_unharmed(child)

    whole_run(run, steps=range(child.acknowledged + 1))


def test_a_log_dir_below_a_file_is_refused_at_once_by_its_name(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(OptionsError, match=r"telemetry\.log_dir is .*file/logs"):
        TelemetryLogger("run", log_dir=tmp_path / "file" / "logs")


def test_a_log_dir_that_cannot_be_written_is_refused_at_once_by_its_name(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    if os.geteuid() == 0:
        with _immutable(logs), pytest.raises(OptionsError, match=r"telemetry\.log_dir is .*logs"):
            TelemetryLogger("run", log_dir=logs)
    else:
        logs.chmod(0o500)
        with pytest.raises(OptionsError, match=r"telemetry\.log_dir is .*logs"):
            TelemetryLogger("run", log_dir=logs)


@pytest.mark.parametrize("harm", ["deleted", "emptied", "cut in the middle of a row", "edited", "replaced"])
def test_a_table_that_someone_damages_is_built_again(tmp_path, start, harm):
    table = tmp_path / "run" / "metrics.csv"
    # No findings: for their columns the table is written again, with whatever harm came just before that.
    child = start(PROGRAMS / "log_until_end.py", tmp_path, "no-diagnostics")
    child.wait_for_step(200)
    _seconds_until(lambda: table.exists() and table.stat().st_size > 5000)
    if harm == "deleted":
        table.unlink()
    elif harm == "emptied":
        os.truncate(table, 0)
    elif harm == "cut in the middle of a row":
        os.truncate(table, 4000)
    elif harm == "edited":
        with table.open("a") as file:
            file.write("a,note,of,mine\n")
    else:
        (tmp_path / "other.csv").write_text("a,b\n1,2\n")
        os.replace(tmp_path / "other.csv", table)
    harmed_at = child.acknowledged
    # Rows that were under way may have come before the harm was noticed, and hundreds of them.
    _seconds_until(lambda: _numbered_rows(table) > harmed_at + 10)
    built_again = whole_rows(table)
    _end_unharmed(child)

    first = read_records(tmp_path / "run")
    expected = [record["seq"] for record in with_rows(tmp_path / "run", first)]
    assert built_again["seq"].tolist() == expected[: len(built_again)]
    assert len(built_again) > 200
    whole_run(tmp_path / "run", steps=range(child.acknowledged + 1))


def test_a_table_that_is_lost_while_it_gets_new_columns_gets_all_its_rows_back(tmp_path, monkeypatch):
    lines = [
        {"event": "step", "time": 1.5, "seq": seq, "session": 1, "global_step": seq} for seq in range(50)
    ]
    lines += [{**line, "seq": line["seq"] + 50, "made_later": 1} for line in lines]
    texts = [json.dumps(line) + "\n" for line in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(texts[:50]))
    mirror = CsvTable(tmp_path / "metrics.jsonl", tmp_path / "metrics.csv", form=SHORT)
    mirror.write(lines[:50])
    (tmp_path / "metrics.jsonl").write_text("".join(texts))

    def lose_it(source, target):
        os.unlink(target)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lose_it)
        with pytest.raises(OSError, match="Input/output"):
            mirror.write(lines[50:])
    mirror.write(lines[50:])
    mirror.close()

    assert_table_matches(tmp_path, lines)


def _assert_table_has_them_all(run, records):
    """The rows of records that someone took away may still be in the table; repair goes by the records alone."""
    table = pd.read_csv(run / "metrics.csv")
    assert table["seq"].is_monotonic_increasing
    assert {record["seq"] for record in with_rows(run, records)} <= set(table["seq"])
    repair(run)
    assert_table_matches(run, read_records(run))


def _end_unharmed(child):
    ended = child.end(line="end", code=7)
    assert ended.number("slowest") < LONGEST_PAUSE_S


def _remove(folder):
    """Remove a folder in which someone is writing: a file may appear while it is being removed."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    raise AssertionError(f"{folder} could not be removed")


def _seconds_until(holds, every_s=0.01):
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < 60
        time.sleep(every_s)
    return time.monotonic() - began


def _wait_until_written(run, step):
    """Wait until the record of a step is in the file: the call that logged it returns before that."""
    sought = b'"global_step":%d,' % step
    _seconds_until(
        lambda: (run / "metrics.jsonl").exists() and sought in (run / "metrics.jsonl").read_bytes()
    )


def _numbered_rows(table):
    """Return how many rows a table has, 0 where one is no record's (not every record has one)."""
    text = table.read_text() if table.exists() else ""
    rows = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
    numbers = [int(text) if (text := row.get("seq") or "").isdigit() else -1 for row in rows]
    return len(rows) if numbers[:1] == [0] and all(a < b for a, b in itertools.pairwise(numbers)) else 0


class _immutable:
    """Within the block no one, root included, may change these files or put anything into these folders."""

    def __init__(self, *paths):
        self._paths = [str(path) for path in paths]

    def __enter__(self):
        done = subprocess.run(["chattr", "+i", *self._paths], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this file system has no immutable files: {done.stderr.strip()}")

    def __exit__(self, *_):
        subprocess.run(["chattr", "-i", *self._paths], check=True)
