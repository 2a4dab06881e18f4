"""The status of a run, derived from its manifest and process, and how certain it is."""

from __future__ import annotations

from typing import NamedTuple

from toolkit.telemetry.runfolder.manifest import Manifest
from toolkit.telemetry.runfolder.process import boot_id, host_name, is_alive, pid_namespace

RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"
STOPPED = "stopped"
STALLED = "stalled"
LOST = "lost"

_FINAL = frozenset({FINISHED, FAILED, STOPPED, LOST})

HEARTBEAT_TIMEOUT_S = 15.0
"""A run with a sign of life within this time is running: it writes a heartbeat every 5 seconds."""

GIVEN_UP_S = 300.0
"""On another machine or in another container, where the process cannot be looked up, this much silence means lost."""

STALL_S = 60.0
STALL_TIMES = 20.0
"""Steps have stalled after a minute without one that is also twenty times longer than a step usually takes.

That is longer than a slow batch, a retry or a busy disk. The time ledger and the `stalled` detector use these limits.
"""


class Status(NamedTuple):
    """The state of a run, the reason, and whether it is certain or judged by age alone."""

    name: str
    why: str
    sure: bool


def work_out_status(manifest: Manifest, now: float, *, last_sign: float | None = None) -> Status:
    """Return the status of a run at wall time `now`; `last_sign` is a sign of life later than its heartbeat."""
    session = manifest.latest
    if session is None:
        return Status(name=LOST, why="it never started a session", sure=True)
    if session.status not in (RUNNING, *_FINAL):
        # The text is shown on pages and in terminals, and a run folder is not trusted.
        return Status(
            name=LOST, why=f"run.json has the invalid status {ascii(session.status)[:40]}", sure=True
        )
    if session.status != RUNNING:
        return Status(name=session.status, why=session.reason or "recorded by the run itself", sure=True)

    beats = [session.started]
    if manifest.heartbeat is not None:
        beats.append(manifest.heartbeat.time)
    if last_sign is not None:
        beats.append(last_sign)
    age = now - max(beats)
    if manifest.is_copy:
        # It is usually a minute old: until then silence means nothing, nor does a process that has ended since.
        return _by_age_alone(age, f"a copy of the run on {session.host}", GIVEN_UP_S)
    if session.host != host_name():
        return _by_age_alone(age, session.host)
    if session.boot_id is not None and session.boot_id != boot_id():
        return Status(name=LOST, why="the machine was restarted since then", sure=True)
    if session.pid_namespace is not None and session.pid_namespace != pid_namespace():
        # Process 7 of a container is not process 7 here.
        return _by_age_alone(age, f"process {session.pid} of another container on {session.host}")
    alive = is_alive(session.pid, session.pid_started)
    if alive is None:
        return _by_age_alone(age, session.host)
    if not alive:
        return Status(name=LOST, why=f"process {session.pid} is gone and left no end record", sure=True)
    if age <= HEARTBEAT_TIMEOUT_S:
        return Status(name=RUNNING, why=_last_sign(age), sure=True)
    return Status(
        name=STALLED, why=f"process {session.pid} is alive but has been silent for {age:.0f} s", sure=True
    )


def _by_age_alone(age: float, where: str, running_s: float = HEARTBEAT_TIMEOUT_S) -> Status:
    if age <= running_s:
        return Status(name=RUNNING, why=f"{_last_sign(age)}, from {where}", sure=False)
    name = STALLED if age <= GIVEN_UP_S else LOST
    return Status(name=name, why=f"no sign of life from {where} for {age:.0f} s", sure=False)


def _last_sign(age: float) -> str:
    if age < -HEARTBEAT_TIMEOUT_S:
        # The clocks disagree. Show it: every age in this run is a guess.
        return f"last sign of life {-age:.0f} s ahead of this machine's clock"
    return f"last sign of life {max(age, 0.0):.0f} s ago"
