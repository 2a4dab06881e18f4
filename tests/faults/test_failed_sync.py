"""A sync that fails: the kernel may have thrown the data away, so it is written again and not merely synced again."""

from __future__ import annotations

from tests.faults.aftermath import events, whole_run

FAILS_TO_SYNC = """
# A failing sync also does what the kernel then does: pages that were not on the disk yet become zeros.
good_upto = 0
failures = 0
fdatasync = os.fdatasync

def failing_fdatasync(descriptor):
    global good_upto, failures
    if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("metrics.jsonl"):
        return fdatasync(descriptor)
    size = os.fstat(descriptor).st_size
    if not fails():
        good_upto = size
        return
    failures += 1
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    with open(path, "r+b") as file:
        file.seek(good_upto)
        file.write(bytes(size - good_upto))
    raise OSError(5, "Input/output error")

os.fdatasync = failing_fdatasync
log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, sync_interval=float(sys.argv[2]), system=False)
log.log_start()
slowest = SlowestCall()

def steps(first, last, **fields):
    for step in range(first, last):
        slowest.of(log.log_step, step, train_loss=1.0, x=step, **fields)
        if step % 10 == 0:
            time.sleep(0.001)
"""

ENDS = """
print(f"slowest={slowest.seconds}")
print(f"failures={failures}")
sys.exit(7)
"""


def test_a_sync_that_fails_once_is_told_and_its_bytes_are_written_again(tmp_path, start):
    child = start(
        "calls = iter([False, False, True])\nfails = lambda: next(calls, False)\n"
        + FAILS_TO_SYNC
        + "steps(0, 8000)\nlog.close()\n"
        + ENDS,
        tmp_path,
        0.2,
    )
    ended = child.end()

    assert ended.code == 7, ended.err
    assert ended.number("failures") == 1
    assert ended.number("slowest") < 1.0
    assert ended.err.count("syncing the records failed (OSError: [Errno 5] Input/output error)") == 1
    records = whole_run(tmp_path / "run", steps=range(8000))
    (error,) = [record for record in events(records, "error") if record["doing"] == "syncing the records"]
    assert "Input/output error" in error["message"]


def test_a_sync_that_fails_at_the_very_end_loses_nothing(tmp_path, start):
    child = start(
        "closing = False\nfails = lambda: closing and not failures\n"
        + FAILS_TO_SYNC
        + "steps(0, 1000)\nlog.flush()\nclosing = True\nlog.close()\n"
        + ENDS,
        tmp_path,
        3600,
    )
    ended = child.end()

    assert ended.code == 7, ended.err
    assert ended.number("failures") == 1
    assert "syncing the records failed" in ended.err
    whole_run(tmp_path / "run", steps=range(1000))


def test_a_disk_that_never_syncs_harms_neither_the_loop_nor_what_is_still_held(tmp_path, start):
    child = start(
        "fails = lambda: not told_to_stop\ntold_to_stop = False\n"
        + FAILS_TO_SYNC
        + "steps(0, 5000)\nlog.flush()\ntold_to_stop = True\ntime.sleep(0.5)\nlog.close()\n"
        + ENDS,
        tmp_path,
        0.05,
    )
    ended = child.end()

    assert ended.code == 7, ended.err
    assert ended.number("failures") > 3
    assert ended.number("slowest") < 1.0
    assert ended.err.count("syncing the records failed") == 1, "said once, counted after that"
    whole_run(tmp_path / "run", steps=range(5000))


def test_bytes_that_were_not_synced_and_are_no_longer_held_are_named(tmp_path, start):
    child = start(
        "calls = iter([True])\nfails = lambda: next(calls, False)\n"
        + FAILS_TO_SYNC
        + "steps(0, 9000, note='y' * 600)\nlog.flush()\nlog.sync()\ntime.sleep(0.5)\nlog.close()\n"
        + ENDS,
        tmp_path,
        3600,
    )
    ended = child.end()

    assert ended.code == 7, ended.err
    assert ended.number("failures") == 1
    assert "bytes were not synced and are no longer in memory" in ended.err
    data = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert data.count(0), "more was written than is held"
    assert not data[-200_000:].count(0), "what was held was written again"
