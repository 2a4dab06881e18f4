"""A second opening shows what the first one did without reading the log again, and believes nothing the log denies."""

import math
import os
import stat

import numpy as np
import orjson
import pyarrow as pa
import pytest

from tests.made_runs import append, step_record, write_run
from toolkit.telemetry.runfolder import reader
from toolkit.telemetry.runs.columns import column_cache, run_log
from toolkit.telemetry.runs.columns.column_cache import ColumnCache
from toolkit.telemetry.runs.columns.run_log import RunLog

AXES = ("step", "time", "elapsed", "epoch")
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _small_logs_are_worth_keeping(monkeypatch):
    monkeypatch.setattr(run_log, "MIN_CACHED_BYTES", 1000)


@pytest.fixture
def cache(tmp_path):
    return ColumnCache(tmp_path / "cache" / "columns")


@pytest.fixture
def path(tmp_path):
    """Return the log of a resumed run with a bit of everything in it."""
    folder = write_run(
        tmp_path / "logs",
        "r",
        sessions=[range(600), range(400, 900)],
        curves={
            "train_loss": lambda step: math.nan if step % 97 == 0 else 1.0 / (step + 1),
            "naïve/☃": lambda step: math.inf if step == 500 else step,
        },
        extra=[
            {"event": "system", "session": 2, "gpu": 80.0},
            {"event": "epoch", "session": 2, "epoch": 3, "global_step": 899, "loss": 0.5},
            {"event": "lost", "session": 2, "records": 3, "reason": "queue full"},
            {"event": "checkpoint", "session": 2, "path": "x"},
        ],
    )
    log = folder / "metrics.jsonl"
    with log.open("ab") as file:
        file.write(b"torn\n")
    return log


def opened(path, cache):
    log = RunLog(path, cache)
    health = log.refresh(WAIT_S)
    log.wait_until_saved(WAIT_S)
    return log, health


def everything(log):
    """Return all that a page can ask of a log, in words that can be compared."""
    names = [metric.name for metric in log.metrics()]
    return repr(
        [
            log.metrics(),
            log.counts(),
            log.events(None, 1000),
            {name: column.tolist() for name, column in log.table(None).items()},
            {name: column.tolist() for name, column in log.table(None, (50, 150)).items()},
            [
                _plain(log.series(name, axis, window, buckets))
                for name in names
                for axis in AXES
                for window in (None, (100.0, 450.0))
                for buckets in (600, 20)
            ],
        ]
    )


def _plain(series):
    return [
        [
            [(segment.session, segment.x.tolist(), np.round(segment.y, 9).tolist()) for segment in segments]
            for segments in (series.segments, series.superseded)
        ],
        series.non_finite,
        (series.total, series.drawn),
    ]


def file_in(cache):
    (found,) = cache.folder.glob("*.arrow")
    return found


def test_the_second_opening_reads_only_the_ends(path, cache, monkeypatch):
    opened(path, cache)
    append(path.parent, [step_record(900, session=2, train_loss=7.0)])
    taken = []
    pread = os.pread

    def counted(descriptor, length, offset):
        data = pread(descriptor, length, offset)
        taken.append(len(data))
        return data

    monkeypatch.setattr(reader.os, "pread", counted)
    log, health = opened(path, cache)

    assert health.from_cache
    assert sum(taken) < 8000 < path.stat().st_size / 10
    assert log.recent("train_loss", 1).tolist() == [7.0]


@pytest.mark.parametrize("rewind", [900, 300])
def test_what_is_appended_to_a_cached_log_counts_as_if_it_had_been_read_at_once(path, cache, rewind):
    opened(path, cache)
    append(path.parent, [{"event": "system", "session": 3, "gpu": 10.0}])
    append(
        path.parent, [step_record(rewind + i, session=3, train_loss=math.sin(i), new=1.0) for i in range(60)]
    )

    warm, health = opened(path, cache)
    cold, _ = opened(path, None)

    assert health.from_cache
    assert everything(warm) == everything(cold)


# ---------------------------------------------------------------- what the log denies


def _replaced(path):
    data = path.read_bytes()
    path.unlink()
    path.with_name("keeps the inode").write_bytes(b"")
    path.write_bytes(data.replace(b'"session":1', b'"session":7'))


def _overwritten(path, place, by):
    with path.open("r+b") as file:
        file.seek(place(path.read_bytes()))
        file.write(by)


CHANGES = {
    "replaced": _replaced,
    "cut short": lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:600])),
    "edited in its head": lambda path: _overwritten(path, lambda data: data.index(b'"session":1') + 10, b"8"),
    "edited in its tail": lambda path: _overwritten(path, lambda data: data.rindex(b"queue full"), b"QUEUE"),
    "written again": lambda path: path.write_bytes(
        b"".join(b'{"event":"step","session":1,"train_loss":%d}\n' % i for i in range(9000))
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_log_that_is_not_what_was_cached_is_read_again(path, cache, change):
    opened(path, cache)
    change(path)

    log, health = opened(path, cache)

    assert not health.from_cache
    assert everything(log) == everything(opened(path, None)[0])


# ---------------------------------------------------------------- what is no cache


def _rewritten(file, change, **columns):
    batch = pa.ipc.open_file(file).get_batch(0)
    about = orjson.loads(batch.schema.metadata[b"about"])
    change(about)
    for name, values in columns.items():
        batch = batch.set_column(batch.schema.get_field_index(name), name, values(batch[name]))
    batch = batch.replace_schema_metadata({"about": orjson.dumps(about)})
    file.unlink()
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _of_no_kind(kinds):
    return pa.array([[7] * len(kinds[0])], kinds.type)


def _as_a_folder(file):
    file.unlink()
    file.mkdir()


SPOILT = {
    "torn": lambda file, data: file.write_bytes(data[: len(data) // 2]),
    "empty": lambda file, data: file.write_bytes(b""),
    "garbage": lambda file, data: file.write_bytes(os.urandom(len(data))),
    "garbage inside": lambda file, data: file.write_bytes(
        data[:100] + b"\xff" * (len(data) - 200) + data[-100:]
    ),
    "a folder": lambda file, data: _as_a_folder(file),
    "of another version": lambda file, data: _rewritten(
        file, lambda about: about.update(version=about["version"] + 1)
    ),
    "without a key": lambda file, data: _rewritten(file, lambda about: about.pop("segments")),
    "of other types": lambda file, data: _rewritten(file, lambda about: about.update(metrics=[1, 2, 3])),
    "of no kind": lambda file, data: _rewritten(file, lambda about: None, kind=_of_no_kind),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_corrupt_cache_is_ignored(path, cache, spoil):
    first, _ = opened(path, cache)
    file = file_in(cache)
    spoil(file, file.read_bytes())

    log, health = opened(path, cache)

    assert not health.from_cache
    assert everything(log) == everything(first)


# ---------------------------------------------------------------- what others could have written


def _forged(file):
    """Change a number that the log cannot contradict: it would have to be read for that."""
    batch = pa.ipc.open_file(file).get_batch(0)
    names = batch.schema.names
    about = orjson.loads(batch.schema.metadata[b"about"])
    number = next(place for place, metric in enumerate(about["metrics"]) if metric[0] == "train_loss")
    place = names.index(f"values{number}")
    lists = [batch.column(name) for name in names]
    values = np.full(len(lists[place].values), 66.0)
    lists[place] = pa.LargeListArray.from_arrays(lists[place].offsets, pa.array(values))
    forged = pa.RecordBatch.from_arrays(lists, names=names).replace_schema_metadata(batch.schema.metadata)
    file.unlink()
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, forged.schema) as writer:
        writer.write_batch(forged)
    file.chmod(0o600)


def _anothers_link(file):
    real = file.parent.rename(file.parent.with_name("real"))
    file.parent.symlink_to(real, target_is_directory=True)
    os.lchown(file.parent, 12345, 12345)


GIVEN_AWAY = {
    "another's file": lambda file: os.chown(file, 12345, 12345),
    "another's folder": lambda file: os.chown(file.parent, 12345, 12345),
    "another's link": _anothers_link,
    "a file for the group": lambda file: file.chmod(0o660),
    "a folder for all": lambda file: file.parent.chmod(0o777),
}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no owners and modes here")
@pytest.mark.parametrize("to", GIVEN_AWAY)
def test_what_another_user_could_have_written_is_ignored(path, cache, to):
    if os.geteuid() != 0 and to.startswith("another's"):
        pytest.skip("only root can give a file to another user")
    first, _ = opened(path, cache)
    _forged(file_in(cache))
    believed, health = opened(path, cache)
    GIVEN_AWAY[to](file_in(cache))

    log, health_again = opened(path, cache)

    assert health.from_cache
    assert believed.recent("train_loss", 1).tolist() == [66.0], "the forgery would have been seen"
    assert not health_again.from_cache
    assert everything(log) == everything(first)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no owners and modes here")
def test_nothing_is_kept_in_a_folder_that_others_can_write(path, tmp_path):
    folder = tmp_path / "waiting"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "theirs.arrow").write_bytes(b"theirs")
    cache = ColumnCache(folder)
    opened(path, cache)

    assert [file.name for file in folder.iterdir()] == ["theirs.arrow"]
    assert (cache.size(), cache.clear()) == (0, 0)
    assert (folder / "theirs.arrow").exists()
    assert "can be written by others (mode 0777)" in cache.distrusted()


# ---------------------------------------------------------------- what may happen to it


def test_a_deleted_cache_is_made_again_and_does_no_harm_to_who_reads_it(path, cache):
    first, _ = opened(path, cache)
    warm, health = opened(path, cache)
    freed = cache.clear()

    assert freed > 0
    assert cache.size() == 0
    assert health.from_cache
    assert everything(warm) == everything(first)
    assert everything(opened(path, cache)[0]) == everything(first)
    assert cache.size() == freed


def test_a_cache_folder_that_cannot_be_written_is_harmless(path, tmp_path):
    (tmp_path / "file").write_text("in the way")

    log, health = opened(path, ColumnCache(tmp_path / "file" / "columns"))

    assert health.problem is None
    assert everything(log) == everything(opened(path, None)[0])


def test_numbers_too_large_to_keep_leave_the_log_uncached_and_readable(path, cache):
    append(path.parent, [{"event": "lost", "records": 2**63} for _ in range(4)])

    _, health = opened(path, cache)

    assert health.lost_records == 4 * 2**63 + 3
    assert cache.size() == 0


# ---------------------------------------------------------------- where it lies


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_no_one_else_can_read_the_cache(path, cache):
    opened(path, cache)

    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file_in(cache).stat().st_mode) == 0o600


def test_the_oldest_make_room_for_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(column_cache, "_SAVES_AT_ONCE", 1)
    cache = ColumnCache(tmp_path / "cache", max_bytes=1)
    logs = []
    for i in range(3):
        folder = write_run(tmp_path / "logs", f"r{i}")
        opened(folder / "metrics.jsonl", cache)
        logs.append(folder / "metrics.jsonl")

    assert [cache.load(log) is not None for log in logs] == [False, False, True]
