"""Removes secrets, paths, names of people and machines, addresses and private models from values that are shared."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from toolkit.core.formatting import words
from toolkit.privacy.addresses import holds_a_version, is_address, replace_addresses, replace_logins
from toolkit.privacy.configured_secrets import parts_of_address
from toolkit.privacy.harmless_words import is_plain
from toolkit.privacy.masking import Masker
from toolkit.privacy.message_hosts import message_hosts, replace_message_hosts
from toolkit.privacy.model_names import (
    PUBLIC_ORGANISATIONS,
    holds_a_model,
    is_public_bare_name,
    is_public_model,
    looks_like_a_path,
    model_settings,
    repositories_in,
)
from toolkit.privacy.names import host_names, is_generic, is_identifying, machine_names, names_in
from toolkit.privacy.paths import is_relative_path, replace_paths, shown_path
from toolkit.privacy.pseudonyms import PLACEHOLDER, Pseudonyms
from toolkit.privacy.secret_names import Secrecy
from toolkit.privacy.secret_shapes import MASK
from toolkit.privacy.text_tree import A_KEY, ADDRESS_TO_SEND_TO, Position, TreeRewriter
from toolkit.privacy.urls import is_url, replace_urls

_MOST_NAMES: Final = 500
_MOST_PLACES: Final = 2_000
_MOST_METRICS: Final = 10_000
_MOST_CACHED: Final = 8_192
_LONGEST_CACHED: Final = 256


class Redactor(TreeRewriter):
    """Replaces everything in values that identifies a person or a machine, and all secrets.

    The same private text gets the same placeholder (`<path-1>`) for the lifetime of the redactor; a secret becomes
    `***`. A name found in one value (`/home/jane/x`) is replaced in all later ones too. `replaced` counts replacements
    by kind, `places` by kind and field. Not thread-safe.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str] | None = None,
        allowed_organisations: Iterable[str] = PUBLIC_ORGANISATIONS,
        local_folders: Iterable[Path] | None = None,
    ) -> None:
        super().__init__()
        self.replaced: Counter[str] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        self._masker = Masker(environ)
        self._organisations = frozenset(name.lower() for name in allowed_organisations)
        # Relative paths start where the process runs.
        self._local_folders = tuple(local_folders) if local_folders is not None else (Path(os.curdir),)
        self._pseudonyms = Pseudonyms()
        self._names: dict[str, tuple[str, str]] = {}
        self.metrics: set[str] = set()
        """Names of metrics that contain a slash."""
        self._cache: dict[tuple[str, str], str] = {}
        self._at = ""
        for kind, name in machine_names(environ):
            self.learn_name(kind, name)

    def redact(self, value: Any) -> Any:
        """Return a copy of a tree of plain values with everything private replaced, in keys too. Never raises."""
        self.learn(value)
        return self.rewrite(value)

    def redact_text(self, text: str) -> str:
        """Return `text` with everything private replaced."""
        self.learn(text)
        return self.rewrite_text(text, Position())

    def learn(self, value: Any) -> None:
        """Remember the names of people, machines and private models in `value`, without counting them."""
        _Learner(self).rewrite(value)

    def learn_name(self, kind: str, name: str) -> None:
        """Remember the name of a person (`user`), machine (`host`) or model, so that it is replaced in any text."""
        for each in host_names(name) if kind == "host" else (name,):
            if (
                is_identifying(each, is_host=kind == "host")
                and each.lower() not in self._names
                and len(self._names) < _MOST_NAMES
            ):
                self._names[each.lower()] = (kind, each)
                self._cache.clear()
                self._keys.clear()

    def learn_secret(self, texts: Iterable[str]) -> None:
        """Remember texts that are secrets, so that they are masked in any text."""
        new = [text for text in texts if text not in self._masker.secrets]
        if new and len(self._masker.secrets) < _MOST_NAMES:
            self._masker.add_secrets(new)
            self._cache.clear()
            self._keys.clear()

    def is_public_model(self, name: str) -> bool:
        """Return whether `name` is a model of an allowed organisation and not a local path."""
        return is_public_model(name, self._organisations, self._local_folders)

    def rewrite_text(self, text: str, position: Position) -> str:
        """Return the replacement of `text` at this position."""
        if len(text) < 2 or text == MASK:
            return text
        self._at = position.path or "(text)"
        is_cached = len(text) <= _LONGEST_CACHED and position.secrecy is Secrecy.OPEN
        key = (text, position.name)
        if is_cached and self._cache.get(key) == text:
            # Nearly every text of a run is repeated, and is not private.
            return text
        written = self._rewrite_under_a_name(text, position)
        if is_cached and written == text:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            self._cache[key] = text
        return written

    def on_hidden(self, position: Position) -> None:
        """Count a secret that was not a text."""
        self._at = position.path or "(text)"
        self._count("secret")

    def _rewrite_under_a_name(self, text: str, position: Position) -> str:
        masked = self._masker.rewrite_text(text, position)
        if (
            position.secrecy is Secrecy.IF_RANDOM
            and not is_plain(text)
            and " " not in text
            and position.name.lower() not in _BARE_KEY
        ):
            masked = MASK
        if masked != text:
            self._count("secret", max(1, masked.count(MASK) - text.count(MASK)))
            if masked == MASK:
                return MASK
            text = masked
        name = _last_words(position.name)
        if name in _PEOPLE or name in _MACHINES:
            return self._rewrite_name(text, "user" if name in _PEOPLE else "host")
        if position.name.lower() in _IDS:
            return self._replace("device", text)
        if name in _REMOTES and PLACEHOLDER.fullmatch(text) is None:
            return self._replace("url", text)
        if holds_a_model(position.name) and _is_one_name(text) and not _HARDWARE.search(position.path):
            return self._rewrite_model(text)
        if name in _PATHS and is_relative_path(text) and not self.is_public_name(text):
            return self._rewrite_relative_path(text)
        if "/" in text and not (position.path == A_KEY and " " not in text):
            # Such a key is the name of a metric.
            text = self._rewrite_repositories(text)
        return self._rewrite_anywhere(text, may_be_version=holds_a_version(position.path))

    def _rewrite_anywhere(self, text: str, *, may_be_version: bool = False) -> str:
        text = replace_urls(text, self._replace, self.is_public_model)
        text = self._rewrite_model_settings(text)
        text = replace_logins(text, self._replace)
        text = replace_message_hosts(text, self._replace)
        text = replace_paths(text, lambda path: self._replace("path", path))
        text = replace_addresses(text, self._replace, may_be_version=may_be_version)
        text = self._rewrite_known_names(text)
        return _BASE64.sub(self._rewrite_base64, text) if len(text) >= _SHORTEST_BASE64 else text

    def _rewrite_name(self, text: str, kind: str) -> str:
        """Replace the value of a setting that names a person or machine: there a short name counts too."""
        if any(map(str.isspace, text)) or is_generic(text) or not _NAME.fullmatch(text) or is_address(text):
            return self._rewrite_anywhere(text)
        return self._replace(kind, text)

    def _rewrite_model(self, text: str) -> str:
        if self.is_public_name(text) or PLACEHOLDER.search(text) or MASK in text:
            return text
        written = self._rewrite_anywhere(text)
        if written != text or is_url(text):
            return written
        return self._replace("model", text)

    def is_public_name(self, name: str) -> bool:
        """Return whether the value of a model setting is public or consists of ordinary words."""
        if "/" not in name and "\\" not in name:
            return is_public_bare_name(name)
        return self.is_public_model(name) or all(map(is_plain, name.split("/")))

    def _rewrite_model_settings(self, text: str) -> str:
        parts, done = [], 0
        for value in model_settings(text):
            if (
                not looks_like_a_path(value[0])
                and not PLACEHOLDER.search(value[0])
                and not self.is_public_name(value[0])
            ):
                parts += [text[done : value.start()], self._replace("model", value[0])]
                done = value.end()
        return "".join([*parts, text[done:]]) if parts else text

    def _rewrite_repositories(self, text: str) -> str:
        """Replace models and data sets in a sentence, except public ones and metrics of this run."""
        parts, done = [], 0
        for match, _ in repositories_in(text):
            if match[0] not in self.metrics and not self.is_public_name(match[0]):
                parts += [text[done : match.start()], self._replace("model", match[0])]
                done = match.end()
        return "".join([*parts, text[done:]]) if parts else text

    def learn_metrics(self, names: Iterable[str]) -> None:
        """Remember names of metrics, which may look like those of models."""
        if len(self.metrics) < _MOST_METRICS:
            self.metrics.update(name for name in names if "/" in name)

    def _rewrite_relative_path(self, text: str) -> str:
        written = self._rewrite_anywhere(text)
        return written if written != text else shown_path(text, lambda path: self._replace("path", path))

    def _rewrite_known_names(self, text: str) -> str:
        pattern = self._known_names_in(text)
        return text if pattern is None else pattern.sub(self._rewrite_known_name, text)

    def _known_names_in(self, text: str) -> re.Pattern[str] | None:
        small = text.lower()
        present = [name for name in self._names if name in small]
        if not present:
            return None
        either = "|".join(re.escape(name) for name in sorted(present, key=len, reverse=True))
        return re.compile(rf"(?<![A-Za-z0-9])(?:{either})(?![A-Za-z0-9])", re.IGNORECASE)

    def _rewrite_known_name(self, match: re.Match[str]) -> str:
        kind, name = self._names.get(match[0].lower(), ("user", match[0]))
        return self._replace(kind, name)

    def _rewrite_base64(self, match: re.Match[str]) -> str:
        """Hide Base64 text whose decoded form is private."""
        text = match[0].rstrip("=")
        try:
            inner = base64.b64decode(text.translate(_URL_SAFE) + "=" * (-len(text) % 4)).decode("utf-8")
        except (binascii.Error, ValueError):
            return match[0]
        if (
            len(inner) < _SHORTEST_ENCODED
            or not inner.replace("\n", "").isprintable()
            or not self._is_private(inner)
        ):
            return match[0]
        self._count("secret")
        return MASK

    def _is_private(self, text: str) -> bool:
        written = self._masker.rewrite_text(text, Position())
        written = replace_paths(written, lambda _: MASK)
        written = replace_addresses(written, lambda *_: MASK)
        names = self._known_names_in(written)
        return written != text or (names is not None and names.search(written) is not None)

    def _replace(self, kind: str, text: str) -> str:
        self._count(kind)
        return self._pseudonyms.name_for(kind, text if kind in _CASE_COUNTS else text.lower())

    def _count(self, kind: str, times: int = 1) -> None:
        self.replaced[kind] += times
        place = (kind, self._at)
        if place in self.places or len(self.places) < _MOST_PLACES:
            self.places[place] += times
        else:
            self.places[kind, "(further fields)"] += times


class _Learner(TreeRewriter):
    """Collects the names in a tree."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def rewrite_text(self, text: str, position: Position) -> str:
        redactor = self._redactor
        name = _last_words(position.name)
        if position.name == ADDRESS_TO_SEND_TO and "://" in text:
            redactor.learn_secret(parts_of_address(text))
        if name in _PEOPLE or name in _MACHINES:
            if _NAME.fullmatch(text):
                redactor.learn_name("user" if name in _PEOPLE else "host", text)
        elif holds_a_model(position.name) and "/" in text and _is_one_name(text):
            self._learn_model(text)
        for setting in model_settings(text):
            self._learn_model(setting[0])
        for match, is_confirmed in repositories_in(text) if position.path != A_KEY else ():
            if match[0] not in redactor.metrics:
                self._learn_model(match[0], with_whose=is_confirmed)
        for kind, found in names_in(text):
            redactor.learn_name(kind, found)
        for found in message_hosts(text):
            redactor.learn_name("host", found)
        return text

    def _learn_model(self, name: str, *, with_whose: bool = True) -> None:
        if not looks_like_a_path(name) and not self._redactor.is_public_name(name):
            self._redactor.learn_name("model", name)
            if name.count("/") == 1 and with_whose:
                # The owner's name is private too.
                self._redactor.learn_name("model", name.partition("/")[0])


_MOST_SPACES: Final = 2
_BARE_KEY: Final = frozenset({"key", "keys"})
_PEOPLE: Final = frozenset({"user", "username", "logname", "login", "owner", "entity", "account"})
_MACHINES: Final = frozenset({"host", "hostname", "hosts", "nodename", "fqdn", "computername", "addr"})
_CASE_COUNTS: Final = frozenset({"path", "model", "url"})
_NAME = re.compile(r"[^\W_](?:[\w.@-]{0,253}[^\W_])?")
_IDS: Final = frozenset({"boot_id", "machine_id", "serial", "serial_number", "node_id"})
_REMOTES: Final = frozenset({"remote", "origin"})
_PATHS: Final = words("path paths dir dirs directory file files filename folder folders cwd")
_HARDWARE = re.compile(r"(?:^|[/_])(?:cpus?|gpus?|accelerators?|hardware)/", re.IGNORECASE)
_LAST_WORD = re.compile(r"[A-Za-z]+\Z")

_SHORTEST_BASE64: Final = 16
_SHORTEST_ENCODED: Final = 6
_BASE64 = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{16,}={0,2}(?![\w+/=-])")
_URL_SAFE: Final = str.maketrans("-_", "+/")


def _last_words(name: str) -> str:
    match = _LAST_WORD.search(name)
    return match[0].lower() if match else ""


def _is_one_name(text: str) -> bool:
    """Return whether `text` is a name or a path rather than a sentence."""
    spaces = sum(map(str.isspace, text))
    return not spaces or (spaces <= _MOST_SPACES and ("/" in text or "\\" in text))
