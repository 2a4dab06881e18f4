"""A control file is read with suspicion and written in one piece."""

import json
import os
from dataclasses import replace

import pytest

from toolkit.telemetry.runfolder.control import (
    MAX_BYTES,
    ControlRefused,
    deliver,
    encode_body,
    new_request,
    read_request,
    request_with_body,
    write_request,
)

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return folder


def put(folder, content, mode=0o600):
    path = folder / "control.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    path.chmod(mode)
    return path


def refusal(folder):
    with pytest.raises(ControlRefused) as caught:
        read_request(folder)
    return caught.value.reason


# ---------------------------------------------------------------- writing, and the way back


def test_a_request_is_read_as_it_was_written(folder):
    written = write_request(
        folder,
        log_every=100,
        actions=["save", "sample"],
        knobs={"lr_scale": 0.5, "mode": "calm", "augment": True, "workers": 3},
        run_id="r1",
        now=1000.25,
    )

    assert read_request(folder) == written
    assert written.expires == 1600.25
    assert os.listdir(folder) == ["control.json"]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"log_every": True},
        {"log_every": 1.5},
        {"actions": ["rm -rf"]},
        {"actions": ["save"] * 100},
        {"knobs": {"lr": float("nan")}},
        {"knobs": {"lr": [1]}},
        {"knobs": {"id": 1}},
    ],
)
def test_a_request_that_no_run_could_read_is_not_written(folder, asked):
    with pytest.raises(ControlRefused):
        write_request(folder, **asked)

    assert os.listdir(folder) == []


def test_a_request_that_was_made_elsewhere_is_delivered_as_it_is(folder):
    made = new_request(log_every=100, actions=["save"], knobs={"lr": 0.5}, run_id="r1", now=1000.25)
    body = encode_body(made)
    assert sorted(json.loads(body)) == ["actions", "knobs", "log_every"]
    again = request_with_body(body, request_id=made.id, timestamp=1000.25, expires=1600.25, run_id="r1")

    deliver(folder, again)

    assert read_request(folder) == again == made


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"log_every": 5, "log_every": 6}',
        b'{"log_every": 5, "id": "x"}',
        b'{"log_every": 5, "expires": 9}',
        b'{"log_every": 5, "lr": 9}',
        b'{"log_every": NaN}',
        b'{"knobs": {"x": "' + b"y" * MAX_BYTES + b'"}}',
        b"[" * 50_000,
    ],
    ids=lambda body: ascii(body[:24]),
)
def test_a_body_that_asks_for_nothing_or_for_more_is_refused(body):
    with pytest.raises(ControlRefused):
        request_with_body(body, request_id="x", timestamp=1.0, expires=2.0, run_id="r1")


@posix
def test_nothing_is_delivered_to_a_folder_whose_run_would_refuse_it(folder, tmp_path):
    made = new_request(log_every=100)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ControlRefused, match="link"):
        deliver(tmp_path / "link", made)
    folder.chmod(0o777)
    with pytest.raises(ControlRefused, match=r"can be written by others \(mode 0777\)"):
        deliver(folder, made)
    folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
        with pytest.raises(ControlRefused, match=r"belongs to another user \(uid 12345\)"):
            deliver(folder, made)
        os.chown(folder, 0, -1)
    large = replace(made, knobs={f"x{number}": "\u20ac" * 1024 for number in range(60)})
    with pytest.raises(ControlRefused, match="more than 65536"):
        deliver(folder, large)

    assert os.listdir(folder) == []


# ---------------------------------------------------------------- the plain form


def test_the_plain_form_is_a_request(folder):
    path = put(folder, {"log_every": 100, "timestamp": 1703123456.789})
    os.utime(path, (5000, 5000))
    request = read_request(folder)

    assert request.log_every == 100
    assert request.is_plain
    assert request.timestamp == pytest.approx(5000, abs=0.1), "the file's time, not the one in it"
    assert request.id.startswith(f"plain-5000000000000-{path.stat().st_ino}-")
    assert request.expires is None


@pytest.mark.parametrize("more", [{"id": "a"}, {"expires": 9e9}, {"actions": ["stop"]}, {"lr_scale": 0.5}])
def test_what_says_more_than_an_interval_has_the_time_that_it_says(folder, more):
    put(folder, {"log_every": 100, "timestamp": 1703123456.789, **more})
    request = read_request(folder)

    assert (request.is_plain, request.timestamp) == (False, 1703123456.789)


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        (b'{"timestamp": 5, "knobs": {"a": 1}, "b": "x"}', {"knobs": {"a": 1, "b": "x"}}),
        (b'{"log_every": 1e2, "timestamp": 5}', {"log_every": 100}),
        (b'\xef\xbb\xbf{"log_every": 100}', {"log_every": 100}),
    ],
    ids=["knobs among the keys", "a whole number as a float", "a byte order mark"],
)
def test_what_people_and_editors_write_is_understood(folder, content, asked):
    put(folder, content)
    request = read_request(folder)

    assert {name: getattr(request, name) for name in asked} == asked


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[1]", "one object"),
        (b"null", "one object"),
        (b"{}", "asks for nothing"),
        (b'{"timestamp": 5}', "asks for nothing"),
        (b'{"log_every": NaN}', "not a finite number"),
        (b'{"log_every": 5, "lr": -Infinity}', "not a finite number"),
        (b'{"log_every": 1e999}', "not a finite number"),
        (b'{"log_every": "x"}', "log_every must be a whole number"),
        (b'{"log_every": true}', "log_every must be a whole number"),
        (b'{"log_every": 10.5}', "log_every must be a whole number"),
        (b'{"log_every": [5]}', "log_every must be a whole number"),
        (b'{"log_every": ' + b"9" * 400 + b"}", "log_every must be a whole number"),
        (b'{"log_every": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"log_every": 5, "log_every": 6}', "twice"),
        (b'{"knobs": {"a": 1}, "a": 1}', "twice"),
        (b'{"actions": "stop"}', "list"),
        (b'{"actions": [1]}', "name of an action"),
        (b'{"actions": ["../x"]}', "name of an action"),
        (b'{"actions": {"stop": 1}}', "list"),
        (b'{"lr": null}', "lr must be"),
        (b'{"lr": {"x": 1}}', "lr must be"),
        (b'{"a b": 1}', "name of a knob"),
        (b'{"knobs": [1]}', "knobs must be an object"),
        (b'{"knobs": {"timestamp": 1}}', "name of a knob"),
        (b'{"x": ' + b"9" * 30 + b"}", "x must be"),
        (b'{"x": "\\ud800"}', "half a character"),
        (b'{"x": "' + b"a" * 2000 + b'"}', "at most 1024"),
        (b'{"log_every": 5, "timestamp": "now"}', "timestamp must be"),
        (b'{"log_every": 5, "timestamp": true}', "timestamp must be"),
        (b'{"log_every": 5, "expires": "soon"}', "expires must be"),
        (b'{"log_every": 5, "run_id": 7}', "run_id must be"),
        (b'{"log_every": 5, "id": "../../x"}', "id must be"),
        (b'{"log_every": 5, "id": 7}', "id must be"),
        (b"\xff" * 100, "not UTF-8"),
        (b"[" * 60_000, "nested"),
        (b'{"x":' * 10_000, "nested"),
        (b'{"x": ' + b"[" * 500 + b"]" * 500 + b"}", "x must be"),
        (b'{"log_every": 5' + b" " * 70_000 + b"}", "bytes"),
        (json.dumps({f"k{i}": 1 for i in range(100)}).encode(), "100 knobs"),
    ],
    ids=lambda value: ascii(value[:24]),
)
def test_a_malformed_file_is_refused_with_the_reason(folder, content, reason):
    put(folder, content)
    said = refusal(folder)

    assert reason in said
    assert len(said) < 300


def test_a_refusal_names_the_request_where_it_could_be_read(folder):
    put(folder, {"id": "abc", "log_every": "x"})
    with pytest.raises(ControlRefused) as caught:
        read_request(folder)

    assert caught.value.request_id == "abc"


# ---------------------------------------------------------------- looking without opening
