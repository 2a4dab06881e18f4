"""What the script's own signal handler raises in the middle of a call of ours reaches the script; the rest does not."""

import functools
import signal
import threading
from contextlib import contextmanager
from enum import Enum

import pytest

from tests.waiting import wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.machine.start_look import Look

RAISED = TimeoutError("the script's own limit")


def by_function(signum, frame):
    raise RAISED


def by_any_arguments(*given):
    raise RAISED


def calling_others(signum, frame):
    [by_function_of_its_own(number) for number in range(1)]


def by_function_of_its_own(_):
    raise RAISED


def wrapped(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)

    return call


class Handler:
    def method(self, signum, frame):
        raise RAISED

    def __call__(self, signum, frame):
        raise RAISED


HANDLERS = {
    "a function": by_function,
    "any arguments": by_any_arguments,
    "one that calls others": calling_others,
    "a lambda": lambda signum, frame: by_function_of_its_own(signum),
    "a method": Handler().method,
    "an object": Handler(),
    "a partial": functools.partial(by_any_arguments, "more"),
    "a partial of a method": functools.partial(Handler().method),
    "a decorated function": wrapped(by_function),
}


@contextmanager
def handled_by(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


class Interrupted:
    """A value in whose reading a signal comes: its handler then runs within a call of ours."""

    def __float__(self):
        signal.raise_signal(signal.SIGUSR1)
        return 1.0


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with TelemetryLogger("run", log_dir=tmp_path_factory.mktemp("logs"), log_every=1, system=False) as log:
        yield log


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS.keys())
def test_what_a_handler_raises_in_a_call_arrives(handler):
    guard = Guard()
    with handled_by(handler), pytest.raises(TimeoutError) as caught, guard.catch("reading"):
        float(Interrupted())

    assert caught.value is RAISED
    assert not guard.total


def in_an_iteration(log):
    log.training.configure(flops_per_sample=lambda: float(Interrupted()))
    with log.training.training_loop(), log.training.training_iteration():
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.log_eval(1, val_loss=Interrupted()),
        lambda log: log.log_epoch(Interrupted()),
        lambda log: log.log_event("mine", value=Interrupted()),
        lambda log: log.log_start(config={"value": Interrupted()}),
        lambda log: log.log_completion(1, prompt="p", completion="c", reward=Interrupted()),
        lambda log: log.log_step(Interrupted(), train_loss=1.0),
        lambda log: log.start_span("mine", attributes={"value": Interrupted()}).stop(),
        in_an_iteration,
    ],
)
def test_it_arrives_out_of_every_call_that_reads_a_value(log, call):
    before = log.guard.total
    with handled_by(by_function), pytest.raises(TimeoutError) as caught:
        call(log)

    assert caught.value is RAISED
    assert log.guard.total == before
    log.log_step(2, train_loss=1.0)
    assert log.flush(60), "a lock was left held"


class Failing:
    def __float__(self):
        raise TimeoutError("a failure of the value itself")


class Handling:
    """A value that catches what a handler raises, and fails by itself."""

    def __float__(self):
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeoutError as error:
            raise ValueError("given up") from error


class Colour(Enum):
    RED = 1


class FailingInPython:
    """A value that fails in code of the standard library, which Python calls for signals without a handler too."""

    def __float__(self):
        return float(Colour(2).value)


def test_a_value_that_fails_is_no_interrupt(log):
    before = log.guard.total
    with handled_by(by_function):
        log.log_step(1, train_loss=Failing())
        log.log_step(2, train_loss=Handling())
        log.log_eval(3, val_loss=Failing())
        log.log_eval(4, val_loss=FailingInPython())

    assert log.guard.total >= before + 4


def test_what_the_script_has_already_handled_is_not_raised_again(log):
    before = log.guard.total
    with handled_by(by_function):
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeoutError:
            # What fails now has that as its context.
            log.log_step(1, train_loss=Failing())
            log.log_event(1, 2, 3)

    assert log.guard.total >= before + 2


class Odd(Exception):
    __traceback__ = __cause__ = __context__ = property(lambda self: 1 / 0)

    def __bool__(self):
        raise RuntimeError("no")


def test_an_exception_with_a_hostile_class_is_still_examined():
    guard = Guard()

    def raise_odd(signum, frame):
        raise Odd

    with guard.catch("reading"):
        raise Odd from Odd()
    with handled_by(raise_odd):
        try:
            with guard.catch("reading"):
                float(Interrupted())
        except Odd:
            guard.report("arrived", OSError())

    assert guard.counts["reading: Odd"] == 1
    assert guard.counts["arrived: OSError"] == 1


def test_a_logger_that_is_interrupted_while_it_is_made_leaves_no_thread_behind(tmp_path, monkeypatch):
    before = set(threading.enumerate())
    # Its writer has begun by then.
    monkeypatch.setattr(Look, "start", lambda look: signal.raise_signal(signal.SIGUSR1))
    with handled_by(by_function), pytest.raises(TimeoutError):
        TelemetryLogger("run", log_dir=tmp_path, system=False)

    wait_until(lambda: set(threading.enumerate()) <= before)
