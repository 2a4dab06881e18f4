"""Whether a resumed session continues the training that it was resumed from, and if not, why: one judge for all.

What is compared, strongest first: the steps that were done twice, batches, the state at save and load, the learning
rate, settings and code; without any of them, the level of the loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise, takewhile
from typing import Any, Final

from toolkit.telemetry.diagnostics.resume import losses as resume_losses
from toolkit.telemetry.diagnostics.resume.losses import Departure
from toolkit.telemetry.runfolder.evidence.batches import Batches
from toolkit.telemetry.runfolder.records import Record

SAME: Final = "same"
DIFFERENT: Final = "different"
UNKNOWN: Final = "cannot be said"

OPTIMIZER: Final = "optimizer_lost"
SCHEDULE: Final = "schedule_restarted"
FROM_START: Final = "data_from_start"
SKIPPED: Final = "data_skipped"
CONTENT: Final = "data_changed"
RNG: Final = "rng"
SCALER: Final = "scaler_lost"
SIZE: Final = "batch_size"
CHECKPOINT: Final = "wrong_checkpoint"
STATE_PART: Final = "state_differs"
OTHER: Final = "code_or_config"
UNLISTED: Final = "not_recorded"

CAUSES: Final = {
    CHECKPOINT: "the weights are not those of the checkpoint",
    SIZE: "the world size or the batch size changed",
    OPTIMIZER: "the optimizer's state was lost",
    SCHEDULE: "the learning rate schedule was restarted",
    FROM_START: "the data began again",
    SKIPPED: "data were skipped",
    CONTENT: "the data under the same path changed",
    SCALER: "the loss scaler's state was lost",
    STATE_PART: "a part of the state is not that of the checkpoint",
    OTHER: "the code or the configuration changed",
    RNG: "the random numbers were not restored",
    UNLISTED: "nothing that was recorded explains the other loss",
}
"""What each cause means, in the order in which they are named where several are seen: the first explains the others."""

STATE, DATA, RANDOM = "weights and state", "data", "random numbers"
SETTINGS, CODE, NOT_RECORDED = "settings", "code", "not recorded"
AREAS: Final = {
    **dict.fromkeys((CHECKPOINT, OPTIMIZER, SCHEDULE, SCALER, STATE_PART), STATE),
    **dict.fromkeys((FROM_START, SKIPPED, CONTENT), DATA),
    SIZE: SETTINGS,
    RNG: RANDOM,
    OTHER: SETTINGS,
    UNLISTED: NOT_RECORDED,
}
"""Where each cause is to be looked for."""

_WORDS: Final = ((0.97, "nearly certain"), (0.9, "very likely"), (0.75, "likely"), (0.0, "a guess"))
_NAMED: Final = 0.5
"""A cause that is less likely is one of several that may be."""
CERTAIN: Final = 0.98
LIKELY: Final = 0.9
_UNSEEN: Final = "differs, no effect seen"
_BATCHES: Final = "first batches"
_POSITION: Final = "epoch and batch of the data"
_ALIKE: Final = {
    "weights": "norm of weights",
    "batches": _BATCHES,
    "optimizer's state": "optimizer's step",
    "settings": "settings",
    "code": "code",
}
"""What a sentence calls equal, by the row that shows it."""
_UNRECORDED: Final = "labels, the data's content, precision"
_ROUNDING, _HALF_ROUNDING = 1e-5, 1e-2
"""By so much of it a loss of equal weights and batches may differ: sums of 32 or 16 bits in another order."""
_GUESS: Final = 0.3
"""How often the first cause is right that only the way shows in which the losses depart, of listed and other ones."""
_WARM_UP_ASKED: Final = "with a warm-up after the resume, as the settings ask for"
_SEED_ASKED: Final = "with another seed, as the settings ask for"
_EVALUATED: Final = "with evaluations at other steps, which may draw random numbers"
_ASKED: Final = (_WARM_UP_ASKED, _SEED_ASKED, _EVALUATED)
_MAY_BE_ASKED: Final = "differs, may be asked for"
_SETTINGS: Final = (
    "the settings of both sessions, log_start(config=...): another seed or a warm-up may have been asked for"
)
_ROUNDED: Final = 5e-5
"""By so much of it the norm of weights changes that were saved in half precision."""
_MOST_BATCHES: Final = 2_000
_ENOUGH: Final = 3
"""So many steps after the resume show what an optimizer, a schedule and a scaler do."""
_HARMLESS: Final = re.compile(
    r"eval|valid|test|save|sav|log|print|checkpoint|ckpt|resum|output|dir|path|folder|worker|prefetch|pin_memory|report"
    r"|wandb|tensorboard|name|tag|note|host|port|rank|device|verbose|progress|profile|telemetry|version|max_steps|epochs"
    r"|total_steps|job_|time|seconds|command|sample(?!r)",
    re.IGNORECASE,
)
"""Settings that do not change what is trained, or only how long."""
_WARM_AGAIN: Final = re.compile(
    r"re.?warm|warm.?up.*(resum|restart)|(resum|restart).*warm.?up", re.IGNORECASE
)
_SIZES: Final = re.compile(
    r"batch_?size|accumulat|world_size|num_(processes|nodes|gpus)|devices", re.IGNORECASE
)
_RATES: Final = re.compile(r"learning_rate|^lr$|\.lr$|schedul|warm.?up", re.IGNORECASE)
_EVALUATION: Final = re.compile(r"eval|valid|val_", re.IGNORECASE)
_SCALING: Final = re.compile(r"fp16|float16|half|loss_scal|grad_scal|16-mixed", re.IGNORECASE)
_HALF: Final = re.compile(r"bf16|fp16|b?float16|fp8|float8|^half$|16-mixed", re.IGNORECASE)
_SEED: Final = re.compile(r"seed", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, as far as it was recorded."""

    step: int
    fingerprint: int
    samples: int
    ids: frozenset[Any] = frozenset()


@dataclass(slots=True)
class Side:
    """What is known of the training before a resume, or of the session after it. Values are by step."""

    loss: dict[int, float] = field(default_factory=dict)
    lr: dict[int, float] = field(default_factory=dict)
    epoch: dict[int, float] = field(default_factory=dict)
    states: list[Record] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, str] = field(default_factory=dict)
    """What is at each path of the data: its hash and size, see `data_of`."""
    batches: Sequence[Batch] = ()
    resumed_from: int | None = None
    """What its start record says."""
    changed_code: Sequence[str] | None = None
    """Files whose text is not that of the session before; None where the code of one of them was not kept."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One thing that was compared."""

    what: str
    before: str
    after: str
    differs: bool | None
    """None: it differs, but for a reason that is no fault."""
    cause: str = ""
    """Which cause a difference shows."""
    note: str = ""

    @property
    def is_loss(self) -> bool:
        """Whether it is a loss of a step that was done twice."""
        return self.what.startswith("loss of step")

    @property
    def said(self) -> str:
        """What came of it, in words."""
        return self.note or {True: "differs", False: "equal", None: "differs, no fault"}[self.differs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is said about one resume."""

    session: int
    answer: str
    """`same`, `different` or `cannot be said`."""
    cause: str = ""
    """Of a different training, one of `CAUSES`; else empty."""
    step: int = 0
    """The step that was resumed from."""
    probability: float = 0.0
    """That the answer is right, as measured."""
    cause_probability: float = 0.0
    evidence: Sequence[Compared] = ()
    needed: Sequence[str] = ()
    others: Sequence[str] = ()
    """Further causes that were seen, or that the losses do not exclude."""
    how: str = ""
    """Of the same training: `to the last digit`, `within the noise`, or what else it rests on."""
    doubles: int = 0
    """How many losses exist twice."""
    runs: Sequence[str] = ()
    """Both names, where the resume is no session but a run of its own, which looks like the continuation."""

    @property
    def area(self) -> str:
        """Where the cause is to be looked for, one of `AREAS`; empty where none is named."""
        is_code = any(row.differs and row.what == "code" for row in self.evidence)
        return CODE if self.cause == OTHER and is_code else AREAS.get(self.cause, "")

    @property
    def sure(self) -> str:
        """How sure the answer is: a word, and the share of such answers that were right on the measured resumes."""
        if self.answer == UNKNOWN:
            return "not sure"
        text = _in_words(self.probability)
        if not self.cause:
            return text
        is_named = self.cause_probability >= _NAMED
        return f"{text}, of the cause {_in_words(self.cause_probability) if is_named else 'not sure'}"

    @property
    def sentence(self) -> str:
        """The answer in words."""
        begin = f"Session {self.session} was resumed from step {self.step:,}"
        begin = begin if self.step else f"Session {self.session} began at step 0 again"
        if self.runs:
            before, after = self.runs
            begin = f"{after} looks like the continuation of {before} from step {self.step:,}"
        many = {0: "no loss exists", 1: "one loss exists"}.get(self.doubles, f"{self.doubles:,} losses exist")
        if self.answer == SAME:
            unseen = ", ".join(row.what for row in self.evidence if row.note == _UNSEEN)
            also = f" Differs, with no effect seen: {unseen}." if unseen else ""
            return (
                f"{begin} and continued the same training as far as recorded, {self.how}: {many} twice.{also}"
            )
        if self.answer == DIFFERENT:
            if self.cause_probability < _NAMED:
                fits = "; ".join(CAUSES[cause] for cause in (self.cause, *self.others[:2]))
                need = f" To know it, record {'; '.join(self.needed)}." if self.needed else ""
                text = f"{begin} and did not continue the same training: {many} twice."
                return f"{text} It may be: {fits}; or what was not recorded: {_UNRECORDED}.{need}"
            others = "".join(f"; {CAUSES[cause]}" for cause in self.others[:2])
            shown = next((row for row in self.evidence if row.differs and row.cause == self.cause), None)
            what = f" ({shown.what}: {shown.before} before, {shown.after} after)" if shown is not None else ""
            also = f" Also possible, or seen too: {others[2:]}." if others else ""
            why = self._not_recorded() if self.cause == UNLISTED else CAUSES[self.cause]
            text = f"{begin} and did not continue the same training: {why}{what}"
            return f"{text}; {many} twice.{also}"
        need = f" Needed: {'; '.join(self.needed)}." if self.needed else ""
        differ = (row for row in self.evidence if row.differs or row.note in (_MAY_BE_ASKED, _SEED_ASKED))
        unseen = ", ".join(row.what for row in differ if not row.is_loss)
        also = f" Differs, and may have acted: {unseen}." if unseen else ""
        return f"{begin}; whether it continued the same training cannot be said: {many} twice.{also}{need}"

    def _not_recorded(self) -> str:
        equal = {row.what for row in self.evidence if row.differs is False}
        named = [name for name, what in _ALIKE.items() if what in equal]
        rest = "the loss function and the model's forward"
        rest = f"what arguments or the environment choose of {rest}" if "code" in equal else rest
        other = f"the same {', '.join(named)} give another loss" if named else CAUSES[UNLISTED]
        known = {
            "the data's content": any(what.startswith("content of") for what in equal),
            "precision": "precision" in equal,
        }
        lacking = ", ".join(what for what in _UNRECORDED.split(", ") if not known.get(what))
        return f"{other}. Not recorded: {lacking}, {rest}"

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {**asdict(self), "area": self.area, "sure": self.sure, "sentence": self.sentence}


def _in_words(probability: float) -> str:
    return f"{next(word for least, word in _WORDS if probability >= least)} ({probability:.2f})"


def judge(old: Side, new: Side, session: int = 0) -> Judgement:
    """Compare a session with the training that it was resumed from: `old` has the newest of every earlier step."""
    step, is_set = resumed_at(new), bool(old.settings and new.settings)
    seen = resume_losses.compare(old.loss, new.loss, step)
    rows = [
        *_losses(seen),
        *_settings(old, new),
        *_states(old, new, step),
        *_batches(old, new, step),
        *_rates(old, new, step),
        *_code(new),
        *_data(old, new),
    ]
    excused: dict[str, str] = {}
    if any(row.what == _BATCHES and row.differs is False for row in rows):
        # The batches themselves say more than the place that was written for them.
        excused[_POSITION] = _UNSEEN
    elif any(row.note == _SEED_ASKED for row in rows):
        # Most scripts take the order of the data from the same seed.
        excused[_BATCHES] = _SEED_ASKED
    rows = [
        replace(row, differs=None, note=excused[row.what]) if row.differs and row.what in excused else row
        for row in rows
    ]
    # What differs first, and of that what has a cause.
    rows.sort(key=lambda row: (row.differs is False, not (row.differs and row.cause)))
    needed = _needed(old, new, seen)
    made = Judgement(
        session=session, answer=UNKNOWN, step=step, doubles=seen.count, evidence=rows, needed=needed
    )

    def same(sure: float, how: str) -> Judgement:
        # No row calls a fault what the answer does not.
        shown = [
            replace(row, differs=None, note="" if row.is_loss else _UNSEEN) if row.differs else row
            for row in rows
        ]
        sure = min(sure, LIKELY) if any(row.note == _UNSEEN for row in shown) else sure
        return replace(made, answer=SAME, probability=sure, how=how, evidence=shown)

    def different(sure: float, causes: Sequence[str], cause_sure: float) -> Judgement:
        found = replace(made, answer=DIFFERENT, cause=causes[0], others=causes[1:])
        return replace(found, probability=sure, cause_probability=cause_sure)

    def unlisted(sure: float) -> Judgement:
        left = [cause for cause in CAUSES if cause not in (*right, STATE_PART, UNLISTED)]
        return replace(different(sure, [UNLISTED, *left], LIKELY), needed=[*needed, _MORE_STATE])

    is_equal = seen.count and seen.is_equal and seen.last - step >= _ENOUGH
    # The first loss is of the weights that were loaded: it has no time to drift.
    is_apart = seen.count and seen.steps[0] == step + 1 and not _is_close(*seen.pairs[0], _ROUNDING)
    is_near = seen.count and seen.size < resume_losses.WITHIN
    set_otherwise = {row.cause for row in rows if row.differs and row.what.startswith("setting")}
    faults = [cause for cause in CAUSES if any(row.differs and row.cause == cause for row in rows)]
    # What the losses exclude, though a row differs: it acted on none of them, or was restored later.
    excluded: set[str] = set()
    if is_equal:
        excluded |= {*CAUSES} - {SCALER, STATE_PART}
    elif is_near and len(seen.alike) >= _ENOUGH:
        excluded |= {*CAUSES} - {SIZE, SCHEDULE, OTHER, STATE_PART}
    if is_near:
        excluded.add(RNG)
    if not seen.departs and not is_apart:
        excluded |= {CONTENT, OTHER} - set_otherwise
    faults = [cause for cause in faults if cause not in excluded]
    if faults:
        # They may have been restored after the state was recorded.
        sure = LIKELY if faults == [RNG] and not seen.departs else CERTAIN
        return different(sure, faults, sure)
    if is_equal:
        return same(CERTAIN, "to the last digit")
    right = {row.cause for row in rows if row.differs is False} - {row.cause for row in rows if row.differs}
    if new.settings and not _scales(new.settings):
        right.add(SCALER)
    if right & {FROM_START, SKIPPED}:
        right |= {FROM_START, SKIPPED}
    on_purpose = [row.note for row in rows if row.differs is None and row.note in _ASKED]
    if is_apart and not seen.departs and not on_purpose and {CHECKPOINT, FROM_START, RNG} <= right:
        return unlisted(LIKELY)
    if on_purpose and seen.count and seen.size < resume_losses.SMALL:
        return same(LIKELY, on_purpose[0])
    if any(row.note == _MAY_BE_ASKED for row in rows):
        return replace(made, needed=[*needed, _SETTINGS])
    # Sums of 32 bits in another order do not do more; half the bits do, and so may what was not recorded.
    rounds = seen.count and seen.farthest <= (
        _HALF_ROUNDING if _is_half(old) and _is_half(new) else _ROUNDING
    )
    if len(seen.alike) > 1 and seen.departs and seen.size < resume_losses.SMALL and SCHEDULE in right:
        # All that the checkpoint holds was used by then. Evaluations at other steps draw random numbers, too.
        last = seen.steps[len(seen.alike) - 1]
        return same(LIKELY, f"equal up to step {last:,}, where other random numbers were drawn")
    if seen.departs and seen.count > 1:
        fit = resume_losses.causes_of(seen, old.loss, new.loss, step, _epochs(old))
        fit = [cause for cause in dict.fromkeys(fit) if cause not in right]
        if _SEED_ASKED in on_purpose and fit[:1] not in ([CHECKPOINT], [OTHER]):
            return replace(made, needed=[*needed, "losses of the same seed"])
        if not is_set and fit[:1] == [RNG]:
            return replace(made, needed=[*needed, _SETTINGS])
        # Of code that was not kept nothing is known.
        unkept = {OTHER} if is_set and new.changed_code is None and OTHER not in set_otherwise else set()
        if not set(fit) - unkept:
            return unlisted(0.97 if seen.size >= resume_losses.SMALL else LIKELY)
        return different(0.97, fit, _GUESS)
    if rounds and is_near and (seen.last - step >= _ENOUGH or len(seen.alike) > 1) and not is_apart:
        return same(0.97, "within the noise")
    if resume_losses.is_jump(resume_losses.level_jump(old.loss, new.loss, step)) and not on_purpose:
        fit = [cause for cause in (CHECKPOINT, OPTIMIZER, OTHER) if cause not in right]
        return different(LIKELY, fit, _GUESS) if fit else unlisted(LIKELY)
    # Losses that are there and differ say more than the state does, and without any, other code may do anything.
    is_by_state = not (seen.departs or is_apart or any(row.differs and not row.is_loss for row in rows))
    if (
        is_by_state
        and (rounds or not seen.count)
        and {CHECKPOINT, OPTIMIZER} <= right
        and {SCHEDULE, FROM_START} & right
    ):
        if FROM_START in right:
            return same(0.95, "by the state that was loaded")
        return same(0.85, "by the state that was loaded, where the data went on is not recorded")
    if seen.count and not rounds:
        needed = [*needed, _PRECISION]
    return replace(made, needed=needed or [_MORE_STATE])


def resumed_at(new: Side) -> int:
    """Return the step that a session was resumed from."""
    loads = [state.get("global_step") for state in new.states if state.get("at") == "load"]
    if loads and type(loads[-1]) is int:
        return loads[-1]
    first = min((*new.loss, *new.lr), default=0) - 1
    stated = new.resumed_from
    return stated if stated is not None and stated <= first else max(first, 0)


def _losses(seen: Departure) -> Iterable[Compared]:
    for at, (before, after) in list(zip(seen.steps, seen.pairs, strict=True))[:8]:
        yield Compared(f"loss of step {at:,}", repr(before), repr(after), before != after)


# ------------------------------------------------------------ settings and code


def _settings(old: Side, new: Side) -> Iterable[Compared]:
    names = dict.fromkeys((*old.settings, *new.settings)) if old.settings and new.settings else {}
    if names and old.settings == new.settings:
        yield Compared("settings", "", "the same", False)
    for name in names:
        before, after = old.settings.get(name), new.settings.get(name)
        if before == after or (name == "learning_rate" and _is_measured(old, new)):
            continue
        cause, note = OTHER, ""
        differs: bool | None = True
        if _WARM_AGAIN.search(name):
            cause, note, differs = SCHEDULE, _WARM_UP_ASKED, None
        elif _SEED.search(name):
            cause, note, differs = RNG, _SEED_ASKED, None
        elif _SIZES.search(name):
            cause = SIZE
        elif _HARMLESS.search(name):
            differs = None
            if _EVALUATION.search(name):
                cause, note = RNG, _EVALUATED
        yield Compared(f"setting {name}", _text(before), _text(after), differs, cause, note)


def _is_measured(old: Side, new: Side) -> bool:
    """Return whether the learning rate in the start records is that of the first step, of a schedule that moves."""
    moves = len(set(old.lr.values())) > 1
    return moves and all(
        side.lr and _is_close(side.settings.get("learning_rate"), side.lr[min(side.lr)])
        for side in (old, new)
    )


def _epochs(side: Side) -> list[int]:
    """Return the first step of each epoch, as far as records have one."""
    # A fraction belongs to the epoch that it is part of: the last step of the first one is at 1.0.
    numbers = {at: math.ceil(value - 1e-9) for at, value in side.epoch.items() if math.isfinite(value)}
    begun = [at for one, at in pairwise(sorted(numbers)) if numbers[one] != numbers[at]]
    return [min(side.loss, default=0), *begun]


def _code(new: Side) -> Iterable[Compared]:
    if new.changed_code is not None:
        files = ", ".join(new.changed_code[:5])
        yield Compared("code", "", files or "the same files", bool(files), OTHER)


def data_of(start: Record) -> dict[str, str]:
    """Return what a start record says of the content of each path of the data."""
    found = start.get("data")
    items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    return {
        str(item.get("path")): f"{item['hash']}, {item.get('bytes')} bytes"
        for item in items
        if item.get("hash")
    }


def _data(old: Side, new: Side) -> Iterable[Compared]:
    for path in [path for path in old.data if path in new.data]:
        before, after = old.data[path], new.data[path]
        yield Compared(f"content of {path}", before, after, before != after, CONTENT)


def _text(value: Any) -> str:
    return "not set" if value is None else repr(value) if type(value) is float else str(value)[:80]


# ------------------------------------------------------------ state

_OF_STATE: Final = {
    "weights_norm": ("norm of weights", CHECKPOINT),
    "optimizer_states": ("optimizer's states", OPTIMIZER),
    "optimizer_step": ("optimizer's step", OPTIMIZER),
    "moment1_norm": ("norm of first moments", OPTIMIZER),
    "moment2_norm": ("norm of second moments", OPTIMIZER),
    "scheduler_step": ("scheduler's step", SCHEDULE),
    "scheduler_lr": ("scheduler's learning rate", SCHEDULE),
    "optimizer_lr": ("optimizer's learning rate", SCHEDULE),
    "scaler_scale": ("loss scale", SCALER),
    "world_size": ("world size", SIZE),
    "batch_size": ("batch size", SIZE),
    "accumulation": ("accumulated batches", SIZE),
    "buffers_norm": ("norm of buffers", STATE_PART),
    "precision": ("precision", OTHER),
    "autocast_dtype": ("precision of autocast", OTHER),
    "weights_dtype": ("precision of weights", OTHER),
    "rng_torch": ("torch's random state", RNG),
    "rng_cuda": ("the GPU's random state", RNG),
}
_NO_STATE: Final = frozenset(
    "event time elapsed seq session rank at global_step checkpoint epoch data_position rng_hash".split()
)
_MORE_STATE: Final = (
    'a hash of the labels and of the data, and the precision: log.state("save", step, labels=...), '
    "and the same at load"
)
_PRECISION: Final = (
    "the precision that is computed in, as a setting or `log.state(…, precision=…)`: the losses differ by more than "
    "rounding in 32 bits does"
)


def _states(old: Side, new: Side, step: int) -> Iterable[Compared]:
    """Compare what was loaded with what the checkpoint of the same step was saved with."""
    saves = [one for one in old.states if one.get("at") == "save" and one.get("global_step") == step]
    loads = [one for one in new.states if one.get("at") in ("load", "start")]
    if not saves or not loads:
        return
    saved, loaded = saves[-1], loads[0]
    is_asked = any(
        old.settings.get(name) != value
        for name, value in new.settings.items()
        if _WARM_AGAIN.search(name) or _RATES.search(name) or _SEED.search(name)
    )
    # First those of one optimizer or model, whose names end with its own: they say which it is.
    ranks = {name: rank for rank, name in enumerate(_OF_STATE)}
    for name in sorted((one for one in saved if one not in _NO_STATE), key=lambda one: ranks.get(one, -1)):
        part = next((one for one in _OF_STATE if name.startswith(f"{one}_")), name)
        what, cause = _OF_STATE.get(part, (name, STATE_PART))
        what = what if part == name else f"{what} of {name.removeprefix(part)[1:]}"
        before, after = saved.get(name), loaded.get(name)
        if before is None or (after is None and cause != OPTIMIZER):
            continue
        is_rounded = name == "weights_norm" and _is_close(before, after, _ROUNDED)
        is_excused = is_rounded or (is_asked and (part.endswith("_lr") or cause == RNG))
        if cause == STATE_PART and (name.startswith("rng_") or _HARMLESS.search(name)):
            # A script that does not use a generator does not restore it.
            is_excused, cause = True, ""
        if cause == RNG and loaded.get("at") != "load":
            continue
        differs = not _is_close(before, after, 1e-6 if cause == STATE_PART else 1e-7)
        yield Compared(what, _text(before), _text(after), None if differs and is_excused else differs, cause)
    before, after = ((one.get("epoch"), one.get("data_position")) for one in (saved, loaded))
    if all(isinstance(one, (int, float)) for one in (*before, *after)):
        cause = FROM_START if after <= before else SKIPPED
        yield Compared(_POSITION, _text(before), _text(after), before != after, cause)


def _is_close(before: Any, after: Any, by: float = 1e-7) -> bool:
    if isinstance(before, (int, float)) and isinstance(after, (int, float)):
        return math.isclose(before, after, rel_tol=by, abs_tol=1e-12)
    return bool(before == after)


# ------------------------------------------------------------ batches


def batches_of(found: Batches, session: int) -> list[Batch]:
    """Return the first and the newest batches of one session."""
    rows = [at for at, number in enumerate(found.session) if number == session and found.step[at] >= 0]
    rows = rows if len(rows) <= 2 * _MOST_BATCHES else [*rows[:_MOST_BATCHES], *rows[-_MOST_BATCHES:]]
    return [
        Batch(found.step[at], found.fingerprint[at], found.samples[at], frozenset(found.ids(at) or ()))
        for at in rows
    ]


def _batches(old: Side, new: Side, step: int) -> Iterable[Compared]:
    """Find where in the data the first batches after the resume are from."""
    now = [one for one in new.batches if one.step > step]
    before = [one for one in old.batches if one.step <= step]
    left = [one for one in old.batches if one.step > step]
    if not now or not (before or left):
        return
    was, is_now = (
        (sum(one.samples for one in side if one.step == side[0].step), side[0].samples)
        for side in (left or before, now)
    )
    if was != is_now:
        yield Compared("samples of a step, of a batch", _text(was), _text(is_now), True, SIZE)
        return
    order, later, found = ([one.fingerprint for one in side] for side in (before, left, now))
    differs, cause, note = True, FROM_START, ""
    count = min(len(later), len(found))
    if later and later[:count] == found[:count]:
        differs, note = False, f"{count} batches are equal"
    elif not later and order[-1] in order[:-1] and order[order.index(order[-1]) + 1] == found[0]:
        differs, note = False, "the order of each epoch is the same"
    elif found[0] in order:
        note = f"the first one is that of step {before[order.index(found[0])].step:,}"
    elif found[0] in later:
        cause, note = SKIPPED, f"{later.index(found[0])} batches were left out"
    elif later:
        used = frozenset[Any]().union(*(one.ids for one in _open_epoch(before)))
        cause, note = FROM_START if used & now[0].ids else SKIPPED, "no batch before is like the first one"
    else:
        return
    yield Compared(_BATCHES, _hex(later or order[-3:]), _hex(found), differs, cause, note)


def _open_epoch(batches: Sequence[Batch]) -> list[Batch]:
    """Return the last batches of which no sample came twice: those of the epoch that was not over."""
    seen: set[Any] = set()
    found: list[Batch] = []
    for one in reversed(batches):
        if not one.ids or not seen.isdisjoint(one.ids):
            break
        seen |= one.ids
        found.append(one)
    return found


def _hex(prints: Sequence[int]) -> str:
    return " ".join(f"{one:016x}"[:8] for one in prints[:3])


# ------------------------------------------------------------ learning rate


def _rates(old: Side, new: Side, step: int) -> Iterable[Compared]:
    both = [at for at in new.lr if at > step and at in old.lr]
    changed = [name for name in new.settings if old.settings.get(name) != new.settings[name]]
    note = _WARM_UP_ASKED if any(_WARM_AGAIN.search(name) for name in changed) else ""
    is_set = old.settings and any(_RATES.search(name) for name in changed) and not _is_measured(old, new)
    cause = OTHER if is_set and not note else SCHEDULE
    if both:
        off = [at for at in both if not _is_close(old.lr[at], new.lr[at])]
        at = (off or both)[0]
        before, after, is_off = old.lr[at], new.lr[at], bool(off)
        lag = is_off and at > step + 1 and abs(after - before) < 0.1 * abs(before)
        if lag and (_is_close(old.lr.get(at - 1), after) or _scales(new.settings)):
            # The schedule waited: an update with infinite gradients was left out.
            cause = SCALER
    else:
        known = [(at, old.lr[at]) for at in sorted(old.lr) if at <= step][-3:]
        coming = [(at, new.lr[at]) for at in sorted(new.lr) if at > step][:_ENOUGH]
        if len(known) < 3 or not coming:
            return
        for at, after in coming:
            before, is_off = _is_off(known, at, after)
            if is_off:
                break
            known = [*known[1:], (at, after)]
        again = any(_is_close(old.lr.get(at - step + shift), after) for shift in (0, -1, 1))
        if is_off and not again and not note:
            # A schedule may jump by itself, at the end of an epoch for example.
            note = "it jumps, and nothing shows what it would have been"
    is_known = (old.settings and new.settings) or cause == SCALER or _begins_again(old.lr, new.lr, step)
    if is_off and not is_known:
        note = _MAY_BE_ASKED
    differs = is_off if not note else None if is_off else False
    yield Compared(f"learning rate of step {at:,}", repr(before), repr(after), differs, cause, note)


def _begins_again(old: Mapping[int, float], new: Mapping[int, float], step: int) -> bool:
    """Return whether the rates after a step are those of the beginning, past a warm-up, which may be asked for."""
    for shift in (0, -1, 1):
        pairs = [(old.get(at - step + shift), new[at]) for at in sorted(new) if at > step]
        again = [after for before, after in takewhile(lambda pair: _is_close(*pair), pairs)]
        if len(again) >= _ENOUGH and any(after < before for before, after in pairwise(again)):
            return True
    return False


def _is_off(known: Sequence[tuple[int, float]], at: int, rate: float) -> tuple[float, bool]:
    """Return what a schedule, never below 0, comes to that bends slowly, and whether `rate` is not near it."""
    (first, low), (middle, half), (last, high) = known
    slope, slope_before = (high - half) / (last - middle), (half - low) / (middle - first)
    line = max(0.0, high + slope * (at - last))
    bend = 4 * abs(slope - slope_before) * (at - last)
    return line, abs(rate - line) > max(bend, 0.02 * abs(line)) + 1e-12


def _scales(settings: Mapping[str, Any]) -> bool:
    """Return whether the settings ask for a loss scale."""
    return any(
        _SCALING.search(name if value is True else str(value))
        for name, value in settings.items()
        if value is True or type(value) is str
    )


def _is_half(side: Side) -> bool:
    """Return whether it is recorded that 16 bits or fewer are computed with."""
    names = [str(value if value is not True else name) for name, value in side.settings.items() if value]
    kinds = [
        str(state.get(name))
        for state in side.states
        for name in ("weights_dtype", "autocast_dtype", "precision")
    ]
    return any(_HALF.search(text) for text in (*names, *kinds))


def _needed(old: Side, new: Side, seen: Departure) -> list[str]:
    """Return what would say more, or say it more surely."""
    lacking = {
        "steps that were done twice, with losses that are numbers": seen.count < 2,
        "batches: log.batch(ids) in both sessions, or an integration that records them": not (
            old.batches and new.batches
        ),
        "the state at save and load: log.state(...), or an integration that records it": not (
            any(one.get("at") == "save" for one in old.states) and new.states
        ),
        "the learning rate of each step": not (old.lr and new.lr),
    }
    return [text for text, is_lacking in lacking.items() if is_lacking]
