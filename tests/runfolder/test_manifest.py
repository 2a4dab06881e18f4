"""run.json says what a run is; it is whole or not there, and a broken one is refused with the reason."""

import json

import pytest

from toolkit.telemetry.runfolder.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestError,
    Session,
    read_manifest,
    write_manifest,
)

LEAST = {"format": 1, "run_id": "abc", "name": "r", "created": 1.5}


def write(folder, content):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "run.json").write_bytes(data)


def test_keys_of_a_later_version_are_kept_through_a_change(tmp_path):
    write(tmp_path, {**LEAST, "sparkles": {"deep": [1]}})
    write_manifest(tmp_path, read_manifest(tmp_path))

    assert json.loads((tmp_path / "run.json").read_text())["sparkles"] == {"deep": [1]}


def test_the_newest_session_is_repeated_at_the_top_level(tmp_path):
    first = Session(session=1, started=1.0, pid=7, host="a", boot_id="x", status="lost")
    second = Session(session=2, started=2.0, pid=8, host="b", boot_id="y")
    manifest = Manifest(run_id="i", name="n", display_name="N", created=1.0, sessions=(first, second))
    write_manifest(tmp_path, manifest)
    found = json.loads((tmp_path / "run.json").read_text())

    assert (found["host"], found["pid"], found["boot_id"], found["status"]) == ("b", 8, "y", "running")
    assert read_manifest(tmp_path) == manifest


def test_a_run_without_sessions_has_no_newest_one():
    manifest = Manifest(run_id="i", name="n", display_name="N", created=1.0)

    assert manifest.latest is None
    with pytest.raises(ManifestError, match="no session"):
        manifest.with_latest(status="finished")


class Odd:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "odd", [Odd(), {1, 2}, 2**80, "half \ud800", {3: "x"}, float("nan"), b"bytes", object]
)
def test_one_odd_value_does_not_invalidate_the_manifest(tmp_path, odd):
    manifest = Manifest(
        run_id="i", name="n", display_name="half \ud800", created=1.0, summary={"odd": odd, "train_loss": 0.5}
    )
    write_manifest(tmp_path, manifest)

    assert read_manifest(tmp_path).summary["train_loss"] == 0.5
    assert read_manifest(tmp_path).display_name == "half \\ud800"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "list"),
        (b"null", "NoneType"),
        (b"\xff\xfe", "not JSON"),
        (b'{"format":NaN}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (MAX_MANIFEST_BYTES + 1), "larger than"),
        ({}, "format is None"),
        ({**LEAST, "format": 0}, "format is 0"),
        ({**LEAST, "format": True}, "format is True"),
        ({**LEAST, "format": "1"}, "format is '1'"),
        ({**LEAST, "run_id": None}, "run_id is None"),
        ({**LEAST, "name": ["r"]}, "name is"),
        ({**LEAST, "created": "now"}, "created is 'now'"),
        ({**LEAST, "created": None}, "created is None"),
        ({**LEAST, "display_name": 5}, "display_name is 5"),
        ({**LEAST, "sessions": "abc"}, "sessions is 'abc'"),
        ({**LEAST, "sessions": {"a": 1}}, "sessions is"),
        ({**LEAST, "sessions": ["abc"]}, "a session is 'abc'"),
        ({**LEAST, "sessions": [{}]}, "session is None"),
        ({**LEAST, "sessions": [{"session": 1, "started": 1, "pid": "7"}]}, "pid is '7'"),
        ({**LEAST, "sessions": [{"session": 1, "started": 1, "pid": 7, "status": {}}]}, "status is"),
        ({**LEAST, "sessions": [{"session": 1, "started": 1, "pid": 7, "host": 7}]}, "host is 7"),
        ({**LEAST, "heartbeat": "x"}, "heartbeat is 'x'"),
        ({**LEAST, "heartbeat": {}}, "time is None"),
        ({**LEAST, "heartbeat": {"time": 1, "seq": 1.5}}, "seq is 1.5"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_broken_manifest_is_refused_with_the_reason(tmp_path, content, reason):
    write(tmp_path, content)

    with pytest.raises(ManifestError, match=reason):
        read_manifest(tmp_path)


@pytest.mark.parametrize("absent", ["display_name", "tags", "sessions", "heartbeat", "control", "summary"])
def test_missing_fields_are_empty(tmp_path, absent):
    write(tmp_path, {**LEAST, absent: None})

    assert read_manifest(tmp_path) == Manifest(run_id="abc", name="r", display_name="r", created=1.5)
