"""Nothing but a regular file is opened, and a replaced file is never seen in part."""

import os
import socket
import stat

import pytest

from toolkit.telemetry.runfolder import safefile
from toolkit.telemetry.runfolder.safefile import UnsafeFile, open_regular, replace_file

posix = pytest.mark.skipif(os.name != "posix", reason="links, FIFOs and modes are POSIX's")


def read(path, **options):
    fd = open_regular(path, **options)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def test_a_regular_file_is_opened_for_reading_only(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"content")

    assert read(path) == b"content"
    fd = open_regular(path)
    with pytest.raises(OSError):
        os.write(fd, b"x")
    os.close(fd)


@posix
def test_a_name_is_looked_up_in_an_open_folder(tmp_path):
    (tmp_path / "f").write_bytes(b"content")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert read(safefile.Path("f"), dir_fd=folder) == b"content"
    finally:
        os.close(folder)


def test_a_missing_file_is_simply_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "absent")


@posix
@pytest.mark.parametrize("kind", ["symbolic link", "dangling link", "FIFO", "folder", "socket", "device"])
def test_what_is_no_regular_file_is_named_and_not_opened(tmp_path, monkeypatch, kind):
    path = tmp_path / "f"
    word = kind
    if kind == "symbolic link":
        (tmp_path / "target").write_bytes(b"secret")
        path.symlink_to(tmp_path / "target")
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
        word = "link"
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        # A socket's whole path has to fit into a hundred bytes.
        monkeypatch.chdir(tmp_path)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("f")
    else:
        path = safefile.Path("/dev/null")

    with pytest.raises(UnsafeFile, match=word):
        open_regular(path)


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


def test_a_file_is_made_and_replaced_whole(tmp_path):
    path = tmp_path / "f"
    replace_file(path, b"one")
    replace_file(path, b"two" * 100_000, durable=True)

    assert path.read_bytes() == b"two" * 100_000
    assert os.listdir(tmp_path) == ["f"]


@posix
@pytest.mark.parametrize(
    ("mode", "umask", "expected"), [(0o600, 0o000, 0o600), (0o644, 0o022, 0o644), (0o644, 0o077, 0o600)]
)
def test_the_mode_is_the_one_asked_for_and_never_wider_than_the_umask(tmp_path, mode, umask, expected):
    before = os.umask(umask)
    try:
        replace_file(tmp_path / "f", b"x", mode=mode)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == expected


@posix
def test_a_link_is_replaced_and_its_target_left_alone(tmp_path):
    target = tmp_path / "bashrc"
    target.write_bytes(b"mine")
    (tmp_path / "f").symlink_to(target)
    replace_file(tmp_path / "f", b"new")

    assert target.read_bytes() == b"mine"
    assert not (tmp_path / "f").is_symlink()


def test_a_write_taken_in_part_is_continued(tmp_path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data[:3])))
    replace_file(tmp_path / "f", b"0123456789")

    assert (tmp_path / "f").read_bytes() == b"0123456789"


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


def test_an_ordinary_permission_error_is_not_retried(tmp_path, monkeypatch):
    calls = []

    def denied(source, target):
        calls.append(1)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", denied)
    with pytest.raises(PermissionError):
        replace_file(tmp_path / "f", b"new")

    assert len(calls) == 1


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
