"""What a system lacks has something that takes its place."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from toolkit.telemetry.runfolder import portable
from toolkit.telemetry.runfolder.portable import (
    allocate,
    pread,
)


@pytest.fixture
def file(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | portable.SAFELY, 0o600)
    yield descriptor
    os.close(descriptor)


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
