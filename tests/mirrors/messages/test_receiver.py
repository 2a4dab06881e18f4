"""What a receiver answers brings no secret into a record, and several messages become one."""

from __future__ import annotations

import pytest

from tests.mirrors.messages.local_receivers import receiving, to
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.outbox import NotSentError
from toolkit.telemetry.mirrors.messages.message import Message, RunState, combine


def message(number=1, occasion="milestone"):
    return Message(
        occasion=occasion,
        title=f"r: number {number}",
        lines=("why",),
        run_state=RunState(run_name="r", step=number),
        about=(f"{occasion}:{number}",),
    )


def failure_of(receiver):
    with pytest.raises(NotSentError) as raised:
        receiver.send(message())
    return str(raised.value)


@pytest.mark.parametrize(
    "echoed",
    [
        "https://127.0.0.1/services/T0/B0/s3cr3ts3cr3t",
        "/services/T0/B0/s3cr3ts3cr3t",
        "no such hook: s3cr3ts3cr3t",
        "bad signature with key sign-with-this",
        "token hf_abcdefghijklmnopqrstuvwxyz012345",
    ],
)
def test_a_service_that_repeats_a_secret_does_not_bring_it_into_the_records(echoed):
    with receiving((400, {}, echoed.encode())) as receiver:
        reason = failure_of(to(f"{receiver.url}/services/T0/B0/s3cr3ts3cr3t", secret="sign-with-this"))

    assert "***" in reason
    assert not [secret for secret in ("s3cr3t", "sign-with-this", "hf_abc") if secret in reason]


def test_a_service_cannot_bring_a_page_of_text_or_commands_into_the_records():
    with receiving((400, {}, b"\x1b[2J" + b"line\r\n" * 5000)) as receiver:
        reason = failure_of(to(receiver.url))

    assert reason.isprintable()
    assert len(reason) < 300


def test_a_secret_in_place_of_the_name_of_a_variable_is_in_no_file_of_the_run(tmp_path):
    secret = "a8Kd92jf0QmLpZx7Rt"
    messages = [{"to": "ntfy", "url": "http://localhost:1/x", "secret_env": secret}]
    with TelemetryLogger("r", log_dir=tmp_path, system=False, messages=messages) as log:
        log.log_step(1, train_loss=1.0)

    found = b"".join(path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file())
    assert b"secret_env names is not set" in found
    assert secret.encode() not in found


# ------------------------------------------------------------ combined


def test_many_messages_are_listed_in_one():
    one = combine([*map(message, range(50)), message(50, "finding")])

    assert (one.occasion, one.message_count) == ("summary", 51)
    assert one.title == "r: 51 messages"
    assert "- number 0: why" in one.lines
    assert one.lines[-1] == "- and 31 more"


def test_the_last_message_keeps_its_title_and_lists_those_before():
    one = combine([message(1), message(2), message(99, "failure")])

    assert (one.occasion, one.title) == ("failure", "r: number 99")
    assert one.lines == ("why", "Before that:", "- number 1: why", "- number 2: why")
    assert one.message_count == 3


def test_a_summary_of_summaries_counts_all():
    one = combine([combine([message(1), message(2)]), message(3, "finding")])

    assert (one.title, one.message_count) == ("r: 3 messages", 3)
