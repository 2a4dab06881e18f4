"""The Timeline: the last steps in detail, any other part on request, and how long everything took together."""

from __future__ import annotations

import json
import time

from tests.dashboard.views.pages import open_page
from tests.lengths import in_make_faults
from tests.made_runs import BEGAN, append, write_run
from tests.timing.span_run import SpanRun, many_spans, span_records, write_span_run


def spans_chart(tab):
    """Return the figure of the bars."""
    return next(figure for label, figure in tab.figures().items() if label.startswith("spans,"))


def rows_of(figure):
    """Return the names next to the rows, the signs for how deep they lie as plain ones."""
    return [
        text.replace("\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}", ">")
        for text in figure["layout"]["yaxis"]["ticktext"]
    ]


def bars_of(figure, name):
    return sum(len(trace["customdata"]) for trace in figure["data"] if trace["name"] == name)


def table_of(tab):
    return next(table for table in tab.tables() if "p95 ms" in table).set_index("span")


def test_the_last_five_kept_steps_are_in_view_under_what_they_are_part_of(logs):
    write_span_run(logs, "r")

    tab = open_page("machine", "r")
    figure = spans_chart(tab)

    assert "Span timeline · steps 96\N{EN DASH}100" in tab.said()
    assert rows_of(figure) == [
        "application",
        "> training_loop",
        ">> training_iteration",
        ">>> data_loading",
        ">>> forward",
        ">>> backward",
        ">>> optimizer_update",
    ]
    assert bars_of(figure, "forward") == 5
    assert tab.downloads() == ["Chrome trace (opens in Perfetto)"]


def test_the_table_counts_also_what_was_not_kept_one_by_one(logs):
    write_span_run(logs, "r")

    table = table_of(open_page("machine", "r"))
    tab_said = open_page("machine", "r").said()

    # 55 steps of the second session, which wrote its sums; of the first, which was killed, the kept ones.
    assert table.loc["forward", "count"] == 55 + 5
    assert table.loc["training_loop", "count"] == 1
    assert table["total s"].is_monotonic_decreasing
    assert 0 < table.loc["forward", "% of run"] < table.loc["training_loop", "% of run"] <= 1
    assert "all spans of 1 session and only the single ones of 1 without totals" in tab_said


def test_a_run_without_spans_says_what_would_be_here_and_how_to_get_it(logs):
    write_run(logs, "r")

    tab = open_page("machine", "r")

    assert "This run has logged no spans." in tab.said()
    assert any('log.span("forward")' in code.value for code in tab.code)


def test_an_address_shows_its_part_of_the_run_and_one_without_spans_shows_the_last_steps(logs):
    records = span_records()
    write_run(logs, "r", records)
    saving = next(record for record in records if record["event"] == "span" and "error" in record)

    shown = open_page(
        "machine", "r", since=f"{saving['start'] - 0.1:.6f}", until=f"{saving['start'] + 1:.6f}"
    )
    elsewhere = open_page("machine", "r", since="50", until="150")

    assert "checkpoint_save_sync" in " ".join(rows_of(spans_chart(shown)))
    assert "var(--critical)" in json.dumps(spans_chart(shown)["data"])
    assert "OSError: full" in json.dumps(spans_chart(shown)["data"])
    assert "steps 96\N{EN DASH}100" in elsewhere.said()


def test_what_a_killed_process_left_open_says_so(logs):
    write_span_run(logs, "r")
    tab = open_page("machine", "r")

    place = next(box for box in tab.selectbox if box.label == "Go to")
    place.set_value("session 1 (all)").run()

    assert "the process ended inside this span, after" in json.dumps(spans_chart(tab)["data"])


def test_the_open_span_of_a_live_run_reaches_the_right_edge(logs):
    run = SpanRun(began=time.time() - 20)
    run.begin_session()
    run.open("training_loop")
    run.step(1, kept="start")
    write_run(logs, "r", run.records, status="running")

    assert "open for " in json.dumps(spans_chart(open_page("machine", "r"))["data"])


def test_buttons_lead_to_earlier_steps_to_the_whole_session_and_back(logs):
    write_span_run(logs, "r")
    tab = open_page("machine", "r")

    tab.button_called("Earlier").click().run()
    assert "steps 58\N{EN DASH}62" in tab.said()
    tab.button_called("Earlier").click().run()
    assert "steps 46\N{EN DASH}50" in tab.said()
    tab.button_called("Later").click().run()
    assert "steps 58\N{EN DASH}62" in tab.said()
    place = next(box for box in tab.selectbox if box.label == "Go to")
    place.set_value("session 2 (all)").run()
    assert "steps 46\N{EN DASH}100" in tab.said()
    assert bars_of(spans_chart(tab), "validation_loop") == 2
    tab.button_called("Last steps").click().run()
    assert "steps 96\N{EN DASH}100" in tab.said()
    assert "since" not in tab.query_params


def test_steps_in_detail_and_incidents_can_be_chosen(logs):
    write_span_run(logs, "r")
    tab = open_page("machine", "r")
    place = next(box for box in tab.selectbox if box.label == "Go to")

    assert "steps 58\N{EN DASH}62, around an incident (session 2)" in place.options
    assert any(option.endswith("at step 60") for option in place.options)

    place.set_value("steps 1\N{EN DASH}5, at the start (session 1)").run()

    assert "Span timeline · steps 1\N{EN DASH}5" in tab.said()
    assert next(box for box in tab.selectbox if box.label == "Go to").value is None


def test_where_steps_were_only_summed_up_the_page_says_so(logs):
    records = span_records()
    write_run(logs, "r", records)
    saving = next(record for record in records if record["event"] == "span" and "error" in record)

    tab = open_page("machine", "r", since=str(saving["start"]), until=str(saving["start"] + 0.5))

    assert "recorded individually only at the start" in tab.said()


def test_ranks_are_shown_side_by_side_or_one_by_one(logs):
    write_span_run(logs, "r", ranks=3)

    together = open_page("machine", "r", by="By rank")
    second = open_page("machine", "r", rank="2")

    assert rows_of(spans_chart(together)) == ["rank 0", "rank 1", "rank 2"]
    assert table_of(second).loc["forward", "p50 ms"] > table_of(together).loc["forward", "p50 ms"]


@in_make_faults
def test_ten_thousand_spans_are_drawn_the_longest_first_and_all_counted(logs):
    write_run(logs, "r", many_spans(2_000))
    whole = {"since": str(BEGAN - 1), "until": str(BEGAN + 1e4)}

    tab = open_page("machine", "r", **whole)
    figure = spans_chart(tab)

    assert "the longest 2,000 of 10,001 spans" in tab.said()
    assert sum(len(trace["x"]) for trace in figure["data"]) == 2_000
    assert "range" not in figure["layout"]["xaxis"], "all of it, as after a double click"
    assert bars_of(figure, "training_iteration") >= 1_999
    assert table_of(tab).loc["forward", "count"] == 2_000


def test_spans_do_not_crowd_the_events_out(logs):
    folder = write_span_run(logs, "r")
    append(folder, [{"event": "ledger", "time": BEGAN + 100, "ledger/training": 3.0, "session": 2}])

    tab = open_page("machine", "r")
    events = next(table for table in tab.tables() if "details" in table)

    assert set(events["event"]) == {"start", "end", "finding", "checkpoint"}


def test_a_run_that_offers_it_is_asked_to_record_its_next_steps(logs):
    run = SpanRun(began=time.time() - 20)
    run.begin_session()
    run.step(1, kept="start")
    folder = write_run(logs, "r", run.records, status="running", control={"actions": ["trace"]})
    write_run(logs, "s", run.records, status="running", control={"actions": ["save"]})

    tab = open_page("machine", "r")
    tab.button_called("Record next steps in detail").click().run()

    assert json.loads((folder / "control.json").read_text())["actions"] == ["trace"]
    assert "Record next steps" not in open_page("machine", "s").said()
