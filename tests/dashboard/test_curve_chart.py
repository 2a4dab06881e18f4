"""What a chart of curves is sent is small plain JSON, and the address holds how the charts are drawn."""

import json
import math
import time
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("streamlit")

from dashboard import assets
from dashboard.charts.palette import DARK, LIGHT
from dashboard.components import curve_chart
from dashboard.components.curve_chart import (
    Band,
    ChartSpec,
    CurveSpec,
    GroupSpec,
    Level,
    Mark,
    View,
    chart_data,
    set_view_in_url,
    view_data,
    view_in_url,
)

NASTY = '<img src=x onerror="alert(1)"><b>&\u202e'
AXES = [("step", "Step"), ("time", "Time"), ("metric:tokens", "tokens")]


def one_curve(**more):
    return CurveSpec(run="project/run", metric="loss", label="loss", **more)


def sent(spec, refresh_s=5.0):
    text = json.dumps(chart_data(spec, refresh_s=refresh_s), allow_nan=False)
    text.encode("utf-8")
    return json.loads(text)


def test_a_chart_of_one_curve_is_sent_in_a_few_bytes():
    data = sent(ChartSpec(title="loss", curves=(one_curve(),)))

    assert data == {
        "title": "loss",
        "curves": [
            {
                "run": "project/run",
                "metric": "loss",
                "label": "loss",
                "colour": [LIGHT["series-0"], DARK["series-0"]],
            }
        ],
    }
    twenty = ChartSpec(title="loss", curves=tuple(one_curve(colour=n, name="a run") for n in range(20)))
    assert len(json.dumps(sent(twenty))) < 3_000


def test_everything_that_differs_from_its_default_is_sent():
    spec = ChartSpec(
        title="loss",
        curves=(one_curve(colour="#ff8000", dash="dot", rank=2, band=("loss_min", "loss_max")),),
        groups=(GroupSpec(label="lr 1e-4", colour="run-3", curves=(one_curve(),)),),
        marks=(Mark(text="session 2", step=10, time=1e9),),
        bands=(Band(start=1, end=2, tone="good"),),
        levels=(Level(y=math.nan, text="goal", tone="good"),),
        limits=((80.0, "80 GB"),),
        window=(0.0, 5.0),
        live=True,
        star=False,
    )
    data = sent(spec)

    assert data["curves"][0]["colour"] == ["#ff8000", "#ff8000"]
    assert data["groups"][0]["colour"] == [LIGHT["run-3"], DARK["run-3"]]
    assert data["curves"][0]["band"] == ["loss_min", "loss_max"]
    assert data["marks"] == [{"text": "session 2", "step": 10, "time": 1e9}]
    assert data["levels"][0] == {"y": None, "text": "goal", "tone": "good"}
    assert (data["window"], data["star"], data["live"], data["refresh"]) == ([0.0, 5.0], False, True, 5.0)
    assert "refresh" not in sent(spec, refresh_s=None)


def test_names_stay_as_they_are_and_texts_lose_what_cannot_be_shown():
    data = sent(
        ChartSpec(title=NASTY, unit=NASTY, curves=(CurveSpec(run=NASTY, metric=NASTY, label=NASTY * 99),))
    )

    curve = data["curves"][0]
    assert (curve["run"], curve["metric"]) == (NASTY, NASTY)
    assert "\u202e" not in data["title"] + data["unit"] + curve["label"]
    assert len(curve["label"]) <= 300


def test_only_the_newest_marks_are_sent():
    marks = tuple(Mark(text=str(number), step=number) for number in range(200))

    found = sent(ChartSpec(title="loss", marks=marks))["marks"]

    assert len(found) == 60
    assert found[-1]["step"] == 199


class Address(dict):
    """The query parameters of a page."""


@pytest.fixture
def address(monkeypatch):
    found = Address()
    monkeypatch.setattr(curve_chart.st, "query_params", found)
    return found


@pytest.mark.parametrize(
    "odd", [{}, {"x": "nonsense", "smooth": "x", "log": "maybe", "from": "5", "to": "2", "stat": "mode"}]
)
def test_an_address_that_makes_no_sense_is_the_view_of_before_any_choice(address, odd):
    address.update(odd)

    assert view_in_url(AXES) == View()


@pytest.mark.parametrize(
    "view",
    [
        View(),
        View(axis="metric:tokens", smoothing=0.0, log_x=True, marks=False, window=(0.5, 1e9 + 0.25)),
        View(axis="time", smoothing=0.2, log_y=True, statistic="median", forecast=True),
    ],
)
def test_what_the_browser_sends_comes_back_from_the_address(address, view):
    address.update(x="Time", log="true", run="project/run", **{"from": "1", "to": "2"})

    set_view_in_url(view_data(view), AXES)

    assert view_in_url(AXES) == view
    assert address["run"] == "project/run"
    assert len(address) == 1 or view != View()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of this process cannot be changed")
def test_the_script_knows_the_local_time_of_the_server(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        zone = assets._zone(1_700_000_000)
    finally:
        monkeypatch.undo()
        time.tzset()
    for year, month, day in ((1999, 1, 1), (2022, 7, 1), (2023, 3, 26), (2023, 10, 29)):
        for hour in (0, 6, 12):
            at = datetime(year, month, day, hour, tzinfo=ZoneInfo("UTC")).timestamp()
            ahead = next(pair[1] for pair in reversed(zone) if pair[0] <= at)
            local = datetime.fromtimestamp(at, ZoneInfo("Europe/Berlin")).utcoffset()
            assert ahead == local.total_seconds()
    assert b"const SERVER_ZONE = [[0.0, " in assets.page_script()
