"""Which share of the W&B calls in a folder of scripts our W&B door answers.

    python -m benchmarks.wandb_calls FOLDER

A call counts where it is written: `wandb.log(…)` in three places is three calls. It is answered where its name leads to
something of ours that does what the call is for, and not where it warns that it does nothing. Nothing is run.
"""

from __future__ import annotations

import argparse
import ast
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolkit.telemetry.compat import wandb
from toolkit.telemetry.compat.stand_ins import StandIn
from toolkit.telemetry.compat.wandb_summary import Summary

_RUN: Final = "Run"
_MADE_BY: Final = {"wandb.init": _RUN, "Run.use_artifact": "Artifact", "Run.log_artifact": "Artifact"}
_FOLLOWED: Final = frozenset({"Api", "Artifact", "Table"})
"""What a call gives back, where methods of that are called later; these classes give back their own."""
_PART_OF: Final = {"Run.config": "Config", "Run.summary": "Summary", "Artifact.metadata": "dict"}
_CLASSES: Final[dict[str, type]] = {"Summary": Summary, "dict": dict}


@dataclass(slots=True)
class Found:
    """The calls of some scripts."""

    answered: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """How many there are."""
        return self.answered.total() + self.left_out.total()

    def add(self, other: Found) -> None:
        """Count those of another script as well."""
        self.answered += other.answered
        self.left_out += other.left_out


def calls_in(source: str) -> Found:
    """Return the W&B calls of one script.

    Raises:
        SyntaxError: it is no Python of this version.
    """
    reader = _Reader()
    reader.visit(ast.parse(source))
    found = Found()
    for name in reader.calls:
        (found.answered if _is_answered(name) else found.left_out)[name] += 1
    return found


class _Reader(ast.NodeVisitor):
    """Reads a script for what it calls of W&B's, and of the objects that it got from there."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._names: dict[str, str] = {}
        """What a name of the script means: `wandb`, `wandb.plot`, or the class of an object."""

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.split(".")[0] == "wandb":
                self._names[alias.asname or "wandb"] = alias.name if alias.asname else "wandb"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module and node.module.split(".")[0] == "wandb" and not node.level:
            for alias in node.names:
                self._names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            self._remember(target, node.value)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.generic_visit(node)
        if node.optional_vars is not None:
            self._remember(node.optional_vars, node.context_expr)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        name = self._name_of(node.func)
        if name is None or name == "wandb":
            return
        keywords = [
            keyword.arg
            for keyword in node.keywords
            if keyword.arg in wandb.UNSUPPORTED_KEYWORDS
            and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        ]
        self.calls.append(f"{name}({keywords[0]}=…)" if name == "wandb.init" and keywords else name)

    def _remember(self, target: ast.expr, value: ast.expr) -> None:
        made = self._made_by(value)
        name = _dotted(target)
        if made is not None and name is not None:
            self._names[name] = made

    def _made_by(self, value: ast.expr) -> str | None:
        """Return what the class of a value is, where W&B made it."""
        if not isinstance(value, ast.Call):
            return None
        name = self._name_of(value.func)
        if name in _MADE_BY:
            return _MADE_BY[name]
        last = name.rpartition(".")[2] if name is not None and name.startswith("wandb.") else ""
        return last if last in _FOLLOWED else None

    def _name_of(self, node: ast.expr) -> str | None:
        """Return what a call is a call of: `wandb.log`, `Run.log`, `Artifact.add_file`; None where not of W&B's."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            made = self._made_by(node.value)
            return None if made is None else f"{made}.{node.attr}"
        dotted = _dotted(node)
        if dotted is None:
            return None
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            known = self._names.get(".".join(parts[:length]))
            if known is not None:
                name = ".".join([known, *parts[length:]])
                if name.startswith("wandb.run."):
                    name = name.replace("wandb.run.", f"{_RUN}.", 1)
                for part, its_class in _PART_OF.items():
                    if name.startswith(f"{part}."):
                        name = name.replace(part, its_class, 1)
                return name
        return None


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


def _is_answered(name: str) -> bool:
    """Say whether our door does what a call of this name is for."""
    if "(" in name:
        return False
    first, *rest = name.split(".")
    found: Any = wandb
    if first != "wandb":
        found = _CLASSES.get(first) or getattr(wandb, first, None)
    for part in rest:
        if isinstance(found, type) and first != "wandb":
            # Of an object's methods: those that its class has, and not what it makes up for others.
            found = next((vars(base)[part] for base in found.__mro__ if part in vars(base)), StandIn())
        else:
            found = getattr(found, part, StandIn())
    return not isinstance(found, StandIn) and not (isinstance(found, type) and issubclass(found, StandIn))


def _scripts(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*.py") if path.is_file())


def main(argv: list[str] | None = None) -> int:
    """Print the share, and which names are left out; 2 where there is no script to read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="list the names that are answered, too")
    options = parser.parse_args(argv)
    together = Found()
    scripts = whole = unread = 0
    for path in _scripts(options.folder):
        try:
            found = calls_in(path.read_text(errors="replace"))
        except (SyntaxError, ValueError):
            unread += 1
            continue
        if found.calls:
            scripts += 1
            whole += not found.left_out
            together.add(found)
    if not scripts:
        print(f"no script with a W&B call in {options.folder}", file=sys.stderr)
        return 2
    answered = together.answered.total()
    print(f"{scripts} scripts, {together.calls} calls: {answered} answered ({answered / together.calls:.1%})")
    print(f"{whole} scripts have every call answered ({whole / scripts:.1%}); {unread} could not be parsed")
    for title, names in (
        ("left out", together.left_out),
        *([("answered", together.answered)] if options.all else []),
    ):
        print(f"\n{title}:")
        for name, count in names.most_common():
            print(f"{count:6}  {name}")
    return 0


if __name__ == "__main__":
    # What is left out is listed; the warnings that its names give would be the same list once more.
    logging.getLogger("toolkit.telemetry").setLevel(logging.ERROR)
    sys.exit(main())
