"""Takes what the control file asks to the training loop, and gives each request its one answer."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.core.clock import Clock
from toolkit.telemetry.core.guard import Guard, describe_error
from toolkit.telemetry.logger.control.control_file import ControlFile
from toolkit.telemetry.logger.control.declarations import Declarations
from toolkit.telemetry.logger.control.requests import (
    LOG_EVERY,
    STOPPING,
    Case,
    Newest,
    Request,
    answer_fields,
)
from toolkit.telemetry.runfolder.control import (
    LOG_EVERY_HIGH,
    LOG_EVERY_LOW,
    LOG_EVERY_PAUSE_S,
    ControlRefused,
    ControlRequest,
)
from toolkit.telemetry.runfolder.layout import CONTROL

_FINDING: Final = "finding"
_MAX_OPEN: Final = 64


class ControlPoller:
    """Watches one control file on a background thread, and hands over what it asks between two steps.

    `poll` belongs to the background thread; `apply`, `take_requests` and `should_stop` to the training thread, which
    never waits for a file. Each request that was seen ends in exactly one call of `answer`.

    With `hold`, as several ranks need it, actions and knobs are not applied until `release` says so: they come out of
    `held`, once each, and go in again through `release` at the step that all ranks agreed on.
    """

    def __init__(
        self,
        run_folder: Path,
        *,
        run_id: str,
        clock: Clock,
        session_started: float,
        log_every: int,
        answer: Callable[[Mapping[str, Any]], None],
        notify: Callable[[], None],
        was_answered: Callable[[str], bool],
        guard: Guard | None = None,
        hold: bool = False,
    ) -> None:
        self.log_every = log_every
        """The interval in force."""
        self.ready = False
        """Whether `apply` has something to do: a plain attribute, so that asking costs the loop nothing."""
        self._run_id = run_id
        self._clock = clock
        self._answer = answer
        self._notify = notify
        self._was_answered = was_answered
        self._guard = guard or Guard()
        self._hold = hold

        self._declared = Declarations()
        # For the background thread alone.
        self._file = ControlFile(run_folder, session_started=session_started, guard=self._guard)
        self._oldest = session_started

        # Re-entrant, because a signal handler may read `should_stop` while its own thread is in here.
        # Held for a few memory operations at a time, never during I/O, a callback or an answer.
        self._lock = threading.RLock()
        self._handled = Newest()
        self._own = Newest()
        self._open: dict[str, Case] = {}
        self._held: list[Case] = []
        self._waiting: list[Case] = []
        self._interval: Case | None = None
        self._next_change = -math.inf
        # Each step looks at these three, and calls nothing if there is nothing new.
        self.outbox: list[tuple[Case, Request]] = []
        self._answers: deque[Mapping[str, Any]] = deque()
        self.stop_asked = False
        self.has_stopped = False
        self._closed = False

    # ------------------------------------------------------------ what the script can be asked for

    def declare_action(self, name: str, callback: Callable[[], object] | None = None) -> None:
        """Let the run be asked for `name`: see `Declarations.add_action`."""
        with self._lock:
            self._declared.add_action(name, callback)

    def declare_knob(self, name: str, kind: type, **limits: Any) -> None:
        """Let the run be asked to set `name`: see `Declarations.add_knob`."""
        with self._lock:
            self._declared.add_knob(name, kind, **limits)

    def declared(self) -> dict[str, Any]:
        """Return what the run can be asked for, as the manifest lists it."""
        with self._lock:
            return self._declared.described()

    # ------------------------------------------------------------ the background thread

    def poll(self) -> None:
        """Look at the control file once; does nothing but one `lstat` while it stays as it was."""
        if self._closed:
            return
        now = self._clock.wall()
        # A clock that was set back must not make every new request look old.
        self._oldest = min(self._oldest, now)
        with self._guard.catch(f"looking at {CONTROL}"):
            self._file.look(now, partial(self._accept, now))
        with self._lock:
            self._expire(now)
        self._announce()

    def ask(self, request: ControlRequest) -> None:
        """Take a request that a finding makes, on a background thread; it is answered like any other."""
        with self._lock:
            if self._closed or request.id in self._handled:
                return
            self._handled.add(request.id)
            self._own.add(request.id)
            self._admit(request, self._undeclared(request))
        self._announce()

    def held(self) -> tuple[ControlRequest, ...]:
        """Return the requests that wait for `release`, each once; they no longer expire: other ranks count on them."""
        with self._lock:
            cases = [case for case in self._held if not case.handed_over]
            for case in cases:
                case.handed_over = True
        return tuple(case.request for case in cases)

    def refuse(self, request_id: str, reason: str) -> None:
        """Answer what is left of a request with a refusal; nothing happens where it is already answered."""
        with self._lock:
            case = self._open.get(request_id)
            if case is not None:
                self._settle_waiting(case, "refused", reason)
        self._send_answers()

    def _announce(self) -> None:
        """Send the answers, and say where something new is due."""
        with self._lock:
            ready = self._something_is_due()
            newly_ready = ready and not self.ready
            self.ready = ready
        self._send_answers()
        if newly_ready:
            self._notify()

    # ------------------------------------------------------------ the training thread

    def release(self, request: ControlRequest) -> None:
        """Let the next `apply` do what `request` asks; on other ranks, where it is not known yet, take it in first."""
        with self._lock:
            if request.id not in self._handled and not self._closed:
                self._handled.add(request.id)
                self._admit(request, self._undeclared(request))
            case = self._open.get(request.id)
            if case is not None and case in self._held:
                self._held.remove(case)
                self._waiting.append(case)
            self.ready = self._something_is_due()
        self._send_answers()

    def apply(self, global_step: int | None) -> None:
        """Do what is due, between two steps. Never raises for a failing callback, and never waits."""
        with self._lock:
            self._expire(self._clock.wall())
            cases, self._waiting = self._waiting, []
            deliveries = [(case, request) for case in cases for request in case.deliveries]
            for case, request in deliveries:
                case.running.add(request.name)
                case.global_step = global_step
            if self._interval is not None and self._clock.monotonic() >= self._next_change:
                self._interval.global_step = global_step
                self._change_interval(self._interval)
            self.ready = False
        undelivered = deque(deliveries)
        try:
            while undelivered:
                self._deliver(*undelivered.popleft())
        finally:
            # Not empty when a callback let an interrupt of the user's pass: these wait for their expiry or the end.
            for case, request in undelivered:
                case.running.discard(request.name)
            self._send_answers()

    def take_requests(self) -> list[Request]:
        """Return what was asked and has no callback, oldest first, each one once."""
        with self._lock:
            taken, self.outbox = self.outbox, []
            self.has_stopped = self.has_stopped or self.stop_asked
            self.stop_asked = False
            for case, request in taken:
                self._settle_delivered(case, request)
        self._send_answers()
        return [request for _, request in taken]

    @property
    def should_stop(self) -> bool:
        """Whether the run was asked to stop; once true it stays true."""
        if not self.stop_asked:
            return self.has_stopped
        with self._lock:
            self.has_stopped = True
            self.stop_asked = False
            for case, request in self.outbox:
                if request.name in STOPPING:
                    self._settle_delivered(case, request)
            # A loop that reads only this has stopped; the save of a save_and_stop can still be taken.
            self.outbox = [entry for entry in self.outbox if entry[1].name != "stop"]
        self._send_answers()
        return True

    def close(self, reason: str = "the run ended first") -> None:
        """Answer what is left; from here on nothing is looked at or applied."""
        with self._lock:
            self._closed = True
            self.ready = False
            for case in [*self._open.values()]:
                for part in [*case.running]:  # a callback that closes the run is being delivered right now
                    self._settle(case, part, "applied")
                self._settle_waiting(case, "expired", reason)
            self.outbox = []
        self._send_answers()

    # ------------------------------------------------------------ from the file to a case

    def _accept(self, now: float, request_id: str, found: ControlRequest | ControlRefused) -> None:
        """Open a case for what was found, or answer it at once; nothing at all where it was answered before."""
        if request_id in self._handled:
            return
        was_answered = self._was_answered(request_id)
        self._handled.add(request_id)
        if was_answered:
            return
        with self._lock:
            if self._closed:  # meanwhile: the next session says that it came too late
                return
            if isinstance(found, ControlRefused):
                self._answers.append(answer_fields(request_id, "refused", [found.reason]))
                return
            if self._admit(found, self._objection(found, now)):
                # Not beyond now: one wrong clock must not make every later request look old.
                self._oldest = max(self._oldest, min(found.timestamp, now))

    def _admit(self, request: ControlRequest, objection: tuple[str, str] | None) -> bool:
        """Open a case for `request`, or turn it away with the status and the reason of the `objection`."""
        if objection is None:
            self._open_case(request)
            return True
        status, reason = objection
        case = Case(request=request, actions={}, deliveries=[], status=status, reasons=[reason])
        self._answers.append(case.answer(self.log_every))
        return False

    def _objection(self, request: ControlRequest, now: float) -> tuple[str, str] | None:
        """Return the status and the reason with which `request` is turned away; None if it is to be done."""
        if request.run_id is not None and request.run_id != self._run_id:
            return "refused", f"it is for the run {request.run_id!a:.80}, and this is {self._run_id!a:.80}"
        if request.timestamp < self._oldest:
            return "expired", "it is older than this session or than a request already taken"
        if request.expires is not None and now > request.expires:
            return "expired", f"it expired {now - request.expires:.0f} s ago"
        if max(len(self._open), len(self.outbox)) >= _MAX_OPEN:
            return "refused", f"{_MAX_OPEN} requests are already waiting for the training script"
        return self._undeclared(request)

    def _undeclared(self, request: ControlRequest) -> tuple[str, str] | None:
        reason = self._declared.objection_to(request)
        return None if reason is None else ("refused", reason)

    def _open_case(self, request: ControlRequest) -> None:
        actions = {action: self._declared.parts_of(action) for action in request.actions}
        names = dict.fromkeys(part for parts in actions.values() for part in parts)
        case = Case(
            request=request,
            actions=actions,
            # A stop comes last: what else was asked is done before the loop ends.
            deliveries=[
                *(
                    Request(name, self._declared.knobs[name].checked(value), request.id)
                    for name, value in request.knobs.items()
                ),
                *(
                    Request(name, None, request.id)
                    for name in sorted(names, key=lambda name: name in STOPPING)
                ),
            ],
        )
        self._open[request.id] = case
        case.left.update(delivery.name for delivery in case.deliveries)
        if case.deliveries:
            (self._held if self._hold else self._waiting).append(case)
        if request.log_every is not None:
            case.left.add(LOG_EVERY)
            if self._interval is not None:
                self._settle(self._interval, LOG_EVERY, "superseded", f"request {request.id} came after it")
            self._interval = case

    # ------------------------------------------------------------ from a case to its answer

    def _something_is_due(self) -> bool:
        return bool(self._waiting) or (
            self._interval is not None and self._clock.monotonic() >= self._next_change
        )

    def _change_interval(self, case: Case) -> None:
        asked = case.request.log_every
        assert asked is not None
        case.old = self.log_every
        case.new = self.log_every = min(max(asked, LOG_EVERY_LOW), LOG_EVERY_HIGH)
        self._next_change = self._clock.monotonic() + LOG_EVERY_PAUSE_S
        self._interval = None
        if case.new == asked:
            self._settle(case, LOG_EVERY, "applied")
        else:
            limits = f"log_every is {LOG_EVERY_LOW} to {LOG_EVERY_HIGH}"
            self._settle(case, LOG_EVERY, "clamped", limits)

    def _deliver(self, case: Case, request: Request) -> None:
        knob = self._declared.knobs.get(request.name)
        callback = self._declared.callback_of(request.name)
        if callback is None:
            with self._lock:
                case.running.discard(request.name)
                if request.name in case.left:
                    self.outbox.append((case, request))
                    self.stop_asked = self.stop_asked or request.name in STOPPING
            return
        arguments = () if knob is None else (request.value,)
        doing = f"the callback of {request.name}"
        with self._guard.catch(doing) as block:
            callback(*arguments)
        why = None if block.raised is None else f"{doing} raised {describe_error(block.raised)}"
        # Its traceback holds on to what the callback has on the device.
        del block
        with self._lock:
            if why is None:
                self.has_stopped = self.has_stopped or request.name in STOPPING
                self._settle_delivered(case, request)
            else:
                self._settle(case, request.name, "refused", why)

    def _settle_delivered(self, case: Case, request: Request) -> None:
        if request.name not in case.left:
            return
        knob = self._declared.knobs.get(request.name)
        if knob is not None:
            case.knobs[request.name] = {"old": knob.value, "new": request.value}
            knob.value = knob.checked(request.value)
        case.delivered.add(request.name)
        self._settle(case, request.name, "applied")

    def _settle_waiting(self, case: Case, status: str, reason: str) -> None:
        """Settle every part that is not being delivered now, and take it out of the way."""
        for part in case.left - case.running:
            self._settle(case, part, status, reason)
        for queue in (self._held, self._waiting):
            if case in queue:
                queue.remove(case)
        if self._interval is case:
            self._interval = None
        # An action that was seen through `should_stop` stays to be taken, although its case is closed.
        self.outbox = [
            entry for entry in self.outbox if entry[0] is not case or entry[1].name in case.delivered
        ]
        self.stop_asked = any(
            request.name in STOPPING and request.name in owner.left for owner, request in self.outbox
        )

    def _settle(self, case: Case, part: str, status: str, reason: str | None = None) -> None:
        """Note how one part of a request ended; the last one makes the answer."""
        if part not in case.left:
            return
        if case.settle(part, status, reason):
            del self._open[case.request.id]
            self._answers.append(case.answer(self.log_every))

    def _expire(self, now: float) -> None:
        for case in [*self._open.values()]:
            expires = case.request.expires
            if expires is not None and now > expires and not case.handed_over:
                self._settle_waiting(case, "expired", "it expired before the training script took it")

    def _send_answers(self) -> None:
        while self._answers:
            try:
                fields = self._answers.popleft()
            except IndexError:  # the other thread was faster
                return
            # An answer that cannot be given must not take along what its caller is about to hand to the script.
            with self._guard.catch("answering a request"):
                self._answer({**fields, "source": _FINDING} if fields["id"] in self._own else fields)
