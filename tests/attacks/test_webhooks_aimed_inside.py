"""Messages aimed at forbidden addresses: this machine, its network, the cloud metadata service."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.attacks.hostile_folders import an_ordinary_run
from tests.fork_server import run_python
from toolkit.telemetry.cli.main import main

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("programs")

ADDRESSES = (
    *("http://169.254.169.254/latest/meta-data/", "https://169.254.169.254/latest/meta-data/"),
    *("https://[fd00:ec2::254]/", "https://[::ffff:169.254.169.254]/", "https://[::ffff:a9fe:a9fe]/"),
    *("https://[64:ff9b::169.254.169.254]/", "https://[2002:a9fe:a9fe::1]/", "https://2852039166/"),
    *("https://0xa9fea9fe/", "https://0xa9.0xfe.0xa9.0xfe/", "https://0251.0376.0251.0376/"),
    *("https://169.254.43518/", "https://10.0.0.1/", "https://172.16.0.1/", "https://192.168.1.1/"),
    *("https://100.64.0.1/", "https://0.0.0.0/", "https://0/", "https://[::]/"),
    *("https://[fe80::1%25eth0]/", "https://[fc00::1]/", "https://224.0.0.1/"),
    *("https://255.255.255.255/", "https://198.18.0.1/", "https://192.0.0.192/"),
    *("https://168.63.129.16/", "http://hooks.evil.test/", "ftp://hooks.evil.test/"),
    *("file:///etc/passwd", "gopher://127.0.0.1:{port}/_x", "https://user:secret@hooks.evil.test/"),
    *("https://hooks.evil.test#@127.0.0.1:{port}/", "https://hooks.evil.test\\\\@127.0.0.1:{port}/"),
    *("https://127.0.0.1:{port}\\t/", "//127.0.0.1:{port}/", "http://localhost.evil.test:{port}/"),
    *("http://127.0.0.1.evil.test:{port}/", "https://localhost.evil.test:{port}/"),
    *("https://127.0.0.1.evil.test:{port}/", "https://2130706433:{port}/", "https://0x7f.1:{port}/"),
    *("https://0177.0.0.1:{port}/", "https://127.1:{port}/", "https://private.evil.test:{port}/"),
    *("https://mapped.evil.test:{port}/", "https://metadata.evil.test/"),
    *("https://rebinding.evil.test:{port}/", "https://both.evil.test:{port}/"),
)
"""The victim listens at {port} of this machine; names under evil.test lead where the one who owns them likes."""


def test_no_webhook_reaches_a_machine_inside_whatever_its_address_says(tmp_path, record_property):
    done = run_python(
        [PROGRAMS / "aim_webhooks_inside.py", tmp_path, json.dumps(ADDRESSES)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads(done.stdout.strip().splitlines()[-1])

    assert printed["victim"] == 0
    assert printed["refused"] + printed["sent"] == len(ADDRESSES)
    assert printed["connected"] >= 5, "no address led to the victim, and the test proves nothing"
    assert printed["redirecting"] == 5, "nothing was sent at all, and the test proves nothing"
    tried = f"{len(ADDRESSES)} addresses and {printed['redirecting']} redirects"
    record_property("measured", f"{tried}, {printed['victim']} requests to a machine inside")


def test_a_run_folder_sends_no_message(tmp_path, monkeypatch, capsys):
    """A downloaded run would have `telemetry setup message` send any variable to any address, as a token."""
    from tests.mirrors.messages.local_receivers import receiving

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI-canary")
    with receiving() as thief:
        block = {"to": "ntfy", "url": f"{thief.url}/topic", "secret_env": "AWS_SECRET_ACCESS_KEY"}
        run = an_ordinary_run(tmp_path, "ntfy")
        start = {"event": "start", "seq": 0, "session": 1, "config": {"telemetry": {"messages": [block]}}}
        (run / "metrics.jsonl").write_text(json.dumps(start) + "\n")

        assert main(["setup", "message", str(run)]) == 2

    assert thief.got == []
    assert "canary" not in capsys.readouterr().out
