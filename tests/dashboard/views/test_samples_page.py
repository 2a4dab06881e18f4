"""What the model makes of each prompt, and logged tables, histograms and texts."""

from __future__ import annotations

import asyncio

import pytest
from PIL import Image
from starlette.requests import Request

from dashboard.server import answer_sample_file
from tests.dashboard.views.pages import open_page
from tests.made_runs import write_run


def sample(path, step=10, prompt="a cat", **more):
    return {"event": "sample", "time": 1.7e9, "path": path, "prompt": prompt, "global_step": step, **more}


def titles(tab):
    return [row["title"] for row in tab.samples()["rows"]]


def get(query, part=None):
    headers = [] if part is None else [(b"range", part)]
    scope = {"type": "http", "method": "GET", "path": "/run-file", "query_string": query, "headers": headers}
    return asyncio.run(answer_sample_file(Request(scope)))


def test_every_sample_of_a_prompt_is_there_with_its_step_and_seed(logs):
    write_run(
        logs,
        "r",
        extra=[
            sample(f"s{step}.png", step, prompt, seed=7)
            for step in range(300)
            for prompt in ("a cat", "a dog")
        ],
    )

    tab = open_page("samples", "r")

    assert titles(tab) == ["a cat", "a dog"]
    [cell] = tab.samples()["rows"][0]["cells"]
    assert len(cell) == 300
    assert cell[-1] == [299, "s299.png", "image", "", "seed 7"]
    assert tab.samples()["view"] == "step"
    assert tab.samples()["at"] is None
    linked = open_page("samples", "r", view="All", at="120").samples()
    assert (linked["view"], linked["at"]) == ("all", 120)

    tab.text_input(key="prompt").set_value("DOG").run()

    assert titles(tab) == ["a dog"]

    tab.text_input(key="prompt").set_value("elephant").run()

    assert "No prompts match." in tab.said()


def test_a_file_is_served_from_the_address_that_the_page_has(logs):
    folder = write_run(logs, "a run?&", extra=[sample("samples/ä b.png")])
    (folder / "samples").mkdir()
    Image.new("RGB", (8, 8), "red").save(folder / "samples" / "ä b.png")

    [column] = open_page("samples", "a run?&").samples()["columns"]
    path, query = column["url"].split("?", 1)
    found = get(f"{query}&path=samples%2F%C3%A4%20b.png".encode())

    assert path == "/run-file"
    assert (found.status_code, found.media_type) == (200, "image/png")
    assert found.headers["cache-control"].startswith("private")


@pytest.mark.parametrize(
    "query", [b"", b"run=r", b"run=r&path=gone.png", b"run=r&path=metrics.jsonl", b"run=nope&path=a.png"]
)
def test_what_cannot_be_served_is_a_sentence(logs, query):
    write_run(logs, "r")

    found = get(query)

    assert (found.status_code, found.media_type) == (404, "text/plain")
    assert len(found.body) > 5


@pytest.mark.parametrize(
    ("part", "status", "body"),
    [
        (b"bytes=2-4", 206, b"cde"),
        (b"bytes=7-", 206, b"hij"),
        (b"bytes=-2", 206, b"ij"),
        (b"bytes=8-99", 206, b"ij"),
        (b"bytes=0-", 200, b"abcdefghij"),
        (b"bytes=50-60", 200, b"abcdefghij"),
        (b"bytes=-", 200, b"abcdefghij"),
        (b"bytes=1-2,4-5", 200, b"abcdefghij"),
        (b"lines=1-2", 200, b"abcdefghij"),
    ],
)
def test_a_player_can_ask_for_a_part_of_a_sound(logs, part, status, body):
    (write_run(logs, "r") / "a.wav").write_bytes(b"abcdefghij")

    found = get(b"run=r&path=a.wav", part)

    assert (found.status_code, found.body) == (status, body)


def test_a_path_that_no_address_can_hold_is_only_named(logs):
    folder = write_run(logs, "r")
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(b'{"event":"sample","time":1.7e9,"path":"\\ud83d.png","prompt":"p","global_step":1}\n')

    tab = open_page("samples", "r")

    found = tab.samples()
    assert found is None or found["rows"][0]["cells"][0][0][1:3] == ["\ufffd.png", "other"]


def test_tables_are_sorted_as_numbers_filtered_and_chosen_by_step(logs):
    folder = write_run(
        logs,
        "r",
        extra=[
            {
                "event": "table",
                "time": 1.7e9,
                "name": "scores",
                "global_step": step,
                "path": f"tables/{step}.csv",
            }
            for step in (10, 20, 30)
        ],
    )
    (folder / "tables").mkdir()
    for step in (10, 20):
        (folder / f"tables/{step}.csv").write_text(f"prompt,clip\na cat,{step}\na dog,5\n")

    tab = open_page("samples", "r")

    assert "step 30: 'tables/30.csv': No such file" in tab.said()

    tab.select_slider[0].set_value(1).run()

    assert tab.dataframe[0].value["clip"].tolist() == [20.0, 5.0]

    tab.text_input(key="_table_filter").set_value("CAT").run()

    assert tab.dataframe[0].value["prompt"].tolist() == ["a cat"]
    assert "step 20 · 2 rows, 1 match" in tab.said()


def test_histograms_are_a_heat_map_texts_as_they_are_and_what_cannot_be_read_is_named(logs):
    made = {"event": "histogram", "time": 1.7e9, "name": "weights", "values": [1, 2], "bins": [0.0, 1.0, 2.0]}
    texts = [
        {"event": "text", "name": "note", "content": "**a** <b>"},
        {"event": "text", "name": "n", "text": "b"},
    ]
    histograms = [{**made, "global_step": 1, "not_finite": 2}, {**made, "name": "odd", "values": "x"}]
    write_run(logs, "r", extra=[*histograms, *texts])

    tab = open_page("samples", "r")

    assert tab.charts() == 1
    assert "2 values NaN or infinite" in tab.said()
    assert "cannot be read" in tab.said()
    assert "No samples yet." not in tab.said()
    assert [code.value for code in tab.code][-2:] == ["**a** <b>", "b"]


def test_the_overview_has_the_latest_samples_and_a_link_to_all(logs):
    write_run(
        logs,
        "r",
        extra=[sample(f"{step}.png", step, prompt) for step in range(1_000) for prompt in ("a cat", "a dog")]
        + [sample("a.wav", 5, "a sound")],
    )

    tab = open_page("overview", "r")

    assert "Latest samples" in tab.said()
    shown = tab.samples()
    assert (shown["layout"], shown["follows"]) == ("strip", "r")
    assert [row["title"] for row in shown["rows"]] == ["a cat", "a dog"]
    [cell] = shown["rows"][0]["cells"]
    assert (len(cell), cell[0][0], cell[-1][0]) == (200, 0, 999)


def test_runs_are_compared_by_prompt(logs):
    write_run(logs, "a", extra=[sample("a.png", 1, "a cow"), sample("b.png", 1, "a cat")], display_name="A")
    write_run(logs, "b", extra=[sample("c.png", 2, "a cat")])
    write_run(logs, "c")

    tab = open_page("compare", runs="a,b,c")

    shown = tab.samples()
    assert [column["name"] for column in shown["columns"]] == ["A", "b"]
    assert titles(tab) == ["a cat", "a cow"]
    assert [[item[1] for item in cell] for cell in shown["rows"][0]["cells"]] == [["b.png"], ["c.png"]]
    assert shown["rows"][1]["cells"][1] == []
    assert "One run has no samples." in tab.said()
    assert open_page("compare", runs="c,b").samples() is not None
    write_run(logs, "d")
    assert open_page("compare", runs="c,d").samples() is None
    assert open_page("overview", "c").samples() is None
