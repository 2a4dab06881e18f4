"""`telemetry top`: what it shows, its keys, hostile text, and a real terminal."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from rich.cells import cell_len

from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.runs import write_run, write_table
from tests.lengths import in_make_faults
from tests.project.markdown import ROOT
from tests.waiting import PATIENCE_S
from toolkit.cli.commands.look import top
from toolkit.cli.main import main
from toolkit.cli.top.app import Lines, Top
from toolkit.cli.top.plot import Curve, Plot
from toolkit.cli.top.reading import Runs
from toolkit.cli.top.text import Text, charset_of
from toolkit.cli.top.view import Opened
from toolkit.runfolder.labels import Labels, write_labels
from toolkit.runs.curve_tiles import NonFiniteRun
from toolkit.runs.store import CurveSegment, Series
from toolkit.telemetry import TelemetryLogger

HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/red]\n\r\t日本\u202egnp.\u0301\u0302\u0303\u0304\u0305\ufe0f\u200b"


class Screen:
    """The program, its keys and its lines."""

    def __init__(self, app, pilot):
        self.app, self.press, self._pilot = app, pilot.press, pilot

    @property
    def lines(self):
        return ["".join(text for text, _ in line) for line in self.app.query_one(Lines).lines]

    async def until(self, condition):
        """Wait until the lines fulfil a condition, and return them as one text."""
        for _ in range(int(PATIENCE_S / 0.02)):
            await self._pilot.pause(0.02)
            if condition("\n".join(self.lines)):
                return "\n".join(self.lines)
        raise AssertionError("\n".join(self.lines))

    async def shows(self, text):
        return await self.until(lambda lines: text in lines)


def on_screen(folder, use, *, size=(100, 30), charset="braille"):
    """Run the program in memory and `use` it."""

    async def run():
        app = Top(Runs([folder]), Text(charset))
        async with app.run_test(size=size) as pilot:
            await use(Screen(app, pilot))
        return app.return_code

    return asyncio.run(run())


def test_runs_are_listed_searched_opened_and_compared_by_keys(tmp_path):
    write_run(tmp_path, "spiky", [1.0] * 20 + [math.nan] * 3 + [9.0, *[1.0] * 40])
    write_run(tmp_path, "calm", [1 / step for step in range(1, 60)])
    write_table(tmp_path / "theirs" / "log.csv", [0.5, 0.25])

    async def use(screen):
        listed = await screen.shows("3 runs")
        assert "finished  spiky" in listed
        assert "table" in listed

        await screen.press("/", *"step>", "enter")
        await screen.until(lambda lines: "'>'" in lines.split("\n")[-1] or "step>" in lines.split("\n")[-1])
        await screen.press("/", "ctrl+u", *"spiky", "enter")
        assert "calm" not in await screen.shows("1 of 3 runs")

        await screen.press("enter")
        opened = await screen.shows("Not a number")
        assert "train_loss · 3 NaN or infinite" in opened
        assert "─NN" in opened.replace("I", "N")
        assert "        9│" in opened

        await screen.press("l")
        assert "train_loss · log" in await screen.shows("log")
        await screen.press("left", "shift+left")
        assert "at 64: 1" not in await screen.until(lambda lines: "at 5" in lines)
        await screen.press("escape", "t")
        await screen.shows("time")
        await screen.press("down")
        await screen.until(lambda lines: "train_loss" not in lines.split("\n")[1])
        await screen.press("f")
        assert "Cause:" in await screen.shows("Try:")
        await screen.press("escape", "s", "y")
        await screen.shows("save: not sent, the run is finished and cannot answer requests")

        await screen.press("escape", "/", "ctrl+u", "enter")
        await screen.shows("calm")
        await screen.press("g", " ", "j", " ", "enter")
        compared = await screen.until(lambda lines: "a " in lines and "\nb " in lines and "step" in lines)
        assert len({"spiky", "calm", "theirs"} & set(compared.split())) >= 2
        await screen.press("?")
        await screen.shows("logarithmic y axis")
        await screen.press("q")

    assert on_screen(tmp_path, use) == 0


def test_no_text_of_a_file_reaches_the_terminal_as_it_is(tmp_path):
    run = write_run(tmp_path, "run", [0.5, 0.25], project="[bold]p\x1b[31m")
    write_labels(run, Labels(display_name=HOSTILE))
    with TelemetryLogger("other", log_dir=tmp_path, log_every=1, system=False) as log:
        log.log_step(1, **{f"train_loss{HOSTILE}": 1.0, "train_loss": math.nan})
    seen = []

    async def use(screen):
        seen.append(await screen.until(lambda lines: "[red]x[/red]" in lines and "other" in lines))
        for name in ("other", "red"):
            await screen.press("/", "ctrl+u", *name, "enter")
            await screen.shows("1 of 2")
            await screen.press("enter")
            seen.append(await screen.until(lambda lines: "findings" in lines and "─" in lines))
            await screen.press("down", "f")
            seen.append(await screen.until(lambda lines: "Final loss" in lines))
            await screen.press("escape", "escape")
        for line in (line for shot in seen for line in shot.split("\n")):
            assert cell_len(line) <= 120
            assert line.isprintable()
            assert "\u0301\u0302\u0303" not in line

    on_screen(tmp_path, use, size=(120, 26))
    assert Text("ascii").fit(HOSTILE, 30).isascii()
    assert all(cell_len(Text().fit("日本語" * 3, width)) == width for width in range(9))


def test_every_character_set_shows_spikes_nan_and_resumes():
    x = np.arange(1000.0)
    y = np.ones(1000)
    y[700], y[300] = 50.0, np.nan
    segments = (CurveSegment(x=x[:500], y=y[:500], session=1), CurveSegment(x=x[500:], y=y[500:], session=2))
    odd = (NonFiniteRun(kind="NaN", first_x=300, last_x=300, count=1),)
    series = Series(metric="loss", axis="step", segments=segments, non_finite=odd, drawn=1000, total=1000)
    curve = Curve(label="a", style="cyan", series=series, resumes=[500])
    for charset in ("braille", "blocks", "ascii"):
        plot = Plot(text=Text(charset), width=60, height=12, span=(0, 999), cursor=700)
        lines = ["".join(text for text, _ in line) for line in plot.draw("loss", [curve, curve])]
        head, first, *_, axis = lines

        assert first.startswith("       50")
        assert set(first[10:]) - set(" ┊:│|"), "the spike is in the top row"
        assert "1 to 50" in head
        assert (axis.count("N"), axis.count("R")) == (1, 1)
        assert {len(line) for line in lines} == {60}
        assert charset != "ascii" or all(line.isascii() for line in lines)


def test_values_and_places_of_any_size_are_drawn():
    odd = [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, 0.0, -1.0, 1e300, 1.0]
    places = [0.0, 1e300, -1e300, math.nan, 5.0, 5.0, 1.7e308, -1.7e308, 6.0, math.inf]
    for log in (False, True):
        for size in range(1, 11):
            part = CurveSegment(x=np.array(places[:size]), y=np.array(odd[-size:]), session=1)
            series = Series(metric="loss", axis="step", segments=(part,), drawn=size, total=size)
            curve = Curve(label="a", style="cyan", series=series, resumes=[math.nan, 3.0])
            span = Opened(cards=(), charts=[("loss", [curve])]).span
            for width in (1, 8, 40):
                plot = Plot(text=Text(), width=width, height=size, span=span, log=log, cursor=span[0])
                assert len(plot.draw("loss", [curve])) == max(2, size)


def test_the_characters_are_those_that_the_terminal_has():
    assert charset_of("utf-8", {}) == "braille"
    assert charset_of("utf-8", {"LANG": "de_DE.UTF-8", "TERM": "linux"}) == "blocks"
    assert charset_of("latin-1", {}) == charset_of("utf-8", {"LC_ALL": "C", "LANG": "C.UTF-8"}) == "ascii"


def test_what_it_needs_is_said_in_a_sentence(tmp_path, capsys, monkeypatch):
    assert main(["top", str(tmp_path / "none")]) == 2
    assert "it does not exist" in capsys.readouterr().err
    assert main(["top", str(tmp_path)]) == 2
    assert "`telemetry ls` and `telemetry tail`" in capsys.readouterr().err
    monkeypatch.setattr("os.isatty", lambda _: True)
    monkeypatch.setenv("TERM", "dumb")
    assert main(["top", str(tmp_path)]) == 2
    assert "TERM is dumb" in capsys.readouterr().err
    monkeypatch.setattr(top, "find_spec", lambda name: None if name == "textual" else find_spec(name))
    assert main(["top", str(tmp_path)]) == 2
    assert "pip install 'ai-toolkit-telemetry[top]'" in capsys.readouterr().err


@pytest.mark.parametrize("environ", [{}, {"TERM": "screen", "NO_COLOR": "1", "LC_ALL": "C"}])
def test_a_real_terminal_is_left_as_it_was(tmp_path, environ):
    run = write_run(tmp_path, "real", [0.5, 0.25])
    write_labels(run, Labels(display_name=f"real {HOSTILE}"))
    terminal = PseudoTerminal([sys.executable, "-m", "toolkit.cli", "top", str(tmp_path)], env=environ)
    try:
        terminal.wait_for("[red]x[/red]")
        terminal.send("q")
        code = terminal.wait_for_end()

        assert code == 0
        assert terminal.is_restored()
        assert b"\x1b[?1049l" in terminal.seen.rpartition(b"\x1b[?1049h")[2]
        assert b"owned\x07" not in terminal.seen
        assert b"\x1b]0;" not in terminal.seen
        if environ:
            assert b"\x1b[32m" not in terminal.seen
            assert all(byte < 128 for byte in terminal.seen)
    finally:
        terminal.close()


@in_make_faults
def test_a_live_run_does_what_it_is_asked_and_says_so(tmp_path):
    script = (
        "import sys, time\n"
        "from toolkit.telemetry import TelemetryLogger\n"
        "with TelemetryLogger('live', log_dir=sys.argv[1], log_every=1, system=False) as log:\n"
        "    log.declare_action('save', lambda: None)\n"
        "    for step in range(1, 10**6):\n"
        "        log.log_step(step, train_loss=1 / step)\n"
        "        log.take_requests()\n"
        "        time.sleep(0.02)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:

        async def use(screen):
            await screen.shows("running")
            await screen.press("enter")
            await screen.shows("train_loss ·")
            await screen.press("x", "n", "x", "y")
            await screen.shows("stop: not sent, the run does not offer stop")
            await screen.press("s")
            await screen.shows("Ask the run to save a checkpoint now? y or n")
            await screen.press("y")
            await screen.shows("save: applied at step")

        try:
            on_screen(tmp_path, use)
        finally:
            process.kill()
