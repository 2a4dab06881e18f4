"""Words that hide what an engineer would search for stay out of the code and the documents."""

from __future__ import annotations

import functools
import re

from tests.project.markdown import ROOT

COVERED = """
    README.md CONTRIBUTING.md Makefile MANIFEST.in ai_toolkit_telemetry.py dashboard_requirements.txt run.py
    run_dashboard.py setup.py benchmarks config dashboard docs evaluations requirements tests toolkit
""".split()
"""Files, and folders with everything below them."""

SUFFIXES = {".js", ".md", ".py", ".toml", ".txt", ".yaml"}

WORDS = {
    "told": "reported, separate, asked",
    "tells of": "reports, describes",
    "tell of": "report, describe",
    "stands": "is, is shown, means",
    "anew": "again, from scratch",
    "is none": "does not exist, is invalid",
    "are none": "do not exist, are invalid",
    "nobody": "no one, no user, or say what does not happen",
    "somebody": "someone, the user, or say who",
    "goes on with": "resumes, continues",
    "gone on with": "resumed, continued",
}
"""Each word, and what to write instead."""

PRIVATE = {
    "moment": (r"moments?", "time, timestamp, now"),
    "beside": (r"beside", "next to, with, in the same folder"),
    # Not a lag ("is 5 s behind"), a server ("behind a proxy"), nor what is left behind.
    "behind": (
        r"(?<!is )(?<!are )(?<!far )(?<!further )(?<!left )behind(?= (?:its?|them|th[aeo]\w+|each|every|what)\b)",
        "after, of, underlying",
    ),
    # Not a width of Streamlit, an alignment of CSS, nor a field of an answer.
    "stretch": (r"(?<![\"':])(?<!: )stretch(?:es)?(?![\"':])", "segment, range, period"),
    "_take": (r"_take(?!_)", "add, accept, consume"),
    "_look": (r"_look(?!_)", "read, check, scan"),
    "let_go": (r"let_go(?!_)", "release, close"),
}
"""More of them, each with its pattern, since ordinary technical uses pass, and what to write instead."""

OPTIMIZERS = {
    ("tests/telemetry/test_training_state.py", "moment"),
    ("toolkit/telemetry/diagnostics/resume/judge.py", "moment"),
    ("toolkit/telemetry/logger/records/training_state.py", "moment"),
}
"""Optimizers keep moments, as all call them."""

OF_OTHER_WORK = ("dashboard/vendor/plotly-cartesian-4.1.1.min.js",)
"""Folders and files whose words are not replaced yet."""

# An underscore parts words too, so names count; `is None` of Python does not, because of its capital letter.
FOUND = re.compile(rf"(?<![A-Za-z])({'|'.join(word.replace(' ', '[ _]') for word in WORDS)})(?![A-Za-z])")

FOUND_PRIVATE = {
    word: re.compile(rf"(?i)(?<![a-z0-9]){pattern}(?![a-z0-9])") for word, (pattern, _) in PRIVATE.items()
}

# Not counted: a key of the message format, and the natural "there is none".
EXEMPT = re.compile(r"\btells_of\b|\b[Tt]here (?:is|are) none\b")

TEST_NAME = re.compile(r"^ *def (test_\w+)", re.MULTILINE)

THIS_FILE = "tests/project/test_plain_language.py"
"""It lists the words."""


@functools.cache
def files():
    """Return the text of every file that is covered, by its name."""
    found = {}
    for name in COVERED:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            name = file.relative_to(ROOT).as_posix()
            if file.is_file() and file.suffix in SUFFIXES and name != THIS_FILE:
                found[name] = file.read_text(encoding="utf-8")
    return found


def uses(pattern, text, *words):
    """Yield the line number, the words and the line of each use of one of the words."""
    lowered = text.lower()
    # Few files have one at all, and that is found many times faster.
    if not any(word in lowered for word in words):
        return
    text = EXEMPT.sub("", text)
    for match in pattern.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
        yield text.count("\n", 0, match.start()) + 1, match.group(), line.strip()


def test_no_private_word_is_used():
    unwanted = [
        f"{name}:{number}: {word!r} (better: {WORDS[word.replace('_', ' ')]}): {line}"
        for name, text in files().items()
        for number, word, line in uses(FOUND, text, *WORDS, *(word.replace(" ", "_") for word in WORDS))
    ]

    assert not unwanted, "\n".join(unwanted)


def test_words_that_only_we_use_this_way_give_way_to_those_that_are_searched_for():
    unwanted = [
        f"{name}:{number}: {word} (better: {PRIVATE[word][1]}): {line}"
        for name, text in files().items()
        if not name.startswith(OF_OTHER_WORK)
        for word, pattern in FOUND_PRIVATE.items()
        if (name, word) not in OPTIMIZERS
        for number, _, line in uses(pattern, text, word)
        # The moments of an optimizer are called so by all.
        if not (word == "moment" and "optimizer" in line)
    ]

    assert not unwanted, "\n".join(unwanted)


def test_no_test_is_named_with_a_private_word():
    unwanted = [
        f"{path}::{name}"
        for path, text in files().items()
        if path.startswith("tests/")
        for name in TEST_NAME.findall(text)
        # In a name, `is_none` may be the None of Python.
        if FOUND.search(name.replace("_none", "_None"))
    ]

    assert not unwanted, "\n".join(unwanted)
