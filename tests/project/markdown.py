"""The code blocks and links of the documents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
INTEGRATIONS = ROOT / "docs" / "integrations"
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(INTEGRATIONS.glob("*.md")),
    *sorted((ROOT / "docs" / "figures").glob("*.md")),
]

_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(#[^)]*)?\)")
_ANCHOR = re.compile(r"\]\((?P<target>[^)#\s]*)#(?P<anchor>[^)]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its document, language and text."""

    document: Path
    language: str
    text: str


def blocks(document, language):
    """Return the blocks of `language` in `document`, from top to bottom."""
    found = (
        Block(document, match["language"], match["text"])
        for match in _BLOCK.finditer(document.read_text(encoding="utf-8"))
    )
    return [block for block in found if block.language == language]


def commands(document):
    """Return the shell commands of `document`, without their comments."""
    lines = (
        line.split(" # ")[0].split("   #")[0].strip()
        for block in blocks(document, "bash")
        for line in block.text.splitlines()
    )
    return [line for line in lines if line and not line.startswith("#")]


def links(document):
    """Return the links of `document` to other files of the project."""
    targets = (match["target"] for match in _LINK.finditer(document.read_text(encoding="utf-8")))
    return [target for target in targets if "://" not in target]


def anchors_missing_from(document):
    """Return the links of `document` to a section that does not exist."""
    matches = _ANCHOR.finditer(document.read_text(encoding="utf-8"))
    return [
        match.group()
        for match in matches
        if "://" not in match["target"]
        and match["anchor"]
        not in _anchors_of(document.parent / match["target"] if match["target"] else document)
    ]


def _anchors_of(document):
    titles = (match["title"] for match in _HEADING.finditer(document.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
