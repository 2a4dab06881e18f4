"""A configuration, command line or record with its secrets masked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from toolkit.telemetry.guard import Guard
from toolkit.telemetry.privacy.secret_names import Secrecy, secrecy_of
from toolkit.telemetry.privacy.secret_shapes import MASK, mask_text

MAX_DEPTH: Final = 32
MAX_KEYS_KEPT: Final = 4096
SHORTEST_ENVIRONMENT_SECRET: Final = 8

_guard = Guard()


def mask_secrets(value: Any) -> Any:
    """Return a copy of `value` in which every secret reads `***`. Never raises.

    A secret is known by the name it stands under (`hf_token`, `api_key`), by its look (`hf_…`, `AKIA…`, a private
    key, a login in a URL), by the option before it (`--hf-token abc`), or because a secret-looking environment
    variable holds the same text. Structure, names and numbers are kept; what cannot be looked at is not shown.
    """
    return Masker().mask(value)


class Masker:
    """Masks many values against the environment as it was when the masker was made."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        secrets = _environment_secrets(os.environ if environ is None else environ)
        self._environment = re.compile("|".join(map(re.escape, secrets))) if secrets else None
        self._keys: dict[str, str] = {}

    def mask(self, value: Any) -> Any:
        """Return a copy of `value` in which every secret reads `***`. Never raises."""
        return self._mask(value, Secrecy.OPEN, False, ())

    def _mask(self, value: Any, secrecy: Secrecy, of_wandb: bool, around: tuple[int, ...]) -> Any:
        """Mask `value`; `around` are the containers that it is inside of, and `of_wandb` says that one is W&B's."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return MASK if secrecy is Secrecy.ALL else value
        if isinstance(value, str):
            return self._mask_string(value, secrecy, of_wandb)
        if isinstance(value, Mapping | Sequence | AbstractSet) and not isinstance(value, _BYTES):
            return self._mask_container(value, secrecy, of_wandb, around)
        if secrecy is not Secrecy.OPEN:
            return MASK
        if isinstance(value, os.PathLike):
            return self._mask_path(value)
        return value

    def _mask_string(self, text: str, secrecy: Secrecy = Secrecy.OPEN, of_wandb: bool = False) -> str:
        if not text or text == MASK:
            return text
        if secrecy is Secrecy.ALL:
            return MASK
        # A tokenizer's <pad> or </s> is no secret, whatever kind of token it is called.
        if secrecy is Secrecy.TEXT and not _SPECIAL_TOKEN.fullmatch(text):
            return MASK
        if of_wandb and _OLD_WANDB_KEY.fullmatch(text):
            return MASK
        if self._environment is not None:
            text = self._environment.sub(MASK, text)
        return mask_text(text)

    def _mask_path(self, path: os.PathLike[Any]) -> Any:
        with _guard.watch("masking secrets"):
            text = os.fspath(path)
            masked = self._mask_string(text) if isinstance(text, str) else text
            return path if masked == text else masked
        return MASK

    def _mask_container(self, value: Any, secrecy: Secrecy, of_wandb: bool, around: tuple[int, ...]) -> Any:
        if id(value) in around or len(around) >= MAX_DEPTH:
            return MASK
        around = (*around, id(value))
        masked: Any = MASK
        # The caller's own containers may raise from anywhere; then this one is hidden, and those around it are not.
        with _guard.watch("masking secrets"):
            if isinstance(value, Mapping):
                masked = self._mask_mapping(value, secrecy, of_wandb, around)
            elif isinstance(value, Sequence):
                masked = self._mask_sequence(value, secrecy, of_wandb, around)
            else:
                masked = frozenset(self._mask(item, secrecy, of_wandb, around) for item in value)
        return masked

    def _mask_mapping(
        self, mapping: Mapping[Any, Any], secrecy: Secrecy, of_wandb: bool, around: tuple[int, ...]
    ) -> dict[Any, Any]:
        masked: dict[Any, Any] = {}
        # {"name": "HF_TOKEN", "value": …}: the name is a value here, as in container definitions.
        named = mapping.get("name", mapping.get("key"))
        for key, value in mapping.items():
            inner, inner_of_wandb = secrecy, of_wandb
            if isinstance(key, str):
                inner = max(secrecy, secrecy_of(named if key == "value" and isinstance(named, str) else key))
                inner_of_wandb = of_wandb or "wandb" in key.lower()
                key = self._mask_key(key, masked)
            masked[key] = self._mask(value, inner, inner_of_wandb, around)
        return masked

    def _mask_key(self, key: str, taken: Mapping[Any, Any]) -> str:
        masked = self._keys.get(key)
        if masked is None:
            if len(self._keys) >= MAX_KEYS_KEPT:
                self._keys.clear()
            masked = self._keys[key] = self._mask_string(key)
        if masked == key or masked not in taken:
            return masked
        # Two keys that were both secrets stay two keys.
        return f"{masked}-{len(taken)}"

    def _mask_sequence(
        self, sequence: Sequence[Any], secrecy: Secrecy, of_wandb: bool, around: tuple[int, ...]
    ) -> list[Any] | tuple[Any, ...]:
        masked = []
        after_option = Secrecy.OPEN
        for item in sequence:
            is_option = isinstance(item, str) and item.startswith("-") and len(item) > 1
            masked.append(
                self._mask(item, secrecy if is_option else max(secrecy, after_option), of_wandb, around)
            )
            # ["--hf-token", "abc"]: the value is the next item.
            after_option = secrecy_of(item) if is_option and "=" not in item else Secrecy.OPEN
        return tuple(masked) if isinstance(sequence, tuple) else masked


_BYTES: Final = (bytes, bytearray, memoryview)
_SPECIAL_TOKEN = re.compile(r"<[^<>\s]{0,40}>|\[[A-Z]{1,12}\]")
_OLD_WANDB_KEY = re.compile(r"[0-9a-f]{40}")
# Variables run their words together more often than settings do: PGPASSWORD, MYTOKEN.
_SECRET_VARIABLE = re.compile(r"(?:TOKEN|SECRET|PASSWORD|PASSWD|_PASS|_KEY|_PAT)\Z", re.IGNORECASE)
_OPEN_VARIABLES: Final = frozenset({"PWD", "OLDPWD"})


def _environment_secrets(environ: Mapping[str, str]) -> list[str]:
    """Return the values of the variables that are called like secrets, longest first."""
    found = {
        value
        for variable, value in environ.items()
        if len(value) >= SHORTEST_ENVIRONMENT_SECRET
        and variable not in _OPEN_VARIABLES
        and (secrecy_of(variable) is not Secrecy.OPEN or _SECRET_VARIABLE.search(variable))
    }
    return sorted(found, key=len, reverse=True)
