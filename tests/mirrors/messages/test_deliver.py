"""A message is retried if that may help, a limited number of times, and its outcome is recorded without secrets."""

from __future__ import annotations

import pytest

from tests.mirrors.messages.local_receivers import never_answer, raw_receiving, receiving, to
from toolkit.telemetry.mirrors.messages.delivery import Delivery, deliver
from toolkit.telemetry.mirrors.messages.message import Message, RunState

MESSAGE = Message(occasion="start", title="r: started", run_state=RunState(run_name="r"), about=("start:1",))
TOO_MANY = (429, {"Retry-After": "7"}, b"slow down")
BROKEN = (500, {}, b"oops")


def send(receiver, pause=None, **options):
    """Deliver a message without waiting; return the fields of its record, and how long it would have waited."""
    waits = []
    delivery = Delivery(receiver, MESSAGE)
    failure = deliver(delivery, pause=pause or (lambda seconds: waits.append(seconds) or True), **options)
    return delivery.to_fields(failure), waits


def outcome(fields):
    return fields["status"], fields["attempts"]


def test_a_service_that_stumbles_gets_it_again_after_ever_longer_waits():
    with receiving(BROKEN, (503, {}, b""), (502, {}, b"")) as receiver:
        delivery, waits = send(to(receiver.url))

    assert outcome(delivery) == ("delivered", 4)
    assert 0.5 <= waits[0] <= 1.5 <= waits[1] <= 4.5 <= waits[2] <= 13.5
    assert len({got.json["id"] for got in receiver.got}) == 1


def test_a_service_that_keeps_failing_is_left_after_five_tries():
    with receiving(*[BROKEN] * 20) as receiver:
        delivery, waits = send(to(f"{receiver.url}/hook"))

    assert (*outcome(delivery), len(receiver.got), len(waits)) == ("failed", 5, 5, 4)
    assert delivery["reason"] == f"{receiver.url}: answered 500: oops"


def test_a_service_is_left_alone_for_as_long_as_it_asks():
    with receiving(TOO_MANY) as receiver:
        delivery, [wait] = send(to(receiver.url))

    assert delivery["status"] == "delivered"
    assert wait == 7.0


def test_but_not_for_longer_than_two_minutes():
    with receiving((429, {"Retry-After": "86400"}, b"")) as receiver:
        _, [wait] = send(to(receiver.url))

    assert wait == 120.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413])
def test_a_refusal_is_not_argued_with(status):
    with receiving((status, {}, b"no_service")) as receiver:
        delivery, waits = send(to(receiver.url))

    assert (*outcome(delivery), waits) == ("failed", 1, [])
    assert delivery["reason"].endswith(f"answered {status}: no_service")


def test_what_was_sent_and_not_answered_is_sent_again_once_only():
    with raw_receiving(never_answer) as receiver:
        delivery, waits = send(to(receiver.url), time_left=lambda: 1.0)

    assert (*outcome(delivery), receiver.connections, len(waits)) == ("failed", 2, 2, 1)
    assert delivery["reason"] == f"{receiver.url}: no response within 1 s"


def test_a_wait_can_be_cancelled():
    with receiving(*[BROKEN] * 9) as receiver:
        delivery, _ = send(to(receiver.url), pause=lambda _: False)

    assert outcome(delivery) == ("failed", 1)


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
        delivery, _ = send(to(f"{receiver.url}/services/T0/B0/s3cr3ts3cr3t", secret="sign-with-this"))

    assert "***" in delivery["reason"]
    for secret in ("s3cr3t", "sign-with-this", "hf_abc"):
        assert secret not in delivery["reason"]


def test_a_service_cannot_bring_a_page_of_text_or_commands_into_the_records():
    with receiving((400, {}, b"\x1b[2J" + b"line\r\n" * 5000)) as receiver:
        delivery, _ = send(to(receiver.url))

    assert delivery["reason"].isprintable()
    assert len(delivery["reason"]) < 300


def test_a_delivery_is_reported_in_the_fields_of_a_record():
    with receiving() as receiver:
        fields, _ = send(to(receiver.url))

    assert fields.pop("seconds") >= 0.0
    assert fields == {
        "receiver": "webhook",
        "service": "webhook",
        "occasion": "start",
        "status": "delivered",
        "attempts": 1,
        "about": ["start:1"],
    }
