"""URLs and files of the scripts that pages load: ours, and plotly.js."""

from __future__ import annotations

import importlib.util
import json
import time
import zlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

_VENDOR = Path(__file__).with_name("vendor")
_SMALL_PLOTLY = "plotly-cartesian-4.1.1.min.js"
SMALL_PLOTLY_TRACES = frozenset(("scatter", "bar", "box", "heatmap", "histogram", "violin"))
"""Kinds of charts that `plotly_js_url` draws."""


def plotly_js_url() -> str:
    """Return the URL path of plotly.js for the usual charts: a third of the whole one, in size and time to run it.

    Its name contains its version, so that a browser may cache it forever.
    """
    return f"/assets/{_SMALL_PLOTLY}"


def plotly_js_file() -> Path:
    """Return the file of `plotly_js_url`; its npm package is plotly.js-cartesian-dist-min."""
    return _VENDOR / _SMALL_PLOTLY


@cache
def whole_plotly_js_url() -> str:
    """Return the URL path of plotly.js with every kind of chart."""
    return f"/assets/plotly-{version('plotly')}.min.js"


@cache
def whole_plotly_js_file() -> Path:
    """Return the file of `whole_plotly_js_url` without importing plotly. Raises FileNotFoundError without it."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file
    raise FileNotFoundError("the installed plotly package has no package_data/plotly.min.js")


_SCRIPTS = Path(__file__).with_name("components")
_DAY = 86_400

SAMPLE_FILE_URL = "/run-file"
"""URL path of the files of samples, with `run` and `path`; an image with `small` is scaled down."""


@cache
def page_style() -> str:
    """Return the style of all pages and components, for a style element of the page."""
    return (_SCRIPTS / "page.css").read_text(encoding="utf-8")


@cache
def page_script() -> bytes:
    """Return our scripts as one module: a page loads one file, however many components it has."""
    zone = f"const SERVER_ZONE = {json.dumps(_zone(time.time()))};".encode()
    return b"\n".join((zone, *(file.read_bytes() for file in sorted(_SCRIPTS.rglob("*.js")))))


def _zone(now: float) -> list[list[float]]:
    """Return since when this machine's local time has been how many seconds ahead of UTC: pairs, from 1970 on."""
    found = [[0.0, float(time.localtime(0).tm_gmtoff)]]
    for end in range(_DAY, int(now) + 400 * _DAY, _DAY):
        if time.localtime(end).tm_gmtoff == found[-1][1]:
            continue
        low, high = end - _DAY, end
        while high - low > 60:
            middle = (low + high) // 2
            low, high = (middle, high) if time.localtime(middle).tm_gmtoff == found[-1][1] else (low, middle)
        found.append([float(high), float(time.localtime(high).tm_gmtoff)])
    return found


@cache
def page_script_url() -> str:
    """Return the URL path of `page_script`; it changes with the code."""
    return f"/assets/page-{zlib.crc32(page_script()):08x}.js"
