"""Memory that grows and does not stop."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from toolkit.telemetry.diagnostics import thresholds as at
from toolkit.telemetry.diagnostics.detector import SingleIncidentDetector
from toolkit.telemetry.diagnostics.finding import CRITICAL
from toolkit.telemetry.diagnostics.incident import Incident, Incidents
from toolkit.telemetry.diagnostics.metric_aliases import GPU_MEMORY, RSS, Row, number_in
from toolkit.telemetry.diagnostics.robust import trend
from toolkit.telemetry.runfolder.records import STEP, SYSTEM, Record

_FLAT_SHARE = 0.05
_FREED_SHARE = 0.5
_ABSURD_MIB = 1e9


class MemoryGrowth:
    """Reports memory of the process, or of its GPU, that grows steadily.

    What counts is the lowest value of each block of samples: what a step needs only for a while comes and goes. It is
    critical where what the machine has left is less than what has been lost already.
    """

    signals: tuple[str, ...] = (RSS, GPU_MEMORY)
    all_ranks = False

    def __init__(self, incidents: Incidents) -> None:
        self._incidents = incidents
        self._sampled_at = -math.inf
        self._curves = (
            _Curve(incidents, RSS, at.RSS_GROWTH_MIB),
            _Curve(incidents, GPU_MEMORY, at.GPU_GROWTH_MIB),
        )

    def restart(self, step: int) -> None:
        """Start over: another process, or an earlier state of it."""
        for curve in self._curves:
            curve.restart(step)

    def take(self, row: Row) -> None:
        """Look at both memories."""
        if row.event == STEP:
            # The machine is sampled once a second: what step records repeat within one is the same sample.
            elapsed = row.record.get("elapsed")
            if type(elapsed) is float:
                if 0.0 <= elapsed - self._sampled_at < at.MEMORY_SAMPLE_S:
                    return
                self._sampled_at = elapsed
        values = row.values
        for curve in self._curves:
            value = values.get(curve.signal)
            if value is not None and 0.0 < value < _ABSURD_MIB:
                curve.take(value, row)


class _Curve(SingleIncidentDetector):
    """The lowest values of one memory, over blocks of several sizes."""

    kind = "memory_growth"

    def __init__(self, incidents: Incidents, signal: str, fewest_mib: float) -> None:
        super().__init__(incidents)
        self.signal = signal
        self._fewest_mib = fewest_mib

    def _forget(self) -> None:
        self._samples: int = 0
        self._first_step: int = 0
        self._in_block: int = 0
        self._block_step: int = 0
        self._lowest: float = math.inf
        self._settled: _Block | None = None
        self._free_mib: float | None = None
        self._blocks: list[deque[_Block]] = [deque() for _ in range(at.MEMORY_SCALES)]
        self._made = [0] * at.MEMORY_SCALES
        self._highest = [0.0] * at.MEMORY_SCALES
        # About the incident: its blocks' size, where it began, how fast it grew, and what was reported last.
        self._scale: int = 0
        self._base = _Block(0, 0, 0.0)
        self._mib_per_sample: float = 0.0
        self._reported_mib: float = 0.0
        self._most_mib: float = 0.0

    def take(self, value: float, row: Row) -> None:
        """Take a sample."""
        if not self._samples:
            self._first_step = row.step
        if not self._in_block:
            self._block_step = row.step
        self._samples += 1
        self._in_block += 1
        if value < self._lowest:
            self._lowest = value
        if row.event == SYSTEM:
            self._free_mib = _free_mib(self.signal, value, row.record)
        if self._in_block == at.MEMORY_BLOCK:
            block = _Block(self._block_step, self._samples - at.MEMORY_BLOCK, self._lowest)
            self._in_block, self._lowest = 0, math.inf
            self._end_block(block, row)

    def _end_block(self, block: _Block, row: Row) -> None:
        if self._samples < at.MEMORY_WARM_UP or row.step - self._first_step < at.MEMORY_WARM_UP:
            return
        if self._settled is None:
            self._settled = block
        for scale, blocks in enumerate(self._blocks):
            if len(blocks) == at.MEMORY_BLOCKS:
                self._highest[scale] = max(self._highest[scale], blocks.popleft().lowest)
            blocks.append(block)
            self._made[scale] += 1
            if self._incident is not None:
                if scale == self._scale:
                    self._follow(self._incident, blocks, row)
            elif len(blocks) == at.MEMORY_BLOCKS and self._is_leak(scale, blocks):
                self._open(scale, blocks, row)
            if self._made[scale] % at.MEMORY_COARSER:
                break
            joined = list(blocks)[-at.MEMORY_COARSER :]
            block = _Block(joined[0].step, joined[0].sample, min(each.lowest for each in joined))

    def _is_leak(self, scale: int, blocks: deque[_Block]) -> bool:
        assert self._settled is not None
        first, last = blocks[0], blocks[-1]
        grown = last.lowest - self._settled.lowest
        if grown < self._fewest_mib or last.lowest - first.lowest < at.MEMORY_GROWTH_SHARE * first.lowest:
            return False
        # A curve that has been this high before only fluctuates.
        if last.lowest <= self._highest[scale]:
            return False
        late = steady_growth([block.lowest for block in blocks])
        if late is None:
            return False
        since_settled = (last.lowest - self._settled.lowest) / (last.sample - self._settled.sample)
        samples = int(at.MEMORY_BLOCK * at.MEMORY_COARSER**scale)
        return late / samples >= at.MEMORY_STEADY * since_settled

    def _open(self, scale: int, blocks: deque[_Block], row: Row) -> None:
        last = blocks[-1]
        grown = last.lowest - blocks[0].lowest
        # It began after the last block that was still as low as the first.
        base = next(
            each for each in reversed(blocks) if each.lowest <= blocks[0].lowest + _FLAT_SHARE * grown
        )
        self._scale, self._base = scale, base
        self._mib_per_sample = grown / (last.sample - blocks[0].sample)
        self._reported_mib = self._most_mib = last.lowest - base.lowest
        count, evidence = self._samples - base.sample, self._evidence(last, row)
        self._judge_limit(self._report(self.signal, row, start_step=base.step, count=count, **evidence))

    def _follow(self, incident: Incident, blocks: deque[_Block], row: Row) -> None:
        last = blocks[-1]
        grown = last.lowest - self._base.lowest
        lately = (last.lowest - blocks[0].lowest) / (last.sample - blocks[0].sample)
        freed = grown <= _FREED_SHARE * self._most_mib
        if freed or (len(blocks) == at.MEMORY_BLOCKS and lately < at.MEMORY_STOPPED * self._mib_per_sample):
            self._resolve(row.step)
            self._highest[self._scale] = max(self._highest[self._scale], self._base.lowest + self._most_mib)
            return
        if grown > self._most_mib:
            self._most_mib = grown
            incident.end_step = row.step
        incident.count = self._samples - self._base.sample
        incident.evidence.update(self._evidence(last, row))
        if grown >= 2 * self._reported_mib:
            self._reported_mib = grown
            self._incidents.mark_changed(incident)
        self._judge_limit(incident)

    def _evidence(self, last: _Block, row: Row) -> dict[str, float]:
        grown = last.lowest - self._base.lowest
        steps = max(row.step - self._base.step, 1)
        return {"grown_mib": float(round(grown)), "mib_per_1k_steps": float(round(1000.0 * grown / steps))}

    def _judge_limit(self, incident: Incident) -> None:
        free = self._free_mib
        if free is not None and free < self._most_mib and incident.severity != CRITICAL:
            incident.severity = CRITICAL
            incident.variant = "limit"
            incident.evidence["free_mib"] = float(round(free))
            self._incidents.mark_changed(incident)


class _Block(NamedTuple):
    step: int
    """Of its first sample."""
    sample: int
    """How many samples came before it."""
    lowest: float


def steady_growth(values: Sequence[float]) -> float | None:
    """Return how fast the later half of `values` grows; None unless both halves do, and it has not become slower."""
    half = len(values) // 2
    early, early_z = trend(values[:half])
    late, late_z = trend(values[half:])
    if min(early_z, late_z) < at.MEMORY_TREND or late < at.MEMORY_STEADY * early:
        return None
    return late


def _free_mib(signal: str, value: float, record: Record) -> float | None:
    """Return the free memory for `signal` in a system record, of which `value` is in use."""
    if signal == RSS:
        used, percent = number_in(record, "ram_used_mb"), number_in(record, "ram_percent")
        if used is None or percent is None or not (0.0 < used < _ABSURD_MIB and 0.0 < percent <= 100.0):
            return None
        return used / percent * (100.0 - percent)
    total_gib = number_in(record, "gpu/0/mem_total_gb")
    # Not the driver's free memory: torch keeps what it has freed.
    return total_gib * 1024.0 - value if total_gib is not None and 0.0 < total_gib < _ABSURD_MIB else None
