"""Completions of TRL's trainers: what GRPO and RLOO generate, and what DPO, KTO, ORPO and CPO learn from.

Nothing is computed twice or waited for. Generated completions are in the trainer's own logs; the others are read from
the batches that the trainer computes its loss from, copied from the device after the work queued there.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.method_patches import Following, MethodPatches
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.records.completions.completion_recorder import CompletionRecorder
from toolkit.telemetry.logger.records.media import Snapshot, snapshot

TRAIN: Final = "train"
EVAL: Final = "eval"

_GENERATING: Final = {"GRPOTrainer": "grpo", "RLOOTrainer": "rloo"}
_LEARNING: Final = {"DPOTrainer": "dpo", "KTOTrainer": "kto", "ORPOTrainer": "orpo", "CPOTrainer": "cpo"}
_LOSS_OF: Final = {"orpo": "odds_ratio_loss", "cpo": "cpo_loss"}
"""Methods that take a batch's log-probabilities and return the rewards of its examples."""
_COMPUTES_REWARDS: Final = "_compute_loss"
"""The method in which DPO and KTO compute rewards, as local variables."""
_TEXTS: Final = ("prompt", "chosen", "rejected")
_TOKENS: Final = ("input_ids", "attention_mask", "completion_mask")
_MAX_DECODED: Final = 32
"""Examples of one step whose tokens are decoded, which takes some 100 µs each on the training thread."""
_PATIENCE_S: Final = 1.0
"""How long the end of the training waits for batches on their way."""


class TrainerCompletions:
    """Collects completions of one trainer while it trains, in one of every `interval` steps, until `stop`."""

    def __init__(self, trainer: Any, kind: str, recorder: CompletionRecorder, guard: Guard) -> None:
        self.guard = guard
        self._trainer, self._kind, self._recorder = trainer, kind, recorder
        self._patches = patches = MethodPatches(guard)
        self._collected: dict[str, tuple[int, int]] = {}
        """For training and evaluation: the step that was collected last, and how many of its completions."""
        self._current: _Batch | None = None
        self._waiting: deque[_Batch] = deque()
        if kind in _GENERATING.values():
            patches.follow(trainer, "_generate_and_score_completions", self._record_generated)
            return
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self._decode: Callable[[list[int]], str] = tokenizer.decode
        patches.follow(trainer, "compute_loss", self._collect_batch)
        if kind in _LOSS_OF:
            patches.follow(trainer, _LOSS_OF[kind], self._add_rewards)
        else:
            for name in ("gather", "gather_for_metrics"):
                patches.wrap(trainer.accelerator, name, self._reading_rewards)

    @classmethod
    def of(cls, trainer: Any, log: TelemetryLogger) -> TrainerCompletions | None:
        """Begin to collect; None if this trainer has no completions, or not on this rank, or they are not kept."""
        recorder, kind = internals(log).completions, kind_of(trainer)
        if (
            recorder is None
            or not recorder.options.collect
            or kind is None
            or not trainer.is_world_process_zero()
        ):
            return None
        return cls(trainer, kind, recorder, log.guard)

    def stop(self) -> None:
        """Write what has been collected, and restore the trainer's methods."""
        self._patches.undo()
        with self.guard.catch("collecting completions"):
            until = time.monotonic() + _PATIENCE_S
            while self._waiting and not self._write_arrived() and time.monotonic() < until:
                time.sleep(0.001)

    def _due(self, most: int) -> tuple[str, int, int]:
        """Return whether this is training or evaluation, the step, and how many of its completions to take now."""
        trainer = self._trainer
        split = TRAIN if trainer.model.training else EVAL
        step = int(trainer.state.global_step) + (split == TRAIN)
        last, taken = self._collected.get(split, (None, 0))
        if step == last:
            return split, step, max(0, most - taken)
        interval = self._recorder.options.interval
        is_due = last is None or not last < step < last + interval or step == trainer.state.max_steps
        return split, step, most if is_due else 0

    def _count(self, split: str, step: int, count: int) -> None:
        last, taken = self._collected.get(split, (None, 0))
        self._collected[split] = step, count + (taken if step == last else 0)

    # What a trainer generates.

    def _record_generated(self, inputs: Sequence[Any], *_: Any, **__: Any) -> Following:
        yield
        trainer, recorder = self._trainer, self._recorder
        split, step, wanted = self._due(recorder.options.buffer)
        if not wanted:
            return
        # Not public, but the trainer writes its own tables from it, with the completions of all processes.
        rows = _newest_rows(trainer._logs, len(inputs) * trainer.accelerator.num_processes)  # noqa: SLF001
        weights = dict(zip(trainer.reward_func_names, trainer.args.reward_weights or (), strict=False))
        for row in rows[:wanted]:
            rewards = {name: value for name, value in row.pop("rewards").items() if math.isfinite(value)}
            # As the trainer adds them up: a reward that does not apply to an example is left out.
            reward = (
                sum(value * weights.get(name, 1.0) for name, value in rewards.items()) if rewards else None
            )
            context = {"kind": self._kind, "split": split, "batch_size": len(rows)}
            recorder.put(step, {**row, "reward": reward, "rewards": rewards, **context}, source=split)
        self._count(split, step, min(wanted, len(rows)))

    # What a trainer learns from.

    def _collect_batch(
        self, _: Any = None, inputs: Mapping[str, Any] | None = None, *__: Any, **___: Any
    ) -> Following:
        self._current = batch = None
        self._write_arrived()
        split, step, wanted = self._due(_MAX_DECODED)
        if wanted and inputs is not None:
            batch = self._current = _Batch.of(inputs, split=split, step=step, wanted=wanted)
        if batch is not None:
            self._count(split, step, batch.count)
        yield
        self._current = None
        if batch is not None:
            self._waiting.append(batch)
            self._write_arrived()

    def _add_rewards(self, *_: Any, **__: Any) -> Following:
        losses, chosen, rejected, *_rest = yield
        if self._current is not None:
            self._current.add_rewards(chosen, rejected)
            if self._kind == "orpo":
                self._current.add_log_odds(losses, float(self._trainer.beta))

    def _reading_rewards(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._current is not None:
                with self.guard.catch("collecting rewards"):
                    self._read_rewards(sys._getframe(1))  # noqa: SLF001 - rewards are locals of the caller
            return original(*args, **kwargs)

        return call

    def _read_rewards(self, frame: Any) -> None:
        """Take the rewards from the local variables of the calling method, if it is the one that computes them."""
        if frame.f_code.co_name != _COMPUTES_REWARDS or self._current is None or self._current.has_rewards:
            return
        names = frame.f_locals
        chosen, rejected = names.get("chosen_rewards"), names.get("rejected_rewards")
        if chosen is not None and rejected is not None:
            self._current.add_rewards(chosen, rejected, names.get("chosen_idx"), names.get("rejected_idx"))

    def _write_arrived(self) -> bool:
        """Write the batches that have arrived, in order, and return whether all have."""
        while self._waiting and self._waiting[0].has_arrived:
            batch = self._waiting.popleft()
            context = {"kind": self._kind, "split": batch.split, "batch_size": batch.size}
            for fields in batch.examples(self._decode):
                self._recorder.put(batch.step, {**fields, **context}, source=batch.split)
        return not self._waiting


def kind_of(trainer: Any) -> str | None:
    """Return which of TRL's trainers with completions `trainer` is or derives from; None for any other."""
    known = {**_GENERATING, **_LEARNING}
    for base in type(trainer).__mro__:
        if base.__module__.partition(".")[0] == "trl" and base.__name__ in known:
            return known[base.__name__]
    return None


def _newest_rows(logs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the last `count` completions in a trainer's logs, each with its rewards by function."""
    prompts, completions = list(logs["prompt"])[-count:], list(logs["completion"])[-count:]
    columns = {"advantage": list(logs["advantages"])[-count:]}
    columns |= {f"extra/{name}": list(values)[-count:] for name, values in logs.get("extra", {}).items()}
    rewards = {name: list(values)[-count:] for name, values in logs["rewards"].items()}
    return [
        {
            "prompt": prompt,
            "completion": completion,
            "rewards": {name: values[row] for name, values in rewards.items()},
            # A column that is logged only now and then has no value for every row.
            **{name: values[row] for name, values in columns.items() if len(values) == len(prompts)},
        }
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]


class _Batch:
    """Examples of one batch, on their way to host memory."""

    def __init__(self, *, split: str, step: int, size: int, wanted: int) -> None:
        self.split = split
        self.step = step
        self.size = size
        """The examples in the batch, of which `count` are taken."""
        self.count = min(size, wanted)
        self._texts: dict[str, Sequence[Any]] = {}
        self._copies: dict[str, Snapshot] = {}
        self._beta = 1.0

    @classmethod
    def of(cls, inputs: Mapping[str, Any], *, split: str, step: int, wanted: int) -> _Batch | None:
        """Return examples of a trainer's `inputs`; None if those have an unknown form."""
        if all(isinstance(inputs.get(name), list) for name in _TEXTS):
            batch = cls(split=split, step=step, size=len(inputs["prompt"]), wanted=wanted)
            batch._texts = {name: inputs[name][: batch.count] for name in _TEXTS}
            return batch
        if not all(hasattr(inputs.get(name), "detach") for name in _TOKENS):
            return None
        # With labels, one row per completion; else the rows of the chosen ones, then of the rejected ones.
        rows = len(inputs["input_ids"])
        answers = ("completion",) if "label" in inputs else ("chosen", "rejected")
        size = rows // len(answers)
        batch = cls(split=split, step=step, size=size, wanted=wanted)
        for number, answer in enumerate(answers):
            for name in _TOKENS:
                batch._copies[f"{answer} {name}"] = snapshot(
                    inputs[name][number * size : number * size + batch.count]
                )
        if "label" in inputs:
            batch._copies["label"] = snapshot(inputs["label"][: batch.count])
        return batch if batch.count else None

    @property
    def has_arrived(self) -> bool:
        """Whether all of it has arrived."""
        return all(copy.has_arrived for copy in self._copies.values())

    @property
    def has_rewards(self) -> bool:
        """Whether the rewards have been taken."""
        return "chosen" in self._copies

    def add_rewards(
        self, chosen: Any, rejected: Any, chosen_rows: Any = None, rejected_rows: Any = None
    ) -> None:
        """Take the rewards: both for each example or, given their rows, one of the two."""
        if chosen_rows is None or rejected_rows is None:
            if len(chosen) == len(rejected) == self.size:
                self._copies["chosen"] = snapshot(chosen[: self.count])
                self._copies["rejected"] = snapshot(rejected[: self.count])
        elif len(chosen) == len(chosen_rows) and len(rejected) == len(rejected_rows):
            self._copies["chosen rows"] = snapshot(chosen_rows)
            self._copies["rejected rows"] = snapshot(rejected_rows)
            self._copies["chosen"] = snapshot(chosen)
            self._copies["rejected"] = snapshot(rejected)

    def add_log_odds(self, losses: Any, beta: float) -> None:
        """Take ORPO's losses, which are its log odds ratios times `beta`."""
        if len(losses) == self.size and beta:
            self._beta = beta
            self._copies["losses"] = snapshot(losses[: self.count])

    def examples(self, decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
        """Return the texts and numbers of each example."""
        values = {name: copy().tolist() for name, copy in self._copies.items()}
        return [
            {**self._texts_of(row, values, decode), **self._rewards_of(row, values)}
            for row in range(self.count)
        ]

    def _texts_of(
        self, row: int, values: Mapping[str, list[Any]], decode: Callable[[list[int]], str]
    ) -> dict[str, Any]:
        if self._texts:
            return {name: self._texts[name][row] for name in _TEXTS}
        answers = ("completion",) if "label" in values else ("chosen", "rejected")
        texts: dict[str, Any] = {"prompt": decode(_tokens(values, answers[0], row, of_completion=False))}
        texts |= {answer: decode(_tokens(values, answer, row, of_completion=True)) for answer in answers}
        return {**texts, "label": bool(values["label"][row])} if "label" in values else texts

    def _rewards_of(self, row: int, values: Mapping[str, list[Any]]) -> dict[str, Any]:
        if "chosen" not in values or "rejected" not in values:
            return {}
        if "chosen rows" in values and "rejected rows" in values:
            for answer in ("chosen", "rejected"):
                if row in values[f"{answer} rows"]:
                    return {"reward": values[answer][values[f"{answer} rows"].index(row)]}
            return {}
        chosen, rejected = values["chosen"][row], values["rejected"][row]
        rewards: dict[str, Any] = {"rewards": {"chosen": chosen, "rejected": rejected}}
        rewards["reward_diff"] = chosen - rejected
        if "losses" in values:
            rewards["log_odds_ratio"] = values["losses"][row] / self._beta
        return rewards


def _tokens(values: Mapping[str, list[Any]], answer: str, row: int, *, of_completion: bool) -> list[int]:
    """Return the tokens of a row's prompt or completion, without padding."""
    return [
        token
        for token, is_real, is_answer in zip(
            *(values[f"{answer} {name}"][row] for name in _TOKENS), strict=True
        )
        if is_real and bool(is_answer) is of_completion
    ]
