"""The addresses a run sends to are secrets wherever they appear: files, bundle, errors, output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.mirrors.messages.local_receivers import receiving
from toolkit.telemetry.cli.main import main

ROOT = Path(__file__).parents[2]


def test_no_address_that_a_run_sends_to_is_in_any_byte_of_it_or_of_its_bundle(tmp_path, record_property):
    secrets = {
        "a path that looks like any other": "garden-of-the-east",
        "a path of Rocket.Chat": "64f0c1f7b4d2/hGq3Yb7nWv2KpXs9",
        "a path that a variable holds": "t0pic-of-the-west",
        "a signing key that a variable holds": "seven plain words that sign it all",
        "a login": "collector:pass-word-of-it",
        "a query": "tenant-number-eight",
        "a header": "header-of-the-collector",
    }
    with receiving(usual=lambda got: b"no such path: " + got.path.encode()) as receiver:
        receiver.answers[:] = [(404, {}, f"no hook at {path}".encode()) for path in secrets.values()]
        named = [
            f"{receiver.url}/team/{secrets['a path that looks like any other']}",
            f"{receiver.url}/hooks/{secrets['a path of Rocket.Chat']}",
            f"{receiver.url}/{secrets['a path that a variable holds']}",
            f"http://{secrets['a login']}@127.0.0.1:{receiver.port}/v1/traces?x={secrets['a query']}",
        ]
        telemetry = {
            "log_dir": str(tmp_path / "logs"),
            "log_every": 1,
            "system": False,
            "one_logger_file": True,
            "messages": [
                {"to": "webhook", "url": named[0], "secret_env": "SIGNED_WITH"},
                {"to": "slack", "url": named[1]},
                {"to": "ntfy", "url_env": "WHERE_TO"},
            ],
            "otlp": named[3],
        }
        config = {"config": {"name": "r", "telemetry": telemetry}, "where": named}
        alone = [named[0].partition("127.0.0.1")[2], secrets["a signing key that a variable holds"]]
        done = subprocess.run(
            [
                sys.executable,
                Path(__file__).parent / "programs" / "log_addresses.py",
                json.dumps(config),
                *named,
                *alone,
                secrets["a header"],
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "WHERE_TO": named[2],
                "SIGNED_WITH": secrets["a signing key that a variable holds"],
                "OTEL_EXPORTER_OTLP_HEADERS": f"x-tenant={secrets['a header']}",
            },
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert "ConnectionError" in done.stderr, done.stderr[-3000:]
    (folder,) = (tmp_path / "logs").iterdir()
    assert main(["export", "--to", "zip", str(folder), "-o", str(tmp_path / "shared.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "shared.zip") as archive:
        members = {f"shared/{name}": archive.read(name) for name in archive.namelist()}
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    said = done.stderr.partition("Traceback (most recent call last)")[0].encode()

    telling = [part for secret in secrets.values() for part in secret.split("/")]
    leaks = [
        (name, part)
        for name, data in {**files, **members, "standard error": said}.items()
        for part in telling
        if part.encode() in data
    ]
    assert leaks == []
    assert {"metrics.jsonl", "metrics.csv", "one_logger.jsonl"} <= set(files)
    assert b"posted to" in files["metrics.jsonl"], "nothing was logged, and the test proves nothing"
    assert len(receiver.got) >= 3, "nothing was sent, and the test proves nothing"
    record_property(
        "measured", f"{len(named)} addresses, {len(files) + len(members)} files, {len(leaks)} found"
    )


def test_a_run_of_an_older_version_is_shared_without_its_addresses(tmp_path):
    """An older run stores its receivers unmasked: the bundle finds them by their configuration key."""
    folder = tmp_path / "r"
    folder.mkdir()
    url = "https://chat.example.org/hidden/garden-of-the-east"
    start = {"event": "start", "seq": 0, "session": 1, "config": {"messages": [{"to": "slack", "url": url}]}}
    error = {"event": "error", "seq": 1, "session": 1, "message": f"no answer from {url}"}
    bare = {"event": "error", "seq": 2, "session": 1, "message": "with url: /hidden/garden-of-the-east"}
    lines = [json.dumps(record) + "\n" for record in (start, error, bare)]
    (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")

    assert main(["export", "--to", "zip", str(folder), "-o", str(tmp_path / "shared.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "shared.zip") as archive:
        assert not [name for name in archive.namelist() if b"garden" in archive.read(name)]
