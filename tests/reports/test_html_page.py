from __future__ import annotations

import math
import re

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


@pytest.fixture(scope="module")
def diagnosis(folder, tmp_path_factory):
    target = tmp_path_factory.mktemp("out") / "doctor.html"
    assert main(["doctor", str(folder), "--html", str(target)]) == 1
    return Page(target.read_text("utf-8"))


@pytest.fixture(params=["report", "diagnosis"])
def page(request):
    return request.getfixturevalue(request.param)


def logged(folder):
    """Return by metric the steps and values of its records, in their order."""
    found = {}
    for record in read_records(folder):
        for name, value in metrics_of(record):
            found.setdefault(name, []).append((record["global_step"], value))
    return found


def as_number(value):
    return float(value.replace("Infinity", "inf")) if isinstance(value, str) else value


def test_it_asks_for_nothing_outside_the_file(page):
    assert all(reference.startswith("data:image/") for reference in page.references())
    assert not re.search(r"url\(|@import", "".join(page.scripts))
    policy = [each for each in page.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0]["content"].startswith("default-src 'none';")
    assert "http" not in policy[0]["content"]


def test_what_is_in_a_run_is_only_text(page):
    assert "alert(1)" in page.html
    assert len(page.all("script")) == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert HOSTILE not in page.html
    assert not page.all("b") or "picture" not in str(page.all("b"))


def test_secrets_are_masked(page):
    assert TOKEN not in page.html


def test_the_data_inside_is_what_was_logged(report, folder):
    records = logged(folder)
    curves = {curve["metric"]: curve for curve in report.data["curves"]}

    assert {"train_loss", "val_loss", "lr", HOSTILE} <= set(curves)
    for name, curve in curves.items():
        points = [point for part in curve["parts"] for point in part]
        assert curve["records"] == len(records[name])
        assert [(x, repr(float(as_number(y)))) for x, y in points] == [
            (step, repr(value)) for step, value in records[name]
        ]


def test_every_drawn_point_was_logged(page):
    number = 0
    for curve, is_log, (low, high, bottom, top), points in page.drawn():
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


def test_charts_and_tables_are_named_for_screen_readers(page):
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert len(page.all("h1")) == 1
    assert page.all("h2")
    assert all(each.get("scope") in ("col", "row") for each in page.all("th"))
    assert all(each.get("alt") for each in page.all("img"))


def test_the_latest_picture_is_inside(report):
    assert [each["alt"] for each in report.all("img")] == ["step 300: a <b>picture</b>"]


def test_a_diagnosis_says_the_verdict_draws_the_evidence_and_what_to_change(diagnosis):
    text = diagnosis.text

    assert text.index("critical") < text.index("How the run ended") < text.index("Likely causes")
    assert text.index("Where the time went") < text.index("What to change in the configuration")
    findings = diagnosis.all("article")
    charts = [each for each in diagnosis.all("figure") if "data-curves" in each]
    assert len(charts) == len(findings) >= 3
    lines = text[text.index("--- the configuration") :]
    assert "-  lr: 0.0004" in lines
    assert "+  lr: 0.0002" in lines
    assert "+  max_grad_norm: 1.0" in lines
    assert "+  dtype: bf16" in lines


def test_reports_say_how_sure_a_finding_is(report, diagnosis):
    assert "certain" in report.text
    assert " % sure" in report.text
    assert " % sure" in diagnosis.text
    assert "findings with evidence as strong as this were right" in diagnosis.text
