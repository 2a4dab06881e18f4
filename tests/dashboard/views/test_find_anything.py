"""The search for everything: pages, runs, and the metrics of the current run."""

from __future__ import annotations

from dashboard.components import shortcuts
from tests.dashboard.views.pages import open_page
from tests.made_runs import write_run


def test_a_page_a_run_or_a_metric_is_found_and_opened(logs, monkeypatch):
    write_run(logs, "a", curves={"train_loss": [1.0] * 100, "grad/norm": [2.0] * 100})
    write_run(logs, "b")
    # As Ctrl-K reports it.
    monkeypatch.setattr(shortcuts, "is_asked", lambda: True)

    tab = open_page("overview", "a")
    choice = tab.selectbox(key="_find")
    assert {"Compare", "Sweep · view of Runs", "grad/norm · metric"} <= set(choice.options)
    assert any(option.startswith("b") for option in choice.options)

    choice.set_value(next(one for one in choice.options if one == "grad/norm · metric")).run()
    assert tab.query_params["filter"] == "^grad/norm$"
