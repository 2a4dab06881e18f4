"""The shortcuts that the script acts on are those of the document, and no two of them begin alike."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("streamlit")

from dashboard.components.shortcuts import SHORTCUTS
from tests.project.markdown import ROOT


def test_the_document_lists_every_shortcut():
    text = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([^`]+)` \| (.+) \|$", text.split("## Keyboard")[1].split("\n## ")[0], re.MULTILINE
    )

    assert rows == [(one.keys, f"Go to {one.what}" if one.path else one.what) for one in SHORTCUTS]


def test_no_shortcut_begins_another_and_each_page_has_one():
    keys = [one.keys for one in SHORTCUTS]
    pages = re.findall(r"^\| [^|]+ \| `(/[a-z]*)", (ROOT / "docs" / "dashboard.md").read_text(), re.MULTILINE)

    assert len(set(keys)) == len(keys)
    assert not [one for one in keys for other in keys if other.startswith(f"{one} ")]
    assert {one.path for one in SHORTCUTS if one.path} == set(pages)
