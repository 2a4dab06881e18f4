"""What the model makes of each prompt; the files come from a folder that anybody may have written."""

from __future__ import annotations

import io
import os
import struct
import zlib

import pytest

pytest.importorskip("streamlit")

from PIL import Image

from tests.dashboard.run_folders import write_run
from tests.dashboard.views.pages import is_well, open_page, said


def sample(path, step=10, prompt="a cat"):
    return {"event": "sample", "time": 1.7e9, "path": path, "prompt": prompt, "global_step": step}


def png(width=8, height=8):
    data = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(data, "PNG")
    return data.getvalue()


def huge_header():
    """Return a PNG that says of itself that it is a million pixels wide and high."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1_000_000, 1_000_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.fixture
def show(logs):
    """Write one file into a run, let a record point to it, and open the page."""

    def write_and_open(path, data=None, make=None):
        folder = write_run(logs, "r", extra=[sample(path)])
        (folder / "samples").mkdir()
        if data is not None:
            (folder / path).write_bytes(data)
        if make is not None:
            make(folder / path)
        tab = open_page("samples", "r")
        assert is_well(tab)
        return tab

    return write_and_open


def test_an_image_is_shown_under_its_prompt_with_its_step(show):
    tab = show("samples/0010_0.png", png())

    assert "**a cat**" in said(tab)
    assert len(tab.image) == 1
    assert "step 10" in said(tab)


@pytest.mark.parametrize(("kind", "ending"), [("JPEG", "jpg"), ("WEBP", "webp"), ("GIF", "gif")])
def test_images_of_other_kinds_are_shown(show, kind, ending):
    data = io.BytesIO()
    Image.new("RGB", (300, 20)).save(data, kind)

    assert len(show(f"samples/a.{ending}", data.getvalue()).image) == 1


def test_a_link_is_refused(show, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(png())

    tab = show("samples/a.png", make=lambda path: path.symlink_to(secret))

    assert not tab.image
    assert "step 10:" in said(tab)


def test_a_folder_on_the_way_that_is_a_link_is_refused(logs, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.png").write_bytes(png())
    folder = write_run(logs, "r", extra=[sample("samples/a.png")])
    (folder / "samples").symlink_to(tmp_path / "elsewhere")

    tab = open_page("samples", "r")

    assert is_well(tab)
    assert not tab.image
    assert "its path contains a link or a file" in said(tab)


def test_a_missing_file_is_reported(show):
    tab = show("samples/gone.png")

    assert not tab.image
    assert "No such file" in said(tab)


def test_bytes_that_are_no_image_are_not_shown_as_one(show):
    tab = show("samples/a.png", b"<svg onload=alert(1)>" * 10)

    assert not tab.image
    assert "samples/a.png" in said(tab)


def test_a_truncated_image_is_reported_as_no_image(show):
    tab = show("samples/a.png", b"\x89PNG\r\n\x1a\n" + b"\x00" * 50)

    assert not tab.image
    assert "not an image" in said(tab)


def test_an_image_that_ends_early_is_not_drawn_in_part(show):
    tab = show("samples/a.png", png(400, 400)[:200])

    assert not tab.image
    assert "not an image" in said(tab)


def test_a_huge_image_is_not_even_unpacked(show):
    tab = show("samples/a.png", huge_header())

    assert not tab.image
    assert "too large or too tall to show" in said(tab) or "not an image" in said(tab)


def test_a_huge_file_is_not_read(show):
    tab = show("samples/a.png", make=lambda path: os.truncate(_touched(path), 30_000_000))

    assert not tab.image
    assert "30,000,000 bytes" in said(tab)


def test_a_pipe_in_place_of_an_image_blocks_no_one(show):
    tab = show("samples/a.png", make=os.mkfifo)

    assert not tab.image


def test_a_text_is_shown_as_it_is(show):
    tab = show("samples/a.txt", b"Once upon a time **bold** \xff")

    assert any("Once upon a time **bold** \ufffd" in code.value for code in tab.code)


def test_the_first_and_the_last_of_many_steps_are_shown(logs):
    folder = write_run(
        logs,
        "r",
        extra=[sample(f"s{step}.png", step, prompt) for step in range(50) for prompt in ("a cat", "a dog")],
    )
    for step in range(50):
        (folder / f"s{step}.png").write_bytes(png())

    tab = open_page("samples", "r", shown="4")

    assert len(tab.image) == 8
    assert "50 samples" in said(tab)
    assert "step 0" in said(tab)
    assert "step 49" in said(tab)

    tab.text_input(key="prompt").set_value("DOG").run()

    assert len(tab.image) == 4

    tab.text_input(key="prompt").set_value("elephant").run()

    assert "No prompts match." in said(tab)


def _touched(path):
    path.touch()
    return path
