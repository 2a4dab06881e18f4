"""`wandb.plot`: charts that W&B draws from a table. Here the table is saved, with a record that describes the chart."""

# ruff: noqa: ARG001 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from toolkit.telemetry.compat.wandb_media import Media, MediaTarget, Table, no_run_guard

_MOST_POINTS: Final = 1_000
"""Of one curve; larger ones are thinned out."""


class CustomChart(Media):
    """A chart: its kind, its title, the columns it shows, and the table with its points."""

    def __init__(self, kind: str, table: Any, fields: Mapping[str, Any], title: str = "") -> None:
        self.kind = kind
        self.table = table if isinstance(table, Table) else Table(columns=[], data=[])
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.title = title

    def save(self, target: MediaTarget) -> Any:
        """Write the table and a record."""
        path = self.table.save(target)
        target.log.log_event(
            "plot",
            name=target.key,
            kind=self.kind,
            title=self.title or None,
            global_step=target.step,
            path=path,
            fields=self.fields,
        )
        return path


def plot_table(
    vega_spec_name: str,
    data_table: Any,
    fields: Mapping[str, Any],
    string_fields: Mapping[str, Any] | None = None,
    split_table: bool = False,
) -> CustomChart:
    """Return a chart with the name of a W&B chart specification."""
    return CustomChart(
        vega_spec_name,
        data_table,
        {**fields, **(string_fields or {})},
        (string_fields or {}).get("title", ""),
    )


def visualize(id: str, value: Any) -> CustomChart:  # noqa: A002 - W&B's name
    """Return a chart with the name of a W&B chart specification."""
    return CustomChart(id, value, {})


def line(
    table: Any, x: str, y: str, stroke: str | None = None, title: str = "", split_table: bool = False
) -> CustomChart:
    """Return a line chart of two columns."""
    return CustomChart("line", table, {"x": x, "y": y, "stroke": stroke}, title)


def scatter(table: Any, x: str, y: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a scatter chart of two columns."""
    return CustomChart("scatter", table, {"x": x, "y": y}, title)


def bar(table: Any, label: str, value: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a bar chart with a bar for each row."""
    return CustomChart("bar", table, {"label": label, "value": value}, title)


def histogram(table: Any, value: str, title: str = "", split_table: bool = False) -> CustomChart:
    """Return a histogram of a column."""
    return CustomChart("histogram", table, {"value": value}, title)


def line_series(
    xs: Iterable[Any],
    ys: Iterable[Iterable[Any]],
    keys: Iterable[str] | None = None,
    title: str = "",
    xname: str = "x",
    split_table: bool = False,
) -> CustomChart:
    """Return several lines, with one list of x values for all of them, or one for each."""
    rows: list[list[Any]] = []
    with no_run_guard.catch("reading lines"):
        lines = [list(line_of) for line_of in ys]
        places = [list(one) if hasattr(one, "__iter__") else one for one in xs]
        each = places if places and isinstance(places[0], list) else [places] * len(lines)
        names = list(keys) if keys is not None else [f"line_{number}" for number in range(len(lines))]
        for name, at, values in zip(names, each, lines, strict=False):
            rows += [[x, name, y] for x, y in zip(at, values, strict=False)]
    fields = {"x": xname, "stroke": "lineKey", "y": "lineVal"}
    return CustomChart("line_series", Table(columns=[xname, "lineKey", "lineVal"], data=rows), fields, title)


def confusion_matrix(
    probs: Any = None,
    y_true: Any = None,
    preds: Any = None,
    class_names: Sequence[str] | None = None,
    title: str = "Confusion Matrix Curve",
    split_table: bool = False,
) -> CustomChart:
    """Return how often each class was predicted as which; each row of `probs` has a probability for each class."""
    rows: list[list[Any]] = []
    with no_run_guard.catch("counting a confusion matrix"):
        guesses = _plain(preds) if preds is not None else [_highest(row) for row in _plain(probs)]
        truth = _plain(y_true)
        known = _in_order({*truth, *guesses})
        if class_names is not None and all(type(one) is int for one in known):
            known = list(range(len(class_names)))
        names = list(class_names) if class_names is not None else [f"Class_{one}" for one in known]
        counts: dict[tuple[Any, Any], int] = {}
        for pair in zip(truth, guesses, strict=False):
            counts[pair] = counts.get(pair, 0) + 1
        rows = [
            [actual_name, guessed_name, counts.get((actual, guessed), 0)]
            for actual, actual_name in zip(known, names, strict=False)
            for guessed, guessed_name in zip(known, names, strict=False)
        ]
    table = Table(columns=["Actual", "Predicted", "nPredictions"], data=rows)
    return CustomChart("confusion_matrix", table, {}, title)


def roc_curve(
    y_true: Any = None,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    title: str = "ROC Curve",
    split_table: bool = False,
) -> CustomChart:
    """Return the true positive rate over the false positive rate, a curve for each class against all others."""
    rows: list[list[Any]] = []
    with no_run_guard.catch("drawing a curve"):
        for name, found in _by_class(y_true, y_probas, labels, classes_to_plot):
            positives, negatives = _totals(found)
            points = [(wrong / max(1, negatives), right / max(1, positives)) for wrong, right in _walk(found)]
            rows += [[name, round(x, 4), round(y, 4)] for x, y in _thinned(points)]
    table = Table(columns=["class", "fpr", "tpr"], data=rows)
    return CustomChart("roc_curve", table, {"x": "fpr", "y": "tpr", "class": "class"}, title)


def pr_curve(
    y_true: Any = None,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    interp_size: int = 21,
    title: str = "Precision-Recall Curve",
    split_table: bool = False,
) -> CustomChart:
    """Return precision over recall, a curve for each class against all others."""
    rows: list[list[Any]] = []
    with no_run_guard.catch("drawing a curve"):
        for name, found in _by_class(y_true, y_probas, labels, classes_to_plot):
            positives, _ = _totals(found)
            points = [
                (right / max(1, positives), right / (right + wrong))
                for wrong, right in _walk(found)
                if right + wrong
            ]
            rows += [[name, round(x, 4), round(y, 4)] for x, y in _thinned([(0.0, 1.0), *points])]
    table = Table(columns=["class", "recall", "precision"], data=rows)
    return CustomChart("pr_curve", table, {"x": "recall", "y": "precision", "class": "class"}, title)


def _plain(values: Any) -> list[Any]:
    if values is None:
        return []
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _in_order(classes: set[Any]) -> list[Any]:
    try:
        return sorted(classes)
    except TypeError:
        return sorted(classes, key=str)


def _highest(row: Any) -> int:
    values = _plain(row)
    return max(range(len(values)), key=values.__getitem__)


def _by_class(
    y_true: Any, y_probas: Any, labels: Sequence[str] | None, classes_to_plot: Sequence[Any] | None
) -> Iterable[tuple[Any, list[tuple[float, bool]]]]:
    """Yield each class name, with the predicted probability and the truth of each row, most probable first."""
    truth, rows = _plain(y_true), [_plain(row) for row in _plain(y_probas)]
    for number, known in enumerate(_in_order(set(truth))):
        if classes_to_plot is not None and known not in classes_to_plot:
            continue
        place = known if type(known) is int else number
        pairs = [
            (row[place], one == known) for row, one in zip(rows, truth, strict=False) if place < len(row)
        ]
        name = labels[place] if labels is not None and place < len(labels) else known
        yield name, sorted(pairs, key=lambda pair: -pair[0])


def _totals(pairs: Sequence[tuple[float, bool]]) -> tuple[int, int]:
    positives = sum(is_so for _, is_so in pairs)
    return positives, len(pairs) - positives


def _walk(pairs: Sequence[tuple[float, bool]]) -> list[tuple[int, int]]:
    """Return the counts of false and true positives at each threshold; equal probabilities share one."""
    points, wrong, right = [(0, 0)], 0, 0
    for (score, is_so), following in pairwise([*pairs, (None, False)]):
        right += is_so
        wrong += not is_so
        if following[0] != score:
            points.append((wrong, right))
    return points


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= _MOST_POINTS:
        return points
    last = len(points) - 1
    return [points[round(number * last / (_MOST_POINTS - 1))] for number in range(_MOST_POINTS)]
