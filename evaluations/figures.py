"""What every evaluation shares: its options, its tables, and the documents and constants that it writes."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FIGURES: Final = ROOT / "docs" / "figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How thoroughly to measure."""

    corpus: Path
    quick: bool = False
    """A short run, to see that it works."""
    fit: bool = False
    """Whether to fit the product's constants too."""
    list_errors: bool = False


def say(text: str) -> None:
    """Print what is being measured."""
    print(f"  … {text}", file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    head, *body = (f"| {' | '.join(line)} |" for line in (header, *rows))
    return "\n".join([head, "|" + "---|" * len(header), *body])


def interval(right: int, of: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson)."""
    z = 1.96
    share, scale = right / of, 1.0 + z * z / of
    middle = (share + z * z / (2 * of)) / scale
    half = z * math.sqrt(share * (1.0 - share) / of + z * z / (4 * of * of)) / scale
    return max(0.0, middle - half), min(1.0, middle + half)


def share(right: int, of: int) -> str:
    """Return a share with its 95 % interval, or a dash of nothing."""
    if not of:
        return "-"
    return "{:.2f} ({:.2f}-{:.2f})".format(right / of, *interval(right, of))


def made_by(question: str) -> str:
    """Return with which command, when and from which commit something is being made."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"`make evaluate QUESTION={question}` on {day}" + (f", commit {commit}" if commit else "")


def write_constants(path: Path, question: str, about: str, lines: Sequence[str]) -> None:
    """Write a module of the product with what was fitted."""
    head = f'"""{about}\n\nWritten by {made_by(question)}.\n"""'
    path.write_text("\n\n".join([head, "from typing import Final", *lines]) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(path)], check=True)


def write(question: str, title: str, page: str, figures: str) -> None:
    """Write the document of a question."""
    head = f"# {title} The figures" if title.endswith("?") else f"# {title}: the figures"
    about = f"Written by {made_by(question)}. What they mean: [{page}](../{page})."
    path = FIGURES / f"{question}.md"
    path.write_text(f"{head}\n\n{about}\n\n{figures}\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: written", file=sys.stderr)
