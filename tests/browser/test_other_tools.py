"""One folder that holds the logs of every tool, in a real browser."""

from __future__ import annotations

import shutil
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import fits_into, settle, sidebar, wait_for_chart
from tests.dashboard.run_folders import write_run
from tests.importers import samples
from tests.lengths import in_make_faults
from tests.waiting import wait_until
from toolkit.runs.sources.local_store import LocalStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    for folder in samples.ours().iterdir():
        if folder.is_dir():
            shutil.copytree(folder, root / folder.name)
    write_run(root, "ours", curves={"train_loss": lambda step: 2.0 / (step + 1)})
    return serve(root)


def one_of_each(root):
    """Return the title and the key of one run of each tool."""
    store = LocalStore([root], cache_dir=None, labels_dir=None, other_tools=True)
    wait_until(lambda: len(store.list_runs().cards) >= 25)
    return {card.logged_by: card.key for card in store.list_runs().cards if card.logged_by is not None}


@in_make_faults
def test_every_tool_is_in_the_list_and_has_a_page(shown, page):
    keys = one_of_each(shown.root)
    assert len(keys) >= 10
    shown.open(page, "/?q=tool:trackio")
    table = page.locator(".trt tbody")
    expect(table).to_contain_text("Trackio")
    expect(table).not_to_contain_text("ours")
    for title, key in keys.items():
        shown.open(page, f"/overview?run={quote(key)}")
        expect(page.locator('[data-testid="stMain"] .stMarkdownBadge', has_text=title).first).to_be_visible()
        wait_for_chart(page, "Loss", "shown => shown.data.length > 0")
        reason = f"This run was logged by {title}: it cannot be controlled from here."
        expect(sidebar(page).get_by_text(reason)).to_be_attached()


@in_make_faults
def test_it_is_compared_with_our_own_and_fits_a_phone(shown, new_page):
    keys = one_of_each(shown.root)
    page = new_page(viewport={"width": 390, "height": 844})
    shown.open(page, f"/compare?runs={quote('ours,' + keys['TensorBoard'])}")
    settle(page)
    expect(page.locator('[data-testid="stMain"]').get_by_text("run_", exact=False).first).to_be_visible()
    fits_into(page, 390)
