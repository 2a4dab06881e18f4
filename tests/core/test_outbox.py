"""An outbox sends off the caller's thread, retries a limited number of times, and counts what it does not deliver."""

from __future__ import annotations

import threading
import time

import pytest

from tests.waiting import wait_until
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.core.outbox import NotSentError, Outbox, backoff_s


class Sending:
    """An outbox to a server that refuses so many times, and what it reported."""

    def __init__(self, refusals=0, *, error=None, first_pause_s=0.001, send=None, **options):
        self.tried = []
        self.reports = []
        self.refusals = refusals
        self.error = error or NotSentError("no")
        self.guard = Guard()
        self.outbox = Outbox(
            "parcels",
            send or self.send,
            on_result=lambda delivery, failure: self.reports.append(
                (delivery.item, delivery.attempts, failure and str(failure))
            ),
            guard=self.guard,
            first_pause_s=first_pause_s,
            **options,
        )

    def send(self, item):
        self.tried.append(item)
        if len(self.tried) <= self.refusals:
            raise self.error

    def close(self, timeout_s=30.0):
        self.outbox.close(time.monotonic() + timeout_s)


def test_a_server_that_is_away_for_a_while_still_gets_everything():
    sending = Sending(refusals=3)
    sending.outbox.put("a")
    sending.outbox.put("b")
    wait_until(lambda: len(sending.reports) == 2)

    assert sending.reports == [("a", 4, None), ("b", 1, None)]


def test_an_item_is_given_up_after_five_attempts_and_the_next_one_is_tried():
    sending = Sending(refusals=5)
    sending.outbox.put("a")
    sending.outbox.put("b")
    wait_until(lambda: len(sending.reports) == 2)

    assert sending.reports == [("a", 5, "no"), ("b", 1, None)]


def test_a_refusal_that_another_attempt_would_not_change_is_not_retried():
    sending = Sending(refusals=1, error=NotSentError("never", most_attempts=1))
    sending.outbox.put("a")
    wait_until(lambda: sending.reports)

    assert sending.reports == [("a", 1, "never")]


@pytest.mark.parametrize(("usual_s", "asked_s"), [(600.0, 0.0), (0.001, 100.0)])
def test_a_long_pause_is_kept_until_the_end_cuts_it_short(usual_s, asked_s):
    sending = Sending(1, error=NotSentError("wait", retry_after_s=asked_s), first_pause_s=usual_s)
    sending.outbox.put("a")
    wait_until(lambda: sending.tried)
    time.sleep(0.05)
    before = [*sending.tried]
    sending.close()

    assert before == ["a"]
    assert sending.reports == [("a", 2, None)]


def test_nothing_is_sent_once_it_is_over():
    sending = Sending()
    sending.close()
    sending.outbox.put("late")

    assert (sending.tried, sending.reports) == ([], [])


def test_our_own_failure_loses_one_item_and_is_reported():
    def send(item):
        if item == "odd":
            raise TypeError("odd")

    sending = Sending(send=send)
    sending.outbox.put("odd")
    sending.outbox.put("b")
    wait_until(lambda: len(sending.reports) == 2)

    assert sending.reports == [("odd", 1, "not sent because of an internal error"), ("b", 1, None)]
    assert list(sending.guard.counts.values()) == [1]


# ------------------------------------------------------------ combined


def test_a_burst_beyond_the_rate_is_sent_as_one_item():
    is_there = threading.Event()
    sending = Sending(send=lambda _: is_there.wait(60), combine=sum, per_minute=3)
    for _ in range(50):
        sending.outbox.put(1)
    wait_until(lambda: sending.outbox._in_flight)
    is_there.set()
    wait_until(lambda: sum(report[0] for report in sending.reports) == 50)

    assert len(sending.reports) <= 2


def test_beyond_its_rate_a_receiver_gets_nothing_until_the_end():
    sending = Sending(combine=sum, per_minute=2)
    for number in range(2):
        sending.outbox.put(1)
        wait_until(lambda number=number: len(sending.reports) == number + 1)
    for _ in range(3):
        sending.outbox.put(1)
    sending.close()

    assert sending.tried == [1, 1, 3]


def test_a_flood_beyond_what_is_kept_is_combined_and_counted():
    answer = threading.Event()
    sending = Sending(send=lambda _: answer.wait(60), combine=sum, per_minute=1)
    sending.outbox.put(1)
    wait_until(lambda: sending.outbox._in_flight)
    for _ in range(999):
        sending.outbox.put(1)
    sending.close(0.05)

    assert [report[0] for report in sending.reports] == [1, 999]
    answer.set()


def test_pauses_grow_up_to_the_longest():
    pauses = [backoff_s(failures, first_s=1.0, longest_s=60.0) for failures in (1, 2, 3, 10, 10_000)]

    assert pauses == [1.0, 2.0, 4.0, 60.0, 60.0]
    assert 0.5 <= backoff_s(1, first_s=1.0, longest_s=60.0, spread=0.5) <= 1.5
