"""What gitleaks and detect-secrets look for, from the lists next to this file, and samples of it.

`python -m tests.privacy.anchors` writes our own list into `docs/figures/secret-shapes.md`. A sample is a recipe:
`{a20}` means twenty letters and digits, `{h}` hex digits, `{d}` digits, `{l}` small letters and digits, `{u}` capitals
and digits, `{L}` letters, `{w}` also dashes, `{b}` Base64. They are drawn when a test runs, so that no scanner finds a
token in these files.
"""

from __future__ import annotations

import base64
import random
import re
import string
from pathlib import Path
from typing import NamedTuple

from toolkit.telemetry.privacy.token_shapes import SHAPES

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "figures" / "secret-shapes.md"

_ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "b": string.ascii_letters + string.digits + "+/",
    "d": string.digits,
    "h": "0123456789abcdef",
    "H": "0123456789ABCDEF",
    "l": string.ascii_lowercase + string.digits,
    "L": string.ascii_letters,
    "u": string.ascii_uppercase + string.digits,
    "w": string.ascii_letters + string.digits + "_-",
}
_PART = re.compile(r"\{([a-zA-Z])([0-9]+)\}")


class Rule(NamedTuple):
    """One rule of an anchor."""

    name: str
    found_by: str
    """A shape's service; `name`, `service name`, `text`, `address`, `random`; behind a dash, why it does not apply."""
    recipe: str

    @property
    def applies(self) -> bool:
        return not self.found_by.startswith("- ")


def sample(recipe: str, seed: int) -> tuple[str, list[str]]:
    """Return a text made by `recipe`, and the parts of it that must not be seen: the longest drawn ones."""
    chance = random.Random(f"{recipe}{seed}")
    drawn: list[str] = []

    def draw(match: re.Match[str]) -> str:
        alphabet, length = _ALPHABETS[match[1]], int(match[2])
        text = "".join(chance.choices(alphabet, k=length))
        # Chance alone may leave out what tells a token from a word: a token of any length worth it has a digit.
        if length >= 16 and match[1] in "abhlw":
            text = text[:-3] + chance.choice("0123456789") + text[-2] + chance.choice("0123456789")
        drawn.append(text)
        return text

    written = _PART.sub(draw, recipe.replace("{uuid}", "{h8}-{h4}-{h4}-{h4}-{h12}"))
    longest = max(map(len, drawn))
    return written, [text for text in drawn if len(text) == longest]


def _listed(name: str) -> list[list[str]]:
    """Return the rows of a file next to this one."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [line.split(" | ") for line in text.splitlines()]


GITLEAKS = [Rule(*row) for row in _listed("gitleaks.txt")]
DETECT_SECRETS = [Rule(*row) for row in _listed("detect_secrets.txt")]
OURS = [Rule(*row) for row in _listed("shapes_of_services.txt")]
TOKENS: dict[str, str] = dict(_listed("tokens_of_services.txt"))
"""Tokens of services, many of them new, by service; `=` in front of a recipe means in Base64, `#` in hex."""


def token(service: str, seed: int) -> tuple[str, list[str]]:
    """Return a token of a service, and the parts of it that must not be seen."""
    recipe = TOKENS[service].replace("\\n", "\n")
    text, parts = sample(recipe.lstrip("=#"), seed)
    if recipe[0] == "=":
        text = base64.b64encode(text.encode()).decode()
        parts = [text.rstrip("=")[4:-4]]
    elif recipe[0] == "#":
        text = text.encode().hex()
        parts = [text]
    return text, parts


def document(text: str) -> str:
    """Return the text of `docs/figures/secret-shapes.md` with its list of shapes as it has to be."""
    before, mark, rest = text.partition("## The shapes\n")
    assert mark
    after = rest.partition("\n## ")[2]
    return f"{before}{mark}\n{', '.join(one.service for one in SHAPES)}.\n\n## {after}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
