"""The first Ctrl-C is a wish, the second one an order."""

from __future__ import annotations

import signal
import threading

import pytest

from toolkit.trainer.stop_signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted_and_nothing_is_interrupted(number):
    with StopSignals() as signals:
        assert signals.received is None
        signal.raise_signal(number)

    assert signals.received is number


def test_a_second_ctrl_c_interrupts():
    with StopSignals():
        signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_handlers_from_before_come_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGINT) != before[0]

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_thread_that_may_not_set_handlers_trains_without():
    entered = []

    def train():
        with StopSignals() as signals:
            entered.append(signals.received)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()

    assert entered == [None]
