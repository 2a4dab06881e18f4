"""Names, prompts, config values and model output come from folders that anybody may have written: no markup."""

from __future__ import annotations

import os

from tests.dashboard.views.pages import OF_A_RUN, open_page
from tests.made_runs import write_run

# tests/attacks/test_poisoned_pages.py has 45 kinds of markup on every page.


def test_a_name_of_5000_characters_is_cut_and_the_others_are_still_listed(logs):
    folder = write_run(logs, "long", display_name="n" * 5_000)
    write_run(logs, "good")

    runs = open_page("runs")

    assert "good" in list(runs.run_table()["Run"])

    tab = open_page("overview", "long")
    for page in OF_A_RUN:
        tab.go_to(page)

        assert max(len(text) for text in tab.markdown_texts()) < 1_000, page
    assert folder.exists()


def test_runs_named_like_columns_of_a_table_do_not_replace_them(logs):
    write_run(logs, "a", display_name="key", start={"config": {"lr": 1, "Run": 1}})
    write_run(logs, "b", display_name="this run", start={"config": {"lr": 2, "Run": 2}})
    write_run(logs, "c", display_name="key", start={"config": {"lr": 3}})

    compare = open_page("compare", None, runs="a,b")

    assert list(compare.run_table()["Run"]) == ["key (a) lr=1", "this run"]
    found = compare.tables()[0]
    assert list(found["What"]) == ["learning_rate", "Run"]
    assert list(found["this run"]) == ["2", "2"]


def test_a_run_whose_folder_is_not_utf8_has_working_dialogs(logs):
    log = write_run(logs, "good") / "metrics.jsonl"
    folder = os.fsencode(logs) + b"/\xff-run"
    os.mkdir(folder)
    with open(folder + b"/metrics.jsonl", "wb") as file:
        file.write(log.read_bytes())

    for entry in ("Rename and tag…", "Report…", "Export…", "Delete"):
        assert open_page("overview", "\ufffd-run").choose(entry).is_well(), entry
