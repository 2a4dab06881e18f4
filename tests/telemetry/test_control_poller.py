"""What is asked through the control file reaches the loop between two steps, and is answered exactly once."""

import itertools
import json
import os
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lengths import longer
from toolkit.telemetry.core.clock import ManualClock
from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.logger.control import control_file
from toolkit.telemetry.logger.control.poller import ControlPoller
from toolkit.telemetry.runfolder.control import ControlRequest, peek, write_request


class Run:
    """A run of one process: its folder, its clock, and all that its poller said."""

    def __init__(self, folder, answered=(), log_every=10, **options):
        folder.chmod(0o700)
        self.folder = folder
        self.clock = ManualClock()
        self.answers = []
        self.notified = 0
        self.step = 0
        self._written = None
        self.poller = ControlPoller(
            folder,
            run_id="run-1",
            clock=self.clock,
            session_started=self.clock.wall(),
            log_every=log_every,
            answer=self.answers.append,
            notify=self._notify,
            was_answered=lambda request_id: request_id in answered,
            **options,
        )

    def _notify(self):
        self.notified += 1

    def ask(self, **asked):
        """Ask as a page does."""
        request = write_request(self.folder, now=self.clock.wall(), **asked)
        self.tell_from_the_one_before()
        return request.id

    def put(self, content, mode=0o600):
        """Write the file by hand."""
        path = self.folder / "control.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        path.chmod(mode)
        self.tell_from_the_one_before()
        return path

    def tell_from_the_one_before(self):
        """Give the file a later time than the last one, where both were written within one tick of the kernel's."""
        while (signature := peek(self.folder)) == self._written:
            os.utime(self.folder / "control.json")
        self._written = signature

    def go(self, seconds=2.0):
        """Let the background thread look once, and the loop go on by one step."""
        self.clock.advance(seconds)
        self.poller.poll()
        self.step += 1
        if self.poller.ready:
            self.poller.apply(self.step)

    def answer(self):
        """Return the only answer there is."""
        assert len(self.answers) == 1, self.answers
        return self.answers[0]


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


# ---------------------------------------------------------------- log_every


@pytest.mark.parametrize(("asked", "given_back"), [(1, 5), (-7, 5), (5, 5), (2000, 2000), (100_000, 2000)])
def test_the_interval_is_clamped_in_the_run(run, asked, given_back):
    run.put({"log_every": asked, "timestamp": run.clock.wall()})
    run.go()

    assert run.poller.log_every == given_back
    assert run.answer()["status"] == ("applied" if asked == given_back else "clamped")
    assert run.answer()["requested"] == asked


def test_two_changes_are_30_s_apart_and_of_several_the_last_one_counts(run):
    run.ask(log_every=100)
    run.go()
    superseded = [run.ask(log_every=200)]
    run.go()
    superseded.append(run.ask(log_every=300))
    run.go()
    last = run.ask(log_every=400)
    run.go(23.9)

    assert run.poller.log_every == 100
    assert [(answer["id"], answer["status"]) for answer in run.answers[1:]] == [
        (i, "superseded") for i in superseded
    ]
    assert run.answers[1]["new"] == 100

    run.go(2.2)

    assert run.poller.log_every == 400
    assert run.answers[-1]["id"] == last
    assert run.answers[-1]["old"] == 100
    assert len(run.answers) == 4


def test_the_30_s_are_not_measured_by_a_clock_that_can_be_set(run):
    run.ask(log_every=100)
    run.go()
    run.clock.set_wall(run.clock.wall() + 3600)
    run.ask(log_every=200)
    run.go()

    assert run.poller.log_every == 100


def test_a_change_that_waits_expires_in_time(run):
    run.ask(log_every=100)
    run.go()
    run.ask(log_every=200, expires_in_s=5)
    run.go()
    run.go(10)

    assert run.answers[-1]["status"] == "expired"
    run.go(60)
    assert run.poller.log_every == 100


# ---------------------------------------------------------------- which requests are taken


@pytest.mark.parametrize("timestamp", [1703123456.789, 0.0, 9e9, None])
def test_a_plain_file_that_is_new_is_taken_whatever_its_timestamp_says(run, timestamp):
    run.put({"log_every": 100, "timestamp": timestamp})
    run.go()

    assert run.answer()["status"] == "applied"
    assert run.poller.log_every == 100


def test_a_plain_file_may_be_put_there_again_after_something_else_was_asked(run):
    plain = {"log_every": 100, "timestamp": 5.0}
    run.put(plain)
    run.go()
    run.ask(log_every=50)
    run.go(40)
    run.put(plain)
    run.go(40)

    assert [answer["new"] for answer in run.answers] == [100, 50, 100]
    assert len({answer["id"] for answer in run.answers}) == 3


def test_a_file_refused_by_an_earlier_session_is_passed_over(tmp_path):
    first = Run(tmp_path)
    first.put(b"{")
    first.go()
    first.go()
    second = Run(tmp_path, answered={first.answer()["id"]})
    for _ in range(3):
        second.go()

    assert second.answers == []


def test_an_older_request_than_the_last_one_is_expired(run):
    run.go(10)
    run.ask(log_every=100)
    run.go()
    run.put({"id": "a", "log_every": 50, "timestamp": run.clock.wall() - 5})
    run.go(60)

    assert run.answers[-1]["status"] == "expired"
    assert run.poller.log_every == 100


def test_a_timestamp_from_the_future_does_not_lock_out_the_next_request(run):
    run.put({"log_every": 100, "timestamp": run.clock.wall() * 1000})
    run.go()
    run.ask(log_every=200)
    run.go(40)

    assert run.poller.log_every == 200


def test_a_clock_set_back_does_not_make_new_requests_old(run):
    run.ask(log_every=100)
    run.go()
    run.clock.set_wall(run.clock.wall() - 3600)
    run.go()
    run.ask(log_every=200)
    run.go(40)

    assert run.poller.log_every == 200


# ---------------------------------------------------------------- files that are no request


def test_a_file_system_that_does_not_answer_is_counted_and_tried_again(tmp_path, monkeypatch):
    guard = Guard()
    run = Run(tmp_path, guard=guard)
    run.ask(log_every=100)

    def stale(folder):
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(control_file, "peek", stale)
        run.go()

    assert guard.total == 1
    run.go()
    assert run.answer()["status"] == "applied"


# ---------------------------------------------------------------- actions


def test_an_action_that_was_not_declared_is_refused_with_what_is(run):
    run.poller.declare_action("save")
    run.ask(log_every=100, actions=["save", "sample"])
    run.go()

    assert run.answer()["status"] == "refused"
    assert "no action sample; declared: save" in run.answer()["reason"]
    assert run.poller.log_every == 10
    assert run.poller.take_requests() == []


def test_a_callback_that_raises_is_a_refusal_and_does_not_reach_the_loop(tmp_path):
    guard = Guard()
    run = Run(tmp_path, guard=guard)

    def fail():
        raise RuntimeError("no room for a checkpoint")

    run.poller.declare_action("save", fail)
    run.ask(actions=["save"], log_every=100)
    run.go()

    assert run.answer()["status"] == "refused"
    assert "RuntimeError: no room for a checkpoint" in run.answer()["reason"]
    assert "actions" not in run.answer()
    assert run.answer()["new"] == 100
    assert guard.total == 1


def test_an_interrupt_from_a_callback_belongs_to_the_user(run):
    def interrupt():
        raise KeyboardInterrupt

    run.poller.declare_action("save", interrupt)
    run.poller.declare_action("sample", lambda: pytest.fail("came after the interrupt"))
    run.ask(actions=["save", "sample"])
    with pytest.raises(KeyboardInterrupt):
        run.go()
    run.poller.close()

    assert run.answer()["status"] == "expired"
    assert "actions" not in run.answer()


def test_a_stop_is_applied_when_it_was_read(run):
    run.poller.declare_action("stop")
    assert run.poller.should_stop is False
    run.ask(actions=["stop"])
    run.go()

    assert run.answers == []
    assert run.poller.should_stop is True
    assert run.answer()["status"] == "applied"
    assert run.poller.should_stop is True
    assert run.poller.take_requests() == []
    run.go(10_000)
    assert run.poller.should_stop is True
    assert len(run.answers) == 1


def test_an_action_that_the_loop_never_reached_expires(run):
    calls = []
    run.poller.declare_action("save", lambda: calls.append(1))
    run.ask(actions=["save"], expires_in_s=60)
    run.clock.advance(2)
    run.poller.poll()
    run.clock.advance(100)
    run.poller.apply(1)

    assert calls == []
    assert run.answer()["status"] == "expired"


def test_save_and_stop_is_there_when_both_are(run):
    run.poller.declare_action("stop")
    assert "save_and_stop" not in run.poller.declared()["actions"]
    run.poller.declare_action("save")
    assert "save_and_stop" in run.poller.declared()["actions"]
    run.ask(actions=["save_and_stop"])
    run.go()

    assert run.poller.should_stop
    assert run.answers == []
    assert [request.name for request in run.poller.take_requests()] == ["save"]
    assert run.answer()["actions"] == ["save_and_stop"]


def test_a_declared_save_and_stop_is_one_request_and_stops(run):
    run.poller.declare_action("save_and_stop")
    run.ask(actions=["save_and_stop"])
    run.go()

    assert run.poller.should_stop
    assert run.answer()["status"] == "applied"
    # The loop may look at should_stop first: what is to be saved is still there to be taken.
    assert [request.name for request in run.poller.take_requests()] == ["save_and_stop"]
    assert len(run.answers) == 1


def test_a_request_is_handed_over_although_its_answer_cannot_be_given(tmp_path):
    guard = Guard()
    run = Run(tmp_path, guard=guard)

    def answer(fields):
        if not guard.total:
            raise MemoryError
        run.answers.append(fields)

    run.poller._answer = answer
    run.poller.declare_action("save")
    run.poller.declare_action("stop")
    run.ask(actions=["save"])
    run.go()
    run.ask(actions=["stop"])
    run.go()

    assert [request.name for request in run.poller.take_requests()] == ["save", "stop"]
    assert run.poller.should_stop
    assert run.answer()["actions"] == ["stop"], "the next one is answered"
    assert guard.counts == {"answering a request: MemoryError": 1}


def test_actions_do_not_wait_for_the_30_s_and_a_combined_request_is_answered_once(run):
    run.poller.declare_action("save")
    run.ask(log_every=100)
    run.go()
    run.ask(log_every=200, actions=["save"])
    run.go()

    assert [request.name for request in run.poller.take_requests()] == ["save"]
    assert len(run.answers) == 1
    run.go(40)
    assert len(run.answers) == 2
    assert run.answers[1]["status"] == "applied"
    assert run.answers[1]["new"] == 200
    assert run.answers[1]["actions"] == ["save"]


def test_a_stop_comes_after_whatever_was_asked_with_it(run):
    order = []
    for name in ("stop", "save", "sample"):
        run.poller.declare_action(name, lambda name=name: order.append(name))
    run.ask(actions=["stop", "save", "sample"])
    run.go()

    assert order == ["save", "sample", "stop"]


def test_a_script_that_takes_nothing_is_not_sent_requests_without_end(run):
    run.poller.declare_action("save")
    for _ in range(70):
        run.ask(actions=["save"], expires_in_s=None)
        run.go()

    assert [answer["status"] for answer in run.answers] == ["refused"] * 6
    assert "already waiting" in run.answers[0]["reason"]
    assert len(run.poller.take_requests()) == 64


# ---------------------------------------------------------------- knobs


@pytest.mark.parametrize(
    ("declaration", "value", "reason"),
    [
        ({"kind": float, "low": 0.1, "high": 2.0}, 1e30, "lr must be 0.1 to 2.0, got 1e+30"),
        ({"kind": float, "low": 0.1}, 0, "lr must be 0.1 to any, got 0"),
        ({"kind": float}, "0.1", "lr must be a float, got '0.1'"),
        ({"kind": float}, True, "lr must be a float, got True"),
        ({"kind": int}, 0.5, "lr must be a int, got 0.5"),
        ({"kind": bool}, 1, "lr must be a bool, got 1"),
        ({"kind": str}, 1, "lr must be a str, got 1"),
        ({"kind": str, "choices": ["a", "b"]}, "c", "lr must be one of ('a', 'b'), got 'c'"),
    ],
)
def test_a_knob_out_of_type_or_bounds_is_refused_and_not_clamped(run, declaration, value, reason):
    run.poller.declare_knob("lr", **declaration)
    run.ask(knobs={"lr": value}, log_every=100)
    run.go()

    assert run.answer()["status"] == "refused"
    assert run.answer()["reason"] == reason
    assert run.poller.take_requests() == []
    assert run.poller.log_every == 10


def test_a_knob_that_no_one_took_keeps_its_value(run):
    run.poller.declare_knob("lr", float, value=1.0)
    run.ask(knobs={"lr": 2.0})
    run.go()
    run.poller.close()

    assert run.answer()["status"] == "expired"
    assert "knobs" not in run.answer()
    assert run.poller.declared()["knobs"]["lr"]["value"] == 1.0


# ---------------------------------------------------------------- declarations


@pytest.mark.parametrize(
    ("declaration", "named"),
    [
        ({"kind": list}, "kind must be bool, int, float or str"),
        ({"kind": "float"}, "kind must be bool, int, float or str, got 'float'"),
        ({"kind": float, "low": 2, "high": 1}, "low 2 is above high 1"),
        ({"kind": float, "low": float("nan")}, "low must be a finite number, got nan"),
        ({"kind": float, "high": True}, "high must be a finite number, got True"),
        ({"kind": float, "low": "0"}, "low must be a finite number, got '0'"),
        ({"kind": str, "low": 1}, "a str has no low"),
        ({"kind": bool, "high": 1}, "a bool has no high"),
        ({"kind": str, "choices": []}, "at least one value"),
        ({"kind": str, "choices": ["a", 1]}, "must be a str, got 1"),
        ({"kind": float, "low": 1, "choices": [0.5]}, "must be 1 to any, got 0.5"),
        ({"kind": float, "value": 5, "high": 1}, "must be any to 1, got 5"),
        ({"kind": float, "callback": 7}, "callback must be callable or None, got 7"),
    ],
)
def test_a_wrong_declaration_raises_and_names_what_is_wrong(run, declaration, named):
    with pytest.raises(ValueError, match=r"knob lr|lr must") as caught:
        run.poller.declare_knob("lr", **declaration)

    assert named in str(caught.value)
    assert run.poller.declared()["knobs"] == {}


# ---------------------------------------------------------------- the end


def test_a_run_that_ends_while_its_file_is_being_read_leaves_the_answer_to_the_next_session(run, monkeypatch):
    run.ask(log_every=100)
    read = control_file.read_request

    def read_slowly(folder):
        request = read(folder)
        run.poller.close()
        return request

    monkeypatch.setattr(control_file, "read_request", read_slowly)
    run.go()

    assert run.answers == []


def test_a_memory_of_answers_that_cannot_be_read_is_asked_again(tmp_path):
    run = Run(tmp_path)
    run.ask(log_every=100)

    def fail(request_id):
        raise OSError(5, "Input/output error")

    run.poller._was_answered, was_answered = fail, run.poller._was_answered
    run.go()
    run.poller._was_answered = was_answered
    run.go()

    assert run.answer()["status"] == "applied"


# ---------------------------------------------------------------- several ranks


def test_held_actions_wait_for_the_step_that_all_ranks_agreed_on(tmp_path):
    run = Run(tmp_path, hold=True)
    run.poller.declare_action("stop")
    run.ask(log_every=100, actions=["stop"], expires_in_s=60)
    run.go()
    (request,) = run.poller.held()

    assert run.poller.held() == ()
    assert run.poller.log_every == 100
    assert not run.poller.should_stop
    run.go(100)  # once handed over it does not expire: the other ranks may be about to stop
    assert run.answers == []

    run.poller.release(request)
    assert run.poller.ready
    run.poller.apply(41)

    assert run.poller.should_stop
    assert run.answer()["status"] == "applied"
    assert run.answer()["global_step"] == 41


def test_another_rank_applies_a_decision_once(tmp_path):
    run = Run(tmp_path, hold=True)
    run.poller.declare_action("save")
    request = ControlRequest(id="a", timestamp=0.0, actions=("save",))
    for _ in range(2):
        run.poller.release(request)
        run.poller.apply(41)

    assert [request.name for request in run.poller.take_requests()] == ["save"]
    assert len(run.answers) == 1


def test_a_rank_cannot_do_what_it_has_not_declared(tmp_path):
    run = Run(tmp_path, hold=True)
    run.poller.release(ControlRequest(id="a", timestamp=0.0, actions=("save",)))

    assert run.answer()["status"] == "refused"


def test_a_request_that_the_ranks_could_not_agree_on_is_refused(tmp_path):
    run = Run(tmp_path, hold=True)
    run.poller.declare_action("stop")
    request_id = run.ask(actions=["stop"])
    run.go()
    run.poller.held()
    run.poller.refuse(request_id, "rank 1 did not answer")
    run.poller.refuse(request_id, "rank 1 did not answer")

    assert run.answer()["status"] == "refused"
    assert not run.poller.should_stop


def test_a_held_request_that_no_one_fetched_expires(tmp_path):
    run = Run(tmp_path, hold=True)
    run.poller.declare_action("stop")
    run.ask(actions=["stop"], expires_in_s=60)
    run.go()
    run.go(100)

    assert run.answer()["status"] == "expired"
    assert run.poller.held() == ()


# ---------------------------------------------------------------- in any order

requests = st.fixed_dictionaries(
    {},
    optional={
        "log_every": st.integers(-10, 5000),
        "actions": st.lists(st.sampled_from(["save", "sample", "stop", "save_and_stop"]), max_size=3),
        "knobs": st.dictionaries(st.sampled_from(["lr", "undeclared"]), st.floats(0, 3), max_size=2),
        "expires_in_s": st.sampled_from([1.0, 20.0, 600.0, None]),
    },
).filter(lambda asked: asked.get("log_every") is not None or asked.get("actions") or asked.get("knobs"))

moves = st.one_of(
    st.tuples(st.just("ask"), requests),
    st.tuples(st.just("plain"), st.tuples(st.integers(-10, 5000), st.integers(-5, 5))),
    st.tuples(st.just("garbage"), st.sampled_from([b"{", b"[1]", b"\xff", b""])),
    st.tuples(st.just("wait"), st.floats(0.1, 40)),
    st.tuples(st.sampled_from(["poll", "apply", "take", "read_stop", "remove", "declare_save"]), st.none()),
)


@settings(max_examples=longer(40, 300), deadline=None)
@given(sequence=st.lists(moves, max_size=40), failing=st.booleans())
def test_every_request_seen_is_answered_exactly_once(tmp_path_factory, sequence, failing):
    folder = tmp_path_factory.mktemp("run", numbered=True)
    run = Run(folder)
    path = folder / "control.json"
    seen, current, doubtful = set(), None, None
    changes = []

    def sample():
        if failing:
            raise ValueError("no")

    run.poller.declare_action("sample", sample)
    run.poller.declare_action("stop")
    run.poller.declare_knob("lr", float, high=2.0)
    for move, argument in sequence:
        run.clock.advance(0.01)
        before = run.poller.log_every
        if move == "ask":
            current, doubtful = run.ask(**argument), None
        elif move == "plain":
            log_every, age = argument
            run.put({"log_every": log_every, "timestamp": run.clock.wall() - age})
            current, doubtful = control_file.read_request(folder).id, None
        elif move == "garbage":
            run.put(argument)
            current, doubtful = None, False
        elif move == "wait":
            run.clock.advance(argument)
        elif move == "poll":
            run.poller.poll()
            if current is not None:
                seen.add(current)
            elif doubtful:
                status = path.stat()
                seen.add(f"file-{status.st_mtime_ns}-{status.st_size}-{status.st_ino}")
            elif doubtful is False:
                doubtful = True
        elif move == "apply":
            run.poller.apply(run.step)
        elif move == "take":
            run.poller.take_requests()
        elif move == "read_stop":
            stopped = run.poller.should_stop
            assert run.poller.should_stop == stopped
        elif move == "declare_save":
            run.poller.declare_action("save")
        elif move == "remove":
            path.unlink(missing_ok=True)
            current, doubtful = None, None
        assert 5 <= run.poller.log_every <= 2000
        if run.poller.log_every != before:
            changes.append(run.clock.monotonic())
    run.poller.close()

    answered = [answer["id"] for answer in run.answers]
    assert sorted(answered) == sorted(seen)
    # A sum of seconds is rounded, and so is a difference.
    assert all(later - earlier >= 30 - 1e-6 for earlier, later in itertools.pairwise(changes))
    for answer in run.answers:
        assert answer["status"] in ("applied", "clamped", "refused", "expired", "superseded")
        assert (answer["status"] == "applied") == ("reason" not in answer)
        json.dumps(answer, allow_nan=False)


@pytest.fixture
def busy_threads():
    """Let the threads of a test take turns far more often than they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_threads")
def test_two_threads_at_once_still_give_each_request_one_answer(tmp_path):
    run = Run(tmp_path)
    run.poller.declare_action("save")
    run.poller.declare_action("stop")
    run.poller.declare_action("sample", lambda: None)
    done = threading.Event()

    def train():
        while not done.is_set():
            if run.poller.ready:
                run.poller.apply(1)
            run.poller.take_requests()
            assert run.poller.should_stop in (False, True)

    loop = threading.Thread(target=train)
    loop.start()
    asked = []
    for number in range(longer(100, 300)):
        kinds = (
            {"actions": ["save", "sample"]},
            {"actions": ["stop"]},
            {"log_every": 5 + number, "actions": ["save"]},
        )
        asked.append(run.ask(**kinds[number % 3], expires_in_s=(0.5, 600)[number % 2]))
        run.poller.poll()
        run.clock.advance(1)
    done.set()
    loop.join()
    run.poller.close()

    assert sorted(answer["id"] for answer in run.answers) == sorted(asked)
