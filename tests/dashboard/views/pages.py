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


class Tab(AppTest):
    """A tab in which every page is drawn whole, and else the test fails."""

    may_break = False
    """A test that breaks a region on purpose says so."""

    def _run(self, *args: Any, **options: Any) -> Tab:
        super()._run(*args, **options)
        assert self.may_break or self.is_well()
        return self

    def go_to(self, page: str) -> Tab:
        """Open another page in the same tab, as a link does; Streamlit knows pages by their address."""
        self._page_hash = calc_hash(PAGES[page][1])
        return self.run()

    def press_in_settings(self, label: str) -> Tab:
        """Press a button of the settings."""
        return self.press_in_dialog(self.button_called("Settings").click, label)

    def said(self) -> str:
        """Return every text of the page, as a reader sees it."""
        head = self.html()
        lines = re.sub("<[^>]+>", "", re.sub("</h1>|</div>|<span class", r"\n\g<0>", head))
        above = [html.unescape(text) for text in (lines, *re.findall('title="(.*?)"', head))]
        return "\n".join([*above, *(_without_backslashes(text) for _, _, text in self.texts())])

    def name_shown(self) -> str:
        """Return the name of the run in the head of the page."""
        return html.unescape(re.findall("<h1>(.*?)</h1>", self._head()["html"])[0])

    def progress_shown(self) -> float | None:
        """Return how much of the bar in the head of the page is filled; None without one."""
        found = re.search('style="width:(.*?)%"', self._head()["html"])
        return None if found is None else float(found[1]) / 100

    def announced(self) -> dict[str, Any]:
        """Return how the page announces open alerts."""
        found: dict[str, Any] = self._head()["attention"]
        return found

    def _head(self) -> dict[str, Any]:
        return next(iter(self.sent("attention")), {})

    def runs_offered(self) -> list[list[str]]:
        """Return key and text of the runs that the side bar offers."""
        return self.sent("runs")[0]["runs"]

    def headings(self) -> list[str]:
        """Return the titles of the parts and charts of the page, as a reader sees them."""
        return [_without_backslashes(item.value) for item in (*self.header, *self.subheader)]

    def markdown_texts(self) -> list[str]:
        """Return every text that Streamlit takes for Markdown: bodies, labels, tooltips, captions, badges."""
        return [text for kind, name, text in self.texts() if (kind, name) not in _PLAIN]

    def live_markup(self, markup: re.Pattern[str]) -> list[str]:
        """Return the texts of the page in which something like `markup` would be more than text or code."""
        return [text[:200] for text in self.markdown_texts() if markup.search(_without_code(text))]

    def texts(self) -> Iterator[tuple[str, str, str]]:
        """Yield the kind of element, the field and the text, for every text of the page but the cells of tables."""
        for node in self._nodes():
            proto: Any = node.proto
            if not isinstance(proto, Message):
                continue
            kind = node.type or proto.DESCRIPTOR.name
            if kind == "html":
                # The style of all pages.
                continue
            yield from _texts_in(proto, kind)

    def _nodes(self) -> Iterator[Any]:
        for place in (self.main, self.sidebar, self._tree.children.get(2), self._tree.children.get(3)):
            if place is not None:
                yield from place

    def badges(self) -> list[str]:
        """Return the words on the badges of the page without their signs: its status, tags, and those of alerts."""
        found = [item.value for item in self.markdown if "-badge[" in item.value]
        of_run = parts_of(self._head().get("html", ""), "telemetry-badge .*?")
        others = [part.split("]", 1)[0] for text in found for part in text.split("-badge[")[1:]]
        return [text.lstrip("✕▲●✓■○◌ ") for text in (*of_run, *others)]

    def button_called(self, label: str) -> Any:
        """Return the one button that is called `label`."""
        found = [item for item in self.button if item.label == label]
        assert len(found) == 1, f"{len(found)} buttons {label!r} among {[item.label for item in self.button]}"
        return found[0]

    def downloads(self) -> list[str]:
        """Return the labels of the download buttons of the page."""
        return [item.label for item in self.get("download_button")]

    def choose(self, entry: str) -> Tab:
        """Choose `entry` of the run's menu."""
        self.press_entry(entry)
        return self.run()

    def press_entry(self, entry: str) -> None:
        """Choose `entry` of the run's menu, without drawing the page again."""
        assert entry in self.entries()
        self.session_state[CHOSEN] = entry

    def entries(self) -> list[str]:
        """Return the entries of the run's menu."""
        return self.sent("entries")[0]["entries"]

    def press_in_dialog(self, opener: Any, label: str) -> Tab:
        """Press a button of the dialog that `opener` has opened.

        A browser runs a dialog alone; this tab runs the whole page, so whatever opened it has to be pressed again.
        """
        opener()
        found = [item for item in self._tree.children[2] if item.type == "button" and item.label == label]
        assert len(found) == 1, label
        found[0].click()
        return self.run()

    def charts(self) -> int:
        """Return how many charts the page draws."""
        return len(self.sent("figure")) + len(self.curve_charts())

    def curve_charts(self) -> list[dict[str, Any]]:
        """Return what each chart of curves on the page consists of."""
        return [data for data in self.sent() if "curves" in data or "groups" in data]

    def switches(self) -> dict[str, Any]:
        """Return the switches above the charts: the x axes that are offered, and how the charts are drawn."""
        return self.sent("axes", "view")[0]

    def forecast(self) -> dict[str, Any] | None:
        """Return what the page says of the rest of the run, and its bands; None without a place for them."""
        return next(iter(self.sent("bands", "said")), None)

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return the figures that Plotly draws, by their labels."""
        return {data["label"]: json.loads(data["figure"]) for data in self.sent("figure")}

    def cards(self) -> dict[str, str]:
        """Return the numbers at the top of the overview, by their labels."""
        found = self.html()
        names = parts_of(found, "telemetry-card-label")
        return dict(zip(names, parts_of(found, "telemetry-card-value"), strict=True))

    def card_notes(self) -> list[str]:
        """Return what is below each of the numbers at the top of the overview."""
        abouts = re.findall('class="telemetry-card-about">(.*?)</div>', self.html())
        return [html.unescape(" ".join(re.findall("<span>(.*?)</span>", text))) for text in abouts]

    def html(self) -> str:
        """Return what is sent to the browser as HTML."""
        return "\n".join(str(data.get("html", "")) for data in self.sent())

    def samples(self) -> dict[str, Any] | None:
        """Return what is sent to the browser for the samples of a page."""
        return next(iter(self.sent("layout")), None)

    def run_table(self) -> pd.DataFrame:
        """Return the table of the Runs page, by the names of its columns, with the keys of the runs as `key`."""
        sent = self.sent("selectable")
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

    def tables(self) -> list[pd.DataFrame]:
        """Return the tables of facts on the page; a bar is its share, a number without its commas."""
        return [
            pd.DataFrame(
                {
                    column["label"]: [_as_known(column["kind"], row["cells"][number]) for row in data["rows"]]
                    for number, column in enumerate(data["columns"])
                }
            )
            for data in self.sent("facts")
            if data["facts"]
        ]

    def pick_runs(self, *names: str) -> Tab:
        """Select rows of the table as a browser does."""
        table = self.run_table()
        self.session_state["_runs_picked"] = [table["key"][list(table["Run"]).index(name)] for name in names]
        return self.run()

    def sent(self, *names: str) -> list[dict[str, Any]]:
        """Return what is sent to each component of our own, to those that get all of these."""
        every = [json.loads(item.proto.json) for item in self.get("bidi_component")]
        return [data for data in every if all(name in data for name in names)]

    def is_well(self) -> bool:
        """Say whether the page was drawn whole: no exception, and no region that gave up."""
        assert not self.exception, self.exception[0].message
        broken = [error.value for error in self.error if "could not be drawn" in error.value]
        traces = [code.value for code in self.code if "Traceback" in code.value]
        assert not broken, (broken, traces)
        return True


def open_page(page: str, run: str | None = None, /, *, may_break: bool = False, **query: str) -> Tab:
    """Open a page of the dashboard as a browser with this URL would."""
    # As our launcher sets it: Streamlit would time each of its calls.
    config.set_option("browser.gatherUsageStats", False)
    tab = Tab(APP, default_timeout=120)
    tab.may_break = may_break
    for name, value in ({"run": run} if run is not None else {}).items() | query.items():
        tab.query_params[name] = value
    return tab.run() if page == "runs" else tab.go_to(page)


def open_settings() -> Tab:
    """Open the settings as a click on their button does; a dialog is drawn again by opening it again."""
    tab = open_page("runs")
    tab.button_called("Settings").click()
    return tab.run()


def questions(tab: Tab) -> list[str]:
    """Return the labels of the buttons that ask once more before they stop something."""
    popovers = [node.proto.popover for node in tab._nodes() if node.type == "popover"]
    return [one.label for one in popovers if one.label.startswith(("Save and stop", "Stop"))]


def parts_of(markup: str, name: str) -> list[str]:
    """Return the text of each element with the class `name` that has no others in it."""
    return [html.unescape(text) for text in re.findall(f'class="{name}"[^>]*>([^<]+)<', markup)]


ESCAPED = re.compile(r"\\[!-/:-@\[-`{-~]")
"""A character that a backslash keeps from being markup."""
FENCED = re.compile(r"^(`{3,})text\n.*?^\1$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`[^`\n]+`")


def _without_code(text: str) -> str:
    for code in (FENCED, ESCAPED, INLINE_CODE):
        text = code.sub("", text)
    return text


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
    return re.sub(r"\\(.?)", r"\1", text, flags=re.DOTALL).replace("\N{WORD JOINER}", "")


def _as_known(kind: str, cell: Any) -> Any:
    if kind == "number" and cell:
        return float(cell.replace(",", ""))
    return cell[0] if kind == "progress" and cell else cell
