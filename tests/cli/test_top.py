"""`telemetry top`: what it shows, its keys, hostile text, and a real terminal."""

from __future__ import annotations

import asyncio
import math
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import psutil
import pytest
from rich.cells import cell_len
from textual.events import Paste

from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.runs import write_run, write_table
from tests.lengths import in_make_faults
from tests.project.markdown import ROOT
from tests.waiting import PATIENCE_S, wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.chosen_run import runs_given
from toolkit.telemetry.cli.commands.look import top
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.cli.top.app import Lines, Top
from toolkit.telemetry.cli.top.plot import Plot
from toolkit.telemetry.cli.top.reading import Curve, Opened, Runs, View
from toolkit.telemetry.cli.top.text import Text, needs_ascii
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.runfolder.labels import Labels, write_labels
from toolkit.telemetry.runs.curve_tiles import NonFiniteRun
from toolkit.telemetry.runs.store import CurveSegment, Series

HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/red]\n\r\t日本\u202egnp.\u0301\u0302\u0303\u0304\u0305\ufe0f\u200b"


class Screen:
    """The program, its keys and its lines."""

    def __init__(self, app, pilot):
        self.app, self.press, self._pilot = app, pilot.press, pilot

    async def until(self, condition):
        """Wait until the lines fulfil a condition, and return them as one text; no line may harm a terminal."""
        for _ in range(int(PATIENCE_S / 0.02)):
            await self._pilot.pause(0.02)
            lines = ["".join(text for text, _ in line) for line in self.app.query_one(Lines).lines]
            for line in lines:
                assert cell_len(line) <= self.app.size.width
                assert line.isprintable()
                assert "\u0301\u0302\u0303" not in line
            if condition("\n".join(lines)):
                return "\n".join(lines)
        raise AssertionError("\n".join(lines))

    async def shows(self, text):
        return await self.until(lambda lines: text in lines)

    async def search(self, text):
        await self.press("/", "ctrl+u")
        self.app.post_message(Paste(text))
        await self.shows(f"/{text}_")
        await self.press("enter")


def on_screen(folders, use, *, size=(100, 30)):
    """Run the program in memory and `use` it."""

    async def run():
        app = Top(Runs(runs_given(folders)), Text())
        async with app.run_test(size=size) as pilot:
            await use(Screen(app, pilot))
        return app.return_code

    return asyncio.run(run())


def test_runs_are_listed_searched_opened_and_compared_by_keys(tmp_path):
    """Names and metrics try to change the terminal; each screen that is waited for is checked."""
    spiky = write_run(tmp_path, "spiky", [1.0] * 20 + [math.nan] * 3 + [9.0, *[1.0] * 40])
    write_labels(write_run(tmp_path, "named", [0.5], project="[bold]p\x1b[31m"), Labels(display_name=HOSTILE))
    (tmp_path / "link").symlink_to(spiky)
    write_table(tmp_path / "theirs" / "log.csv", [0.5, 0.25])
    with TelemetryLogger("calm", log_dir=tmp_path, log_every=1, system=False) as log:
        for step in range(1, 60):
            log.log_step(step, train_loss=1 / step, **{f"other{HOSTILE}": 1.0})

    async def use(screen):
        listed = await screen.until(lambda lines: "4 runs" in lines and "not followed" in lines)
        assert "finished  spiky" in listed
        assert "table" in listed
        assert "[2J[red]x" in listed

        await screen.search("step>")
        await screen.until(lambda lines: "step>" in lines.split("\n")[-1])
        await screen.search("spiky")
        assert "calm" not in await screen.shows("1 of 4 runs")

        await screen.press("enter")
        opened = await screen.shows("Not a number")
        assert "train_loss · 3 NaN or infinite" in opened
        assert "─NN" in opened.replace("I", "N")
        assert "        9│" in opened
        await screen.press("l", "left", "shift+left")
        assert "train_loss · log" in await screen.until(lambda lines: "at 5" in lines)
        await screen.press("escape", "t", "down")
        await screen.until(lambda lines: "time" in lines and "train_loss" not in lines.split("\n")[1])
        await screen.press("f")
        assert "Cause:" in await screen.shows("Try:")
        await screen.press("escape", "s", "y")
        await screen.shows("save: not sent, the run is finished and cannot answer requests")

        shutil.rmtree(spiky)
        await screen.press("t")
        await screen.shows("there is no run 'spiky'")
        await screen.press("escape")
        await screen.search("")
        await screen.shows("3 runs")
        await screen.press("g", " ", "j", " ", "j", " ", "enter")
        compared = await screen.until(lambda lines: "\nc " in lines and "step" in lines)
        assert all(name in compared for name in ("[2J[red]x", "calm", "theirs"))
        await screen.press("?")
        await screen.shows("logarithmic y axis")
        await screen.press("q")

    assert on_screen([tmp_path], use) == 0


def series_of(*parts, odd=()):
    segments = tuple(CurveSegment(x=x, y=y, session=at) for at, (x, y) in enumerate(parts))
    total = sum(len(x) for x, _ in parts)
    return Series(metric="loss", axis="step", segments=segments, non_finite=odd, drawn=total, total=total)


def drawn(curves, height, span, **view):
    plot = Plot(view=View(**view), span=span)
    return ["".join(text for text, _ in line) for line in plot.draw("loss", curves, height)]


def test_spikes_nan_and_resumes_are_shown_in_braille_and_in_ascii():
    x = np.arange(1000.0)
    y = np.ones(1000)
    y[700], y[300] = 50.0, np.nan
    odd = (NonFiniteRun(kind="NaN", first_x=300, last_x=300, count=1),)
    series = series_of((x[:500], y[:500]), (x[500:], y[500:]), odd=odd)
    curve = Curve(label="a", style="cyan", series=series, resumes=[500])
    for text in (Text(), Text(is_ascii=True)):
        lines = drawn([curve, curve], 12, (0, 999), text=text, width=60, cursor=700)
        head, first, *_, axis = lines

        assert first.startswith("       50")
        assert set(first[10:]) - set(" ┊:│|"), "the spike is in the top row"
        assert "1 to 50" in head
        assert (axis.count("N"), axis.count("R")) == (1, 1)
        assert {len(line) for line in lines} == {60}
        assert not text.is_ascii or all(line.isascii() for line in lines)


def test_values_and_places_of_any_size_are_drawn():
    odd = [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, 0.0, -1.0, 1e300, 1.0]
    places = [0.0, 1e300, -1e300, math.nan, 5.0, 5.0, 1.7e308, -1.7e308, 6.0, math.inf]
    for log in (False, True):
        for size in range(1, 11):
            series = series_of((np.array(places[:size]), np.array(odd[-size:])))
            curve = Curve(label="a", style="cyan", series=series, resumes=[math.nan, 3.0])
            span = Opened(cards=(), charts=[("loss", [curve])]).span
            for width in (1, 8, 40):
                lines = drawn([curve], size, span, text=Text(), width=width, log=log, cursor=span[0])
                assert len(lines) == max(2, size)

    for value in (0.0, 0.5, -3.0):
        flat = Curve(label="*", style="", series=series_of((np.arange(9.0), np.full(9, value))))
        lines = drawn([flat], 12, (0, 8), text=Text(), width=40)
        labels = {line[:9].strip(): line[10:].strip() for line in lines[1:-1] if line[:9].strip()}
        assert [*labels] == [f"{value:g}"]
        assert all(labels.values()), "the curve is next to its value"


def test_the_characters_are_those_that_the_terminal_has():
    assert not needs_ascii("utf-8", {})
    assert needs_ascii("utf-8", {"LANG": "de_DE.UTF-8", "TERM": "linux"})
    assert needs_ascii("latin-1", {})
    assert needs_ascii("utf-8", {"LC_ALL": "C", "LANG": "C.UTF-8"})
    assert Text(is_ascii=True).fit(HOSTILE, 30).isascii()
    assert all(cell_len(Text().fit("日本語" * 3, width)) == width for width in range(9))
    assert Text().wrap("日本語" * 3, 8) == ["日本語日", "本語日本", "語"]


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
    assert install_extra("top") in capsys.readouterr().err


_BARE = """
import sys
sys.modules.update(dict.fromkeys(("numpy", "pyarrow", "PIL", "pandas")))
from toolkit.telemetry.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def end_in_a_terminal(folder, command, environ, end):
    """Open the run of a folder in a real terminal, end the program, and return its exit code and what it wrote."""
    write_labels(write_run(folder, "real", [0.5, 0.25]), Labels(display_name=f"real {HOSTILE}"))
    terminal = PseudoTerminal([sys.executable, *command, "top", str(folder)], env=environ)
    try:
        terminal.wait_for("[red]x[/red]")
        terminal.send("\r")
        shown = "a curve needs pip install" if environ else "train_loss"
        terminal.wait_for(shown)
        terminal.send("\x1a")
        wait_until(lambda: psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)
        assert terminal.is_restored()
        terminal.drain()
        terminal.seen = b""
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for(shown)
        end(terminal)
        code = terminal.wait_for_end()

        assert terminal.is_restored()
        assert b"\x1b[?1049l" in terminal.seen.rpartition(b"\x1b[?1049h")[2]
        assert b"owned\x07" not in terminal.seen
        assert b"\x1b]0;" not in terminal.seen
        return code, terminal.seen
    finally:
        terminal.close()


def test_without_numpy_runs_are_listed_and_sigterm_leaves_the_terminal_as_it_was(tmp_path):
    environ = {"TERM": "screen", "NO_COLOR": "1", "LC_ALL": "C"}
    code, seen = end_in_a_terminal(
        tmp_path, ["-c", _BARE], environ, lambda terminal: terminal.process.terminate()
    )

    assert code == 128 + signal.SIGTERM
    assert b"\x1b[32m" not in seen
    assert all(byte < 128 for byte in seen)


@in_make_faults
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda terminal: terminal.send("q"), 0),
        (lambda terminal: terminal.send("\x03"), 0),
        (lambda terminal: terminal.process.send_signal(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
)
def test_every_end_leaves_the_terminal_as_it_was(tmp_path, end, expected):
    assert end_in_a_terminal(tmp_path, ["-m", "toolkit.telemetry.cli"], {}, end)[0] == expected


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
            on_screen([tmp_path], use)
        finally:
            process.kill()
