"""What was found in a run, and whether it is right: the fault, the rank, the part of the step, and when."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.rank_faults.cases import NO_FAULT, Case

KINDS: Final = {
    "killed": ("rank_dead",),
    "stopped": ("rank_silent",),
    "slow by 10 %": ("straggler",),
    "slow by 30 %": ("straggler",),
    "slow by 100 %": ("straggler",),
    "slow disk": ("straggler",),
    "slow data loader": ("straggler",),
    "NaN": ("rank_nan",),
    "other code": ("rank_differs",),
    "other data": ("rank_differs",),
    "node dies": ("rank_dead", "rank_silent"),
}
"""Findings that name a fault."""
OF_RANKS: Final = frozenset(kind for kinds in KINDS.values() for kind in kinds)
_RANK: Final = re.compile(r"rank(_\d+)?")


@dataclass
class Result:
    """One run, and the findings of rank 0, or of `telemetry doctor` where rank 0 is what died."""

    case: Case
    findings: list[dict[str, Any]] = field(default_factory=list)
    """The first record of each, in the order of time."""
    struck_at: float | None = None
    steps: int = 0
    """The last step of rank 0."""
    seconds: float = 0.0
    """From the first step to rank 0's last record."""
    problem: str = ""


def result_of(case: Case, place: Path) -> Result:
    """Read what a run has left."""
    found = Result(case)
    try:
        began = min(_times(place, "began"))
        times = _times(place, "fault")
        found.struck_at = min(times, default=None)
        records = [
            json.loads(line) for line in (place / "logs" / "run" / "metrics.jsonl").read_bytes().splitlines()
        ]
    except (OSError, ValueError) as error:
        found.problem = str(error)
        return found
    seen: set[tuple[str, str]] = set()
    for record in records:
        if record.get("event") == "step":
            found.steps = record["global_step"]
        if record.get("event") == "finding":
            about = _about(record, record["time"], "live")
            if (key := (record["id"], json.dumps(about["ranks"]))) not in seen:
                seen.add(key)
                found.findings.append(about)
    found.seconds = round(records[-1]["time"] - began, 2)
    doctor = place / "doctor.json"
    if doctor.exists():
        found.findings += json.loads(doctor.read_text())
    if case.fault != NO_FAULT and found.struck_at is None:
        found.problem = "the fault was not reached"
    return found


def _times(place: Path, what: str) -> list[float]:
    # A rank that was killed by another one may have been writing its own.
    texts = [path.read_text() for path in place.glob(f"{what}-*")]
    return [json.loads(text)["time"] for text in texts if text.endswith("}")]


def ask_doctor(case: Case, place: Path) -> bool:
    """Ask `telemetry doctor` about a run whose rank 0 is gone or stopped; keep the answer once it names a rank."""
    from toolkit.telemetry.diagnostics.history import diagnose

    diagnosis = diagnose(place / "logs" / "run")
    now = time.time()
    found = [_about(finding.to_fields(), now, "doctor") for finding in diagnosis.findings]
    mine = [
        each for each in found if each["kind"] in KINDS[case.fault] and set(case.ranks) & set(each["ranks"])
    ]
    if mine:
        (place / "doctor.json").write_text(json.dumps(mine))
    return bool(mine)


def _about(record: dict[str, Any], time_s: float, by: str) -> dict[str, Any]:
    evidence = record.get("evidence") or {}
    return {
        "kind": record["kind"],
        "severity": record["severity"],
        "metric": record["metric"],
        "state": record["state"],
        "time": time_s,
        "step": record["noticed_step"],
        "ranks": sorted(int(value) for name, value in evidence.items() if _RANK.fullmatch(name)),
        "ratio": evidence.get("ratio"),
        "message": record["message"],
        "by": by,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How well a run was read."""

    is_detected: bool
    """A finding of the fault's kind after the fault, about any rank."""
    is_right_rank: bool
    """The first of them that names all of the faulty ranks names no other."""
    is_right_part: bool | None
    """None where a fault has no part."""
    seconds: float | None
    false_alarms: tuple[str, ...]
    """Warnings about ranks that are wrong: before the fault, of another kind, or about another rank."""


def judge(result: Result) -> Judgement:
    """Return how well a run was read."""
    case = result.case
    kinds = KINDS.get(case.fault, ())
    wanted = set(case.ranks)
    if case.fault == "other data" and case.variant == 0:
        # It gets the batches of the rank after it: nothing says which of the two is wrong.
        wanted.add((case.ranks[0] + 1) % case.world)
    first: dict[str, Any] | None = None
    named: dict[str, Any] | None = None
    wrong: list[str] = []
    for finding in result.findings:
        if finding["kind"] not in OF_RANKS or finding["severity"] == "info" or finding["state"] != "open":
            continue
        is_after = result.struck_at is not None and finding["time"] >= result.struck_at
        ranks = set(finding["ranks"])
        if not is_after or not ranks <= wanted or not _is_of(finding["kind"], case.fault):
            wrong.append(f"{finding['kind']}: {finding['message']}")
        elif finding["kind"] in kinds:
            first = first or finding
            if ranks == wanted:
                named = named or finding
    right = named or first
    return Judgement(
        is_detected=first is not None,
        is_right_rank=named is not None,
        is_right_part=_part_is_right(case, right) if right is not None else None,
        seconds=None if right is None or result.struck_at is None else right["time"] - result.struck_at,
        false_alarms=tuple(wrong),
    )


def _is_of(kind: str, fault: str) -> bool:
    """Return whether a kind follows from a fault: other data may also be slow, a dead rank is silent first."""
    return kind in KINDS.get(fault, ()) or (fault in ("killed", "stopped") and kind.startswith("rank_"))


def _part_is_right(case: Case, finding: dict[str, Any]) -> bool | None:
    metric, message = finding["metric"], finding["message"]
    if case.fault.startswith("slow by"):
        return str(metric) in ("time/forward", "time/backward", "time/training_iteration")
    if case.fault == "slow data loader":
        return str(metric) == "time/data_loading"
    if case.fault == "slow disk":
        part = "write_predictions" if case.variant else "checkpoint_save"
        return part in metric or (bool(case.variant) and "outside of the timed parts" in message)
    if case.fault == "node dies":
        return f"node{case.ranks[0] // case.on_node}" in message
    if case.fault == "other code":
        return "model.py" in message
    if case.fault == "other data":
        return "data" in message
    return None


def seconds_of(result: Result) -> str:
    """Return a line about a run, for the screen."""
    found, case = judge(result), result.case
    about = "" if found.seconds is None else f" after {found.seconds:.1f} s"
    words = (
        f"{'detected' if found.is_detected else 'not detected'}{about}" if case.fault != NO_FAULT else "clean"
    )
    words += "" if found.is_right_rank or not found.is_detected else ", not the right rank"
    words += ", not the right part" if found.is_right_part is False else ""
    wrong = "".join(f"\n    false alarm: {each}" for each in found.false_alarms)
    about = f"{case.world} ranks, {result.steps} steps, {result.seconds:.0f} s"
    return f"{case.name} ({about}): {words} {result.problem}{wrong}"
