"""`telemetry setup message`: whether messages would arrive, tried before a training is."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from functools import partial

import pytest

from tests.mirrors.messages.local_receivers import receiving
from tests.project.markdown import ROOT, blocks, commands

DOCUMENT = ROOT / "docs" / "messages.md"
VARIABLES = ("LARK_WEBHOOK", "LARK_SECRET", "SLACK_WEBHOOK", "NTFY_TOPIC")


@pytest.fixture(autouse=True)
def _no_receivers_of_this_machine(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def message(telemetry):
    return partial(telemetry, "setup", "message")


@pytest.fixture
def yaml_file(tmp_path):
    def write(text):
        path = tmp_path / "train.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def one_receiver(to="webhook", more=""):
    return f"""
        config:
          name: greyjacket
          telemetry:
            messages:
              - {{to: {to}, url_env: HOOK{more}}}
    """


# ------------------------------------------------------------ what the document shows


def test_the_commands_of_the_document_send_what_its_yaml_asks_for(tmp_path, monkeypatch):
    [config, *_] = blocks(DOCUMENT, "yaml")
    (tmp_path / "train.yaml").write_text(config.text)
    shown, sent = commands(DOCUMENT)
    with receiving(usual=b'{"code":0}') as receiver:
        hook = f"{receiver.url}/hook-s3cr3t"
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **dict.fromkeys(VARIABLES, hook),
            "LARK_SECRET": "sign-s3cr3t",
        }
        done = {}
        for command in (shown, sent):
            assert command.startswith("telemetry setup message ")
            words = [sys.executable, "-m", "toolkit.telemetry.cli", *shlex.split(command)[1:]]
            done[command] = subprocess.run(
                words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
            )
            assert done[command].returncode == 0, done[command].stderr
            assert (len(receiver.got) == 0) is (command == shown)

    assert [line.split(":")[0] for line in done[sent].stdout.splitlines()] == ["lark", "slack", "ntfy"]
    assert done[sent].stdout.count("delivered in ") == 3
    assert len(receiver.got) == 3
    assert "s3cr3t" not in done[shown].stdout + done[shown].stderr + done[sent].stdout + done[sent].stderr


def test_the_example_of_the_document_has_the_keys_that_a_webhook_gets(yaml_file, message, monkeypatch):
    example = json.loads(next(block.text for block in blocks(DOCUMENT, "json") if '"version"' in block.text))
    with receiving() as receiver:
        monkeypatch.setenv("HOOK", receiver.url)
        message(yaml_file(one_receiver()))

    got = receiver.got[0].json
    assert list(got) == list(example)
    assert list(got["run"]) == list(example["run"])


def test_the_check_of_the_document_accepts_what_was_signed_and_nothing_else(yaml_file, message, monkeypatch):
    namespace = {}
    exec(blocks(DOCUMENT, "python")[0].text, namespace)
    is_ours = namespace["is_ours"]
    monkeypatch.setenv("KEY", "k3y")
    with receiving() as receiver:
        monkeypatch.setenv("HOOK", receiver.url)
        message(yaml_file(one_receiver(more=", secret_env: KEY")))
    [got] = receiver.got
    timestamp, signature = got.headers["X-Telemetry-Timestamp"], got.headers["X-Telemetry-Signature"]

    assert is_ours(b"k3y", timestamp, signature, got.body)
    assert not is_ours(b"other", timestamp, signature, got.body)
    assert not is_ours(b"k3y", str(int(timestamp) + 1), signature, got.body)
    assert not is_ours(b"k3y", timestamp, signature, got.body + b" ")


# ------------------------------------------------------------ showing


def test_showing_sends_nothing_and_prints_what_would_be_sent(yaml_file, message, monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv("HOOK", f"{receiver.url}/s3cr3t-path")
        code, out, err = message("--show", yaml_file(one_receiver("slack")))

    assert (code, err, receiver.got) == (0, "", [])
    assert "slack (telemetry.messages[0]), on start, finish, failure, stall, finding, milestone\n" in out
    assert f"POST {receiver.url}/***" in out
    assert '"text":"greyjacket: test message\\n' in out
    assert "s3cr3t" not in out


def without_what_changes(shown):
    """Return a printed request without its time, its id and the signature over both."""
    return re.sub(r"[0-9a-f]{32,}|[0-9]{9,}[0-9.]*|\"sign\":\"[^\"]*", "", shown)


@pytest.mark.parametrize("service", ["lark", "ntfy", "webhook"])
def test_showing_shows_no_secret_and_signs_with_a_mask(service, yaml_file, message, monkeypatch):
    monkeypatch.setenv("HOOK", "https://example.org/x")
    monkeypatch.setenv("SECRET", "s3cr3t-word")
    code, out, _ = message("--show", yaml_file(one_receiver(service, ", secret_env: SECRET")))

    monkeypatch.setenv("SECRET", "another-word")
    _, other, _ = message("--show", yaml_file(one_receiver(service, ", secret_env: SECRET")))

    assert code == 0
    assert "s3cr3t" not in out
    assert without_what_changes(out) == without_what_changes(other)


# ------------------------------------------------------------ sending


def test_the_answer_of_a_receiver_is_printed(yaml_file, message, monkeypatch):
    with receiving((403, {}, b"invalid_token")) as receiver:
        monkeypatch.setenv("HOOK", f"{receiver.url}/T0/s3cr3t")
        code, out, _ = message(yaml_file(one_receiver("slack")))

    assert code == 1
    assert out == f"slack: not delivered: {receiver.url}: answered 403: invalid_token\n"


def test_a_missing_variable_is_reported_and_the_other_receivers_are_tried(yaml_file, message, monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv("HOOK", receiver.url)
        text = one_receiver().rstrip() + "\n              - {to: slack, url_env: NO_SUCH_HOOK}\n"
        code, out, _ = message(yaml_file(text))

    assert code == 1
    assert out.splitlines()[0].startswith("webhook: delivered in ")
    assert out.splitlines()[1] == (
        "slack: off: the environment variable that telemetry.messages[1].url_env names is not set or empty"
    )


def test_offline_nothing_is_sent_and_it_can_still_be_shown(yaml_file, message, monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv("HOOK", receiver.url)
        path = yaml_file(one_receiver().replace("telemetry:", "telemetry:\n            mode: offline"))
        code, _, err = message(path)
        assert message("--show", path)[0] == 0

    assert code == 2
    assert err == "telemetry.mode is offline, so nothing is sent; use --show to print what would be.\n"
    assert receiver.got == []


def test_a_variable_in_the_yaml_is_filled_in_as_trainers_do(yaml_file, message, monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv("WHERE", receiver.url)
        code, _, _ = message(yaml_file("telemetry: {messages: [{to: webhook, url: '${WHERE}/x'}]}"))

    assert (code, receiver.got[0].path) == (0, "/x")


# ------------------------------------------------------------ nothing to do


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("config: {name: x}", "has no messages: block under telemetry:"),
        ("telemetry: {messages: []}", "has no messages: block"),
        ("- a\n- b", "not a mapping"),
        ("a: [1", "line 1: invalid YAML"),
        ("telemetry: {messages: [{to: fax, url_env: A}]}", "telemetry.messages[0].to is 'fax'"),
        (
            "telemetry: {messages: [{to: slack, url: s3cr3t}]}",
            "telemetry.messages[0].url is not an https address",
        ),
        (
            "telemetry: {messages: [{to: slack, url: '${NOT_SET}'}]}",
            "the environment variable NOT_SET is not set",
        ),
        ("a: 's3cr3t\nb: c", "invalid YAML"),
    ],
)
def test_a_yaml_without_usable_receivers_is_refused_with_the_reason(text, said, yaml_file, message):
    code, out, err = message(yaml_file(text))

    assert (code, out) == (2, "")
    assert said in err
    assert "s3cr3t" not in err


@pytest.mark.parametrize("path", ["no-such.yaml", "."])
def test_a_path_that_is_no_yaml_is_refused(path, tmp_path, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = message(path)

    assert code == 2
    assert path in err
