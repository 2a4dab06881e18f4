"""A browser tab for tests: opens a page through the app's own navigation, and says what is on it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from google.protobuf.message import Message
from streamlit import config
from streamlit.proto.LabelVisibility_pb2 import LabelVisibility
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import AppTest, app_test, local_script_runner
from streamlit.util import calc_hash

import dashboard
from dashboard.components.run_menu import CHOSEN
from dashboard.page_links import PAGES

APP = Path(dashboard.__file__).with_name("app.py")

# A server compiles a page once. A test tab would do so for every click, and take half of its time for it.
_COMPILED = ScriptCache()
app_test.ScriptCache = local_script_runner.ScriptCache = lambda: _COMPILED

OF_A_RUN = (
    "overview",
    "metrics",
    "alerts",
    "machine",
    "samples",
    "config_notes",
)
EVERY_PAGE = ("runs", "compare", *OF_A_RUN)

# Streamlit shows these as they are. All other texts of a page are Markdown to it.
_PLAIN = frozenset(
    {
        ("text", "body"),
        ("code", "code_text"),
        ("code", "body"),
        ("selectbox", "options"),
        ("selectbox", "raw_value"),
        ("multiselect", "options"),
        ("multiselect", "raw_values"),
        ("text_input", "default"),
        ("text_input", "value"),
        ("text_area", "default"),
        ("text_area", "value"),
        ("image", "alt"),
        ("dataframe", "alt"),
    }
)
_NOT_SHOWN = frozenset(
    {"id", "form_id", "element_id", "user_key", "key", "query_param_key", "url", "data", "columns"}
    | {"type", "icon", "tag", "format", "component_name", "js_content", "html_content", "css_content", "json"}
)


def open_page(page: str, run: str | None = None, /, **query: str) -> AppTest:
    """Open a page of the dashboard as a browser with this URL would."""
    # As our launcher sets it: Streamlit would time each of its calls.
    config.set_option("browser.gatherUsageStats", False)
    tab = AppTest.from_file(APP, default_timeout=120)
    for name, value in ({"run": run} if run is not None else {}).items() | query.items():
        tab.query_params[name] = value
    return tab.run() if page == "runs" else go_to(tab, page)


def go_to(tab: AppTest, page: str) -> AppTest:
    """Open another page in the same tab, as a link does; Streamlit knows pages by their address."""
    tab._page_hash = calc_hash(PAGES[page][1])
    return tab.run()


def open_settings() -> AppTest:
    """Open the settings as a click on their button does; a dialog is drawn again by opening it again."""
    tab = open_page("runs")
    button(tab, "Settings").click()
    return tab.run()


def press_in_settings(tab: AppTest, label: str) -> AppTest:
    """Press a button of the settings."""
    return press_in_dialog(tab, button(tab, "Settings").click, label)


def said(tab: AppTest) -> str:
    """Return every text of the page, as a reader sees it."""
    head = "\n".join(htmls(tab))
    lines = re.sub("<[^>]+>", "", re.sub("</h1>|</div>|<span class", r"\n\g<0>", head))
    above = [html.unescape(text) for text in (lines, *re.findall('title="(.*?)"', head))]
    return "\n".join([*above, *(_without_backslashes(text) for _, _, text in texts(tab))])


def name_shown(tab: AppTest) -> str:
    """Return the name of the run in the head of the page."""
    return html.unescape(re.findall("<h1>(.*?)</h1>", _head(tab)["html"])[0])


def progress_shown(tab: AppTest) -> float | None:
    """Return how much of the bar in the head of the page is filled; None without one."""
    found = re.search('style="width:(.*?)%"', _head(tab)["html"])
    return None if found is None else float(found[1]) / 100


def announced(tab: AppTest) -> dict[str, Any]:
    """Return how the page announces open alerts."""
    found: dict[str, Any] = _head(tab)["attention"]
    return found


def _head(tab: AppTest) -> dict[str, Any]:
    sent = [json.loads(text) for text in sent_to_components(tab)]
    return next((data for data in sent if "attention" in data), {})


def parts_of(markup: str, name: str) -> list[str]:
    """Return the text of each element with the class `name` that has no others in it."""
    return [html.unescape(text) for text in re.findall(f'class="{name}"[^>]*>([^<]+)<', markup)]


def runs_offered(tab: AppTest) -> list[list[str]]:
    """Return key and text of the runs that the side bar offers."""
    sent = [json.loads(text) for text in sent_to_components(tab)]
    return next(data["runs"] for data in sent if "runs" in data)


def headings(tab: AppTest) -> list[str]:
    """Return the titles of the parts and charts of the page, as a reader sees them."""
    return [_without_backslashes(item.value) for item in (*tab.header, *tab.subheader)]


def markdown_of(tab: AppTest) -> list[str]:
    """Return every text that Streamlit takes for Markdown: bodies, labels, tooltips, captions, badges."""
    return [text for kind, name, text in texts(tab) if (kind, name) not in _PLAIN]


ESCAPED = re.compile(r"\\[!-/:-@\[-`{-~]")
"""A character that a backslash keeps from being markup."""
FENCED = re.compile(r"^(`{3,})text\n.*?^\1$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]+`")


def live_markup(tab: AppTest, markup: re.Pattern[str]) -> list[str]:
    """Return the texts of the page in which something like `markup` would be more than text or code."""
    return [text[:200] for text in markdown_of(tab) if markup.search(_without_code(text))]


def _without_code(text: str) -> str:
    for code in (FENCED, ESCAPED, INLINE_CODE):
        text = code.sub("", text)
    return text


def texts(tab: AppTest) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of element, the field and the text, for every text of the page but the cells of tables."""
    for node in _nodes(tab):
        proto: Any = node.proto
        if not isinstance(proto, Message):
            continue
        kind = node.type or proto.DESCRIPTOR.name
        if kind == "html":
            # The style of all pages.
            continue
        yield from _texts_in(proto, kind)


def _nodes(tab: AppTest) -> Iterator[Any]:
    for place in (tab.main, tab.sidebar, tab._tree.children.get(2), tab._tree.children.get(3)):
        if place is not None:
            yield from place


def _texts_in(proto: Message, kind: str) -> Iterator[tuple[str, str, str]]:
    if kind == "arrow_data_frame" or proto.DESCRIPTOR.name in ("Arrow", "Dataframe", "ArrowData"):
        return
    is_read_aloud = "label_visibility" in proto.DESCRIPTOR.fields_by_name and (
        proto.label_visibility.value != LabelVisibility.VISIBLE
    )
    for field, value in proto.ListFields():
        # A label that is not drawn is read aloud as it is.
        if field.name in _NOT_SHOWN or (is_read_aloud and field.name == "label"):
            continue
        many = not isinstance(value, (str, bytes, Message, int, float))
        for item in value if many else (value,):
            if isinstance(item, Message):
                yield from _texts_in(item, kind)
            elif isinstance(item, str) and item:
                yield kind, field.name, item


def _without_backslashes(text: str) -> str:
    kept, skipped = [], False
    for character in text:
        if character == "\\" and not skipped:
            skipped = True
            continue
        skipped = False
        kept.append(character)
    return "".join(kept).replace("\N{WORD JOINER}", "")


def badges(tab: AppTest) -> list[str]:
    """Return the words on the badges of the page without their signs: its status, tags, and those of alerts."""
    found = [item.value for item in tab.markdown if "-badge[" in item.value]
    of_run = parts_of(_head(tab).get("html", ""), "telemetry-badge .*?")
    others = [part.split("]", 1)[0] for text in found for part in text.split("-badge[")[1:]]
    return [text.lstrip("✕▲●✓■○◌ ") for text in (*of_run, *others)]


def button(tab: AppTest, label: str) -> Any:
    """Return the one button that is called `label`."""
    found = [item for item in tab.button if item.label == label]
    assert len(found) == 1, f"{len(found)} buttons {label!r} among {[item.label for item in tab.button]}"
    return found[0]


def downloads(tab: AppTest) -> list[str]:
    """Return the labels of the download buttons of the page."""
    return [item.label for item in tab.get("download_button")]


def choose(tab: AppTest, entry: str) -> AppTest:
    """Choose `entry` of the run's menu."""
    press_entry(tab, entry)
    return tab.run()


def press_entry(tab: AppTest, entry: str) -> None:
    """Choose `entry` of the run's menu, without drawing the page again."""
    assert entry in entries_of(tab)
    tab.session_state[CHOSEN] = entry


def entries_of(tab: AppTest) -> list[str]:
    """Return the entries of the run's menu."""
    sent = [json.loads(text) for text in sent_to_components(tab)]
    return next(data["entries"] for data in sent if "entries" in data)


def press_in_dialog(tab: AppTest, opener: Any, label: str) -> AppTest:
    """Press a button of the dialog that `opener` has opened.

    A browser runs a dialog alone; this test tab runs the whole page, so whatever opened it has to be pressed again.
    """
    opener()
    found = [item for item in tab._tree.children[2] if item.type == "button" and item.label == label]
    assert len(found) == 1, label
    found[0].click()
    return tab.run()


def charts(tab: AppTest) -> int:
    """Return how many charts the page draws."""
    return len(chart_data(tab)) + len(curve_charts(tab))


def curve_charts(tab: AppTest) -> list[dict[str, Any]]:
    """Return what each chart of curves on the page consists of."""
    sent = [json.loads(text) for text in sent_to_components(tab)]
    return [data for data in sent if "curves" in data or "groups" in data]


def switches(tab: AppTest) -> dict[str, Any]:
    """Return the switches above the charts: the x axes that are offered, and how the charts are drawn."""
    sent = [json.loads(text) for text in sent_to_components(tab)]
    return next(data for data in sent if "axes" in data and "view" in data)


def forecast(tab: AppTest) -> dict[str, Any] | None:
    """Return what the page says of the rest of the run, and the bands for its charts; None without a place for it."""
    sent = [json.loads(text) for text in sent_to_components(tab)]
    return next((data for data in sent if "bands" in data and "said" in data), None)


def chart_data(tab: AppTest) -> list[str]:
    """Return what is sent to the browser for each chart that Plotly draws, as JSON."""
    return [text for text in sent_to_components(tab) if "figure" in json.loads(text)]


def cards(tab: AppTest) -> dict[str, str]:
    """Return the numbers at the top of the overview, by their labels."""
    found = "".join(htmls(tab))
    names = parts_of(found, "telemetry-card-label")
    return dict(zip(names, parts_of(found, "telemetry-card-value"), strict=True))


def card_notes(tab: AppTest) -> list[str]:
    """Return what is below each of the numbers at the top of the overview."""
    abouts = re.findall('class="telemetry-card-about">(.*?)</div>', "".join(htmls(tab)))
    return [html.unescape(" ".join(re.findall("<span>(.*?)</span>", text))) for text in abouts]


def htmls(tab: AppTest) -> list[str]:
    """Return what is sent to the browser as HTML."""
    return [str(json.loads(text).get("html", "")) for text in sent_to_components(tab)]


def samples_of(tab: AppTest) -> dict[str, Any] | None:
    """Return what is sent to the browser for the samples of a page."""
    sent = [json.loads(text) for text in sent_to_components(tab)]
    return next((data for data in sent if "layout" in data), None)


def run_table(tab: AppTest) -> pd.DataFrame:
    """Return the table of the Runs page, by the names of its columns, with the keys of the runs as `key`."""
    sent = [data for text in sent_to_components(tab) if "selectable" in (data := json.loads(text))]
    if not sent:
        return pd.DataFrame(columns=["Run", "key"])
    table = sent[0]
    rows = [
        {
            **{
                column["label"]: value[0] if column["kind"] == "badge" and value else value
                for column, value in zip(table["columns"], row["cells"], strict=True)
            },
            table["columns"][0]["label"]: row["name"],
            "key": row["key"],
            "href": row["href"],
        }
        for row in table["rows"]
    ]
    return pd.DataFrame(rows, columns=[*(column["label"] for column in table["columns"]), "key", "href"])


def tables(tab: AppTest) -> list[pd.DataFrame]:
    """Return the tables of facts on the page; a bar is its share, a number without its commas."""
    return [
        pd.DataFrame(
            {
                column["label"]: [_as_known(column["kind"], row["cells"][number]) for row in data["rows"]]
                for number, column in enumerate(data["columns"])
            }
        )
        for text in sent_to_components(tab)
        if (data := json.loads(text)).get("facts")
    ]


def _as_known(kind: str, cell: Any) -> Any:
    if kind == "number" and cell:
        return float(cell.replace(",", ""))
    return cell[0] if kind == "progress" and cell else cell


def pick_runs(tab: AppTest, *names: str) -> AppTest:
    """Select rows of the table as a browser does."""
    table = run_table(tab)
    tab.session_state["_runs_picked"] = [table["key"][list(table["Run"]).index(name)] for name in names]
    return tab.run()


def sent_to_components(tab: AppTest) -> list[str]:
    """Return what each component of our own is sent, as JSON."""
    return [item.proto.json for item in tab.get("bidi_component")]


def is_well(tab: AppTest) -> bool:
    """Say whether the page was drawn whole: no exception, and no region that gave up."""
    assert not tab.exception, tab.exception[0].message
    broken = [error.value for error in tab.error if "could not be drawn" in error.value]
    traces = [code.value for code in tab.code if "Traceback" in code.value]
    assert not broken, (broken, traces)
    return True
