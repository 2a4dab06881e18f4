"""A list of a thousand runs is still a list that people can use."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import pick_row, query, settle, wait_for_query
from tests.dashboard.run_folders import write_run
from tests.lengths import in_make_faults

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    for number in range(1000):
        write_run(root, f"run-{number:04}", sessions=(range(3),), tags=("odd",) if number % 2 else ("even",))
    return serve(root)


@in_make_faults
def test_a_thousand_runs_are_listed_searched_and_turned_over(shown, page):
    shown.open(page, "/")
    main = page.locator('[data-testid="stMain"]')
    expect(main.get_by_text("1,000 of 1,000 runs")).to_be_visible()

    search = page.get_by_role("searchbox", name="Search")
    search.fill("run-07 tag:odd")
    search.press("Enter")
    expect(main.get_by_text("50 of 1,000 runs")).to_be_visible()
    wait_for_query(page, "q.get('q') === 'run-07 tag:odd'")

    search.fill("run-0777")
    search.press("Enter")
    expect(main.get_by_text("1 of 1,000 runs")).to_be_visible()
    settle(page)
    expect(page.locator(".trt tbody")).to_contain_text("run-0777")
    pick_row(page, 0)
    main.get_by_test_id("stBaseButton-primary").click()
    wait_for_query(page, "q.get('run') === 'run-0777'")

    assert query(page)["run"] == "run-0777"
