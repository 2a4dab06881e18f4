"""Groups jobs by `perf_tag` (comparable speed) and `session_tag` (parts of the same task)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from toolkit.runfolder.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One session of a run: what a cluster calls a job."""

    run_id: str
    run_name: str
    session: int
    started: float
    perf_tags: tuple[str, ...]
    """Empty if no perf_tag was set."""
    session_tag: str
    """The run's id by default: sessions of one run continue each other's work."""


def jobs_of(manifests: Iterable[Manifest]) -> list[Job]:
    """Return every session of these runs, oldest first."""
    jobs = []
    for manifest in manifests:
        tag = manifest.run_id
        for session in manifest.sessions:
            # A session that resumes in the same folder without its own tag continues the work of the one before it.
            if session.session_tag not in (None, manifest.run_id):
                tag = session.session_tag
            jobs.append(
                Job(
                    run_id=manifest.run_id,
                    run_name=manifest.display_name,
                    session=session.session,
                    started=session.started,
                    perf_tags=_separated(session.perf_tag),
                    session_tag=tag,
                )
            )
    return sorted(jobs, key=lambda job: (job.started, job.run_id, job.session))


def by_perf_tag(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Return the jobs of each perf_tag, which should be equally fast; a job may have several tags."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        for tag in job.perf_tags:
            groups.setdefault(tag, []).append(job)
    return groups


def by_session_tag(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Return the jobs of each session_tag, which are parts of the same task."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.session_tag, []).append(job)
    return groups


def _separated(tags: str | None) -> tuple[str, ...]:
    stripped = (tag.strip() for tag in (tags or "").split(","))
    # Remove duplicates, keep the order.
    return tuple(dict.fromkeys(tag for tag in stripped if tag))
