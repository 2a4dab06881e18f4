"""What is logged stays on this machine, and what strangers wrote or serve does nothing here."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import chart, foreign, settle
from tests.dashboard.run_folders import write_run
from tests.lengths import in_make_faults, is_long
from toolkit.runfolder.labels import Labels

HOSTILE = (
    "![a](http://evil.example/a.png) <img src=http://evil.example/b.png onerror=alert(1)> "
    "[c](http://evil.example) :red[d] $e$ www.evil.example"
)
_DONE_BY_STRANGERS = 'img[src*="evil"], a[href*="evil"], [data-testid="stException"]'


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    for name in ("hostile", "hostile-too"):
        write_run(
            root,
            name,
            display_name=HOSTILE,
            curves={"train_loss": lambda step: 1.0 / (1 + step), HOSTILE: lambda step: float(step)},
            extra=[
                {"event": HOSTILE, "time": 1_700_000_100.0, "seq": 900, "session": 1},
                {
                    "event": "finding",
                    "kind": HOSTILE,
                    "severity": "critical",
                    "message": HOSTILE,
                    "global_step": 5,
                    "time": 1_700_000_100.0,
                    "seq": 901,
                    "session": 1,
                },
            ],
            start={"config": {HOSTILE: HOSTILE}, "command_line": HOSTILE},
            tags=(HOSTILE[:60],),
            project=HOSTILE,
            labels=Labels(notes=HOSTILE),
        )
    return serve(root)


@pytest.mark.slow
@pytest.mark.skipif(not is_long(), reason="tests/attacks/test_markup_in_a_browser.py tries more of it")
def test_names_and_texts_of_a_run_are_shown_as_they_are_and_ask_for_nothing(shown, page):
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    # That no request leaves and nothing is complained about, the tab's watch checks for every test.
    shown.open(page, "/overview", run="hostile")
    links = page.locator('[data-testid="stSidebarNav"]')
    for name in ("Overview", "Metrics", "System", "Alerts", "Timeline", "Samples", "Config & notes"):
        links.get_by_role("link", name=name).click()
        settle(page)
        heading = page.locator('[data-testid="stMain"] h3').first
        heading.wait_for()
        # What keeps the browser from making a link of an address is not seen.
        assert heading.inner_text().replace("\u2060", "").startswith(HOSTILE[:60])
        expect(page.locator(_DONE_BY_STRANGERS)).to_have_count(0)
    links.get_by_role("link", name="Runs").click()
    expect(page.get_by_text("2 of 2 runs")).to_be_visible()
    expect(page.locator(_DONE_BY_STRANGERS)).to_have_count(0)
    shown.open(page, "/compare", runs="hostile,hostile-too", tag=HOSTILE[:60])
    chart(page, "train_loss, 100 points")
    expect(page.locator(_DONE_BY_STRANGERS)).to_have_count(0)

    assert dialogs == []


@in_make_faults
def test_charts_offer_nothing_that_would_upload_them(shown, page):
    shown.open(page, "/overview", run="hostile")
    buttons = chart(page, "Loss").locator(".modebar-btn")

    # Plotly brings a button "Share chart..." along, which sends the data to its makers.
    titles = set(buttons.evaluate_all("buttons => buttons.map(button => button.dataset.title)"))
    assert titles == {"Zoom", "Pan", "Save as PNG", "Save as SVG", "Save the values as CSV", "Full screen"}


def test_the_watch_sees_what_leaves():
    assert foreign(["http://localhost:1/", "ws://127.0.0.1:1/", "data:,", "blob:http://localhost:1/"]) == []
    assert foreign(["https://fonts.example/a.woff"]) == ["https://fonts.example/a.woff"]
