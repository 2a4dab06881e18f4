"""What was acknowledged outlives its process in mapped memory, and is found again by its number, once each."""

import json
import os
import struct
import textwrap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fork_server import run_python
from tests.runfolder.plain_data import line, tries
from toolkit.telemetry.runfolder.journal import journal
from toolkit.telemetry.runfolder.journal.head import COMMITTED, HEADER_BYTES, SEGMENTS, Owner, id_key
from toolkit.telemetry.runfolder.journal.journal import (
    PREFIX,
    SUFFIX,
    Journal,
    head_of,
    hold_abandoned,
    journals_in,
    pending_lines,
)
from toolkit.telemetry.runfolder.portable import is_locked

SEGMENT = 4096
HEADER = HEADER_BYTES
COMMITTED_IN_A = 8 * COMMITTED
SAID = {"run_id": "r", "record_file": "/r", "session": 1, "rank": 0, "started": 1.0, "pid": 1}
SAID |= {"segment_bytes": 4096, "is_mapped": True}
OWNER = Owner(run_id="r1", session=3, started=1_700_000_000.25, rank=2)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="recovery needs record locks")


def create(folder):
    return Journal.create([folder], folder / "r" / "metrics.jsonl", OWNER, segment_bytes=SEGMENT)


@pytest.fixture(params=["mapped", "written"])
def kind(request, tmp_path, monkeypatch):
    """Journals in shared memory are mapped, and those in a run folder written."""
    if request.param == "mapped":
        monkeypatch.setattr(journal, "shared_memory_folders", lambda: [tmp_path])
    return request.param


@pytest.fixture
def made(tmp_path, kind):
    made = create(tmp_path)
    assert head_of(made.path).is_mapped == (kind == "mapped")
    yield made
    if made._descriptor is not None:
        made.close(remove=True)


def seqs(path):
    return [seq for seq, _ in pending_lines(path)]


# ---------------------------------------------------------------- writing


def test_a_line_that_fills_a_segment_to_the_last_byte_has_room(made):
    rest = line(0)[:-2] + b',"t":"' + b"x" * (SEGMENT - len(line(0)) - 7) + b'"}\n'

    assert len(rest) == SEGMENT
    assert made.append(rest) == SEGMENT
    assert made.append(line(1)) == len(line(1))
    assert made.flip() == rest


@tries
@given(
    turns=st.lists(
        st.tuples(st.sampled_from(["append", "append", "append", "flip", "release"]), st.integers(0, 900)),
        max_size=60,
    )
)
def test_a_kill_at_any_time_loses_nothing_that_was_appended(tmp_path_factory, turns):
    folder = tmp_path_factory.mktemp("journal")
    made = create(folder)
    given_lines, in_file, handed = [], [], None
    for what, length in turns:
        if what == "append":
            new = line(len(given_lines), text="z" * length)
            if made.append(new):
                given_lines.append(new)
        elif what == "flip":
            assert handed is None or made.flip() is None, "one segment at a time is handed over"
            handed = handed or made.flip()
        elif handed is not None:
            in_file.append(handed)
            made.release()
            handed = None
        found = dict(pending_lines(made.path))
        written = b"".join(in_file)
        missing = [seq for seq, text in enumerate(given_lines) if text not in written]

        assert [seq for seq in missing if seq not in found] == []
        assert all(given_lines[seq] == text for seq, text in found.items())
    made.close(remove=True)


# ---------------------------------------------------------------- recovery


@pytest.mark.skipif(
    not os.path.exists("/proc/self/maps"), reason="no system that says what a process has mapped"
)
def test_a_journal_that_lost_its_lock_is_not_abandoned_while_its_writer_lives(made):
    made.append(line(0))
    # As a script does that closes descriptors by their numbers.
    for number in descriptors_of(made.path):
        os.close(number)
    script = """
        import sys
        from pathlib import Path
        from toolkit.telemetry.runfolder.journal.journal import hold_abandoned

        print(hold_abandoned(Path(sys.argv[1])) is None)
    """

    # A mapped file stays locked as long as it is mapped; of any other the process itself is looked up.
    assert is_locked_for_others(made.path) == head_of(made.path).is_mapped
    assert in_another_process(script, made.path) == "True"


def test_journals_of_others_are_those_that_this_process_does_not_hold(tmp_path, made):
    path = abandoned(tmp_path, line(0))
    assert made.path.parent == tmp_path
    assert list(journals_in(tmp_path, of_others=True)) == [path]

    held = hold_abandoned(path)
    assert list(journals_in(tmp_path, of_others=True)) == []
    held.close(remove=True)


def test_a_lock_on_an_abandoned_journal_is_not_dropped_by_a_listing(tmp_path):
    path = abandoned(tmp_path, line(0))
    held = hold_abandoned(path)
    for _ in range(3):
        assert list(journals_in(tmp_path)) == [path]
        assert pending_lines(path)

    assert is_locked_for_others(path)
    assert hold_abandoned(path) is None

    held.close(remove=False)

    assert not is_locked_for_others(path)


def test_of_many_threads_one_gets_an_abandoned_journal(tmp_path):
    path = abandoned(tmp_path, line(0))
    begin = threading.Barrier(8)
    got = []

    def try_to_get_it():
        begin.wait()
        got.append(hold_abandoned(path))

    threads = [threading.Thread(target=try_to_get_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (held,) = [one for one in got if one is not None]
    held.close(remove=True)


# ---------------------------------------------------------------- moving to another file


@pytest.mark.parametrize("harm", ["removed", "renamed", "replaced"])
def test_a_journal_whose_file_is_removed_continues_in_another(tmp_path, made, harm):
    made.append(line(0))
    made.flip()
    made.append(line(1))
    assert made.is_in_place
    old, elsewhere = made.path, tmp_path / f"{PREFIX}elsewhere{SUFFIX}"
    if harm == "removed":
        old.unlink()
    else:
        old.rename(elsewhere)
    if harm == "replaced":
        old.write_bytes(b"something else")
    assert not made.is_in_place

    assert made.move_to(create(tmp_path), threading.RLock())

    made.append(line(2))
    assert made.is_in_place
    assert made.path != old
    assert seqs(made.path) == [0, 1, 2]
    assert is_locked_for_others(made.path)
    if harm != "removed":
        assert pending_lines(elsewhere) == [], "nothing of it is written a second time"
    made.release()
    assert made.flip() == line(1) + line(2)
    made.release()
    assert pending_lines(made.path) == []


# ---------------------------------------------------------------- written instead of mapped


def test_no_line_is_followed_by_the_rest_of_an_earlier_one(tmp_path):
    made = create(tmp_path)
    for seq in range(20):
        made.append(line(seq, text="x" * 100))
    made.flip()
    made.release()
    made.append(line(20))
    made.flip()
    made.append(line(21))
    made.release()
    # The kill comes in the middle of a call: the line is there in part.
    os.pwrite(made._descriptor, line(22)[:10], made._end)

    assert seqs(made.path) == [21]
    data = made.path.read_bytes()[HEADER:]
    assert data.strip(b"\0") == line(21) + line(22)[:10]
    made.close(remove=True)


# ---------------------------------------------------------------- what a journal says of itself


@pytest.mark.parametrize("run_id", ["x" * 5000, "half \ud800 a character", "\N{SNOWMAN}" * 400, ""], ids=len)
def test_any_run_id_has_room(tmp_path, run_id):
    owner = Owner(run_id=run_id, session=1, started=1.5)
    made = Journal.create([tmp_path], tmp_path / "metrics.jsonl", owner, segment_bytes=SEGMENT)

    assert head_of(made.path).id_key == id_key(run_id)
    # run.json spells out half a character: read from there it is the same run.
    assert id_key(run_id) == id_key(run_id.encode("utf-8", "backslashreplace").decode("utf-8"))
    made.close(remove=True)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 1000,
        *(
            json.dumps(SAID | wrong).encode()
            for wrong in (
                {"run_id": 1},
                {"rank": -1},
                {"rank": 1e9},
                {"rank": 99999999999},
                {"started": "now"},
                {"segment_bytes": 0},
                {"record_file": ""},
                {"pid": None},
            )
        ),
        b"\xff\xfe",
    ],
)
def test_a_head_that_says_nothing_of_use_is_no_journals(tmp_path, said):
    path = abandoned(tmp_path, line(0))
    data = path.read_bytes()
    path.write_bytes(data[:64] + said.ljust(HEADER - 64, b"\0") + data[HEADER:])

    assert head_of(path) is None
    assert hold_abandoned(path) is None


# ---------------------------------------------------------------- recovery, again


def test_a_huge_file_is_read_no_further_than_a_journal_can_be_long(tmp_path, monkeypatch):
    path = abandoned(tmp_path, line(0))
    with path.open("r+b") as file:
        file.seek(COMMITTED_IN_A)
        file.write(struct.pack("=Q", 2**63) * (SEGMENTS + 1))
    os.truncate(path, 2**40)
    asked = []
    monkeypatch.setattr(journal, "pread", lambda fd, length, at: asked.append(length) or b"")
    pending_lines(path)

    assert sum(asked) <= 256 * 1024 * 1024


def abandoned(folder, in_a, in_b=b"", *, is_mapped=True):
    """Write a journal as a process leaves it that was killed."""
    path = folder / f"{PREFIX}{os.urandom(4).hex()}{SUFFIX}"
    head = journal.make_head(
        folder / "r" / "metrics.jsonl", OWNER, segment_bytes=SEGMENT, is_mapped=is_mapped
    )
    # Of a process that is gone.
    data = bytearray(head.replace(b'"pid_started": ', b'"pid_started": 1')) + bytearray(2 * SEGMENT)
    data[HEADER:] = in_a.ljust(SEGMENT, b"\0") + in_b.ljust(SEGMENT, b"\0")
    if is_mapped:
        struct.pack_into("=2Q", data, COMMITTED_IN_A, len(in_a), len(in_b))
    path.write_bytes(data)
    return path


def descriptors_of(path):
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == str(path):
                found.append(int(name))
        except FileNotFoundError:
            continue
    return found


def is_locked_for_others(path):
    """Say whether the file is locked; another opening of it in this process is another's, too."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        return is_locked(descriptor)
    finally:
        os.close(descriptor)


def in_another_process(script, *arguments):
    done = run_python(
        ["-c", textwrap.dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
