"""`telemetry top`: what it shows, its keys, hostile text, and a real terminal."""

from __future__ import annotations

import asyncio
import math
import shutil
import signal
import sys
from importlib.util import find_spec

import numpy as np
import psutil
import pytest

from tests.cli.pseudo_terminal import PseudoTerminal
from tests.cli.runs import write_run, write_table
from tests.lengths import in_make_faults
from tests.waiting import PATIENCE_S, wait_until
from toolkit.telemetry import TelemetryLogger
from toolkit.telemetry.cli.chosen_run import runs_given
from toolkit.telemetry.cli.commands.look import top
from toolkit.telemetry.cli.main import main
from toolkit.telemetry.cli.top.app import Top
from toolkit.telemetry.cli.top.run_text import curve_lines
from toolkit.telemetry.core.install import install_extra
from toolkit.telemetry.runfolder.labels import Labels, write_labels
from toolkit.telemetry.runs.curve_tiles import NonFiniteRun
from toolkit.telemetry.runs.store import CurveSegment, Series

HOSTILE = "\x1b]0;owned\x07\x1b[2J[red]x[/red]\n\r\t日本\u202egnp.\u200b"


def on_screen(folder, use):
    """Run the program in memory and `use` it; no line may harm a terminal."""

    async def run():
        app = Top(runs_given([folder]))
        async with app.run_test(size=(100, 80)) as pilot:

            async def shows(text):
                for _ in range(int(PATIENCE_S / 0.02)):
                    await pilot.pause(0.02)
                    lines = [strip.text for strip in app.screen._compositor.render_strips()]
                    assert all(line.isprintable() for line in lines)
                    if text in "\n".join(lines):
                        return "\n".join(lines)
                raise AssertionError("\n".join(lines))

            await use(pilot.press, shows)
        return app.return_code

    return asyncio.run(run())


def test_runs_are_listed_searched_and_opened_by_keys(tmp_path):
    """Names and metrics try to change the terminal; each screen that is waited for is checked."""
    spiky = write_run(tmp_path, "spiky", [1.0] * 20 + [math.nan] * 3 + [9.0, *[1.0] * 40])
    write_labels(write_run(tmp_path, "named", [0.5]), Labels(display_name=HOSTILE))
    (tmp_path / "link").symlink_to(spiky)
    write_table(tmp_path / "theirs" / "log.csv", [0.5, 0.25])
    with TelemetryLogger("calm", log_dir=tmp_path, log_every=1, system=False) as log:
        for step in range(1, 60):
            log.log_step(step, train_loss=1 / step, **{f"other{HOSTILE}": 1.0})

    async def use(press, shows):
        # Not all of it is drawn at once.
        for text in ("4 of 4 runs", "spiky", "finished", "table", "[2J[red]x", "not followed"):
            await shows(text)

        await press("/", *"step>", "enter")
        await shows("step>")
        await press("/", *("backspace",) * 5, *"spiky", "enter")
        assert "calm" not in await shows("1 of 4 runs")

        await press("enter")
        opened = await shows("Not a number")
        assert "3 NaN or infinite" in opened
        assert "─NN" in opened.replace("I", "N")
        assert "        9│" in opened
        assert "Cause:" in opened
        assert "Try:" in opened

        shutil.rmtree(spiky)
        await shows("there is no run 'spiky'")
        await press("escape")
        await shows("0 of 3 runs")
        await press("q")

    assert on_screen(tmp_path, use) == 0


def series_of(*parts, odd=()):
    segments = tuple(CurveSegment(x=x, y=y, session=at) for at, (x, y) in enumerate(parts))
    total = sum(len(x) for x, _ in parts)
    return Series(metric="loss", axis="step", segments=segments, non_finite=odd, drawn=total, total=total)


def test_spikes_nan_and_resumes_are_shown():
    x = np.arange(1000.0)
    y = np.ones(1000)
    y[700], y[300] = 50.0, np.nan
    odd = (NonFiniteRun(kind="NaN", first_x=300, last_x=300, count=1),)
    head, first, *rows, axis = curve_lines(
        series_of((x[:500], y[:500]), (x[500:], y[500:]), odd=odd), [500], 60
    )

    assert head == "last 1, 1 NaN or infinite"
    assert first.startswith("       50│")
    assert set(first[10:]) != {"\u2800"}, "the spike is in the top row"
    assert rows[-1].startswith("        1│")
    assert (axis.count("N"), axis.count("R")) == (1, 1)
    assert {len(line) for line in (first, *rows, axis)} == {60}


@pytest.mark.filterwarnings("error")
def test_values_and_places_of_any_size_are_drawn():
    odd = [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, 0.0, -1.0, 1e300, 1.0]
    places = [0.0, 1e300, -1e300, math.nan, 5.0, 5.0, 1.7e308, -1.7e308, 6.0, math.inf]
    for size in range(1, 11):
        series = series_of((np.array(places[:size]), np.array(odd[-size:])))
        for width in (1, 12, 40):
            assert len(curve_lines(series, [3.0, None], width, rows=4)) == 6
    assert curve_lines(series_of(), [], 40) == ["no number"]

    for value in (0.0, 0.5, -3.0):
        lines = curve_lines(series_of((np.arange(9.0), np.full(9, value))), [], 40)
        labels = {line[:9].strip(): set(line[10:]) for line in lines[1:-1] if line[:9].strip()}
        assert [*labels] == [f"{value:g}"]
        assert labels[f"{value:g}"] != {"\u2800"}, "the curve is next to its value"


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
    environ = {"TERM": "screen", "NO_COLOR": "1"}
    code, seen = end_in_a_terminal(
        tmp_path, ["-c", _BARE], environ, lambda terminal: terminal.process.terminate()
    )

    assert code == 128 + signal.SIGTERM
    assert b"\x1b[32m" not in seen


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
