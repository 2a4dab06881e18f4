"""Calls from many threads, and from signal handlers that interrupt a call: none is lost, none comes twice."""

from __future__ import annotations

from collections import Counter

from tests.faults.children import LONGEST_PAUSE_S
from tests.faults.crash_checks import whole_run
from tests.lengths import longer
from tests.records import with_event

STEPS = longer(8_000, 30_000)


def test_eight_threads_log_at_once(tmp_path, start):
    ended = start(
        """
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
        slowest = [SlowestCall() for _ in range(8)]
        together = threading.Barrier(8)

        def work(number):
            together.wait()
            for step in range(400):
                slowest[number].of(log.log_step, 400 * number + step, train_loss=1.0, thread=number)
                slowest[number].of(log.log_event, "mine", thread=number, count=step)
                if step % 50 == 0:
                    time.sleep(0.001)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.close()
        print(f"slowest={max(each.seconds for each in slowest)}")
        sys.exit(7)
        """,
        tmp_path,
    ).end()

    assert ended.code == 7, ended.err
    assert not ended.trouble
    assert ended.number("slowest") < LONGEST_PAUSE_S, "the others' turns at the interpreter included"
    records = whole_run(tmp_path / "run")
    by_thread = {number: [] for number in range(8)}
    for record in with_event(records, "mine"):
        by_thread[record["thread"]].append(record["count"])
    assert all(counts == list(range(400)) for counts in by_thread.values()), "each thread's own order is kept"
    steps = with_event(records, "step")
    assert len(steps) + sum(step.get("steps_folded", 0) for step in steps) == 3200, "no step is unseen"


STORM = """
# A timer interrupts the loop some hundred times; its handler logs too, and then sets it again. One that
# went on by itself would leave a slow machine no time but for handlers.
import itertools

log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)
log.log_start()
numbers = itertools.count(1)
is_stormy = True

def handle(signal_number, frame):
    number = next(numbers)
    log.log_event("interrupt", number=number)
    log.log_step(10_000_000 + number, train_loss=2.0)
    set_timer()
    raise_if_wanted()

def set_timer():
    signal.setitimer(signal.ITIMER_REAL, 0.0003 if is_stormy else 0)

signal.signal(signal.SIGALRM, handle)
slowest = SlowestCall()
STEPS = int(sys.argv[2])
set_timer()
"""

ENDS = """
is_stormy = False
set_timer()
log.close()
print(f"slowest={slowest.seconds}")
print(f"interrupts={next(numbers) - 1}")
sys.exit(7)
"""


def test_a_signal_handler_that_logs_in_the_middle_of_a_call_neither_hangs_nor_spoils_the_order(
    tmp_path, start
):
    ended = start(
        STORM
        + """
def raise_if_wanted():
    pass

for step in range(STEPS):
    slowest.of(log.log_step, step, train_loss=1.0)
"""
        + ENDS,
        *(tmp_path, STEPS),
    ).end()

    assert ended.code == 7, ended.err
    assert not ended.trouble
    assert ended.number("slowest") < LONGEST_PAUSE_S
    interrupts = range(1, int(ended.number("interrupts")) + 1)
    assert len(interrupts) > longer(20, 100)
    records = whole_run(tmp_path / "run")
    assert Counter(record["number"] for record in with_event(records, "interrupt")) == Counter(interrupts)
    steps = Counter(record["global_step"] for record in with_event(records, "step"))
    assert steps == Counter([*range(STEPS), *(10_000_000 + number for number in interrupts)])


def test_a_signal_handler_that_raises_out_of_a_call_leaves_no_gap_and_no_lock_behind(tmp_path, start):
    ended = start(
        """
class Interrupted(BaseException):
    pass

is_wanted = False

def raise_if_wanted():
    global is_wanted
    if is_wanted:
        is_wanted = False
        raise Interrupted
"""
        + STORM
        + """
returned = 0
for step in range(STEPS):
    try:
        is_wanted = True
        log.log_step(step, train_loss=1.0)
        returned += 1
        is_wanted = False
    except Interrupted:
        pass
is_stormy = False
set_timer()
began = time.monotonic()
log.log_event("behind")
log.flush(60)
print(f"flushing={time.monotonic() - began}")
print(f"returned={returned}")
"""
        + ENDS,
        *(tmp_path, STEPS),
    ).end()

    assert ended.code == 7, ended.err
    assert ended.number("interrupts") > longer(20, 100)
    assert ended.number("flushing") < 30.0, "a lock was left held"
    records = whole_run(tmp_path / "run")
    assert with_event(records, "behind")
    steps = {
        record["global_step"] for record in with_event(records, "step") if record["global_step"] < 10_000_000
    }
    assert len(steps) >= ended.number("returned"), "each call that returned has its record"


def test_each_ordinary_exception_of_the_scripts_signal_handler_arrives(tmp_path, start, record_property):
    ended = start(
        """
        # A time limit as people write it, in a loop that does nothing but log.
        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1, system=False)
        log.log_start()
        raised = arrived = returned = 0
        is_open = False

        def handle(signal_number, frame):
            global raised
            if is_open:
                raised += 1
                raise TimeoutError("too slow")

        signal.signal(signal.SIGALRM, handle)
        step = 0
        while raised < 150:
            step += 1
            try:
                is_open = True
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.000003 * (step % 50))
                for turn in range(20):
                    log.log_step(20 * step + turn, train_loss=1.0, text="a")
                    with log.span("forward"), log.span("mine"):
                        pass
                    log.log_event("mine", value=turn)
                    returned += 1
                is_open = False
            except TimeoutError:
                is_open = False
                arrived += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        log.log_event("behind")
        assert log.flush(60), "a lock was left held"
        log.close()
        print(f"raised={raised}")
        print(f"arrived={arrived}")
        print(f"returned={returned}")
        print(f"swallowed={log.guard.total}")
        sys.exit(7)
        """,
        tmp_path,
    ).end()

    assert ended.code == 7, ended.err
    assert ended.number("arrived") == ended.number("raised")
    assert not ended.number("swallowed"), ended.err
    records = whole_run(tmp_path / "run")
    assert with_event(records, "behind")
    assert len(with_event(records, "mine")) >= ended.number("returned"), (
        "each call that returned has its record"
    )
    record_property("measured", f"{ended.number('raised'):.0f} raised in calls of ours, all of them arrived")


def test_an_object_that_logs_while_it_is_destroyed_is_no_trouble(tmp_path, start):
    ended = start(
        """
        import gc

        log = TelemetryLogger("run", log_dir=sys.argv[1], log_every=1)

        destroyed = []

        class LogsAtItsEnd:
            def __init__(self):
                self.itself = self

            def __del__(self):
                log.log_event("destroyed")
                destroyed.append(1)

        gc.set_threshold(7)  # a collection falls into the middle of calls of ours, too
        for step in range(1000):
            LogsAtItsEnd()
            log.log_step(step, train_loss=1.0, extra={"a": [step]})
        # A collection may be going on in another thread, and this one is then none.
        while len(destroyed) < 1000:
            gc.collect()
            time.sleep(0.01)
        log.close()
        sys.exit(7)
        """,
        tmp_path,
    ).end()

    assert ended.code == 7, ended.err
    records = whole_run(tmp_path / "run", steps=range(1000))
    assert len(with_event(records, "destroyed")) == 1000
