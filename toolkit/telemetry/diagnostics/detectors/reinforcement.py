"""Reinforcement learning: a reward that is not earned, and a policy that has stopped exploring."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import BlockDetector, SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import INFO
from toolkit.telemetry.diagnostics.incident import Incident
from toolkit.telemetry.diagnostics.metric_aliases import COMPLETION_LENGTH, ENTROPY, KL, REWARD, Row
from toolkit.telemetry.diagnostics.robust import change_sigma, median

_MOST_BLOCKS: Final = 64


class RewardHacking(SingleIncidentDetector):
    """Reports a reward above its first level while the KL divergence, or the length of completions, explodes.

    Both grow in a healthy run too, the divergence from zero on, but steadily. So each block of records is compared with
    the median of all before it: a straight line is at twice that median. A length that explodes is only `info`, because
    a model that learns to reason also writes more.
    """

    kind = "reward_hacking"
    signals = (REWARD,)

    def _forget(self) -> None:
        self._rows: list[tuple[int, float, float, float]] = []
        self._blocks: list[_Block] = []
        self._looks: int = 0
        self._since: int = 0
        self._usual: float = 0.0
        self._calm: int = 0

    def take(self, row: Row) -> None:
        """Collect the records of a block, and look at it when it is complete."""
        values = row.values
        reward = values[REWARD]
        if reward - reward != 0.0:
            return
        self._rows.append(
            (row.step, reward, values.get(KL, math.nan), values.get(COMPLETION_LENGTH, math.nan))
        )
        if len(self._rows) == at.RL_BLOCK:
            steps, rewards, kls, lengths = zip(*self._rows, strict=True)
            self._rows.clear()
            block = _Block(steps[0], median(rewards), _median_or_nan(kls), _median_or_nan(lengths))
            self._check(block, row)
            self._blocks.append(block)
            if len(self._blocks) == _MOST_BLOCKS:
                # Half of them say as much about the run so far.
                del self._blocks[::2]

    def _check(self, block: _Block, row: Row) -> None:
        if self._incident is not None:
            self._follow(self._incident, block, row)
            return
        before = self._blocks
        if len(before) < at.RL_FIRST_BLOCKS:
            return
        signal, usual = self._what_explodes(block)
        if not signal or not self._has_risen(block):
            self._looks = 0
            return
        if not self._looks:
            self._since, self._usual = block.step, usual
        self._looks += 1
        if self._looks < at.RL_LOOKS:
            return
        now = block.kl if signal == KL else block.length
        incident = self._report(
            signal,
            row,
            start_step=self._since,
            count=self._looks * at.RL_BLOCK,
            reward_before=median([each.reward for each in before[: at.RL_FIRST_BLOCKS // 2]]),
            reward=block.reward,
            level=self._usual,
            now=now,
            ratio=now / self._usual,
        )
        incident.variant, incident.severity = ("", None) if signal == KL else ("length", INFO)
        self._looks = self._calm = 0

    def _has_risen(self, block: _Block) -> bool:
        rewards = [each.reward for each in self._blocks]
        first = median(rewards[: at.RL_FIRST_BLOCKS // 2])
        rise = max(at.RL_RISE_SIGMAS * change_sigma(rewards), at.RL_LEAST_RISE * abs(first))
        return block.reward > first + rise and block.reward > median(rewards)

    def _what_explodes(self, block: _Block) -> tuple[str, float]:
        usual_kl = _median_or_nan([each.kl for each in self._blocks])
        # Comparisons with NaN are false: a run may not log one of them.
        if block.kl >= max(at.RL_KL_LEAST, at.RL_KL_TIMES * usual_kl) and usual_kl > 0.0:
            return KL, usual_kl
        usual_length = _median_or_nan([each.length for each in self._blocks])
        if block.length >= at.RL_LENGTH_TIMES * usual_length and usual_length > 0.0:
            return COMPLETION_LENGTH, usual_length
        return "", 0.0

    def _follow(self, incident: Incident, block: _Block, row: Row) -> None:
        now, times = (
            (block.length, at.RL_LENGTH_TIMES) if incident.variant == "length" else (block.kl, at.RL_KL_TIMES)
        )
        if now < 0.5 * times * self._usual:
            self._calm += 1
            if self._calm == at.RL_LOOKS:
                self._resolve(row.step)
            return
        self._calm = 0
        incident.grow(row.step, at.RL_BLOCK)
        if now > incident.evidence["now"]:
            incident.evidence.update(now=now, ratio=now / self._usual, reward=block.reward)


class _Block(NamedTuple):
    step: int
    """Of its first record."""
    reward: float
    kl: float
    """NaN if it is not logged, as the length."""
    length: float


def _median_or_nan(values: list[float] | tuple[float, ...]) -> float:
    finite = [value for value in values if value - value == 0.0]
    return median(finite) if finite else math.nan


class PolicyCollapse(BlockDetector):
    """Reports an entropy of a twentieth of its first level or less, in a run that logs a reward.

    Without a reward it is supervised, where the entropy falls as the model learns. The entropy of a continuous policy
    may be negative: then there is no ratio to judge.
    """

    kind = "policy_collapse"
    signals = (ENTROPY,)
    records, looks = at.ENTROPY_BLOCK, at.ENTROPY_LOOKS
    _is_rl = _is_negative = False

    def take(self, row: Row) -> None:
        """Look at the entropy."""
        entropy = row.values[ENTROPY]
        self._is_rl = self._is_rl or REWARD in row.values
        if entropy < 0.0:
            self._is_negative = True
        if not self._is_negative and entropy - entropy == 0.0:
            self._add(entropy, row, is_judged=self._is_rl)

    def _is_bad(self, first: float, now: float) -> bool:
        share = at.ENTROPY_GONE if self._incident is None else at.ENTROPY_BACK
        return first > 0.0 and now <= share * first
