"""One browser for these tests, a server where a module asks for one, and an eye on what pages say and ask for."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")

from tests.browser.browser_helpers import PATIENCE_MS, Dashboard, Watch, what_it_shows
from tests.browser.provision import open_browser
from tests.dashboard.serving import dashboard

_HERE = Path(__file__).parent
_ARGUMENTS = (
    # Should a page ask for another host, it is not found; the request is seen all the same.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)

_started = []
_browsers = []
"""The browser that is open now, if one is."""
_none = SimpleNamespace(watches=())


def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1_000))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Close the browser after the last of these tests: Playwright leaves an event loop running while it is open."""
    result = yield
    if nextitem is None or _HERE not in nextitem.path.parents:
        while _started:
            _started.pop()()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Let a failure tell what was on the screen."""
    report = yield
    if call.when == "call" and report.failed:
        for page, watch in item.funcargs.get("new_page", _none).watches:
            report.sections.append((f"page {page.url}", what_it_shows(page)))
            report.sections.append(("what it complained about", "\n".join(watch.trouble)))
    return report


@pytest.fixture(scope="module")
def chromium():
    """The browser: one for all modules that follow each other."""
    if _browsers:
        return _browsers[0]
    with ExitStack() as opened:
        browser = opened.enter_context(open_browser(_ARGUMENTS))
        _started.append(opened.pop_all().close)
    _browsers.append(browser)
    _started.append(_browsers.clear)
    return browser


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Start a dashboard over a folder of runs; it ends with the module."""
    started = []

    def serve_runs(root, *arguments):
        folder = tmp_path_factory.mktemp("dashboard")
        process = dashboard(folder, "--log-dir", str(root), *arguments)
        started.append(process)
        process.wait_until_ready()
        return Dashboard(process, root)

    yield serve_runs
    for process in started:
        process.__exit__()


@pytest.fixture(scope="module")
def contexts(chromium):
    """Browser windows by their settings, kept for the module so that what they loaded stays cached."""
    opened = {}

    def context(**settings):
        key = repr(sorted(settings.items()))
        if key not in opened:
            opened[key] = chromium.new_context(
                **{"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **settings}
            )
            opened[key].set_default_timeout(PATIENCE_MS)
        return opened[key]

    yield context
    for one in opened.values():
        one.close()


@pytest.fixture
def new_page(contexts):
    """Open tabs, each under watch: what they ask for stays on this machine, and nothing goes wrong in them."""
    watches = []

    def open_tab(**settings):
        page = contexts(**settings).new_page()
        watches.append((page, Watch(page)))
        return page

    open_tab.watches = watches
    yield open_tab
    for page, _ in watches:
        page.close()
    for _, watch in watches:
        watch.check()


@pytest.fixture
def page(new_page):
    """A tab of a desk's width."""
    return new_page()
