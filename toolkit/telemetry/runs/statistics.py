"""What is more than chance: settings that explain a result, a trend, a difference in speed.

Settings are compared on ranks, so one diverged run does not decide, and a log scale needs no transform. A number is
fitted with a line, a parabola, a cubic, and a line with a jump near either end (as where training starts to diverge),
of which the most convincing fit counts. A category has one mean for each level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PERMUTATIONS: Final = 1999
_BOOTSTRAPS: Final = 400
_PARABOLAS: Final = 200
_LEAST_PLACES: Final = 4
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
_SPLITS: Final = (0.15, 0.25, 0.375, 0.5, 0.625, 0.75, 0.85)
"""Where a threshold may be, as shares of the runs."""
_FEW_LEVELS: Final = 6
_JUMPS: Final = (0.05, 0.1, 0.15, 0.2, 0.8, 0.85, 0.9, 0.95)
"""Where a jump may be, as shares of the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as numbers, with a row for each run: the columns of each fit."""

    fits: tuple[Floats, ...]
    """The columns of a fit are orthonormal, and orthogonal to a constant."""
    known: npt.NDArray[np.bool_]
    """The runs with a value; about others the setting says nothing, and its columns are 0."""
    line: Floats
    curve: Floats
    """The line and the parabola of a number itself, or of its logarithm; of a category, its levels."""

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


def parabolas(x: Floats, y: Floats) -> list[Floats]:
    """Return the parabola through points, then those through random choices of as many of them.

    Without those of too few different places; if that is all of them, there is none.
    """
    source = np.random.default_rng(0)
    choices = [
        np.arange(len(x)),
        *(source.integers(len(x), size=len(x)) for _ in range(_PARABOLAS) if len(x)),
    ]
    return [np.polyfit(x[rows], y[rows], 2) for rows in choices if len(np.unique(x[rows])) >= _LEAST_PLACES]


def number_setting(values: Floats) -> Setting:
    """Return a numeric setting; NaN is a missing value."""
    known = ~np.isnan(values)
    numbers = values[known]
    ranks = mid_ranks(numbers)
    line = 2.0 * (ranks - ranks.mean()) / max(len(ranks), 1)
    different = np.unique(numbers)
    powers = [line**power for power in range(1, min(3, len(different) - 1) + 1)]
    fits = [powers[:size] for size in range(1, len(powers) + 1)] or [[line]]
    scaled = _scaled(numbers)
    of_values = [scaled**power for power in range(1, min(2, len(different) - 1) + 1)]
    fits += [of_values[:size] for size in range(1, len(of_values) + 1)]
    if len(different) > 2:
        edges = np.unique(np.quantile(numbers, _SPLITS, method="lower"))
        fits += [[numbers > edge] for edge in edges if edge < different[-1]]
    if len(powers) > 2:
        fits += [[line, line > edge] for edge in np.unique(np.quantile(line, _JUMPS))]
    if 4 < len(different) <= _FEW_LEVELS:
        fits.append([numbers == level for level in different[1:]])
    return _setting([_among(known, columns) for columns in fits], known, _among(known, of_values))


def _scaled(numbers: Floats) -> Floats:
    """Return numbers from -1 to 1: their logarithms if they are all above 0 and far apart."""
    if len(numbers) and numbers.min() > 0 and numbers.max() >= 8 * numbers.min():
        numbers = np.log(numbers)
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)
    # As halves first: the range of the largest numbers is beyond all numbers.
    apart = high / 2 - low / 2
    return (numbers / 2 - (low / 4 + high / 4)) * (2 / apart) if apart > 0 else np.zeros_like(numbers)


def level_setting(levels: npt.NDArray[np.intp]) -> Setting:
    """Return a categorical setting, by the number of each run's level, negative for a missing one.

    Levels of a single run count as one.
    """
    known = levels >= 0
    present = levels[known]
    counts = np.bincount(present)
    pooled = np.where(counts[present] > 1, present, -1)
    return _setting([_among(known, [pooled == level for level in np.unique(pooled)[1:]])], known)


def pair_setting(one: Setting, other: Setting) -> Setting:
    """Return two settings as one: what each does alone, and both together.

    The parabolas with one product are a surface whose best value of one setting moves with the other.
    """
    fits = []
    for line, curve, line2, curve2 in (
        (one.fits[0], one.fits[0], other.fits[0], other.fits[0]),
        (one.fits[0], one.basis, other.fits[0], other.basis),
        (one.line, one.curve, other.line, other.curve),
    ):
        fits.append([*curve.T, *curve2.T, *_products(line, line2)])
    return _setting(fits, one.known & other.known)


def product_setting(one: Setting, other: Setting) -> Setting:
    """Return what two settings do only together, without their own effects."""
    products = _setting(
        [
            _products(one.fits[0], other.fits[0]),
            _products(one.basis, other.basis),
            _products(one.line, other.line),
        ],
        one.known & other.known,
    )
    return without(products, orthonormal(np.column_stack([one.basis, other.basis])))


def without(setting: Setting, known: Floats) -> Setting:
    """Return what is left of a setting once the columns of `known`, which are orthonormal, are accounted for."""
    return replace(
        setting,
        fits=tuple(orthonormal(fit - known @ (known.T @ fit), least=1e-5) for fit in setting.fits),
    )


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
    """Return rows of scores without what the orthonormal columns of `known` explain."""
    rest: Floats = scores - (scores @ known) @ known.T
    return rest


def bounded(values: Floats) -> Floats:
    """Return `values` themselves, centred and of length 1, but none further out than four usual deviations."""
    apart = values - np.median(values)
    usual = 1.4826 * float(np.median(np.abs(apart)))
    apart = np.clip(apart, -4.0 * usual, 4.0 * usual)
    apart = apart - apart.mean()
    length = _length(apart)
    return apart / length if length > _NEGLIGIBLE * usual > 0.0 else scored(values)


def weigh(settings: Sequence[Setting], scores: Floats, *, used: int = 0, seed: int = 0) -> list[Evidence]:
    """Test all settings together, by shuffling the scores.

    Each row of `scores` is one way to score the runs, the first the one whose share counts; the most convincing way
    and fit of each setting is tested. A p-value is adjusted for the number of settings (Westfall and Young's step-down
    maximum), fits and ways. `used` is the number of parameters that were fitted to the scores before.
    """
    scores = np.atleast_2d(scores)
    rows = scores.shape[1]
    totals = np.square(scores).sum(axis=1)
    if not settings:
        return []
    if totals[0] < _NEGLIGIBLE:
        return [Evidence(share=0.0, p=1.0) for _ in settings]
    scores, totals = scores[totals > _NEGLIGIBLE], totals[totals > _NEGLIGIBLE]
    rng = np.random.default_rng([seed, rows, len(settings)])
    repeats = PERMUTATIONS if rows <= _MANY_ROWS else 299
    fits = _Fits(settings, left=rows - 1 - used)
    chance = []
    for part in _parts(repeats, rows + fits.basis.shape[1]):
        order = rng.permuted(np.tile(np.arange(rows), (part, 1)), axis=1)
        ways = [
            fits.best(fits.explained(way[order], total)) for way, total in zip(scores, totals, strict=True)
        ]
        chance.append(np.maximum.reduce(ways))
    explained = fits.explained(scores, totals[:, None])
    p = _step_down(fits.best(explained).max(axis=0), np.concatenate(chance))
    normal = fits.normal(explained[:1])[0]
    shares = adjusted(explained[0], fits.rows_known - used, fits.sizes)
    found = []
    for number in range(len(settings)):
        own = np.flatnonzero(fits.owners == number)
        taken = int(own[np.argmax(normal[own])]) if len(own) else None
        found.append(
            Evidence(share=0.0, p=1.0)
            if taken is None
            else Evidence(share=float(shares[taken]), p=float(p[number]), fit=fits.places[taken])
        )
    return found


def share_interval(setting: Setting, scores: Floats, evidence: Evidence) -> tuple[float, float]:
    """Return the 90 % interval of the share that a setting explains, by drawing the runs again."""
    fit, share = setting.fits[evidence.fit][setting.known], evidence.share
    scores = scores[setting.known]
    rows, size = fit.shape
    rng = np.random.default_rng([0, rows, size])
    repeats = _BOOTSTRAPS if rows <= _MANY_ROWS else 100
    if not size or rows < 2:
        return share, share
    terms = fit * math.sqrt(rows)
    shares = []
    for part in _parts(repeats, rows * size):
        drawn = rng.integers(0, rows, size=(part, rows))
        x = terms[drawn]
        y = scores[drawn]
        x = x - x.mean(axis=1, keepdims=True)
        y = y - y.mean(axis=1, keepdims=True)
        gram = np.einsum("bni,bnj->bij", x, x) + _NEGLIGIBLE * rows * np.eye(size)
        products = np.einsum("bni,bn->bi", x, y)
        fitted = np.linalg.solve(gram, products[:, :, None])[:, :, 0]
        total = np.maximum(np.square(y).sum(axis=1), _NEGLIGIBLE)
        shares.append(np.clip((fitted * products).sum(axis=1) / total, 0.0, 1.0))
    all_shares = adjusted(np.concatenate(shares), rows, np.array(size))
    # A drawn sample repeats runs and so explains itself too well: only its spread is used, around the share itself.
    middle = float(np.median(all_shares))
    wider = math.sqrt(rows / max(rows - 1 - size, 1))
    low, high = (share + wider * (float(edge) - middle) for edge in np.percentile(all_shares, _INTERVAL))
    return max(low, 0.0), min(high, 1.0)


def adjusted(explained: Floats, rows: Floats | int, size: npt.NDArray[np.int64]) -> Floats:
    """Return shares without what as many random columns would explain; not below 0."""
    left = np.maximum(rows - 1 - size, 1)
    shares: Floats = np.clip(1.0 - (1.0 - explained) * np.maximum(rows - 1, 1) / left, 0.0, 1.0)
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
    """How the later half of the last records differs from the half before."""

    records: int
    """In each half."""
    mean: float
    """Of the later half."""
    change: float
    """From the mean of the half before."""
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
    half = len(finite) // 2
    later, before = (float((part / size).mean()) for part in (finite[-half:], finite[-2 * half : -half]))
    # Rounding alone is no trend, and a few extreme values can turn the means against the line.
    is_clear = abs(slope) > max(_CLEAR_T * error, 1e-9) and slope * (later - before) > 0
    return Trend(half, later * size, (later - before) * size, is_clear)


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


def _setting(
    fits: Sequence[Sequence[npt.NDArray[Any]]],
    known: npt.NDArray[np.bool_],
    of_values: Sequence[Floats] = (),
) -> Setting:
    bases = [_basis(columns, len(known)) for columns in fits]
    curve = _basis(of_values, len(known)) if of_values else bases[0]
    line = _basis(of_values[:1], len(known)) if of_values else bases[0]
    return Setting(fits=tuple(bases), known=known, line=line, curve=curve)


def _basis(columns: Sequence[npt.NDArray[Any]], rows: int) -> Floats:
    terms = np.array(columns, dtype=np.float64).reshape(len(columns), rows).T
    terms = terms - terms.mean(axis=0)
    lengths = np.sqrt(np.square(terms).sum(axis=0))
    return orthonormal(terms[:, lengths > _NEGLIGIBLE] / lengths[lengths > _NEGLIGIBLE], least=1e-5)


def _among(known: npt.NDArray[np.bool_], columns: Sequence[npt.NDArray[Any]]) -> list[Floats]:
    """Return columns for all runs: centred among those with a known value, 0 for the others."""
    found = []
    for column in columns:
        whole = np.zeros(len(known))
        whole[known] = column - column.mean()
        found.append(whole)
    return found


def _products(one: Floats, other: Floats) -> list[Floats]:
    return [a * b for a in one.T for b in other.T]


def _length(values: Floats) -> float:
    return float(np.sqrt(np.square(values).sum()))


def _parts(repeats: int, rows: int) -> list[int]:
    """Return how many repeats to compute at once, to need little memory."""
    most = max(1, 2_000_000 // max(rows, 1))
    return [min(most, repeats - done) for done in range(0, repeats, most)]


class _Fits:
    """All fits of all settings, one after the other; those of one setting by their number of columns."""

    def __init__(self, settings: Sequence[Setting], *, left: int) -> None:
        every = [
            (number, fit, place)
            for number, setting in enumerate(settings)
            for place, fit in sorted(enumerate(setting.fits), key=lambda item: item[1].shape[1])
            if fit.shape[1]
        ]
        self._count = len(settings)
        # A setting is judged by the runs that have it.
        known = np.array([settings[number].known for number, _, _ in every], dtype=np.float64).reshape(
            len(every), len(settings[0].known)
        )
        self._known = known.T if len(every) and known.min() == 0.0 else None
        self.rows_known = known.sum(axis=1)
        self._left = left - (len(settings[0].known) - self.rows_known)
        self.places = [place for _, _, place in every]
        self.owners = np.array([number for number, _, _ in every], dtype=np.intp)
        self.sizes = np.array([fit.shape[1] for _, fit, _ in every], dtype=np.intp)
        rows = len(settings[0].basis)
        self.basis = np.column_stack([np.empty((rows, 0)), *(fit for _, fit, _ in every)])
        self._columns = np.cumsum(self.sizes) - self.sizes
        # Of fits with equally many columns, the one that explains the most is the most convincing.
        alike = list(zip(self.owners.tolist(), self.sizes.tolist(), strict=True))
        self._alike = np.array(
            [at for at, pair in enumerate(alike) if at == 0 or pair != alike[at - 1]], dtype=np.intp
        )
        self._tested, self._settings = np.unique(self.owners[self._alike], return_index=True)

    def explained(self, scores: Floats, total: Floats | float) -> Floats:
        """Return, for each row of scores, the share that each fit explains."""
        loads = np.square(scores @ self.basis)
        sums = np.add.reduceat(loads, self._columns, axis=1) if len(self._columns) else loads
        if self._known is not None:
            of_known = np.square(scores) @ self._known - np.square(scores @ self._known) / np.maximum(
                self.rows_known, 1
            )
            total = np.maximum(of_known, _NEGLIGIBLE * total)
        shares: Floats = np.clip(sums / total, 0.0, 1.0)
        return shares

    def best(self, explained: Floats) -> Floats:
        """Return, for each setting, how convincing the best of its fits is, as an about normal number."""
        largest = np.full((len(explained), self._count), -np.inf)
        if len(self._tested):
            most = np.maximum.reduceat(explained, self._alike, axis=1)
            normal = self.normal(most, self._alike)
            largest[:, self._tested] = np.maximum.reduceat(normal, self._settings, axis=1)
        return largest

    def normal(self, explained: Floats, which: npt.NDArray[np.intp] | slice = slice(None)) -> Floats:
        """Return shares as about normal numbers, so that fits of any size compare (Paulson 1942)."""
        size = self.sizes[which]
        left = np.maximum(self._left[which] - size, 1)
        cube = np.cbrt(explained / np.maximum(1.0 - explained, 1e-12) * left / size)
        spread = np.sqrt(2 / (9 * left) * cube**2 + 2 / (9 * size))
        z: Floats = ((1 - 2 / (9 * left)) * cube - (1 - 2 / (9 * size))) / spread
        return z


def _step_down(found: Floats, chance: Floats) -> Floats:
    order = np.argsort(-found, kind="stable")
    # For each setting: the largest among it and those that look worse, in each shuffle.
    largest = np.maximum.accumulate(chance[:, order][:, ::-1], axis=1)[:, ::-1]
    p = (1 + (largest >= found[order] - 1e-12).sum(axis=0)) / (1 + len(chance))
    adjusted_p = np.empty(len(found))
    adjusted_p[order] = np.maximum.accumulate(p)
    return adjusted_p
