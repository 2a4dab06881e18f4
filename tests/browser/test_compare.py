"""Compare as people use it: its charts are on the first screen."""

from __future__ import annotations

import pytest

from tests.browser.browser_helpers import wait_for_curves
from tests.lengths import in_make_faults
from tests.made_runs import write_run

pytestmark = pytest.mark.slow

ROWS = ".trt tbody tr"


@pytest.fixture(scope="module")
def shown(serve, tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    # As the logger names them: the second run of a name has a number after its folder.
    for folder, name, level in (("A", "A", 1.0), ("A-2", "A", 2.0), ("B", "B", 3.0)):
        curves = {"val_loss": lambda step, level=level: level, "lr": lambda step, level=level: 10 * level}
        write_run(
            root,
            folder,
            display_name=name,
            curves=curves,
            sessions=(range(20 * int(level)),),
            start={"config": {"batch_size": 1 + (folder == "B"), "seed": level}},
        )
    return serve(root)


@in_make_faults
def test_the_chart_is_near_the_top_and_each_run_is_named_once(shown, new_page):
    page = new_page(viewport={"width": 1440, "height": 900})
    shown.open(page, "/compare", runs="A,A-2,B")
    wait_for_curves(page, "val_loss", "seen.yRange")

    assert page.locator(".telemetry-curves").first.bounding_box()["y"] < 200
    assert page.locator(ROWS).first.bounding_box()["y"] < 900
    main = page.locator('[data-testid="stMain"]')
    assert main.get_by_role("link", name="A-2", exact=False).count() == 1
