"""`wandb.plot`: charts that W&B draws from a table. Here the table is saved."""

# ruff: noqa: ARG001 - the parameters are W&B's, and some have no meaning here

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolkit.telemetry.compat.wandb_media import Table, no_run_guard


def plot_table(
    vega_spec_name: str,
    data_table: Any,
    fields: Mapping[str, Any],
    string_fields: Mapping[str, Any] | None = None,
    split_table: bool = False,
) -> Table:
    """Return the table of a chart."""
    return data_table if isinstance(data_table, Table) else Table(columns=[], data=[])


def visualize(id: str, value: Any) -> Table:  # noqa: A002 - W&B's name
    """Return the table of a chart."""
    return plot_table(id, value, {})


def line(
    table: Any, x: str, y: str, stroke: str | None = None, title: str = "", split_table: bool = False
) -> Table:
    """Return the table of a line chart."""
    return plot_table("line", table, {})


def scatter(table: Any, x: str, y: str, title: str = "", split_table: bool = False) -> Table:
    """Return the table of a scatter chart."""
    return plot_table("scatter", table, {})


def bar(table: Any, label: str, value: str, title: str = "", split_table: bool = False) -> Table:
    """Return the table of a bar chart."""
    return plot_table("bar", table, {})


def histogram(table: Any, value: str, title: str = "", split_table: bool = False) -> Table:
    """Return the table of a histogram."""
    return plot_table("histogram", table, {})


def line_series(
    xs: Iterable[Any],
    ys: Iterable[Iterable[Any]],
    keys: Iterable[str] | None = None,
    title: str = "",
    xname: str = "x",
    split_table: bool = False,
) -> Table:
    """Return a row for each point of several lines, with one list of x values for all of them, or one for each."""
    rows: list[list[Any]] = []
    with no_run_guard.catch("reading lines"):
        lines, places = [list(line_of) for line_of in ys], list(xs)
        shared = not (places and hasattr(places[0], "__iter__"))
        names = list(keys) if keys is not None else [f"line_{number}" for number in range(len(lines))]
        for number, (name, values) in enumerate(zip(names, lines, strict=False)):
            at = places if shared else places[number]
            rows += [[x, name, y] for x, y in zip(at, values, strict=False)]
    return Table(columns=[xname, "lineKey", "lineVal"], data=rows)


def confusion_matrix(
    probs: Any = None,
    y_true: Any = None,
    preds: Any = None,
    class_names: Sequence[str] | None = None,
    title: str = "Confusion Matrix Curve",
    split_table: bool = False,
) -> Table:
    """Return the true class and the prediction of each row: a number, or the probabilities of `probs`."""
    return _predictions(y_true, probs if preds is None else preds, class_names)


def roc_curve(
    y_true: Any = None,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    title: str = "ROC Curve",
    split_table: bool = False,
) -> Table:
    """Return the true class and the probabilities of each row, from which the curve can be drawn."""
    return _predictions(y_true, y_probas, labels)


def pr_curve(
    y_true: Any = None,
    y_probas: Any = None,
    labels: Sequence[str] | None = None,
    classes_to_plot: Sequence[Any] | None = None,
    interp_size: int = 21,
    title: str = "Precision-Recall Curve",
    split_table: bool = False,
) -> Table:
    """Return the true class and the probabilities of each row, from which the curve can be drawn."""
    return _predictions(y_true, y_probas, labels)


def _predictions(y_true: Any, predicted: Any, names: Sequence[str] | None) -> Table:
    table = Table(columns=["true", "predicted"])
    with no_run_guard.catch("reading predictions"):
        truth, rows = _listed(y_true), [_listed(row) for row in _listed(predicted)]
        width = max((len(row) for row in rows), default=1)
        if width > 1:
            known = names if names is not None and len(names) == width else range(width)
            table.columns = ["true", *(f"p({name})" for name in known)]
        table.data = [[true, *row] for true, row in zip(truth, rows, strict=False)]
    return table


def _listed(values: Any) -> list[Any]:
    values = values.detach().cpu() if hasattr(values, "detach") else values
    values = values.tolist() if hasattr(values, "tolist") else values
    if values is None:
        return []
    return [*values] if hasattr(values, "__iter__") and not isinstance(values, str) else [values]
