"""What a module has logged with `self.log` since a moment, out of what Lightning keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def metrics_so_far(trainer: Any) -> dict[str, Any]:
    """Return the metrics as Lightning last put them together.

    Its property of that name puts them together anew, which at some moments gathers them from all ranks: a rank that
    asks alone would wait for the others for ever.
    """
    connector = getattr(trainer, "_logger_connector", None)
    return dict(getattr(connector, "_logged_metrics", None) or {})


def new_metrics(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `now` that were logged since `before`: of the older ones, Lightning still has the same object."""
    return {name: value for name, value in now.items() if before.get(name) is not value}


def metrics_of_batch(trainer: Any) -> dict[str, Any]:
    """Return what was logged in the batch that ends now. Call it on all ranks or on one: it gathers nothing."""
    return new_metrics(metrics_so_far(trainer), dict(trainer.logged_metrics))


def fresh_metrics(trainer: Any, seen: dict[str, Any]) -> dict[str, Any]:
    """Return what was logged of single batches since the last call, as it is: no other rank is asked, and no mean made.

    `seen` remembers what was returned: a metric that was not logged again is the same object.
    """
    found = {}
    for metric in (getattr(trainer, "_results", None) or {}).values():
        about, value = metric.meta, getattr(metric, "_forward_cache", None)
        if about.on_step and about.logger and value is not None:
            name = about.forked_name(True)
            if seen.get(name) is not value:
                seen[name] = found[name] = value
    return found


def without(metrics: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the metrics but for these."""
    return {str(name): value for name, value in metrics.items() if str(name) not in names}


def names_of_single_batches(trainer: Any) -> set[str]:
    """Return how the metrics are called that are one batch's alone, in the loop that goes on."""
    # Each of these knows how it was logged; a property of the trainer gives those of the loop that it is in.
    logged = getattr(trainer, "_results", None) or {}
    names = set()
    for metric in logged.values():
        about = metric.meta
        if about.on_step:
            has_loader = about.add_dataloader_idx and about.dataloader_idx is not None
            ending = f"/dataloader_idx_{about.dataloader_idx}" if has_loader else ""
            names.add(f"{about.forked_name(True)}{ending}")
    return names
