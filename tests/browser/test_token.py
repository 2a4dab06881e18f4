"""The token in a real browser: typed in, opened from a terminal, and followed from a page of another site."""

from __future__ import annotations

import re

import pytest

from tests.browser.browser_helpers import settle
from tests.lengths import in_make_faults
from tests.made_runs import write_run

# tests/attacks/test_token_access.py does the same over HTTP in `make test`.
pytestmark = in_make_faults


@pytest.fixture(scope="module")
def server(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_run(root, "r")
    return serve(root, "--token")


@pytest.fixture
def window(chromium):
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    context.set_default_timeout(60_000)
    yield context
    context.close()


def test_the_token_opens_the_page_and_is_seen_nowhere_afterwards(server, window):
    token = re.search(r"token=(\S+)", server.process.out)[1]
    link = server.url("/overview", run="r")
    page = window.new_page()
    asked = []
    page.on("request", lambda request: asked.append((request.url, request.headers.get("referer", ""))))

    refused = page.goto(link)
    assert refused.status == 403
    assert page.get_by_role("heading").inner_text() == "This dashboard requires a token"
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.get_by_label("Token").fill("not the token")
    page.get_by_role("button", name="Open").click()
    page.get_by_role("alert").wait_for()
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Open").click()
    page.wait_for_selector('[data-testid="stAppViewContainer"]')
    settle(page)
    page.get_by_text("Train loss").first.wait_for()

    assert wide <= 390
    assert page.url == link, "the way to the run is kept"
    assert page.evaluate("document.cookie").count("telemetry_dashboard") == 0, "no script can read it"
    assert sum(token in url for url, _ in asked) == 1
    assert not any(token in referer for _, referer in asked)


def test_a_link_in_a_page_of_another_site_leads_in(server, window):
    address = re.search(r"http://\S+token=\S+", server.process.out)[0]
    # First with the token, as someone may have sent it; then with the cookie that stayed.
    for link in (f"{address}&run=r", server.url("/overview", run="r")):
        page = window.new_page()
        page.goto("data:text/html,elsewhere")
        page.set_content(f'<a href="{link}">go</a>')
        page.click("a")
        page.wait_for_selector('[data-testid="stAppViewContainer"]')

        assert "token" not in page.url
        page.go_back()
        assert page.url.startswith("data:"), "nothing with the token in it lies behind"
        page.close()
