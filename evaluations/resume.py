"""How often `telemetry why` says rightly whether a resume continued the same training, and names what broke it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evaluations.figures import Options, interval, say, table
from evaluations.resume_cases import CAUSES, HELD_OUT, RIGHT, TUNED_ON, Case, cases
from evaluations.resume_runs import make_all
from toolkit.telemetry.answers.evidence import read_evidence
from toolkit.telemetry.answers.resume import answer_resumes
from toolkit.telemetry.diagnostics.resume.judge import (
    DIFFERENT,
    FROM_START,
    SAME,
    SKIPPED,
    UNKNOWN,
    UNLISTED,
    Judgement,
)

PAGE: Final = "answers.md"
ALL: Final = "everything recorded"
SETTINGS: Final = "losses, lr and settings"
LOSSES: Final = "losses and lr alone"
_EVIDENCE: Final = (ALL, SETTINGS, LOSSES)
_KEPT: Final = {
    "step": ("event", "time", "seq", "session", "global_step", "train_loss", "lr"),
    "start": ("event", "time", "seq", "session", "run_name", "run_id", "resumed_from_step"),
    "end": ("event", "time", "seq", "session", "status"),
}
"""What is left of the records where losses and lr are all that there is."""


@dataclass(frozen=True, slots=True)
class Said:
    """What was said about a case: `same`, `cannot be said`, or the first cause."""

    case: Case
    said: str

    @property
    def is_right(self) -> bool:
        """Whether that is the truth."""
        return self.said == self.case.truth

    @property
    def is_different(self) -> bool:
        """Whether a cause was named."""
        return self.said not in (SAME, UNKNOWN)


def run(options: Options) -> str:
    """Make the runs, or take those that an earlier call made; judge them, and return the figures as Markdown."""
    wanted = cases([0], ["plain"]) if options.quick else cases([*TUNED_ON, *HELD_OUT])
    root = Path(tempfile.gettempdir()) / f"telemetry-resumed-runs-{_version()}"
    say(f"{len(wanted)} resumed trainings, in {root}")
    labels = make_all(wanted, root)
    there = [case for case in wanted if case.folder in labels]
    judged = {evidence: [Said(case, _said(root, case, evidence)) for case in there] for evidence in _EVIDENCE}
    every = [one for case in there for one in answer_resumes(read_evidence(root / case.folder))]
    against = sum(bool(contradictions(one)) for one in every)
    if options.list_errors:
        for evidence, said in judged.items():
            for one in said:
                if not one.is_right:
                    print(f"{one.case.name}, {_title(one.case.kind)}, {evidence}: {_title(one.said)}")
    return "\n\n".join(
        [
            (
                f"{len(there)} trainings that were killed and resumed: nine breakages and nine kinds of right resumes "
                f"of {len({case.trainer for case in there})} trainers. The judge was tuned on seeds 0 to 4 alone."
            ),
            _summary(judged),
            f"Answers that contradict their own evidence: {against} of {len(every)}.",
            "Said rightly, all trainers and seeds:",
            _by_kind(judged),
        ]
    )


def _summary(judged: dict[str, list[Said]]) -> str:
    rows = []
    for evidence, all_said in judged.items():
        for title, seeds in (("0 to 4", TUNED_ON), ("5 to 9, held out", HELD_OUT)):
            said = [one for one in all_said if one.case.seed in seeds]
            broken = [one for one in said if one.case.truth != SAME]
            right = [one for one in said if one.case.truth == SAME]
            if broken and right:
                wrong = sum(one.is_different for one in right)
                shares = [
                    _share(broken, lambda one: one.is_right),
                    _share(broken, lambda one: one.said == UNKNOWN),
                    _share(broken, lambda one: one.said == SAME),
                    f"{wrong} of {len(right)}, at most {interval(wrong, len(right))[1]:.3f}",
                    _share(right, lambda one: one.said == UNKNOWN),
                ]
                rows.append([evidence, title, *shares])
    broken_columns = ["broken: cause first", "cannot be said", "called same"]
    right_columns = ["right: called different, 95 % bound", "cannot be said"]
    return table(["evidence", "seeds", *broken_columns, *right_columns], rows)


def _by_kind(judged: dict[str, list[Said]]) -> str:
    rows = []
    for kind in (*CAUSES, *RIGHT):
        of_kind = [[one for one in said if one.case.kind == kind] for said in judged.values()]
        counts = [f"{sum(one.is_right for one in said)} of {len(said)}" for said in of_kind]
        most = Counter(one.said for one in of_kind[0] if not one.is_right).most_common(1)
        rows.append([_title(kind), *counts, f"{_title(most[0][0])} {most[0][1]}" if most else ""])
    return table(["truth", *_EVIDENCE, f"wrong with {ALL}"], rows)


def _title(kind: str) -> str:
    return CAUSES.get(kind) or RIGHT.get(kind) or kind


def _share(said: Sequence[Said], is_it: Callable[[Said], bool]) -> str:
    return f"{sum(map(is_it, said)) / len(said):.3f}"


def _said(root: Path, case: Case, evidence: str) -> str:
    folder = root / case.folder
    if evidence == ALL:
        return _answer(folder)
    with tempfile.TemporaryDirectory() as place:
        less = Path(place) / "run"
        less.mkdir()
        shutil.copy(folder / "run.json", less)
        records = (json.loads(line) for line in (folder / "metrics.jsonl").read_bytes().splitlines())
        kept = [_without(record, evidence) for record in records]
        (less / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in kept if one))
        return _answer(less)


def _without(record: dict[str, Any], evidence: str) -> dict[str, Any] | None:
    """Return a record without batches, states and code, and for `LOSSES` without settings."""
    names = _KEPT.get(record["event"], ())
    if evidence == SETTINGS:
        return record if names or record["event"] in ("eval", "epoch", "checkpoint") else None
    return {name: record[name] for name in names if name in record} or None


def _answer(folder: Path) -> str:
    found = answer_resumes(read_evidence(folder))
    return (found[0].cause or found[0].answer) if found else UNKNOWN


def contradictions(found: Judgement) -> list[str]:
    """Return where the answer, its sentence and its rows do not say the same; none for every answer."""
    rows, losses = found.evidence, [row for row in found.evidence if row.is_loss]
    shown = [row for row in rows if row.cause == found.cause and not row.is_loss]
    is_data = found.cause in (FROM_START, SKIPPED)
    unseen = [row for row in rows if row.note == "differs, no effect seen"]
    checks = {
        "same, and a row that differs": found.answer == SAME and any(row.differs for row in rows),
        "same by the state alone, and all losses differ": found.how.endswith("state that was loaded")
        and bool(losses)
        and all(row.differs is not False for row in losses),
        "to the last digit, and a loss that differs": found.how == "to the last digit"
        and any(row.before != row.after for row in losses),
        "nearly certain, and something differs": found.answer == SAME
        and bool(unseen)
        and found.probability > 0.9,
        "what differs is not named": found.answer == SAME
        and any(row.what not in found.sentence for row in unseen),
        "a cause of which every row is equal": found.answer == DIFFERENT
        and bool(shown)
        and all(row.differs is False for row in shown),
        "other data, and the batches are equal": is_data
        and any(row.what == "first batches" and row.differs is False for row in rows),
        "not recorded, and a row that differs": found.cause == UNLISTED
        and any(row.differs and row.cause for row in rows),
        "cannot be said, and nothing is needed": found.answer == UNKNOWN and not found.needed,
    }
    return [what for what, is_so in checks.items() if is_so]


def _version() -> str:
    """Return a name for runs that were made by this code."""
    here = Path(__file__).parent
    texts = [here / f"resume_{name}.py" for name in ("breakages", "cases", "runs")]
    texts += sorted(here.glob("resume_scripts/*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in texts)).hexdigest()[:10]
