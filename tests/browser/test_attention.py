"""A critical finding reaches a person who looks at something else: title, icon, count, live region, notification."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from tests.browser.browser_helpers import refresh_every, settle, sidebar
from tests.browser.growing_run import Growing
from tests.lengths import in_make_faults
from tests.made_runs import append, finding_record

# tests/dashboard/views/test_attention.py shows in `make test` what the browser is given.
pytestmark = in_make_faults

# A person who is elsewhere, and what the browser would have shown.
_ELSEWHERE = """
window.notes = [];
document.hasFocus = () => false;
window.Notification = class extends Notification {
  constructor(title, options) { super(title, options); window.notes.push(title); }
};
"""
_ICON = "() => [...document.querySelectorAll('link[rel*=icon]')].map(link => link.href).join()"


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    return serve(tmp_path_factory.mktemp("logs"))


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_a_critical_finding_is_seen_from_elsewhere(shown, new_page, is_asked_for):
    # Two browsers: the choice is kept in one.
    page = new_page(locale="en-US" if is_asked_for else "en-GB")
    name = f"run-{is_asked_for}"
    page.context.grant_permissions(["notifications"])
    page.add_init_script(_ELSEWHERE)
    with Growing(shown.root, name) as growing:
        shown.open(page, "/alerts", run=name)
        refresh_every(page, "2 s")
        if is_asked_for:
            page.get_by_role("button", name="Notify me of critical alerts").click()
            expect(page.get_by_role("button", name="Turn notifications off")).to_be_visible()
        icon = page.evaluate(_ICON)
        diverged = finding_record("divergence", 400, severity="critical", time=time.time())
        append(growing.folder, [diverged])

        expect(page).to_have_title(re.compile(f"^⛔ Divergence · .*{name}$"))
        expect(page.locator('[data-telemetry-count="1"][data-telemetry-critical="yes"]')).to_have_text(
            re.compile("Alerts")
        )
        expect(page.get_by_role("status").filter(has_text="Critical: Divergence.")).to_have_count(1)
        page.wait_for_function(f"({_ICON})() !== '{icon}'")
        expected = [f"Divergence · {name}"] if is_asked_for else []
        page.wait_for_function(
            "wanted => JSON.stringify(window.notes) === JSON.stringify(wanted)", arg=expected
        )

        sidebar(page).get_by_role("link", name="Runs").click()
        settle(page)
        expect(page.locator("[data-telemetry-count]")).to_have_count(0)
        expect(page).to_have_title(re.compile("^Runs in "))
        assert page.evaluate(_ICON) == icon
