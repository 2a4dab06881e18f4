"""A deleted run can be brought back whole, and nothing outside its folder is ever touched."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runfolder.plain_data import tries
from toolkit.telemetry.runfolder import trash
from toolkit.telemetry.runfolder.trash import TrashError


def make_run(root, name, files=None):
    folder = root / name
    folder.mkdir(parents=True)
    for path, data in (files or {"metrics.jsonl": b"x" * 10, "ranks/00001.jsonl": b"y" * 5}).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


run_names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: not name.startswith(".")
)


@tries
@given(name=run_names, files=st.dictionaries(st.sampled_from("abc"), st.binary(max_size=20), min_size=1))
def test_deleting_and_restoring_changes_nothing(tmp_path_factory, name, files):
    root = tmp_path_factory.mktemp("logs")
    before = content(make_run(root, name, files))

    token = trash.move_to_trash(root, name)
    in_between = os.listdir(root)
    back = trash.restore(root, token)

    assert in_between == [".trash"]
    assert back == name
    assert content(root / name) == before
    assert trash.list_trash(root) == []
    assert os.listdir(root / ".trash") == []


def test_the_trash_lists_newest_first_with_what_it_holds(tmp_path, monkeypatch):
    make_run(tmp_path, "old")
    make_run(tmp_path, "new")

    first = trash.move_to_trash(tmp_path, "old", now=1000.5)
    second = trash.move_to_trash(tmp_path, "new", now=2000.0)

    assert [(run.token, run.name, run.deleted, run.bytes_held) for run in trash.list_trash(tmp_path)] == [
        (second, "new", 2000.0, 15),
        (first, "old", 1000.5, 15),
    ]
    make_run(tmp_path, "large", {str(number): b"x" for number in range(10)})
    monkeypatch.setattr(trash, "MAX_ENTRIES_MEASURED", 3)
    trash.move_to_trash(tmp_path, "large")
    assert trash.list_trash(tmp_path)[0].bytes_held == 3, "not all of very many files are measured"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../outside", "/etc", "r/", "r/ranks", ".trash", "R\0", "nope", ".hidden"]
)
def test_only_a_folder_that_is_there_is_moved(tmp_path, name):
    root = tmp_path / "logs"
    make_run(root, "r")
    make_run(root, ".hidden")
    make_run(tmp_path, "outside")

    with pytest.raises(TrashError, match="there is no run folder"):
        trash.move_to_trash(root, name)
    assert (root / "r" / "metrics.jsonl").exists()
    assert (tmp_path / "outside" / "metrics.jsonl").exists()


def test_links_and_files_are_no_runs(tmp_path):
    root = tmp_path / "logs"
    make_run(tmp_path, "outside")
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file").write_text("x")

    with pytest.raises(TrashError, match="symbolic link"):
        trash.move_to_trash(root, "link")
    with pytest.raises(TrashError, match="is a file"):
        trash.move_to_trash(root, "file")
    assert not (root / ".trash").exists()


def test_a_trash_that_is_a_link_is_not_used(tmp_path):
    root = tmp_path / "logs"
    make_run(root, "r")
    make_run(tmp_path / "elsewhere" / "1000-00000000", "victim")
    (root / ".trash").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(TrashError, match="not a regular folder"):
        trash.move_to_trash(root, "r")
    with pytest.raises(TrashError, match="no longer in the trash"):
        trash.restore(root, "1000-00000000")
    assert trash.list_trash(root) == []
    assert trash.empty_trash(root) == 0
    assert (tmp_path / "elsewhere" / "1000-00000000" / "victim" / "metrics.jsonl").exists()


def test_a_run_whose_name_is_taken_comes_back_under_the_next(tmp_path):
    make_run(tmp_path, "r", {"a": b"old"})
    token = trash.move_to_trash(tmp_path, "r")
    (tmp_path / "r").mkdir()  # a new run that has just claimed its folder, still empty
    make_run(tmp_path, "r-2", {"a": b"other"})

    back = trash.restore(tmp_path, token)

    assert back == "r-3"
    assert content(tmp_path / "r-3") == {"a": b"old"}
    assert content(tmp_path / "r") == {}


def test_a_move_that_fails_leaves_the_run_where_it_is(tmp_path, monkeypatch):
    make_run(tmp_path, "r")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", _other_file_system)
        with pytest.raises(TrashError, match="r cannot be moved to the trash: Invalid cross-device link"):
            trash.move_to_trash(tmp_path, "r")
    assert (tmp_path / "r" / "metrics.jsonl").exists()
    assert os.listdir(tmp_path / ".trash") == []

    token = trash.move_to_trash(tmp_path, "r")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", _other_file_system)
        with pytest.raises(TrashError, match="r cannot be restored"):
            trash.restore(tmp_path, token)
    assert not (tmp_path / "r").exists()
    assert trash.restore(tmp_path, token) == "r"


def _other_file_system(*paths):
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def test_emptying_goes_through_no_link_and_leaves_what_is_not_ours(tmp_path):
    root = tmp_path / "logs"
    outside = make_run(tmp_path, "outside")
    (make_run(root, "r") / "link").symlink_to(outside)
    make_run(root, "s")
    make_run(root, "kept")
    trash.move_to_trash(root, "r")
    trash.move_to_trash(root, "s")
    (root / ".trash" / "5000-00000000").symlink_to(outside)
    (root / ".trash" / "my own").mkdir()

    assert trash.empty_trash(root) == 2
    assert sorted(os.listdir(root / ".trash")) == ["5000-00000000", "my own"]
    assert (outside / "metrics.jsonl").exists()
    assert (root / "kept").exists()
    assert trash.list_trash(root) == []


def test_emptying_says_what_could_not_be_deleted_and_no_half_run_comes_back(tmp_path, monkeypatch):
    make_run(tmp_path, "r")
    token = trash.move_to_trash(tmp_path, "r")
    with monkeypatch.context() as patch:
        patch.setattr(trash.shutil, "rmtree", _other_file_system)
        with pytest.raises(TrashError, match="0 deleted runs were removed, 1 could not be"):
            trash.empty_trash(tmp_path)

    assert trash.list_trash(tmp_path) == []
    with pytest.raises(TrashError):
        trash.restore(tmp_path, token)
    assert trash.empty_trash(tmp_path) == 1


def test_one_run_is_deleted_permanently_and_the_others_stay(tmp_path):
    for name in ("r", "s"):
        make_run(tmp_path, name)
        trash.move_to_trash(tmp_path, name)
    for name in ("r", "s"):
        (run,) = (run for run in trash.list_trash(tmp_path) if run.name == name)
        trash.delete_permanently(run)
        assert name not in [run.name for run in trash.list_trash(tmp_path)]
    assert not (tmp_path / ".trash").exists()
