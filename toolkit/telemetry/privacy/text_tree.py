"""Copies a tree of plain values and rewrites each text in it, depending on its key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from toolkit.telemetry.core.guard import Guard
from toolkit.telemetry.privacy.secret_names import Secrecy, is_working_directory, secrecy_of
from toolkit.telemetry.privacy.secret_shapes import MASK, NO_SECRET, lines_of_a_key, looks_generated

MAX_DEPTH: Final = 32
MAX_KEYS_KEPT: Final = 4096

_BYTES: Final = (bytes, bytearray, memoryview)

_guard = Guard()
"""Logs the first failure of each kind. Its counts are not needed: the value that failed reads `***`."""


ADDRESS_TO_SEND_TO: Final = "webhook_url"
"""The name given to the address of a message receiver."""
RECEIVERS: Final = ("lark", "feishu", "slack", "discord", "ntfy", "webhook")
"""What `to:` calls the services that messages are sent to."""
SPEAKING_KEYS: Final = frozenset({"value", "url", "data", "stringData"})
"""Keys whose values may be named, or made a secret, by another key of the same mapping."""


class Position(NamedTuple):
    """Where in a tree a value is."""

    secrecy: Secrecy = Secrecy.OPEN
    name: str = ""
    """Its key or option, as written by the caller."""
    path: str = ""
    """All keys on the way to it, rewritten, joined by slashes."""
    containers: tuple[int, ...] = ()
    """The ids of the containers around it."""


NAME: Final = Position(name="name", path="name")
"""Where a name or a key is."""


class TreeRewriter:
    """Walks through mappings, lists and sets for a subclass's `rewrite_text`; hides what cannot be inspected."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def rewrite(self, value: Any) -> Any:
        """Return the copy of `value`. Never raises."""
        return self._rewrite(value, Position())

    def rewrite_text(self, text: str, position: Position) -> str:
        """Return the replacement of `text` at this position."""
        raise NotImplementedError

    def _rewrite(self, value: Any, position: Position) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return MASK if position.secrecy is Secrecy.ALWAYS else value
        if isinstance(value, str):
            return self.rewrite_text(value, position)
        if isinstance(value, Mapping | Sequence | AbstractSet) and not isinstance(value, _BYTES):
            return self._rewrite_container(value, position)
        if position.secrecy > Secrecy.IF_RANDOM:
            return MASK
        if isinstance(value, os.PathLike):
            return self._rewrite_path(value, position)
        return value

    def _rewrite_path(self, path: os.PathLike[Any], position: Position) -> Any:
        with _guard.catch("masking secrets"):
            text = os.fspath(path)
            written = self.rewrite_text(text, position) if isinstance(text, str) else text
            return path if written == text else written
        return MASK

    def _rewrite_container(self, value: Any, position: Position) -> Any:
        if id(value) in position.containers or len(position.containers) >= MAX_DEPTH:
            return MASK
        inside = position._replace(containers=(*position.containers, id(value)))
        written: Any = MASK
        # The caller's own containers may raise anywhere; then this one is hidden, and those around it are not.
        with _guard.catch("masking secrets"):
            if isinstance(value, Mapping):
                written = self._rewrite_mapping(value, inside)
            elif isinstance(value, Sequence):
                written = self._rewrite_sequence(value, inside)
            else:
                written = frozenset(self._rewrite(item, inside) for item in value)
        return written

    def _rewrite_mapping(self, mapping: Mapping[Any, Any], position: Position) -> dict[Any, Any]:
        written: dict[Any, Any] = {}
        for key, value in mapping.items():
            if isinstance(key, str):
                name = _name_in(key, mapping) if key in SPEAKING_KEYS else key
                key = self._rewrite_key(key, written)
                if position.name == "packages" and isinstance(value, str) and NO_SECRET.fullmatch(value):
                    # The name of a package, such as `google-auth`, and its version.
                    written[key] = value
                    continue
                secrecy = Secrecy.OPEN if is_working_directory(name, value) else secrecy_of(name)
                inner = position._replace(
                    secrecy=max(position.secrecy, secrecy),
                    name=name,
                    path=f"{position.path}/{key}" if position.path else key,
                )
            else:
                inner = position
            written[key] = self._rewrite(value, inner)
        return written

    def _rewrite_key(self, key: str, taken: Mapping[Any, Any]) -> str:
        written = self._keys.get(key)
        if written is None:
            if len(self._keys) >= MAX_KEYS_KEPT:
                self._keys.clear()
            written = self._keys[key] = self.rewrite_text(key, NAME)
        if written == key or written not in taken:
            return written
        # Two keys that became one, such as two paths of a redacted record, remain two keys.
        return f"{written}-{len(taken)}"

    def _rewrite_sequence(self, sequence: Sequence[Any], position: Position) -> list[Any] | tuple[Any, ...]:
        if sequence and all(map(_is_pair, sequence)):
            # [("api_key", "abc"), ("lr", 1)], as headers and the items of a mapping are.
            pairs = [(type(pair), self._rewrite_mapping(dict([pair]), position)) for pair in sequence]
            rewritten = [kind(item) for kind, pair in pairs for item in pair.items()]
            return tuple(rewritten) if isinstance(sequence, tuple) else rewritten
        written = []
        option: str | None = None
        inside_a_key = lines_of_a_key(sequence)
        for number, item in enumerate(sequence):
            if number in inside_a_key:
                written.append(MASK)
                continue
            name, _, value = item.partition("=") if isinstance(item, str) and " " in item else ("", "", "")
            if value and _OPTION.fullmatch(name) and secrecy_of(name) > Secrecy.IF_RANDOM:
                # One with a space in its value, which ends with the item.
                written.append(f"{name}={MASK}")
                continue
            is_option = isinstance(item, str) and item.startswith("-") and len(item) > 1
            if is_option and option is not None and secrecy_of(option) is not Secrecy.OPEN:
                # A key may begin with a dash.
                is_option = not looks_generated(item)
            inner = position
            if option is not None and not is_option:
                # ["--hf-token", "abc"]: the value is the next item.
                inner = position._replace(name=option, secrecy=max(position.secrecy, secrecy_of(option)))
            written.append(self._rewrite(item, inner))
            option = item if is_option and "=" not in item else None
        return tuple(written) if isinstance(sequence, tuple) else written


def _is_pair(item: Any) -> bool:
    return (
        type(item) in (list, tuple)
        and len(item) == 2
        and type(item[0]) is str
        and _OPTION.fullmatch(item[0]) is not None
    )


_OPTION = re.compile(r"-{0,2}[A-Za-z_][\w.+ -]{0,80}")


def _name_in(key: str, mapping: Mapping[Any, Any]) -> str:
    """Return what `key`, one of `SPEAKING_KEYS`, means, given what is in the same mapping."""
    if key == "value":
        # {"name": "HF_TOKEN", "value": …}: the name is a value here, as in container definitions.
        named = mapping.get("name", mapping.get("key"))
        return named if isinstance(named, str) else key
    if key == "url":
        # {"to": "slack", "url": …}: one of the receivers of a run's messages.
        to = mapping.get("to")
        return ADDRESS_TO_SEND_TO if isinstance(to, str) and to in RECEIVERS else key
    # {"kind": "Secret", "data": …}: a manifest of Kubernetes.
    return "secret" if mapping.get("kind") == "Secret" else key
