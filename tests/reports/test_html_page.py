from __future__ import annotations

import math

import pytest

from tests.records import read_records
from tests.reports.report_parts import Page
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.runfolder.metrics import metrics_of

HOSTILE = '</script><script>alert(1)</script><img src="https://evil.example/x" onerror=alert(1)>'
TOKEN = "hf_" + "abcdefghij" * 3 + "wxyz"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6360"
    "00000002000148afa4710000000049454e44ae426082"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with a spike, NaN, a divergence, hostile names, a secret and a picture, written by the real logger."""
    root = tmp_path_factory.mktemp("logs")
    config = {"train": {"lr": 4e-4, "steps": 300, "dtype": "fp16", "hf_token": TOKEN}, HOSTILE: HOSTILE}
    with TelemetryLogger("bad", log_dir=root, log_every=1, system=False, config=config) as log:
        for step in range(1, 301):
            loss = 0.1 + 1 / step + 0.001 * (step % 7)
            loss = 5.0 if step in (100, 101) else math.nan if 150 <= step < 160 else loss
            loss = loss + (step - 220) / 10 if step > 220 else loss
            log.log_step(step, **{"train_loss": loss, HOSTILE: float(step), "lr": 4e-4})
            if step % 50 == 0:
                log.log_eval(step, val_loss=1 / step)
        log.log_image("a <b>picture</b>", PIXEL, step=300)
    return root / "bad"


@pytest.fixture(scope="module")
def report(folder, tmp_path_factory):
    target = tmp_path_factory.mktemp("out") / "report.html"
    assert main(["report", str(folder), "--html", str(target)]) == 0
    return Page(target.read_text("utf-8"))


def logged(folder):
    """Return by metric the steps and values of its records, in their order."""
    found = {}
    for record in read_records(folder):
        for name, value in metrics_of(record):
            found.setdefault(name, []).append((record["global_step"], value))
    return found


def as_number(value):
    return float(value.replace("Infinity", "inf")) if isinstance(value, str) else value


def test_what_is_in_a_run_is_only_text(report):
    assert "alert(1)" in report.html
    assert len(report.all("script")) == 2
    assert not any(name.startswith("on") for _, attributes in report.elements for name in attributes)
    assert HOSTILE not in report.html
    assert not report.all("b") or "picture" not in str(report.all("b"))


def test_secrets_are_masked(report):
    assert TOKEN not in report.html


def test_the_data_inside_is_what_was_logged(report, folder):
    records = logged(folder)
    # The first of a metric is the whole one; those around findings follow.
    curves = {curve["metric"]: curve for curve in reversed(report.data["curves"])}

    assert {"train_loss", "val_loss", "lr", HOSTILE} <= set(curves)
    for name, curve in curves.items():
        points = [point for part in curve["parts"] for point in part]
        assert curve["records"] == len(records[name])
        assert [(x, repr(float(as_number(y)))) for x, y in points] == [
            (step, repr(value)) for step, value in records[name]
        ]


def test_every_drawn_point_was_logged(report):
    number = 0
    for curve, is_log, (low, high, bottom, top), points in report.drawn():
        finite = [
            (x, y) for part in curve["parts"] for x, y in part if not isinstance(y, str) and low <= x <= high
        ]
        assert len(points) == len(finite)
        for (x, y), (drawn_x, drawn_y) in zip(finite, points, strict=True):
            number += 1
            share = math.log(y / bottom) / math.log(top / bottom) if is_log else (y - bottom) / (top - bottom)
            assert drawn_x == pytest.approx((x - low) / (high - low), abs=1e-4)
            assert drawn_y == pytest.approx(share, abs=1e-4)
    assert number > 100


def test_a_range_of_nan_is_a_band_with_its_count(report):
    assert 'class="nan"' in report.html
    assert "10 values of train_loss are NaN or infinite" in report.html


def test_charts_and_tables_are_named_for_screen_readers(report):
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in report.all("svg"))
    assert len(report.all("h1")) == 1
    assert report.all("h2")
    assert all(each.get("scope") in ("col", "row") for each in report.all("th"))
    assert all(each.get("alt") for each in report.all("img"))


def test_the_latest_picture_is_inside(report):
    assert [each["alt"] for each in report.all("img")] == ["step 300: a <b>picture</b>"]


def test_a_report_says_the_verdict_and_draws_the_evidence(report):
    text = report.text

    assert text.index("critical") < text.index("Likely causes")
    assert text.index("Likely causes") < text.index("Where the time went")
    findings = report.html.split("<article")[1:]
    assert len(findings) >= 3
    assert all(each.partition("</article>")[0].count("data-curves=") == 1 for each in findings)


def test_a_report_says_how_sure_a_finding_is(report):
    assert "certain" in report.text
    assert " % sure" in report.text
    assert "findings with evidence as strong as this were right" in report.text
