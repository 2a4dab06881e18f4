"""Count which share of the W&B calls in a folder of scripts our W&B module supports.

    python -m benchmarks.wandb_calls FOLDER

Calls are counted in the source: `wandb.log(…)` in three places is three calls. A call is supported if its name leads to
a working implementation, not to one that only warns. Nothing is run.
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
from toolkit.telemetry.compat.null_object import NullObject
from toolkit.telemetry.compat.wandb_summary import Summary

_RUN: Final = "Run"
_MADE_BY: Final = {"wandb.init": _RUN, "Run.use_artifact": "Artifact", "Run.log_artifact": "Artifact"}
_FOLLOWED: Final = frozenset({"Api", "Artifact", "Table"})
"""The class that a call returns, if its methods are called later; classes return themselves."""
_PART_OF: Final = {"Run.config": "Config", "Run.summary": "Summary", "Artifact.metadata": "dict"}
_CLASSES: Final[dict[str, type]] = {"Summary": Summary, "dict": dict}


@dataclass(slots=True)
class Found:
    """The calls of some scripts."""

    answered: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self.answered.total() + self.left_out.total()

    def add(self, other: Found) -> None:
        """Add those of another script."""
        self.answered += other.answered
        self.left_out += other.left_out


def calls_in(source: str) -> Found:
    """Return the W&B calls of one script.

    Raises:
        SyntaxError: it is not valid for this Python version.
    """
    reader = _Reader()
    reader.visit(ast.parse(source))
    found = Found()
    for name in reader.calls:
        (found.answered if _is_answered(name) else found.left_out)[name] += 1
    return found


class _Reader(ast.NodeVisitor):
    """Finds the calls of W&B, and of its objects, in a script."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._names: dict[str, str] = {}
        """What each name in the script refers to: `wandb`, `wandb.plot`, or the class of an object."""

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
        """Return the class of a value created by W&B."""
        if not isinstance(value, ast.Call):
            return None
        name = self._name_of(value.func)
        if name in _MADE_BY:
            return _MADE_BY[name]
        last = name.rpartition(".")[2] if name is not None and name.startswith("wandb.") else ""
        return last if last in _FOLLOWED else None

    def _name_of(self, node: ast.expr) -> str | None:
        """Return what is called: `wandb.log`, `Run.log`, `Artifact.add_file`; None if it is not W&B's."""
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
    """Return whether our module implements this call."""
    if "(" in name:
        return False
    first, *rest = name.split(".")
    found: Any = wandb
    if first != "wandb":
        found = _CLASSES.get(first) or getattr(wandb, first, None)
    for part in rest:
        if isinstance(found, type) and first != "wandb":
            # Only methods that the class defines, not those made up by __getattr__.
            found = next((vars(base)[part] for base in found.__mro__ if part in vars(base)), NullObject())
        else:
            found = getattr(found, part, NullObject())
    return not isinstance(found, NullObject) and not (
        isinstance(found, type) and issubclass(found, NullObject)
    )


def _scripts(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*.py") if path.is_file())


def main(argv: list[str] | None = None) -> int:
    """Print the share and the unsupported names; exit 2 if there is no script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="also list the supported names")
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
    print(
        f"{scripts} scripts, {together.calls} calls: {answered} supported ({answered / together.calls:.1%})"
    )
    print(f"{whole} scripts have every call supported ({whole / scripts:.1%}); {unread} could not be parsed")
    for title, names in (
        ("left out", together.left_out),
        *([("answered", together.answered)] if options.all else []),
    ):
        print(f"\n{title}:")
        for name, count in names.most_common():
            print(f"{count:6}  {name}")
    return 0


if __name__ == "__main__":
    # Unsupported names are listed, so their warnings would only repeat the list.
    logging.getLogger("toolkit.telemetry").setLevel(logging.ERROR)
    sys.exit(main())
