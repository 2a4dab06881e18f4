"""A stream as a terminal shows it: bars once, as last shown, and nothing but text."""

from __future__ import annotations

import io

import pytest

from toolkit.telemetry.logger.printed.screen import Screen


def shown(*writes, every=1):
    screen, lines = Screen(), []
    for number, text in enumerate(writes):
        screen.write(text, 0.0)
        if number % every == 0:
            lines += screen.take_done(0.0)
    return lines + screen.take_done(0.0, is_end=True)


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        (["a", "\n", "b\nc", "d\n"], ["a", "b", "cd"]),
        (["windows\r\n", "lines\r", "\n"], ["windows", "lines"]),
        (["\r 10%", "\r 50%", "\r100%\n", "after\n"], ["100%", "after"]),
        (["\x1b[1;31mred\x1b[0m \x1b]0;title\x07text\x08\n"], ["red text"]),
        (["half \ud800 of it\n"], ["half  of it"]),
        (["row 1\nrow 2\x1b[1A\x1b[2Knew 1\nnew 2\n"], ["new 1", "new 2"]),
        (["not complete"], ["not complete"]),
        ([], []),
    ],
)
def test_lines_are_those_of_a_terminal(written, lines):
    assert shown("".join(written)) == lines
    assert shown(*written, every=99) == lines


@pytest.mark.parametrize("every", [2, 7, 1000])
def test_bars_in_bars_are_one_line_each(every):
    tqdm = pytest.importorskip("tqdm").tqdm
    written = []

    class Terminal(io.StringIO):
        def write(self, text):
            written.append(text)
            return len(text)

    file = Terminal()
    for number in tqdm(range(3), file=file, mininterval=0, ascii=True, ncols=60, desc="outer"):
        for _ in tqdm(range(5), file=file, mininterval=0, ascii=True, ncols=60, desc="inner", leave=False):
            pass
        tqdm.write(f"said {number}", file=file)

    lines = shown(*written, every=every)
    assert [line for line in lines if line.startswith("said")] == ["said 0", "said 1", "said 2"]
    assert lines[-1].startswith("outer: 100%")
    assert len(lines) <= 6
