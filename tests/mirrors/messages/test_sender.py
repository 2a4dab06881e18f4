"""A receiver gets its messages off the loop's thread, no more than it wants, and the last ones in the time there is."""

from __future__ import annotations

import threading
import time
from collections import Counter

from tests.mirrors.messages.local_receivers import never_answer, raw_receiving, receiving, to
from tests.waiting import wait_until
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.mirrors.messages.message import Message, RunState, combine
from toolkit.telemetry.mirrors.messages.sender import Sender


def message(number, occasion="milestone"):
    return Message(
        occasion=occasion,
        title=f"r: number {number}",
        lines=("why",),
        run_state=RunState(run_name="r", step=number),
        about=(f"{occasion}:{number}",),
    )


class Sending:
    """A sender and what it reported."""

    def __init__(self, receiver):
        self.reports = []
        self.guard = Guard()
        self.sender = Sender(receiver, report=self.reports.append, guard=self.guard)

    def __enter__(self):
        self.sender.start()
        return self

    def __exit__(self, *_):
        self.sender.give_up(0.0)

    def end(self, last=None, timeout_s=30.0):
        deadline = time.monotonic() + timeout_s
        self.sender.hurry(last, deadline)
        self.sender.give_up(deadline)

    @property
    def reported(self):
        """How many messages were reported, by status, alone or in a summary."""
        counts = Counter()
        for report in self.reports:
            counts[report["status"]] += report.get("tells_of", 1)
        return dict(counts)


def test_messages_arrive_one_by_one_and_in_order_while_they_are_few():
    with receiving() as receiver, Sending(to(receiver.url, per_minute=10)) as sending:
        for number in range(5):
            sending.sender.put(message(number))
        wait_until(lambda: len(sending.reports) == 5)

    assert [got.json["step"] for got in receiver.got] == [0, 1, 2, 3, 4]
    assert sending.reported == {"delivered": 5}


def test_a_burst_is_sent_as_one_message_and_nothing_is_lost():
    with receiving() as receiver, Sending(to(receiver.url, per_minute=3)) as sending:
        with sending.sender._changed:
            for number in range(50):
                sending.sender._waiting.append(message(number))
            # Before its thread can look: one that has just begun would take the others without this one.
            sending.sender.put(message(50, "finding"))
        wait_until(lambda: sending.reported.get("delivered", 0) == 51)

    assert sending.reported == {"delivered": 51}
    summary = receiver.got[-1].json
    assert len(receiver.got) == 1
    assert summary["occasion"] == "summary"
    assert summary["tells_of"] == 51
    assert summary["title"] == "r: 51 messages (50 milestones, 1 finding)"
    assert "- number 0: why" in summary["text"]
    assert "- and 31 more" in summary["text"]


def test_beyond_its_rate_a_receiver_gets_nothing_until_the_end():
    with receiving() as receiver, Sending(to(receiver.url, per_minute=2)) as sending:
        for number in range(2):
            sending.sender.put(message(number))
            wait_until(lambda number=number: len(sending.reports) == number + 1)
        for number in range(2, 5):
            sending.sender.put(message(number))
        sending.end(message(99, "finish"))

    assert [got.json["tells_of"] for got in receiver.got] == [1, 1, 4]
    assert sending.reported == {"delivered": 6}


def test_a_flood_beyond_what_is_kept_is_counted():
    with raw_receiving(never_answer) as hanging, Sending(to(hanging.url, per_minute=1)) as sending:
        sending.sender.put(message(0))
        wait_until(lambda: hanging.connections == 1)
        for number in range(1, 1000):
            sending.sender.put(message(number))
        sending.end(timeout_s=0.1)

    assert sending.reported == {"failed": 1000}
    assert len(sending.reports) == 2


def test_the_last_word_takes_along_what_still_waits():
    gate = threading.Event()
    with receiving(usual=lambda got: gate.wait(30) and b"ok") as receiver:
        with Sending(to(receiver.url, per_minute=60)) as sending:
            sending.sender.put(message(0))
            wait_until(lambda: len(receiver.got) == 1)
            for number in range(1, 10):
                sending.sender.put(message(number))
            deadline = time.monotonic() + 30.0
            sending.sender.hurry(message(99, "failure"), deadline)
            gate.set()
            sending.sender.give_up(deadline)

    assert [got.json["occasion"] for got in receiver.got] == ["milestone", "failure"]
    last = receiver.got[1].json
    assert last["title"] == "r: number 99"
    assert last["text"].startswith("why\nBefore that:\n- number 1: why\n- number 2: why\n")
    assert (last["tells_of"], last["details"]["occasions"]) == (10, {"milestone": 9})
    assert sending.reported == {"delivered": 11}


def test_a_long_wait_for_a_second_try_is_cut_short_by_the_end():
    with receiving((429, {"Retry-After": "100"}, b"")) as receiver, Sending(to(receiver.url)) as sending:
        sending.sender.put(message(0))
        wait_until(lambda: len(receiver.got) == 1)
        began = time.monotonic()
        sending.end(message(1, "finish"))
        took = time.monotonic() - began

    assert took < 30.0
    assert sending.reported == {"delivered": 2}


def test_nothing_is_sent_once_it_is_over():
    with receiving() as receiver, Sending(to(receiver.url)) as sending:
        sending.end(message(0, "finish"))
        sending.sender.put(message(1))
        sending.sender._threads[0].join(10)

    assert not sending.sender._threads[0].is_alive()
    assert [got.json["step"] for got in receiver.got] == [0]


def test_a_sender_whose_thread_never_started_says_that_nothing_was_sent():
    sending = Sending(to("http://127.0.0.1:1"))
    sending.sender.put(message(0))
    sending.end(message(1, "finish"))

    assert sending.reported == {"failed": 2}


def test_a_summary_of_summaries_counts_all():
    folded = combine([combine([message(1), message(2)]), message(3, "finding")])

    assert folded.message_count == 3
    assert folded.details["occasions"] == {"milestone": 2, "finding": 1}


def test_certificates_that_cannot_be_read_are_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path))
    with receiving() as receiver, Sending(to(f"https://localhost:{receiver.port}")) as sending:
        sending.sender.put(message(0))
        sending.end(message(1, "finish"), timeout_s=20.0)

    assert sending.reported == {"failed": 2}
    assert sending.guard.counts == {}


def test_our_own_failure_loses_one_message_and_is_reported():
    odd = Message(occasion="start", title="r", details={"odd": object()})
    with receiving() as receiver, Sending(to(receiver.url)) as sending:
        sending.sender.put(odd)
        sending.sender.put(message(1))
        wait_until(lambda: len(sending.reports) == 2)

    assert [report["status"] for report in sending.reports] == ["failed", "delivered"]
    assert sending.reports[0]["reason"].endswith("not sent because of an internal error")
    assert list(sending.guard.counts.values()) == [1]


def test_the_last_message_does_not_wait_for_one_that_is_in_flight(monkeypatch):
    for place in ("delivery", "sender"):
        # The one that is in flight is not given up before the end, however slow the machine.
        monkeypatch.setattr(f"toolkit.telemetry.mirrors.messages.{place}.REQUEST_TIMEOUT_S", 1000.0)
    is_ending = threading.Event()

    def answer(got):
        if got.json["occasion"] == "milestone":
            # A chat that takes its time, until the run is over.
            is_ending.wait(1000)
        return b"ok"

    with receiving(usual=answer) as receiver, Sending(to(receiver.url)) as sending:
        sending.sender.put(message(1))
        wait_until(lambda: sending.sender._in_flight)
        sending.sender.put(message(2))
        deadline = time.monotonic() + 1000
        sending.sender.hurry(message(3, "failure"), deadline)
        wait_until(lambda: any(report["occasion"] == "failure" for report in sending.reports))
        assert len(sending.reports) == 1, "the other is still in flight"
        is_ending.set()
        sending.sender.give_up(deadline)

    (last,) = (report for report in sending.reports if report["occasion"] == "failure")
    assert (last["status"], last["tells_of"]) == ("delivered", 2), "with what waited before it"
    assert sending.reported == {"delivered": 3}


def test_both_are_reported_where_neither_is_answered():
    with raw_receiving(never_answer) as receiver, Sending(to(receiver.url)) as sending:
        sending.sender.put(message(1))
        wait_until(lambda: sending.sender._in_flight)
        sending.sender.hurry(message(2, "failure"), time.monotonic() + 100)
        wait_until(lambda: len(sending.sender._in_flight) == 2)
        sending.sender.give_up(0.0)

    assert sorted(report["occasion"] for report in sending.reports) == ["failure", "milestone"]
    assert sending.reported == {"failed": 2}
    assert all(report["attempts"] >= 1 for report in sending.reports), "each of them was tried"
