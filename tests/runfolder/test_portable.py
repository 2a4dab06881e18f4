"""What a system lacks has something that takes its place."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from toolkit.telemetry.runfolder import portable
from toolkit.telemetry.runfolder.portable import (
    allocate,
    is_locked,
    off_the_usual_numbers,
    pread,
    this_user,
    try_lock,
)
from toolkit.telemetry.runfolder.safefile import is_ours


@pytest.fixture
def file(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | portable.SAFELY, 0o600)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def again(tmp_path, file):
    """Another opening of the same file, as another process has it."""
    descriptor = os.open(tmp_path / "file", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("lacks", [False, True])
def test_bytes_are_read_and_written_at_their_place(file, monkeypatch, lacks):
    pwrite = portable._seek_and_write if lacks else portable.pwrite
    if lacks:
        monkeypatch.delattr(os, "pread")
    assert pwrite(file, b"0123456789", 0) == 10
    assert pwrite(file, memoryview(b"ab"), 4) == 2

    assert pread(file, 4, 3) == b"3ab6"
    assert pread(file, 4, 8) == b"89"
    assert pread(file, 4, 100) == b""


def test_threads_that_share_a_descriptor_read_what_they_ask_for(file, monkeypatch):
    monkeypatch.delattr(os, "pread")
    os.write(file, bytes(range(256)))
    wrong = []

    def read(number):
        for _ in range(200):
            if pread(file, 1, number) != bytes([number]):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(0, 256, 32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.parametrize("answer", ["it can", "it is not there", errno.EOPNOTSUPP, errno.EINVAL])
def test_room_is_had_where_the_file_system_cannot_allocate(file, monkeypatch, answer):
    if answer == "it is not there":
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    elif isinstance(answer, int):
        monkeypatch.setattr(os, "posix_fallocate", _fail_with(answer), raising=False)
    allocate(file, 0, 3_000_000)

    assert os.fstat(file).st_size == 3_000_000


def test_a_full_disk_is_no_reason_to_try_by_writing(file, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", _fail_with(errno.ENOSPC), raising=False)
    with pytest.raises(OSError, match="full"):
        allocate(file, 0, 10)


def _fail_with(number):
    def fail(*_):
        raise OSError(number, "full")

    return fail


def test_where_files_have_no_owners_all_are_ours(file, monkeypatch):
    monkeypatch.delattr(os, "geteuid", raising=False)

    assert this_user() is None
    assert is_ours(os.fstat(file))


def test_a_lock_excludes_another_opening_of_the_file(file, again):
    if try_lock(file) is None:
        pytest.skip("this system has no such locks")

    assert try_lock(again) is False
    assert try_lock(again, within_s=60) is False
    assert is_locked(again) is True
    assert is_locked(file) is False, "to itself it is not locked"


def test_checking_a_lock_does_not_take_it(file, again):
    if is_locked(file) is None:
        pytest.skip("this system has no such locks")

    assert is_locked(file) is False
    assert try_lock(again) is True


def test_without_locks_none_is_known(file, monkeypatch):
    monkeypatch.setattr(portable, "_HAS_LOCKS", False)

    assert try_lock(file) is None
    assert is_locked(file) is None
    assert off_the_usual_numbers(file) == file


@pytest.mark.skipif(not portable._HAS_LOCKS, reason="this system has no such locks")
def test_a_server_that_does_not_answer_counts_as_one_without_locks(file, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(portable.fcntl, "flock", lambda *_: answers.wait(60))

    assert try_lock(file, within_s=0.05) is None

    answers.set()
