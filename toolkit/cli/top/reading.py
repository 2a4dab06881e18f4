"""Reads what the screens show, each byte once; a run's columns are read when it is opened."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolkit.cli.run_answer import answer_text
from toolkit.cli.top.view import Opened, View
from toolkit.core.user_folders import labels_dir, user_folder
from toolkit.runfolder.metrics import INTERNAL
from toolkit.runfolder.records import CONTROL_CHANGE, SYSTEM, is_spread
from toolkit.runfolder.status import RUNNING
from toolkit.runfolder.untrusted import texts_in
from toolkit.runs.formatting import clock, duration
from toolkit.runs.listing.run_folders import runs_at
from toolkit.runs.store import MetricInfo, Refused, RunCard, RunList, labelled

if TYPE_CHECKING:
    from toolkit.cli.top.plot import Curve
    from toolkit.runs.sources.local_store import LocalStore

COLOURS: Final = ("cyan", "magenta", "yellow", "green", "blue", "red")
"""Of the curves of several runs: names, so that they fit the background that the terminal has."""
_WAIT_S: Final = 0.3
_GPU: Final = re.compile(r"gpu/(\d{1,4})/(.+)")
_WORDS: Final = {
    "util": "  load {:.0f} %",
    "mem_used_gb": "  memory {:.1f} GB",
    "mem_total_gb": " of {:.0f} GB",
    "power_w": "  power {:.0f} W",
    "temp_c": "  {:.0f} °C",
}


class Runs:
    """The runs below some folders; used by one thread."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._folders = runs_at(paths, labels_dir=labels_dir())
        self._columns: LocalStore | None = None
        self._asked: dict[str, tuple[str, str, str]] = {}

    def look(self, view: View) -> RunList | Opened:
        """Return what `view` shows. Raises UnknownRun, ValueError if the search is invalid, Refused."""
        return self._open(view, view.keys) if view.keys else self._folders.list_runs(view.query)

    def ask(self, key: str, action: str) -> None:
        """Ask a run to do something; its answer, or why it was not asked, is in `Opened.answers`."""
        store = self._store()
        manifest = store.meta(key).manifest
        try:
            if store.card(key).live and manifest and action not in texts_in(manifest.control.get("actions")):
                raise Refused(f"the run does not offer {action}")
            asked, said = store.ask(key, {"actions": (action,)}), "sent, no answer yet"
        except Refused as refusal:
            asked, said = f"refused {len(self._asked)}", f"not sent, {refusal}"
        self._asked[asked] = (key, action, said)

    def _store(self) -> LocalStore:
        if self._columns is None:
            from toolkit.cli.report_content import UnreadableRunError, require_columns

            try:
                require_columns("a curve")
            except UnreadableRunError as error:
                raise Refused(str(error)) from error
            from toolkit.runs.sources.local_store import LocalStore

            self._columns = LocalStore((), cache_dir=user_folder("cache"), folders=self._folders)
        return self._columns

    def _open(self, view: View, keys: tuple[str, ...]) -> Opened:
        store, now = self._store(), time.time()
        from toolkit.forecasts.run import end_of_run, forecast_run
        from toolkit.forecasts.words import said_of
        from toolkit.runs.findings.alerts import alerts_of

        complete = all(health.complete for health in store.refresh_all(keys, wait_s=_WAIT_S))
        cards = tuple(labelled(store.card(key) for key in keys).values())
        found = {key: {info.name: info for info in store.metrics(key)} for key in keys}
        plan = _charts(found)
        titles = tuple(" / ".join(dict.fromkeys(chart.values())) for chart in plan)
        shown = slice(view.chart, view.chart + view.grid[0] * view.grid[1])
        charts = [
            (
                title,
                [
                    _curve(store, view, card, at, chart[card.key])
                    for at, card in enumerate(cards)
                    if card.key in chart
                ],
            )
            for title, chart in zip(titles[shown], plan[shown], strict=True)
        ]
        if len(keys) > 1:
            return Opened(cards=cards, charts=charts, titles=titles, is_whole=complete)
        key, card = keys[0], cards[0]
        examined = store.examine(key, wait_s=_WAIT_S) if complete else 0.0
        end = end_of_run(store, card, now) if card.status.name == RUNNING else None
        means = {name: store.means(key, name, 24).tolist() for name in found[key] if name.endswith("util")}
        return Opened(
            cards=cards,
            charts=charts,
            titles=titles,
            gpus=[(words, means.get(load, [])) for words, load in _gpus(found[key])],
            alerts=alerts_of(store, key),
            ends=f"ETA {duration(end.middle - now)}, about {clock(end.middle, now=now)[:-3]}" if end else "",
            forecasts=said_of(forecast_run(store, key, now=now), now) if view.page == "findings" else (),
            answers=tuple(self._answers(store, key)),
            is_whole=complete and examined >= 1.0,
        )

    def _answers(self, store: LocalStore, key: str) -> list[str]:
        came = {str(record.get("id")): record for record in store.events(key, (CONTROL_CHANGE,), limit=50)}
        return [
            f"{action}: {''.join(answer_text(came[asked])) if asked in came else said}"
            for asked, (run, action, said) in self._asked.items()
            if run == key
        ]


def _curve(store: LocalStore, view: View, card: RunCard, at: int, metric: str) -> Curve:
    from toolkit.cli.top.plot import Curve

    starts, is_time = store.sessions(card.key), view.axis == "elapsed"
    resumes = [one.first_time - starts[0].first_time if is_time else one.first_step for one in starts[1:]]
    series = store.series(card.key, metric, axis=view.axis, buckets=2 * view.width)
    return Curve(label=card.name, style=COLOURS[at % len(COLOURS)], series=series, resumes=resumes)


def _charts(found: Mapping[str, Mapping[str, MetricInfo]]) -> list[dict[str, str]]:
    """Return the metric of each run in each chart: loss, validation loss, learning rate, gradient norm, then others."""
    from toolkit.diagnostics.metric_aliases import GRAD_NORM, LOSS, LR
    from toolkit.runs.signals import metric_of, validation_loss_of

    known = [
        {key: metric_of(signal, metrics) for key, metrics in found.items()}
        for signal in (LOSS, LR, GRAD_NORM)
    ]
    known.insert(1, {key: validation_loss_of(metrics) for key, metrics in found.items()})
    charts = [{key: name for key, name in chart.items() if name} for chart in known]
    shown = {name for chart in charts for name in chart.values()}
    rest = {name: info for metrics in found.values() for name, info in metrics.items() if name not in shown}
    late = [
        name
        for name in rest
        if rest[name].event == SYSTEM or name.startswith((*INTERNAL, "gpu/")) or is_spread(name, rest)
    ]
    for name in sorted(rest, key=set(late).__contains__):
        charts.append({key: name for key, metrics in found.items() if name in metrics})
    return [chart for chart in charts if chart]


def _gpus(metrics: Mapping[str, MetricInfo]) -> list[tuple[str, str]]:
    """Return the last sample of each GPU in words, and the metric that is its load."""
    numbers = sorted({int(match[1]) for name in metrics if (match := _GPU.fullmatch(name))})
    found = []
    for number in numbers:
        has = {name: metrics.get(f"gpu/{number}/{name}") for name in _WORDS}
        words = [
            _WORDS[name].format(info.last) for name, info in has.items() if info and abs(info.last) < 1e6
        ]
        found.append((f"GPU {number}{''.join(words)}", f"gpu/{number}/util"))
    if not found and "gpu_util" in metrics:
        found.append((f"GPU{_WORDS['util'].format(metrics['gpu_util'].last)}", "gpu_util"))
    return found
