"""Removes secrets, paths, addresses and the names of this machine and its user from texts that are sent."""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from toolkit.telemetry.core.formatting import words
from toolkit.telemetry.privacy.harmless_words import is_plain
from toolkit.telemetry.privacy.masking import Masker
from toolkit.telemetry.privacy.text_tree import Position, TreeRewriter


class Redactor(TreeRewriter):
    """Masks secrets as `***`, and replaces paths, URLs, addresses and the given `names` by `<path>`, `<url>` and so on.

    The names of this machine and its user are always among them.
    """

    def __init__(self, *, environ: Mapping[str, str] | None = None, names: Iterable[str] = ()) -> None:
        super().__init__()
        self._masker = Masker(environ)
        private = {name for name in (*machine_names(environ), *names) if _is_identifying(name)}
        longest_first = sorted(private, key=len, reverse=True)
        self._names = re.compile(
            rf"(?<![^\W_])(?:{'|'.join(map(re.escape, longest_first))})(?![^\W_])" if private else r"(?!)",
            re.IGNORECASE,
        )

    def redact(self, value: Any) -> Any:
        """Return a copy of a tree of plain values with everything private replaced, in keys too. Never raises."""
        return self.rewrite(value)

    def mask(self, value: Any) -> Any:
        """Return a copy with secrets alone replaced."""
        return self._masker.mask(value)

    def redact_text(self, text: str) -> str:
        """Return `text` with everything private replaced."""
        return self.rewrite_text(text, Position())

    def rewrite_text(self, text: str, position: Position) -> str:
        """Return the replacement of `text` at this position."""
        text = self._masker.rewrite_text(text, position)
        for kind, pattern in _PATTERNS:
            text = pattern.sub(f"<{kind}>", text)
        text = _ADDRESS.sub(_shown_address, text)
        return self._names.sub("<name>", text)


def machine_names(environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the names of this machine and its user."""
    environ = os.environ if environ is None else environ
    yield from (environ.get(variable, "") for variable in _VARIABLES)
    yield re.split(r"[/\\]", environ.get("HOME", "").rstrip("/\\"))[-1]
    host = socket.gethostname()
    yield from (host, host.partition(".")[0])
    try:
        yield getpass.getuser()
    except (ImportError, KeyError, OSError):
        # A process in a container may have a user id without a user.
        pass


_VARIABLES: Final = "USER LOGNAME USERNAME SUDO_USER HOSTNAME COMPUTERNAME SLURMD_NODENAME".split()
_SHORTEST: Final = 4
"""A shorter name also occurs inside ordinary words."""
_GENERIC: Final = words("admin ec2-user jovyan localhost ubuntu vagrant vscode www-data")
"""Names that many machines have, besides the plain words: they identify no one."""


def _is_identifying(name: str) -> bool:
    is_ordinary = is_plain(name) and not re.search("[0-9-]", name)
    return len(name) >= _SHORTEST and not is_ordinary and name.lower() not in _GENERIC


_WORD: Final = r"""[^\s"'`<>|]"""
_PATTERNS: Final = (
    ("url", re.compile(rf"(?<!\w)[A-Za-z][A-Za-z0-9+.-]{{1,30}}:/{{1,3}}{_WORD}+")),
    ("email", re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}(?:@|%40)(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}")),
    ("device", re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")),
    # Quoted, it may contain spaces.
    ("path", re.compile(r"""(?<=["'`])(?:/|~|[A-Za-z]:\\|\\\\)[^"'`\n]{2,4096}(?=["'`])""")),
    (
        "path",
        re.compile(
            rf"(?<![\w.~/\\<)\]-])(?:~[\w.-]{{0,64}}|\$\{{?\w{{1,32}}\}}?|\.\.)?/(?={_WORD}{{0,8}}\w){_WORD}+"
        ),
    ),
    ("path", re.compile(rf"(?<!\w)(?:[A-Za-z]:[\\/]|\\\\|%[A-Z_]{{1,32}}%\\){_WORD}+")),
    ("path", re.compile(rf"""(?<![^\s"'`=:,(])(?:[\w.-]{{1,128}}/){{0,32}}(?:home|Users)/{_WORD}+""")),
    ("host", re.compile(r"(?<![\w.-])(?:[\w-]{1,63}\.){1,8}(?:internal|intranet|local|lan|corp)(?![\w-])")),
)
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f:]{6,39}(?:\.[0-9]{1,3}){0,3}|(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2})(?![\w:])"
)
_LOCAL: Final = words("127.0.0.1 0.0.0.0")


def _shown_address(match: re.Match[str]) -> str:
    text = match[0]
    if text in _LOCAL:
        return text
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return "<mac>" if _MAC.fullmatch(text) else text
    return "<ip>"


_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")
