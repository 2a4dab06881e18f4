"""A sink gets every record once and in order, at its own pace; one that fails or hangs fails alone."""

import os

import pytest

from tests.lengths import in_make_faults
from tests.telemetry.logged import PATIENCE_S
from tests.waiting import wait_until
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.sink import MemorySink
from toolkit.telemetry.logger.writing import mirror as mirror_module
from toolkit.telemetry.logger.writing.mirror import Mirror
from toolkit.telemetry.runfolder.codec import encode


class Following:
    """A record file and a mirror that follows it."""

    def __init__(self, folder, sink, *, start_at=lambda: 0, caught_up=None):
        self.path = folder / "metrics.jsonl"
        self.seq = 0
        self.sink = sink
        self.mirror = Mirror(
            sink,
            record_file=self.path,
            start_at=start_at,
            guard=Guard(),
            interval_s=0.01,
            optional=True,
            on_off=lambda *_: None,
            caught_up=caught_up,
        )

    def log(self, count=1):
        with self.path.open("ab") as file:
            for _ in range(count):
                file.write(encode({"event": "step", "seq": self.seq}))
                self.seq += 1


@pytest.fixture
def following(tmp_path):
    made = []

    def make(sink=None, **options):
        made.append(Following(tmp_path, sink or MemorySink(), **options))
        return made[-1]

    yield make
    for one in made:
        one.mirror.close(0.5)


def seqs(sink):
    return [record["seq"] for record in sink.records]


def test_a_flush_is_kept_however_late_the_file_comes(following):
    one = following()
    one.mirror.start()

    assert one.mirror.flush(PATIENCE_S)

    one.log(1)

    assert one.mirror.flush(PATIENCE_S)
    assert seqs(one.sink) == [0]


def test_a_sink_that_joins_late_gets_what_comes_from_then_on(following):
    one = following(start_at=lambda: one.path.stat().st_size)
    one.log(3)
    one.mirror.start()
    one.mirror.flush(PATIENCE_S)
    one.log(2)
    one.mirror.flush(PATIENCE_S)

    assert seqs(one.sink) == [3, 4]


@in_make_faults
def test_a_large_file_is_handed_over_in_pieces(following):
    class Measuring(MemorySink):
        largest = 0

        def write(self, batch):
            self.largest = max(self.largest, len(batch))
            super().write(batch)

    one = following(Measuring())
    one.log(100_000)
    one.mirror.start()

    assert one.mirror.flush(PATIENCE_S)
    assert seqs(one.sink) == list(range(100_000))
    assert one.sink.largest < 60_000


def test_a_place_to_start_that_cannot_be_found_is_looked_for_again(following):
    tries = []

    def start_at():
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not now")
        return 0

    one = following(start_at=start_at)
    one.log(2)
    one.mirror.start()

    assert one.mirror.flush(PATIENCE_S)
    assert seqs(one.sink) == [0, 1]


@pytest.mark.parametrize("how", ["replaced", "removed and created again"])
def test_a_record_file_that_became_another_is_followed_from_its_start(following, how):
    one = following()
    one.log(3)
    one.mirror.start()
    one.mirror.flush(PATIENCE_S)
    if how == "replaced":
        (one.path.parent / "new").write_bytes(encode({"seq": 10}) + encode({"seq": 11}))
        os.replace(one.path.parent / "new", one.path)
    else:
        one.path.unlink()
        one.mirror.flush(PATIENCE_S)
        one.path.write_bytes(encode({"seq": 10}) + encode({"seq": 11}))

    assert one.mirror.flush(PATIENCE_S)
    assert seqs(one.sink) == [0, 1, 2, 10, 11]


def test_lines_that_are_no_record_are_not_handed_over(following):
    one = following()
    one.path.write_bytes(b"nonsense\n" + encode({"seq": 1}) + b'{"seq": 2')
    one.mirror.start()

    assert one.mirror.flush(PATIENCE_S)
    assert seqs(one.sink) == [1]


def test_records_that_a_failed_sync_took_briefly_are_not_missed(following, monkeypatch):
    # A disk that is busy may take longer than a second over the file that is put right below.
    monkeypatch.setattr(mirror_module, "_PATIENCE_S", PATIENCE_S)
    one = following()
    line = b'{"event":"step","time":1.0,"elapsed":0.1,"seq":%d,"session":1}\n'
    whole = b"".join(line % seq for seq in range(20))
    one.path.write_bytes(whole[:200] + bytes(300) + whole[500:])
    one.mirror.start()
    wait_until(lambda: one.mirror._patience_s != PATIENCE_S)
    with one.path.open("r+b") as file:
        # In place: a file that is shorter for a short time is another one to its readers.
        file.write(whole)
    assert one.mirror.close(PATIENCE_S)
    assert seqs(one.sink) == list(range(20))


def test_a_callback_learns_that_the_sink_has_everything(following):
    seen = []
    sink = MemorySink()
    one = following(sink, caught_up=lambda: seen.append(len(sink.records)))
    one.log(3)
    one.mirror.start()

    assert one.mirror.flush(PATIENCE_S)
    assert seen[-1] == 3
    assert one.mirror.flush(PATIENCE_S)
    assert len(seen) >= 2, "also where nothing is new"
