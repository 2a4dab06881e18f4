"""What is more than chance: settings that explain a result, a trend, a difference in speed.

Settings are compared on ranks, so one diverged run does not decide, and a log scale needs no transform. A number is
fitted with a line, a parabola, a cubic, and a line with a jump near either end (as where training starts to diverge),
of which the most convincing fit counts. A category has one mean for each level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PERMUTATIONS: Final = 1999
_BOOTSTRAPS: Final = 400
_MANY_ROWS: Final = 1000
_INTERVAL: Final = (5.0, 95.0)
_NEGLIGIBLE: Final = 1e-9
BLOCKS: Final = 20
"""Records drift, so neighbours are not independent: whole blocks are resampled, each 5 % of them."""
_DRAWS: Final = 300
_BINS: Final = 256
_MAX_CORRELATION: Final = 0.9
_PARTS: Final = 10
"""Neighbouring records are alike: the means of parts are compared, not records."""
_CLEAR_T: Final = 3.36
"""Student's t with eight degrees of freedom: by chance in one of a hundred cases."""
_JUMPS: Final = (0.05, 0.1, 0.15, 0.2, 0.8, 0.85, 0.9, 0.95)
"""Where a jump may be, as shares of the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as numbers, with a row for each run: the columns of each fit."""

    fits: tuple[Floats, ...]
    """The columns of a fit are orthonormal, and orthogonal to a constant."""

    @property
    def basis(self) -> Floats:
        """The columns of the fit that is enough for most effects."""
        return self.fits[min(1, len(self.fits) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How much of the differences one setting explains, and how likely chance alone explains as much."""

    share: float
    """Adjusted for the number of parameters: 0 for a setting that explains no more than chance does."""
    p: float
    """The probability that chance alone makes any of the settings look this good."""
    fit: int = 0
    """The number of the fit that was taken."""


def mid_ranks(values: Floats) -> Floats:
    """Return the ranks from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Floats = (ends - (counts - 1) / 2.0)[inverse]
    return ranks


def number_setting(values: Floats) -> Setting:
    """Return a numeric setting; NaN is a missing value."""
    missing = np.isnan(values)
    known = mid_ranks(values[~missing])
    line = np.zeros(len(values))
    line[~missing] = 2.0 * (known - known.mean()) / max(len(known), 1)
    powers = [line**power for power in range(1, min(3, len(np.unique(known)) - 1) + 1)]
    absent = [missing.astype(np.float64)] if missing.any() else []
    fits = [[*powers[:size], *absent] for size in range(1, len(powers) + 1)] or [absent]
    if len(powers) > 2:
        fits += [[line, line > edge, *absent] for edge in np.quantile(line[~missing], _JUMPS)]
    return _setting(fits)


def level_setting(levels: npt.NDArray[np.intp]) -> Setting:
    """Return a categorical setting, by the number of each run's level; levels of a single run count as one."""
    counts = np.bincount(levels)
    pooled = np.where(counts[levels] > 1, levels, -1)
    present = np.unique(pooled)
    return _setting([[pooled == level for level in present[1:]]])


def pair_setting(one: Setting, other: Setting) -> Setting:
    """Return two settings as one: what each does alone, and both together."""
    return _setting(
        [
            [*one.fits[0].T, *other.fits[0].T, *_products(one.fits[0], other.fits[0])],
            [*one.basis.T, *other.basis.T, *_products(one.basis, other.basis)],
        ]
    )


def product_setting(one: Setting, other: Setting) -> Setting:
    """Return what two settings do only together, without their own effects."""
    alone = orthonormal(np.column_stack([one.basis, other.basis]))
    products = _setting([_products(one.fits[0], other.fits[0]), _products(one.basis, other.basis)])
    return without(products, alone)


def without(setting: Setting, known: Floats) -> Setting:
    """Return what is left of a setting once the columns of `known`, which are orthonormal, are accounted for."""
    return Setting(fits=tuple(orthonormal(fit - known @ (known.T @ fit), least=1e-5) for fit in setting.fits))


def overlap(one: Setting, other: Setting) -> float:
    """Return how much of `one` is determined by `other`, from 0 to 1."""
    size = one.basis.shape[1]
    return float(np.square(other.basis.T @ one.basis).sum() / size) if size else 0.0


def scored(values: Floats) -> Floats:
    """Return the ranks of `values`, centred and of length 1; zeros if all are equal."""
    ranks = mid_ranks(values)
    ranks = ranks - ranks.mean()
    length = _length(ranks)
    return ranks / length if length > _NEGLIGIBLE else np.zeros_like(ranks)


def residual(scores: Floats, known: Floats) -> Floats:
    """Return the scores without what the orthonormal columns of `known` explain."""
    rest: Floats = scores - known @ (known.T @ scores)
    return rest


def weigh(settings: Sequence[Setting], scores: Floats, *, used: int = 0, seed: int = 0) -> list[Evidence]:
    """Test all settings together, by shuffling the scores.

    A p-value is adjusted for the number of settings (Westfall and Young's step-down maximum). `used` is the number of
    parameters that were fitted to the scores before.
    """
    rows = len(scores)
    total = float(scores @ scores)
    if not settings:
        return []
    if total < _NEGLIGIBLE:
        return [Evidence(share=0.0, p=1.0) for _ in settings]
    rng = np.random.default_rng([seed, rows, len(settings)])
    repeats = PERMUTATIONS if rows <= _MANY_ROWS else 299
    fits = _Fits(settings, left=rows - 1 - used)
    explained = fits.explained(scores[None, :], total)
    normal = fits.normal(explained)[0]
    chance = np.concatenate(
        [
            fits.best(fits.normal(fits.explained(rng.permuted(np.tile(scores, (part, 1)), axis=1), total)))
            for part in _parts(repeats, rows + fits.basis.shape[1])
        ]
    )
    p = _step_down(fits.best(normal[None, :])[0], chance)
    shares = adjusted(explained[0], rows - used, fits.sizes)
    found = []
    for number, (setting, first) in enumerate(zip(settings, fits.firsts.tolist(), strict=True)):
        taken = int(np.argmax(normal[first : first + len(setting.fits)]))
        found.append(Evidence(share=float(shares[first + taken]), p=float(p[number]), fit=taken))
    return found


def share_interval(
    setting: Setting, scores: Floats, evidence: Evidence, *, seed: int = 0
) -> tuple[float, float]:
    """Return the 90 % interval of the share that a setting explains, by drawing the runs again."""
    fit, share = setting.fits[evidence.fit], evidence.share
    rows, size = fit.shape
    rng = np.random.default_rng([seed, rows, size])
    repeats = _BOOTSTRAPS if rows <= _MANY_ROWS else 100
    if not size:
        return 0.0, 0.0
    terms = fit * math.sqrt(rows)
    shares = []
    for part in _parts(repeats, rows * size):
        drawn = rng.integers(0, rows, size=(part, rows))
        x = terms[drawn]
        y = scores[drawn]
        x = x - x.mean(axis=1, keepdims=True)
        y = y - y.mean(axis=1, keepdims=True)
        moments = np.einsum("bni,bnj->bij", x, x) + _NEGLIGIBLE * rows * np.eye(size)
        products = np.einsum("bni,bn->bi", x, y)
        fitted = np.linalg.solve(moments, products[:, :, None])[:, :, 0]
        total = np.maximum(np.square(y).sum(axis=1), _NEGLIGIBLE)
        shares.append(np.clip((fitted * products).sum(axis=1) / total, 0.0, 1.0))
    all_shares = adjusted(np.concatenate(shares), rows, np.array(size))
    # A drawn sample repeats runs and so explains itself too well: only its spread is used, around the share itself.
    middle = float(np.median(all_shares))
    wider = math.sqrt(rows / max(rows - 1 - size, 1))
    low, high = (share + wider * (float(edge) - middle) for edge in np.percentile(all_shares, _INTERVAL))
    return max(low, 0.0), min(high, 1.0)


def adjusted(explained: Floats, rows: int, size: npt.NDArray[np.int64]) -> Floats:
    """Return shares without what as many random columns would explain; not below 0."""
    left = np.maximum(rows - 1 - size, 1)
    shares: Floats = np.clip(1.0 - (1.0 - explained) * (rows - 1) / left, 0.0, 1.0)
    return shares


def orthonormal(columns: Floats, *, least: float = 1e-7) -> Floats:
    """Return orthonormal columns that span the same space; what is shorter than `least` is taken as zero."""
    if not columns.size:
        return np.empty((len(columns), 0))
    u, lengths, _ = np.linalg.svd(columns, full_matrices=False)
    kept: Floats = u[:, lengths > least]
    return kept


# ---------------------------------------------------------------- records in a row


@dataclass(frozen=True, slots=True)
class Trend:
    """The slope of the last records."""

    records: int
    mean: float
    change: float
    """From the first to the last of them, along the fitted line."""
    is_clear: bool
    """Whether it is more than noise."""


def trend_of(values: Floats) -> Trend | None:
    """Return the trend of `values`; None for fewer than twenty numbers."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2 * _PARTS:
        return None
    size = float(np.abs(finite).max()) or 1.0
    means = np.array([part.mean() for part in np.array_split(finite / size, _PARTS)])
    x = np.arange(_PARTS) - (_PARTS - 1) / 2
    slope = float((x * means).sum() / (x * x).sum())
    rest = means - means.mean() - slope * x
    error = float(np.sqrt((rest * rest).sum() / (_PARTS - 2) / (x * x).sum()))
    # Rounding alone is no trend.
    is_clear = abs(slope) > max(_CLEAR_T * error, 1e-9)
    return Trend(len(finite), float(means.mean()) * size, slope * _PARTS * size, is_clear)


def noise_of_median(values: Floats) -> float:
    """Return the standard error of the log of the median of positive `values`, which may be autocorrelated.

    Uses a block bootstrap. If even blocks are correlated, the error is widened.
    """
    blocks = min(BLOCKS, len(values) // 2)
    block = np.arange(len(values)) * blocks // len(values)
    # Medians of the samples from histograms: sorting a million values each time would take seconds.
    edges = np.quantile(values, np.linspace(0.0, 1.0, _BINS + 1))
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, _BINS - 1)
    counts = np.bincount(block * _BINS + bins, minlength=blocks * _BINS).reshape(blocks, _BINS)
    sums = np.cumsum(_drawn(blocks) @ counts, axis=1)
    half = sums[:, -1] / 2.0
    place = (sums < half[:, None]).sum(axis=1)
    row = np.arange(len(sums))
    before = np.where(place > 0, sums[row, place - 1], 0.0)
    inside = (half - before) / np.maximum(sums[row, place] - before, 1.0)
    medians = edges[place] + inside * (edges[place + 1] - edges[place])
    error = float(np.log(medians).std(ddof=1)) * math.sqrt(blocks / (blocks - 1))
    parts = np.split(values, np.searchsorted(block, np.arange(1, blocks)))
    alike = _autocorrelation(np.array([np.median(part) for part in parts]))
    return error * math.sqrt((1.0 + alike) / (1.0 - alike))


@cache
def _drawn(blocks: int) -> Floats:
    """Return how often each block occurs in each sample; seeded, so that a page is reproducible."""
    return (
        np.random.default_rng(0).multinomial(blocks, np.full(blocks, 1.0 / blocks), _DRAWS).astype(np.float64)
    )


def _autocorrelation(levels: Floats) -> float:
    """Return the autocorrelation of the blocks, 0 to 1, corrected for their small number."""
    apart = levels - levels.mean()
    total = float((apart**2).sum())
    if total == 0.0:
        return 0.0
    seen = float((apart[1:] * apart[:-1]).sum()) / total
    return min(_MAX_CORRELATION, max(0.0, seen + (1.0 + 3.0 * max(0.0, seen)) / len(levels)))


_T_TABLE: Final = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}


def student_t(freedom: int) -> float:
    """Return Student's t for a two-sided 95 % interval."""
    # Beyond the table, an expansion in 1 / freedom is accurate to three digits.
    return _T_TABLE.get(freedom) or 1.960 + 2.372 / freedom + 2.822 / freedom**2


# ---------------------------------------------------------------- inside


def _setting(fits: Sequence[Sequence[npt.NDArray[Any]]]) -> Setting:
    bases = []
    for columns in fits:
        terms = np.column_stack(columns).astype(np.float64)
        terms = terms - terms.mean(axis=0)
        lengths = np.sqrt(np.square(terms).sum(axis=0))
        bases.append(
            orthonormal(terms[:, lengths > _NEGLIGIBLE] / lengths[lengths > _NEGLIGIBLE], least=1e-5)
        )
    return Setting(fits=tuple(bases))


def _products(one: Floats, other: Floats) -> list[Floats]:
    return [a * b for a in one.T for b in other.T]


def _length(values: Floats) -> float:
    return float(np.sqrt(np.square(values).sum()))


def _parts(repeats: int, rows: int) -> list[int]:
    """Return how many repeats to compute at once, to need little memory."""
    most = max(1, 2_000_000 // max(rows, 1))
    return [min(most, repeats - done) for done in range(0, repeats, most)]


class _Fits:
    """All fits of all settings, one after the other."""

    def __init__(self, settings: Sequence[Setting], *, left: int) -> None:
        every = [fit for setting in settings for fit in setting.fits]
        self.basis = np.column_stack(every)
        self.sizes = np.array([fit.shape[1] for fit in every])
        self.firsts = np.cumsum([0, *(len(setting.fits) for setting in settings[:-1])])
        self._ends = np.cumsum(self.sizes)
        self._left = left

    def explained(self, scores: Floats, total: float) -> Floats:
        """Return, for each row of scores, the share that each fit explains."""
        loads = np.square(scores @ self.basis)
        sums = np.concatenate([np.zeros((len(loads), 1)), np.cumsum(loads, axis=1)], axis=1)
        shares: Floats = np.clip((sums[:, self._ends] - sums[:, self._ends - self.sizes]) / total, 0.0, 1.0)
        return shares

    def normal(self, explained: Floats) -> Floats:
        """Return shares as about normal numbers, so that fits of any size compare (Paulson 1942)."""
        size, left = np.maximum(self.sizes, 1), np.maximum(self._left - self.sizes, 1)
        cube = np.cbrt(explained / np.maximum(1.0 - explained, 1e-12) * left / size)
        spread = np.sqrt(2 / (9 * left) * cube**2 + 2 / (9 * size))
        z: Floats = ((1 - 2 / (9 * left)) * cube - (1 - 2 / (9 * size))) / spread
        return np.where(self.sizes > 0, z, -np.inf)

    def best(self, normal: Floats) -> Floats:
        """Return the largest of each setting's fits."""
        largest: Floats = np.maximum.reduceat(normal, self.firsts, axis=1)
        return largest


def _step_down(found: Floats, chance: Floats) -> Floats:
    order = np.argsort(-found, kind="stable")
    # For each setting: the largest among it and those that look worse, in each shuffle.
    largest = np.maximum.accumulate(chance[:, order][:, ::-1], axis=1)[:, ::-1]
    p = (1 + (largest >= found[order] - 1e-12).sum(axis=0)) / (1 + len(chance))
    adjusted_p = np.empty(len(found))
    adjusted_p[order] = np.maximum.accumulate(p)
    return adjusted_p
