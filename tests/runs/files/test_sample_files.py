"""Files of samples: what is sent to a browser comes from a folder that anybody may have written."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from tests.made_runs import write_run
from toolkit.telemetry.runs.files.sample_files import kind_of, sample_file
from toolkit.telemetry.runs.sources.local_store import LocalStore
from toolkit.telemetry.runs.store import Refused


def picture(kind="PNG", size=(8, 8), mode="RGB"):
    data = io.BytesIO()
    Image.new(mode, size, "red").save(data, kind)
    return data.getvalue()


@pytest.fixture
def folder(tmp_path):
    folder = write_run(tmp_path / "logs", "r")
    (folder / "samples").mkdir()
    return folder


@pytest.fixture
def ask(folder):
    store = LocalStore([folder.parent], cache_dir=None)

    def answer(path, **options):
        return sample_file(store, "r", path, **options)

    return answer


@pytest.mark.parametrize(
    ("kind", "ending", "content_type"),
    [
        ("PNG", "png", "image/png"),
        ("JPEG", "JPG", "image/jpeg"),
        ("WEBP", "webp", "image/webp"),
        ("GIF", "gif", "image/gif"),
    ],
)
def test_an_image_is_sent_unchanged(folder, ask, kind, ending, content_type):
    data = picture(kind, (300, 20))
    (folder / f"samples/a.{ending}").write_bytes(data)

    found = ask(f"samples/a.{ending}")

    assert (found.data, found.content_type) == (data, content_type)


def test_a_foreign_ending_does_not_change_what_an_image_is(folder, ask):
    (folder / "a.png").write_bytes(picture("JPEG"))

    assert ask("a.png").content_type == "image/jpeg"


@pytest.mark.parametrize(("mode", "kind"), [("RGB", "JPEG"), ("RGBA", "PNG"), ("P", "JPEG"), ("L", "JPEG")])
def test_a_large_image_can_be_had_small(folder, ask, mode, kind):
    (folder / "a.png").write_bytes(picture(size=(900, 450), mode=mode))

    with Image.open(io.BytesIO(ask("a.png", small=True).data)) as found:
        assert (found.size, found.format) == ((384, 192), kind)

    (folder / "b.png").write_bytes(picture(size=(64, 64)))
    assert ask("b.png", small=True).data == picture(size=(64, 64))


def test_only_files_that_a_page_shows_are_sent(folder, ask):
    (folder / "page.html").write_text("<script>alert(1)</script>")
    (folder / "drawing.svg").write_text("<svg onload=alert(1)>")

    for path in ("metrics.jsonl", "run.json", "page.html", "drawing.svg", "", "samples"):
        with pytest.raises(Refused, match="cannot be shown"):
            ask(path)


def test_texts_and_sounds_have_types_that_run_nothing(folder, ask):
    (folder / "a.txt").write_bytes(b"Once upon a time <b>bold</b> \xff" + b"x" * 50_000)
    (folder / "a.wav").write_bytes(b"RIFF")

    text, sound = ask("a.txt"), ask("a.wav")

    assert text.content_type == "text/plain"
    assert text.data.decode().startswith("Once upon a time <b>bold</b> \ufffd")
    assert len(text.data) < 21_000
    assert (sound.content_type, sound.data) == ("audio/wav", b"RIFF")


def test_the_ending_says_how_a_sample_is_shown():
    shown = {path: kind_of(path) for path in ("a.PNG", "b.jpeg", "c.mp3", "d.webm", "e.txt", "f", "g.svg")}

    assert list(shown.values()) == ["image", "image", "audio", "video", "text", "other", "other"]
