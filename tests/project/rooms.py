"""The packages of `toolkit` as rooms: what each is for, and which imports which, read from the code.

`python -m tests.project.rooms` writes the table and the picture of docs/architecture.md.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: written by `make docs` -->", "<!-- end of rooms -->"
TELEMETRY = "telemetry"


def rooms():
    """Return the folder of each room below `toolkit`, highest first: the packages, and those of telemetry."""
    found = []
    for init in sorted(ROOT.glob("toolkit/*/__init__.py")):
        found.append(init.parent.name)
        if init.parent.name == TELEMETRY:
            found += [
                f"{TELEMETRY}/{inner.parent.name}" for inner in sorted(init.parent.glob("*/__init__.py"))
            ]
    return found


def purpose_of(room):
    """Return the first sentence of a room's docstring."""
    text = ast.get_docstring(ast.parse((ROOT / "toolkit" / room / "__init__.py").read_text("utf-8")))
    assert text, f"toolkit/{room}/__init__.py has no docstring"
    return text.split("\n\n")[0].replace("\n", " ")


@functools.cache
def imports():
    """Return which rooms each room imports, in any function and for types too."""
    known = rooms()
    found = defaultdict(set)
    for path in sorted((ROOT / "toolkit").rglob("*.py")):
        here = _room_of(path.relative_to(ROOT).with_suffix("").parts, known)
        # What a package offers under its own name is no import of a file in it.
        if here is None or path == ROOT / "toolkit" / TELEMETRY / "__init__.py":
            continue
        for module in _imported(ast.parse(path.read_text("utf-8"))):
            there = _room_of(tuple(module.split(".")), known)
            if there is not None and there != here:
                found[here].add(there)
    return {room: found[room] for room in known}


def layers(arrows):
    """Return the rooms by how far above the lowest they are, highest first.

    Raises:
        AssertionError: rooms import each other in a circle.
    """
    height = {}

    def height_of(room, path):
        assert room not in path, f"a circle: {' -> '.join([*path[path.index(room) :], room])}"
        if room not in height:
            height[room] = max((height_of(there, [*path, room]) + 1 for there in arrows[room]), default=0)
        return height[room]

    for room in arrows:
        height_of(room, [])
    return [
        sorted(room for room in arrows if height[room] == level)
        for level in sorted(set(height.values()), reverse=True)
    ]


def described():
    """Return the part of the document that is made from the code."""
    arrows = imports()
    lines = ["| level | room | what it does | imports |", "| --- | --- | --- | --- |"]
    stacked = layers(arrows)
    for number, level in enumerate(stacked):
        for room in level:
            below = ", ".join(f"`{there}`" for there in sorted(_direct(arrows, room))) or "nothing of ours"
            lines.append(f"| {len(stacked) - number} | `toolkit/{room}` | {purpose_of(room)} | {below} |")
    total = sum(len(there) for there in arrows.values())
    lines += [
        "",
        f"{len(arrows)} rooms, {total} arrows between them, and no circle.",
        "The last column leaves out what a room in it imports too.",
    ]
    return "\n".join(lines)


def _direct(arrows, room):
    """Return what `room` imports and none of the others that it imports does: enough to draw the picture."""
    below = arrows[room]
    reached = set()
    for there in below:
        reached |= _reached(arrows, there)
    return below - reached


def _reached(arrows, room):
    found, waiting = set(), [room]
    while waiting:
        for there in arrows[waiting.pop()]:
            if there not in found:
                found.add(there)
                waiting.append(there)
    return found


def _room_of(parts, known):
    if len(parts) < 2 or parts[0] != "toolkit":
        return None
    inner = "/".join(parts[1:3])
    return inner if inner in known else parts[1] if parts[1] in known else None


def _imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def written():
    """Return the document with its part that is made from the code as it should be."""
    text = DOCUMENT.read_text("utf-8")
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}",
        lambda _: f"{BEGIN}\n{described()}\n{END}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    DOCUMENT.write_text(written(), "utf-8")
