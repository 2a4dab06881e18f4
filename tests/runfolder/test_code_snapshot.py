"""Reading the code that a run kept."""

import json
import os

import pytest

from toolkit.telemetry.runfolder.evidence.code_snapshot import changed_files, read_code

DIFF = "diff --git a/lib/x.py b/lib/x.py\n--- a/lib/x.py\n+++ b/lib/x.py\n@@ -1 +1 @@\n-x = 0\n+x = 1\n"


def keep(folder, session, files=(), **known):
    """Write what a session keeps: texts by their name, or where an earlier session has them."""
    code = folder / "code"
    (code / str(session)).mkdir(parents=True, exist_ok=True)
    places = {}
    for name, text in dict(files).items():
        places[name] = text if text.startswith("1/") else f"{session}/{name}"
        if places[name] != text:
            path = code / places[name]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (code / f"{session}.json").write_text(json.dumps({"session": session, "files": places, **known}))


def test_sessions_are_read_in_order_and_a_text_that_did_not_change_is_read_where_it_is(tmp_path):
    keep(tmp_path, 1, {"train.py": "lr = 1\n", "lib/x.py": "x = 1\n"}, kind="git", commit="abc", dirty=False)
    keep(
        tmp_path, 10, {"train.py": "1/train.py"}, kind="files", script="train.py", left_out={"a.bin": "large"}
    )
    keep(tmp_path, 2, {"train.py": "lr = 2\n"}, dirty=True, diff="2.diff")
    (tmp_path / "code" / "2.diff").write_text(DIFF)

    code = read_code(tmp_path)

    assert list(code) == [1, 2, 10]
    assert (code[1].kind, code[1].commit, code[1].dirty, code[1].script) == ("git", "abc", False, None)
    assert code[10].text("train.py") == "lr = 1\n"
    assert code[10].left_out == {"a.bin": "large"}
    assert code[2].diff == DIFF
    assert code[2].text("lib/x.py") is None
    assert not any(snapshot.problem for snapshot in code.values())


def test_changed_files_are_shown_line_by_line_and_those_of_one_side_as_such(tmp_path):
    keep(tmp_path, 1, {"train.py": "lr = 1\nseed = 3\n", "same.py": "a"}, commit="abc")
    keep(
        tmp_path,
        2,
        {"train.py": "lr = 2\nseed = 3\n", "same.py": "a", "lib/x.py": "x = 1\n"},
        commit="abc",
        diff="d",
    )
    (tmp_path / "code" / "d").write_text("diff --git a/o.bin b/o.bin\nBinary files differ\n" + DIFF)
    code = read_code(tmp_path)

    changes = changed_files(code[1], code[2])

    assert [(change.path, change.only_in) for change in changes] == [("train.py", None), ("lib/x.py", "b")]
    assert "-lr = 1\n+lr = 2" in changes[0].unified_diff
    assert changes[1].unified_diff == DIFF
    assert changed_files(code[2], code[1])[1].only_in == "a"
    assert changed_files(code[1], code[1]) == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"x"', '{"files": 3, "kind": [], "dirty": "yes", "left_out": []}', "\0"]
)
def test_a_broken_snapshot_is_read_as_far_as_it_goes(tmp_path, text):
    keep(tmp_path, 1, {"train.py": "lr = 1\n"})
    (tmp_path / "code" / "2.json").write_text(text)

    code = read_code(tmp_path)

    assert code[1].text("train.py") == "lr = 1\n"
    assert (code[2].files, code[2].dirty, code[2].kind) == ({}, None, "")
    assert (code[2].problem is None) == text.startswith('{"files"')


def test_nothing_outside_the_run_folder_is_read(tmp_path):
    run, outside = tmp_path / "run", tmp_path / "secret.txt"
    outside.write_text("secret")
    keep(run, 1, {"train.py": "lr = 1\n"}, diff="../../secret.txt")
    known = json.loads((run / "code" / "1.json").read_text())
    known["files"].update({"a": "../../secret.txt", "b": str(outside), "c": 7, "d": "1/link", "e": "1/none"})
    (run / "code" / "1.json").write_text(json.dumps(known))
    os.symlink(outside, run / "code" / "1" / "link")

    snapshot = read_code(run)[1]

    assert set(snapshot.files) == {"train.py", "d", "e"}
    assert snapshot.text("d") is snapshot.text("e") is snapshot.diff is None
    assert "not a path inside" in snapshot.problem


def test_a_run_without_code_has_none(tmp_path):
    (tmp_path / "file").write_text("")

    assert read_code(tmp_path) == read_code(tmp_path / "none") == read_code(tmp_path / "file") == {}


def test_of_more_than_a_run_keeps_a_part_is_read_and_that_is_said(tmp_path):
    keep(tmp_path, 250, {f"m{number}.py": f"x = {number}\n" for number in range(2_010)})
    for session in range(1, 250):
        keep(tmp_path, session)

    code = read_code(tmp_path)

    assert (len(code), len(code[250].files)) == (200, 2_000)
    assert code[250].problem == (
        "only 2,000 of 2,010 files are read: more than a run keeps; only the newest 200 of 250 sessions are read"
    )
