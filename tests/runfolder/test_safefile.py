"""Nothing but a regular file is opened, and a replaced file is never seen in part."""

import os
import stat

import pytest

from toolkit.telemetry.runfolder import safefile
from toolkit.telemetry.runfolder.safefile import UnsafeFile, open_regular, replace_file

posix = pytest.mark.skipif(os.name != "posix", reason="links, FIFOs and modes are POSIX's")


@posix
@pytest.mark.parametrize("has_nofollow", [True, False])
def test_a_link_put_there_after_the_first_look_is_not_followed(tmp_path, monkeypatch, has_nofollow):
    if not has_nofollow:
        monkeypatch.setattr(safefile, "NOFOLLOW", 0)
        monkeypatch.setattr(safefile, "_READ", os.O_RDONLY)
    (tmp_path / "target").write_bytes(b"secret")
    path = tmp_path / "f"
    path.write_bytes(b"content")
    real_open = os.open

    def swap_then_open(name, flags, *args, **kwargs):
        path.unlink()
        path.symlink_to(tmp_path / "target")
        return real_open(name, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", swap_then_open)

    with pytest.raises(UnsafeFile, match=None if has_nofollow else "replaced"):
        open_regular(path)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch, call):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new", durable=True)

    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_reader_on_windows_only_delays_the_rename(tmp_path, monkeypatch):
    pauses = []
    real_replace = os.replace

    def busy_twice(source, target):
        if len(pauses) < 2:
            error = PermissionError(13, "in use")
            error.winerror = 32
            raise error
        real_replace(source, target)

    monkeypatch.setattr(os, "replace", busy_twice)
    monkeypatch.setattr(safefile.time, "sleep", pauses.append)
    replace_file(tmp_path / "f", b"new")

    assert (tmp_path / "f").read_bytes() == b"new"
    assert len(pauses) == 2


@posix
def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    real_fsync = os.fsync

    def fsync(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(22, "Invalid argument")
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(tmp_path / "f", b"new", durable=True)

    assert (tmp_path / "f").read_bytes() == b"new"
