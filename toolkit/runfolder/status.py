"""How a run is doing, worked out from what it left behind, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.runfolder.manifest import Manifest
from toolkit.runfolder.process import boot_id, host_name, is_alive, pid_namespace

RUNNING = "running"
FINISHED = "finished"
FAILED = "failed"
STOPPED = "stopped"
STALLED = "stalled"
LOST = "lost"

_SAID_BY_A_RUN = frozenset({FINISHED, FAILED, STOPPED, LOST})

HEARTBEAT_S = 15.0
"""A run whose last sign of life is younger than this is running: it gives one every 5 seconds."""

GIVEN_UP_S = 300.0
"""On another machine or in another container, where the process cannot be looked up, this much silence is its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A run's state, why we think so, and whether that is known or only judged by age."""

    name: str
    why: str
    sure: bool


def work_out_status(manifest: Manifest, now: float, *, last_sign: float | None = None) -> Status:
    """Return how the run behind `manifest` is doing at wall time `now`.

    `last_sign` is a later sign of life than the manifest's own heartbeat, where the caller knows one.
    """
    session = manifest.latest
    if session is None:
        return Status(name=LOST, why="it never began a session", sure=True)
    if session.status not in (RUNNING, *_SAID_BY_A_RUN):
        # The word is shown on pages and in terminals, and a run folder may be anybody's.
        return Status(
            name=LOST, why=f"it calls itself {ascii(session.status)[:40]}, which is no status", sure=True
        )
    if session.status != RUNNING:
        return Status(name=session.status, why=session.reason or "the run said so itself", sure=True)

    beats = [session.started]
    if manifest.heartbeat is not None:
        beats.append(manifest.heartbeat.time)
    if last_sign is not None:
        beats.append(last_sign)
    age = now - max(beats)
    if session.host != host_name():
        return _by_age_alone(age, session.host)
    if session.boot_id is not None and session.boot_id != boot_id():
        return Status(name=LOST, why="the machine was restarted since", sure=True)
    if session.pid_namespace is not None and session.pid_namespace != pid_namespace():
        # Process 7 of a container is not process 7 here.
        return _by_age_alone(age, f"process {session.pid} of another container on {session.host}")
    alive = is_alive(session.pid, session.pid_started)
    if alive is None:
        return _by_age_alone(age, session.host)
    if not alive:
        return Status(name=LOST, why=f"process {session.pid} is gone and left no end record", sure=True)
    if age <= HEARTBEAT_S:
        return Status(name=RUNNING, why=_last_sign(age), sure=True)
    return Status(name=STALLED, why=f"process {session.pid} lives, but was silent for {age:.0f} s", sure=True)


def _by_age_alone(age: float, where: str) -> Status:
    if age <= HEARTBEAT_S:
        return Status(name=RUNNING, why=f"{_last_sign(age)}, from {where}", sure=False)
    name = STALLED if age <= GIVEN_UP_S else LOST
    return Status(name=name, why=f"no sign of life from {where} for {age:.0f} s", sure=False)


def _last_sign(age: float) -> str:
    if age < -HEARTBEAT_S:
        # Two clocks that disagree are shown, not hidden: the age of anything of this run is a guess.
        return f"last sign of life {-age:.0f} s ahead of this machine's clock"
    return f"last sign of life {max(age, 0.0):.0f} s ago"
