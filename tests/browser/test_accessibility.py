"""Every page in light and dark under axe-core, and what the keyboard does: a finding is Streamlit's, or a failure."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.browser.browser_helpers import settle, wait_for_query
from tests.dashboard.timed_runs import USUAL
from tests.dashboard.troubled_runs import steps, with_findings
from tests.lengths import in_make_faults
from tests.made_runs import BEGAN, write_run
from toolkit.telemetry.runfolder.labels import read_project

pytest.importorskip("axe_playwright_python")

RUN, OTHER = "whole", "sweep-0"
PAGES = {
    "/": {},
    "/overview": {"run": RUN},
    "/compare": {"runs": f"{RUN},{OTHER}"},
    "/metrics": {"run": RUN},
    "/?show=Sweep": {},
    "/alerts": {"run": RUN},
    "/samples": {"run": RUN},
    f"/config?tab=Output&run={RUN}": {},
    f"/samples?show=Completions&run={RUN}": {},
    "/machine": {"run": RUN},
    "/config": {"run": RUN},
    "/settings": {},
}

# Rule, the element and the reason: only what Streamlit itself draws, and we cannot change.
STREAMLITS_OWN = (
    (
        "list",
        '[data-testid="stSidebarNavItems"]',
        "headers of sections lie between the items of the navigation",
    ),
    (
        "listitem",
        '[data-testid="stSidebarNavItems"] li',
        "the items of a section lie in a div, not in a list",
    ),
    ("empty-table-header", '[data-testid="stDataFrame"] th', "the column of row numbers has no header"),
    ("aria-dialog-name", '[data-testid="stToast"]', "a toast is a dialog without a name"),
    ("target-size", '[data-testid="stMultiSelect"] button', "the buttons in the field are 22.5 px high"),
)
_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
_SCAN = """async ([tags, known]) => {
    const runOnly = {type: "tag", values: tags};
    // With the elements themselves: a toast may be gone when its finding is looked at.
    const found = await axe.run(document, {resultTypes: ["violations"], elementRef: true, runOnly});
    return found.violations.flatMap(({id, nodes}) => nodes.map((node) => {
        if (known.some(([rule, selector]) => rule === id && node.element.matches(selector))) return null;
        return [id, node.html.slice(0, 300), node.failureSummary].join("\\n");
    })).filter(Boolean);
}"""
_STILL = """
*, *::before, *::after { transition: none !important; animation: none !important; }
/* Streamlit fades what a slow refresh has not drawn again yet. */
[data-stale="true"] { opacity: 1 !important; }
"""
_BACKGROUND = """() => getComputedStyle(document.querySelector('[data-testid="stApp"]')).backgroundColor"""


def record(event, step, **fields):
    return {"event": event, "time": BEGAN + step / 2, "session": 1, "global_step": step, **fields}


def write_runs(root):
    samples = [
        record("sample", step, path=f"samples/{step}.png", prompt="a cat", seed=1) for step in (100, 200)
    ]
    texts = {"prompt": "Why?", "completion": "Because.", "kind": "grpo"}
    machine = {"process_cpu_percent": 50.0, "cpu_mem_rss_mb": 900.0, "gpu/0/mem_used_gb": 20.0}
    machine |= {"gpu/0/util": 80.0, "gpu/1/util": 70.0, "gpu/0/power_w": 300.0}
    ledger = {f"ledger/{entry}": share / 2 for entry, share in USUAL.items()}
    metrics = {"grad_norm": 1.0, "samples_per_sec": 100.0, "sec_per_step": 0.5, "rewards/format": 0.5}
    folder = write_run(
        root,
        RUN,
        with_findings(steps("divergence", **metrics, **ledger)),
        extra=[
            *samples,
            *(record("completion", step, **texts, reward=step / 100) for step in (100, 100, 200)),
            *(record("system", step, **machine) for step in range(0, 400, 20)),
            *(record("eval", step, val_loss=2.0 / (1 + step / 100)) for step in range(0, 400, 50)),
            *(
                record("span", step, name="forward", start=BEGAN + step / 2, duration=0.2)
                for step in range(100)
            ),
        ],
        tags=("baseline",),
        status="running",
        control={
            "actions": ["save", "sample", "save_and_stop", "stop"],
            "log_every_now": 1,
            "knobs": {"lr_scale": {"type": "float", "value": 1.0, "low": 0.1, "high": 10.0}},
        },
    )
    (folder / "samples").mkdir()
    for sample in samples:
        Image.new("RGB", (32, 32), "red").save(folder / sample["path"])
    for number in range(3):
        write_run(root, f"sweep-{number}", start={"config": {"lr": 1e-4 * (number + 1)}}, tags=("sweep",))


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    write_runs(root)
    return serve(root)


@pytest.fixture(scope="module")
def axe():
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


@in_make_faults
@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_finding_of_ours_in_light_and_dark(shown, page, axe, path):
    page.emulate_media(color_scheme="light")
    shown.open(page, path, **PAGES[path])
    begin(page, axe)
    for chart in page.locator(".telemetry-chart, .telemetry-curves").all()[:1]:
        expect(chart).to_have_attribute("data-drawn", re.compile("."))

    assert scan(page) == []
    expect(page.locator("h1")).to_have_count(1)

    darken(page)

    assert scan(page) == []


def begin(page, axe):
    page.add_style_tag(content=_STILL)
    page.evaluate(axe)


def scan(page):
    """Return the findings that stay: a page that refreshes itself on a slow machine has others for a short time."""
    for _ in range(10):
        found = page.evaluate(_SCAN, [_TAGS, [list(one[:2]) for one in STREAMLITS_OWN]])
        if not found:
            break
        page.wait_for_timeout(500)
        settle(page)
    return found


def darken(page):
    light = page.evaluate(_BACKGROUND)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"light => ({_BACKGROUND})() !== light", arg=light)
    settle(page)


@in_make_faults
def test_the_keyboard_opens_pages_and_runs_but_types_in_a_field(shown, page, axe):
    shown.open(page, "/")
    page.locator(".trt tbody tr a").first.wait_for()
    begin(page, axe)
    assert scan(page) == []
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Go to Overview")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    # Typed, they are letters.
    page.keyboard.press("/")
    page.keyboard.type("g o?j")
    expect(page.get_by_label("Search")).to_have_value("g o?j")
    page.get_by_label("Search").fill("")
    page.keyboard.press("Escape")
    page.wait_for_function("() => document.querySelectorAll('.trt tbody tr a').length === 4")
    settle(page)

    # Down the table, into a run, and on to the next.
    for _ in range(2):
        page.keyboard.press("j")
        page.keyboard.press("x")
    expect(page.get_by_role("link", name="Compare 2")).to_be_visible()
    page.keyboard.press("x")
    expect(page.get_by_role("link", name="Compare 2")).to_have_count(0)
    name = page.evaluate("() => document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.wait_for_url("**/overview?run=*")
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    settle(page)
    page.keyboard.press("k")
    expect(page.get_by_role("heading", level=1)).to_have_text(RUN)
    wait_for_query(page, f"q.get('run') === {RUN!r}")
    settle(page)
    assert scan(page) == []
    darken(page)
    assert scan(page) == []
    page.keyboard.press("g")
    page.keyboard.press("m")
    page.wait_for_url("**/metrics?run=*")
    settle(page)

    # A star pins the metric of its chart, for the project.
    star = page.get_by_role("button", name="Pin train_loss")
    expect(star).to_have_attribute("aria-pressed", "false")
    star.press("Enter")
    expect(star).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("heading", level=2, name="pinned")).to_be_visible()
    assert read_project(shown.root, None).pinned_metrics == ("train_loss",)
    settle(page)
    page.keyboard.press("Control+g")
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Runs")
