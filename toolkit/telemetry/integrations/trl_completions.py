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
from functools import partial
from typing import Any, Final

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.integrations.method_patches import MethodPatches
from toolkit.telemetry.logger.logger import TelemetryLogger
from toolkit.telemetry.logger.logger_internals import internals
from toolkit.telemetry.logger.records.completions.completion_recorder import CompletionRecorder

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
_BUFFER_BYTES: Final = 16 * 1024 * 1024
"""For batches on their way from a GPU: 32 pairs of 4,000 tokens are a third of it."""
_PATIENCE_S: Final = 1.0
"""How long the end of the training waits for batches on their way."""


class TrainerCompletions:
    """Collects completions of one trainer while it trains, in one of every `interval` steps."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self._patches = MethodPatches(guard)
        self._recorder: CompletionRecorder | None = None
        self._kind = ""
        self._decode: Callable[[list[int]], str] = str
        self._collected: dict[str, tuple[int, int]] = {}
        """For training and evaluation: the step that was collected last, and how many of its completions."""
        self._current: _Batch | None = None
        self._waiting: deque[_Batch] = deque()
        self._buffer: PinnedBuffer | None = None

    def start(self, trainer: Any, log: TelemetryLogger) -> None:
        """Begin, if this is a trainer with completions."""
        self.stop()
        self.guard = self._patches.guard = log.guard
        with self.guard.catch("looking for completions"):
            recorder, kind = internals(log).completions, kind_of(trainer)
            if recorder is None or kind is None or not recorder.options.collect:
                return
            if trainer.is_world_process_zero():
                self._recorder, self._kind, self._collected = recorder, kind, {}
                self._patch(trainer, kind)

    def _patch(self, trainer: Any, kind: str) -> None:
        patches = self._patches
        if kind in _GENERATING.values():
            patches.around(
                trainer, "_generate_and_score_completions", after=partial(self._record_generated, trainer)
            )
            return
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self._decode = tokenizer.decode
        self._buffer = PinnedBuffer(_BUFFER_BYTES, for_gpu=trainer.accelerator.device.type == "cuda")
        patches.around(
            trainer, "compute_loss", before=partial(self._begin_batch, trainer), after=self._end_batch
        )
        if kind in _LOSS_OF:
            patches.around(trainer, _LOSS_OF[kind], after=partial(self._add_rewards, trainer))
        else:
            for name in ("gather", "gather_for_metrics"):
                patches.wrap(trainer.accelerator, name, self._reading_rewards)

    def stop(self) -> None:
        """Write what has been collected, and restore the trainer's methods."""
        self._patches.undo()
        self._current = None
        with self.guard.catch("collecting completions"):
            until = time.monotonic() + _PATIENCE_S
            while self._waiting and not self._write_arrived() and time.monotonic() < until:
                time.sleep(0.001)
        self._waiting.clear()
        self._recorder = self._buffer = None

    def _due(self, trainer: Any, most: int) -> tuple[str, int, int]:
        """Return whether this is training or evaluation, the step, and how many of its completions to take now."""
        assert self._recorder is not None
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

    def _record_generated(self, trainer: Any, _: Any, inputs: Sequence[Any], *__: Any, **___: Any) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        split, step, wanted = self._due(trainer, recorder.options.buffer)
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

    def _begin_batch(
        self, trainer: Any, _: Any = None, inputs: Mapping[str, Any] | None = None, *__: Any, **___: Any
    ) -> None:
        self._current = None
        if self._buffer is None or inputs is None:
            return
        self._write_arrived()
        split, step, wanted = self._due(trainer, _MAX_DECODED)
        if wanted:
            if not self._waiting:
                self._buffer.clear()
            batch = _Batch.of(inputs, self._buffer, split=split, step=step, wanted=wanted)
            if batch is not None:
                self._count(split, step, batch.count)
                self._current = batch

    def _end_batch(self, *_: Any, **__: Any) -> None:
        batch, self._current = self._current, None
        if batch is not None:
            self._waiting.append(batch)
            self._write_arrived()

    def _add_rewards(self, trainer: Any, found: Any, *_: Any, **__: Any) -> None:
        if self._current is not None:
            losses, chosen, rejected, *_rest = found
            self._current.add_rewards(chosen, rejected)
            if self._kind == "orpo":
                self._current.add_log_odds(losses, float(trainer.beta))

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
            if self._recorder is not None:
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

    def __init__(self, buffer: PinnedBuffer, *, split: str, step: int, size: int, wanted: int) -> None:
        self.split = split
        self.step = step
        self.size = size
        """The examples in the batch, of which `count` are taken."""
        self.count = min(size, wanted)
        self._buffer = buffer
        self._texts: dict[str, Sequence[Any]] = {}
        self._copies: dict[str, AsyncCopy] = {}
        self._beta = 1.0

    @classmethod
    def of(
        cls, inputs: Mapping[str, Any], buffer: PinnedBuffer, *, split: str, step: int, wanted: int
    ) -> _Batch | None:
        """Return examples of a trainer's `inputs`; None if those have an unknown form."""
        if all(isinstance(inputs.get(name), list) for name in _TEXTS):
            batch = cls(buffer, split=split, step=step, size=len(inputs["prompt"]), wanted=wanted)
            batch._texts = {name: inputs[name][: batch.count] for name in _TEXTS}
            return batch
        if not all(hasattr(inputs.get(name), "detach") for name in _TOKENS):
            return None
        # With labels, one row per completion; else the rows of the chosen ones, then of the rejected ones.
        rows = len(inputs["input_ids"])
        answers = ("completion",) if "label" in inputs else ("chosen", "rejected")
        size = rows // len(answers)
        # The bytes of one example; its rewards take less than a row of tokens.
        example_bytes = 8 * (3 * len(answers) + 1) * int(inputs["input_ids"].shape[-1])
        wanted = min(wanted, buffer.free_bytes // example_bytes)
        batch = cls(buffer, split=split, step=step, size=size, wanted=wanted)
        for number, answer in enumerate(answers):
            for name in _TOKENS:
                batch._copy(f"{answer} {name}", inputs[name][number * size : number * size + batch.count])
        if "label" in inputs:
            batch._copy("label", inputs["label"][: batch.count])
        return batch if batch.count and len(batch._copies) >= 3 * len(answers) else None

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
                self._copy("chosen", chosen[: self.count])
                self._copy("rejected", rejected[: self.count])
        elif len(chosen) == len(chosen_rows) and len(rejected) == len(rejected_rows):
            self._copy("chosen rows", chosen_rows)
            self._copy("rejected rows", rejected_rows)
            self._copy("chosen", chosen)
            self._copy("rejected", rejected)

    def add_log_odds(self, losses: Any, beta: float) -> None:
        """Take ORPO's losses, which are its log odds ratios times `beta`."""
        if len(losses) == self.size and beta:
            self._beta = beta
            self._copy("losses", losses[: self.count])

    def _copy(self, name: str, tensor: Any) -> None:
        copy = self._buffer.take(tensor)
        if copy is not None:
            self._copies[name] = copy

    def examples(self, decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
        """Return the texts and numbers of each example."""
        values = {name: copy.values() for name, copy in self._copies.items()}
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


_ALIGNMENT: Final = 64


class PinnedBuffer:
    """Pinned memory that a GPU copies to while it works on; reused, because allocating it may wait for the GPU."""

    def __init__(self, size_bytes: int, *, for_gpu: bool) -> None:
        self._memory: Any = None
        self._used = 0
        if for_gpu:
            torch = sys.modules["torch"]
            # Inference-mode tensors cannot be written to later.
            with torch.inference_mode(False):
                self._memory = torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    @property
    def free_bytes(self) -> int:
        """Bytes that are free; unlimited if there is no GPU, since host tensors do not use the buffer."""
        return sys.maxsize if self._memory is None else len(self._memory) - self._used

    def take(self, tensor: Any) -> AsyncCopy | None:
        """Return a copy of `tensor` as of now, which arrives later; None without room, or in a CUDA graph capture."""
        torch = sys.modules["torch"]
        tensor = tensor.detach()
        if not tensor.is_cuda:
            # Apple's and Intel's queues cannot be polled without waiting for them.
            return AsyncCopy(tensor.clone() if tensor.device.type == "cpu" else tensor.cpu(), None)
        size = tensor.numel() * tensor.element_size()
        if size > self.free_bytes or self._memory is None or torch.cuda.is_current_stream_capturing():
            return None
        host = self._memory[self._used : self._used + size].view(tensor.dtype).view(tensor.shape)
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        host.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(tensor.device))
        return AsyncCopy(host, arrived)

    def clear(self) -> None:
        """Reuse the whole buffer; all copies must have been read."""
        self._used = 0


class AsyncCopy:
    """The values of a tensor, once they have arrived."""

    def __init__(self, host: Any, arrived: Any) -> None:
        self._host = host
        self._arrived = arrived

    @property
    def has_arrived(self) -> bool:
        """Whether the values have arrived; this does not wait."""
        return self._arrived is None or bool(self._arrived.query())

    def values(self) -> list[Any]:
        """Return the values, which must have arrived."""
        return self._host.tolist()  # type: ignore[no-any-return]
