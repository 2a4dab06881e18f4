"""Completions of TRL's trainers: what GRPO and RLOO generate, and what DPO, KTO, ORPO and CPO learn from.

Nothing of the training is done twice or waited for. What was generated lies in the trainer's own logs; the rest is read
from the batches that the trainer computes its loss of, copied from the device behind the work that is queued there.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from toolkit.core.guard import Guard
from toolkit.telemetry.integrations.host_copies import HostCopy, HostRoom
from toolkit.telemetry.integrations.replaced_methods import ReplacedMethods
from toolkit.telemetry.integrations.stand_in import stand_in_for
from toolkit.telemetry.logger import TelemetryLogger, internals
from toolkit.telemetry.records.completions.recorder import CompletionRecorder

TRAIN: Final = "train"
EVAL: Final = "eval"

_GENERATING: Final = {"GRPOTrainer": "grpo", "RLOOTrainer": "rloo"}
_LEARNING: Final = {"DPOTrainer": "dpo", "KTOTrainer": "kto", "ORPOTrainer": "orpo", "CPOTrainer": "cpo"}
_LOSS_OF: Final = {"orpo": "odds_ratio_loss", "cpo": "cpo_loss"}
"""Methods that are given a batch's log-probabilities and give back the rewards of its examples."""
_COMPUTES_REWARDS: Final = "_compute_loss"
"""Where DPO and KTO compute them, which keeps them to itself."""
_TEXTS: Final = ("prompt", "chosen", "rejected")
_TOKENS: Final = ("input_ids", "attention_mask", "completion_mask")
_MOST_DECODED: Final = 32
"""Examples of one step whose tokens are turned into text, which takes some 100 µs each on the training's thread."""
_ROOM_BYTES: Final = 16 * 1024 * 1024
"""For the batches that are on their way from a GPU: 32 pairs of 4,000 tokens are a third of it."""
_PATIENCE_S: Final = 1.0
"""For what is still on its way when the training has ended."""


class TrainerCompletions:
    """Collects the completions of one trainer while it trains: of every `interval` steps, those of one."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._replaced = ReplacedMethods()
        self._book: CompletionRecorder | None = None
        self._kind = ""
        self._decode: Callable[[list[int]], str] = str
        self._taken: dict[str, tuple[int, int]] = {}
        """Of training and evaluation: the step that was collected last, and how many completions of it."""
        self._current: _Batch | None = None
        self._waiting: deque[_Batch] = deque()
        self._room: HostRoom | None = None

    def look_at(self, trainer: Any, log: TelemetryLogger) -> None:
        """Begin, if this is a trainer whose completions are worth reading."""
        self.let_go()
        self.guard = log.guard
        with self.guard.catch("looking for completions"):
            self._look_at(trainer, log)

    def _look_at(self, trainer: Any, log: TelemetryLogger) -> None:
        book = internals(log).completions
        kind = kind_of(trainer)
        if book is None or kind is None or not book.options.collect or not trainer.is_world_process_zero():
            return
        self._book, self._kind, self._taken = book, kind, {}
        if kind in _GENERATING.values():
            self._wrap(trainer, "_generate_and_score_completions", self._around_generating)
            return
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self._decode = tokenizer.decode
        self._room = HostRoom(_ROOM_BYTES, for_gpu=trainer.accelerator.device.type == "cuda")
        self._wrap(trainer, "compute_loss", self._around_the_loss)
        if kind in _LOSS_OF:
            self._wrap(trainer, _LOSS_OF[kind], self._around_the_rewards)
        else:
            for name in ("gather", "gather_for_metrics"):
                self._wrap(trainer.accelerator, name, self._around_gathering, owner_is_trainer=False)

    def let_go(self) -> None:
        """Write what has been collected, and leave the trainer as it was."""
        self._replaced.put_back()
        self._current = None
        with self.guard.catch("collecting completions"):
            until = time.monotonic() + _PATIENCE_S
            while self._waiting and not self._write_arrived() and time.monotonic() < until:
                time.sleep(0.001)
        self._waiting.clear()
        self._book = self._room = None

    def _wrap(
        self,
        owner: Any,
        name: str,
        around: Callable[..., Callable[..., Any]],
        *,
        owner_is_trainer: bool = True,
    ) -> None:
        original = getattr(owner, name, None)
        if original is None:
            # Another version of TRL has no such method.
            return
        method = around(owner, original) if owner_is_trainer else around(original)
        self._replaced.put(owner, name, stand_in_for(original, method))

    def _due(self, trainer: Any, most: int) -> tuple[str, int, int]:
        """Return whether this is training or evaluation, the step, and how many completions of it are wanted now."""
        assert self._book is not None
        split = TRAIN if trainer.model.training else EVAL
        step = int(trainer.state.global_step) + (split == TRAIN)
        last, taken = self._taken.get(split, (None, 0))
        if step == last:
            return split, step, max(0, most - taken)
        interval = self._book.options.interval
        is_due = last is None or not last < step < last + interval or step == trainer.state.max_steps
        return split, step, most if is_due else 0

    def _count(self, split: str, step: int, count: int) -> None:
        last, taken = self._taken.get(split, (None, 0))
        self._taken[split] = step, count + (taken if step == last else 0)

    # What a trainer generates.

    def _around_generating(self, trainer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            generated = original(*args, **kwargs)
            with self.guard.catch("collecting completions"):
                self._take_generated(trainer, kwargs["inputs"] if "inputs" in kwargs else args[0])
            return generated

        return call

    def _take_generated(self, trainer: Any, inputs: Sequence[Any]) -> None:
        book = self._book
        if book is None:
            return
        split, step, wanted = self._due(trainer, book.options.buffer)
        if not wanted:
            return
        # Nothing public has them; the trainer writes its own tables from here. All processes' are in it.
        rows = _newest_rows(trainer._logs, len(inputs) * trainer.accelerator.num_processes)  # noqa: SLF001
        weights = dict(zip(trainer.reward_func_names, trainer.args.reward_weights or (), strict=False))
        for row in rows[:wanted]:
            rewards = {name: value for name, value in row.pop("rewards").items() if math.isfinite(value)}
            # As the trainer adds them up: one that does not apply to an example has no part in it.
            reward = (
                sum(value * weights.get(name, 1.0) for name, value in rewards.items()) if rewards else None
            )
            about = {"kind": self._kind, "split": split, "batch_size": len(rows)}
            book.put(step, {**row, "reward": reward, "rewards": rewards, **about}, source=split)
        self._count(split, step, min(wanted, len(rows)))

    # What a trainer learns from.

    def _around_the_loss(self, trainer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.guard.catch("collecting completions"):
                self._begin_batch(trainer, kwargs["inputs"] if "inputs" in kwargs else args[1])
            loss = original(*args, **kwargs)
            with self.guard.catch("collecting completions"):
                self._end_batch()
            return loss

        return call

    def _begin_batch(self, trainer: Any, inputs: Mapping[str, Any]) -> None:
        self._current = None
        if self._room is None:
            # Somebody has kept the method beyond the training.
            return
        self._write_arrived()
        split, step, wanted = self._due(trainer, _MOST_DECODED)
        if wanted:
            if not self._waiting:
                self._room.clear()
            batch = _Batch.of(inputs, self._room, split=split, step=step, wanted=wanted)
            if batch is not None:
                self._count(split, step, batch.count)
                self._current = batch

    def _end_batch(self) -> None:
        batch, self._current = self._current, None
        if batch is not None:
            self._waiting.append(batch)
            self._write_arrived()

    def _around_the_rewards(self, trainer: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            if self._current is not None:
                with self.guard.catch("collecting rewards"):
                    losses, chosen, rejected, *_ = found
                    self._current.take_rewards(chosen, rejected)
                    if self._kind == "orpo":
                        self._current.take_log_odds(losses, float(trainer.beta))
            return found

        return call

    def _around_gathering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._current is not None:
                with self.guard.catch("collecting rewards"):
                    self._look_into(sys._getframe(1))  # noqa: SLF001
            return original(*args, **kwargs)

        return call

    def _look_into(self, frame: Any) -> None:
        """Take the rewards of the batch's examples from where they are computed, if it is that which calls."""
        if frame.f_code.co_name != _COMPUTES_REWARDS or self._current is None or self._current.has_rewards:
            return
        names = frame.f_locals
        chosen, rejected = names.get("chosen_rewards"), names.get("rejected_rewards")
        if chosen is not None and rejected is not None:
            self._current.take_rewards(chosen, rejected, names.get("chosen_idx"), names.get("rejected_idx"))

    def _write_arrived(self) -> bool:
        """Write the batches that have arrived, in their order, and return whether that was all of them."""
        while self._waiting and self._waiting[0].is_here:
            batch = self._waiting.popleft()
            if self._book is not None:
                about = {"kind": self._kind, "split": batch.split, "batch_size": batch.size}
                for fields in batch.examples(self._decode):
                    self._book.put(batch.step, {**fields, **about}, source=batch.split)
        return not self._waiting


def kind_of(trainer: Any) -> str | None:
    """Return which of TRL's trainers with completions `trainer` is, or is made of; None for any other."""
    known = {**_GENERATING, **_LEARNING}
    for made_of in type(trainer).__mro__:
        if made_of.__module__.partition(".")[0] == "trl" and made_of.__name__ in known:
            return known[made_of.__name__]
    return None


def _newest_rows(logs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the last `count` completions of a trainer's logs, each with its rewards by function."""
    prompts, completions = list(logs["prompt"])[-count:], list(logs["completion"])[-count:]
    columns = {"advantage": list(logs["advantages"])[-count:]}
    columns |= {f"extra/{name}": list(values)[-count:] for name, values in logs.get("extra", {}).items()}
    rewards = {name: list(values)[-count:] for name, values in logs["rewards"].items()}
    return [
        {
            "prompt": prompt,
            "completion": completion,
            "rewards": {name: values[place] for name, values in rewards.items()},
            # A column that somebody logs now and then has no value for every row.
            **{name: values[place] for name, values in columns.items() if len(values) == len(prompts)},
        }
        for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]


class _Batch:
    """Examples of one batch, on their way to host memory."""

    def __init__(self, room: HostRoom, *, split: str, step: int, size: int, wanted: int) -> None:
        self.split = split
        self.step = step
        self.size = size
        """How many examples there are in the batch, of which `count` are taken."""
        self.count = min(size, wanted)
        self._room = room
        self._texts: dict[str, Sequence[Any]] = {}
        self._copies: dict[str, HostCopy] = {}
        self._beta = 1.0

    @classmethod
    def of(
        cls, inputs: Mapping[str, Any], room: HostRoom, *, split: str, step: int, wanted: int
    ) -> _Batch | None:
        """Return what is read of a trainer's `inputs`; None where they have another form."""
        if all(isinstance(inputs.get(name), list) for name in _TEXTS):
            batch = cls(room, split=split, step=step, size=len(inputs["prompt"]), wanted=wanted)
            batch._texts = {name: inputs[name][: batch.count] for name in _TEXTS}
            return batch
        if not all(hasattr(inputs.get(name), "detach") for name in _TOKENS):
            return None
        # One row an answer where there are labels; else the rows of those chosen, then of those rejected.
        rows = len(inputs["input_ids"])
        answers = ("completion",) if "label" in inputs else ("chosen", "rejected")
        size = rows // len(answers)
        # What is copied of an example takes so many bytes, and its rewards less than a row of tokens.
        an_example = 8 * (3 * len(answers) + 1) * int(inputs["input_ids"].shape[-1])
        batch = cls(room, split=split, step=step, size=size, wanted=min(wanted, room.left // an_example))
        for number, answer in enumerate(answers):
            for name in _TOKENS:
                batch._take(f"{answer} {name}", inputs[name][number * size : number * size + batch.count])
        if "label" in inputs:
            batch._take("label", inputs["label"][: batch.count])
        return batch if batch.count and len(batch._copies) >= 3 * len(answers) else None

    @property
    def is_here(self) -> bool:
        """Whether all of it has arrived."""
        return all(copy.is_here for copy in self._copies.values())

    @property
    def has_rewards(self) -> bool:
        """Whether the rewards have been taken."""
        return "chosen" in self._copies

    def take_rewards(
        self, chosen: Any, rejected: Any, chosen_places: Any = None, rejected_places: Any = None
    ) -> None:
        """Take the rewards: one of each kind an example, or, with their places, one or the other."""
        if chosen_places is None or rejected_places is None:
            if len(chosen) == len(rejected) == self.size:
                self._take("chosen", chosen[: self.count])
                self._take("rejected", rejected[: self.count])
        elif len(chosen) == len(chosen_places) and len(rejected) == len(rejected_places):
            self._take("chosen places", chosen_places)
            self._take("rejected places", rejected_places)
            self._take("chosen", chosen)
            self._take("rejected", rejected)

    def take_log_odds(self, losses: Any, beta: float) -> None:
        """Take ORPO's losses, which are its log odds ratios times `beta`."""
        if len(losses) == self.size and beta:
            self._beta = beta
            self._take("losses", losses[: self.count])

    def _take(self, name: str, tensor: Any) -> None:
        copy = self._room.take(tensor)
        if copy is not None:
            self._copies[name] = copy

    def examples(self, decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
        """Return the texts and numbers of each example."""
        values = {name: copy.values() for name, copy in self._copies.items()}
        return [
            {**self._texts_of(place, values, decode), **self._rewards_of(place, values)}
            for place in range(self.count)
        ]

    def _texts_of(
        self, place: int, values: Mapping[str, list[Any]], decode: Callable[[list[int]], str]
    ) -> dict[str, Any]:
        if self._texts:
            return {name: self._texts[name][place] for name in _TEXTS}
        answers = ("completion",) if "label" in values else ("chosen", "rejected")
        texts: dict[str, Any] = {"prompt": decode(_tokens(values, answers[0], place, of_completion=False))}
        texts |= {answer: decode(_tokens(values, answer, place, of_completion=True)) for answer in answers}
        return {**texts, "label": bool(values["label"][place])} if "label" in values else texts

    def _rewards_of(self, place: int, values: Mapping[str, list[Any]]) -> dict[str, Any]:
        if "chosen" not in values or "rejected" not in values:
            return {}
        if "chosen places" in values and "rejected places" in values:
            for answer in ("chosen", "rejected"):
                if place in values[f"{answer} places"]:
                    return {"reward": values[answer][values[f"{answer} places"].index(place)]}
            return {}
        chosen, rejected = values["chosen"][place], values["rejected"][place]
        rewards: dict[str, Any] = {"rewards": {"chosen": chosen, "rejected": rejected}}
        rewards["reward_diff"] = chosen - rejected
        if "losses" in values:
            rewards["log_odds_ratio"] = values["losses"][place] / self._beta
        return rewards


def _tokens(values: Mapping[str, list[Any]], answer: str, row: int, *, of_completion: bool) -> list[int]:
    """Return the tokens of a row that are its prompt or its completion, without those that only fill it up."""
    return [
        token
        for token, is_real, is_answer in zip(
            *(values[f"{answer} {name}"][row] for name in _TOKENS), strict=True
        )
        if is_real and bool(is_answer) is of_completion
    ]
