"""A failure of telemetry is swallowed, counted, said once, and never reaches the loop; the user's own interrupts do."""

import logging

import pytest

from toolkit.telemetry.core.guard import Guard, describe_error, guarded, guarded_step


class Guarded:
    """Something whose calls are guarded."""

    def __init__(self, is_live=True):
        self.guard = Guard()
        self.is_live = is_live
        self.calls = 0

    @guarded
    def work(self, value, *, error=None):
        """Return what it is given."""
        self.calls += 1
        if error is not None:
            raise error
        return value

    @guarded_step
    def step(self, error, *_):
        """Raise what it is given."""
        raise error


def test_a_failure_is_swallowed_and_counted():
    guard = Guard()
    for _ in range(3):
        with guard.catch("writing"):
            raise OSError("disk full")
    with guard.catch("writing"):
        raise ValueError("odd")

    assert guard.counts == {"writing: OSError": 3, "writing: ValueError": 1}
    assert guard.total == 4


def test_the_first_failure_of_a_kind_is_printed_and_the_others_only_counted(caplog):
    guard = Guard()
    for _ in range(5):
        guard.report("writing", OSError("disk full"))
    guard.report("reading", OSError("disk full"))

    assert [record.getMessage().split(" failed")[0] for record in caplog.records] == [
        "[telemetry] writing",
        "[telemetry] reading",
    ]
    assert "disk full" in caplog.text


def test_a_bug_is_printed_with_its_traceback_and_an_os_error_without(caplog):
    guard = Guard()
    with guard.catch("a"):
        raise OSError("disk full")
    assert "Traceback" not in caplog.text

    with guard.catch("b"):
        raise KeyError("bug")
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_users_own_interrupts_pass_through(error):
    guard, thing = Guard(), Guarded()

    with pytest.raises(error), guard.catch("writing"):
        raise error
    with pytest.raises(error):
        thing.work(1, error=error())
    with pytest.raises(error):
        thing.step(error(), 2, 3, 4)
    assert guard.total == thing.guard.total == 0


class Evil(Exception):
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


def test_an_exception_that_cannot_be_read_is_reported_all_the_same():
    guard = Guard()
    guard.report("writing", Evil())

    assert guard.counts["writing: Evil"] == 1
    assert describe_error(Evil()) == "Evil: its message could not be read"


def test_a_log_handler_that_fails_does_not_reach_the_loop():
    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("no")

    handler = Broken()
    logging.getLogger("toolkit.telemetry").addHandler(handler)
    guard = Guard()
    try:
        guard.report("writing", OSError("disk full"))
    finally:
        logging.getLogger("toolkit.telemetry").removeHandler(handler)

    assert guard.counts["writing: OSError"] == 1


def test_an_invalid_call_is_reported_once_with_its_own_message(caplog):
    guard = Guard()
    for _ in range(3):
        guard.report_misuse("the span 'a' was stopped twice")

    assert guard.total == 3
    assert caplog.text.count("the span 'a' was stopped twice") == 1
    assert "failed" not in caplog.text


def test_endless_kinds_are_printed_a_few_hundred_times_and_all_counted():
    first_seen = []
    guard = Guard(on_first=lambda doing, error: first_seen.append(doing))
    for number in range(2000):
        guard.report_misuse(f"the span 'file {number}' was stopped twice")

    assert guard.total == 2000
    assert len(first_seen) == len(guard.counts) < 600


def test_what_is_printed_can_be_written_to_a_text_file(caplog):
    guard = Guard()

    guard.report_misuse("the span '\ud800' was stopped twice")
    guard.report("reading \udcff", ValueError("half \ud83d a character"))

    assert "\n".join(caplog.messages).encode("utf-8").count(b"\\ud") == 3
