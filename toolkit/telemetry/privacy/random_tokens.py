"""Finds tokens that no list of shapes knows: by length, how letters and digits alternate, and what is in front."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from operator import ne
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final

from toolkit.telemetry.core.lazy_pattern import lazy_pattern
from toolkit.telemetry.privacy.secret_names import Secrecy, secrecy_of

Mask = Callable[[str], str]

SHORTEST: Final = 20
_LONGEST: Final = 512
_LONGEST_ENCODED: Final = 4_096
_LINE: Final = 76
"""Characters of a line of data in Base64, as e-mails and notebooks have it."""
_KINDS: Final = str.maketrans(ascii_lowercase + ascii_uppercase + digits, "a" * 26 + "A" * 26 + "0" * 10)
_RUN = lazy_pattern(r"[A-Za-z0-9+/_-]{20,}={0,2}", re.ASCII)
_ADDRESS_IN_FRONT = lazy_pattern(r"\w://[^\s\"'<>]*\Z")
_GOES_ON = lazy_pattern(r"\\|\.[A-Za-z][A-Za-z0-9]{0,11}\b")
# `run_name=…`, `"run_name": "…"`, and a line of YAML.
_SETTING_IN_FRONT = lazy_pattern(
    r"""([A-Za-z_][\w.-]{0,80})(?:["']\s?:|["'\]]{0,2}\s?=)\s?["']?\Z|^[ \t-]*([A-Za-z_][\w.-]{0,80}):[ ]["']?\Z""",
    re.MULTILINE,
)
_PRINTABLE = re.compile(rb"[\x20-\x7e\r\n\t]+")
_WORDS = lazy_pattern(r"[A-Z][a-z]{2,}|[a-z]{3,}")
_ONE_CASE = lazy_pattern(r"(?=[a-z0-9]*[g-z])[a-z0-9]+|(?=[A-Z0-9]*[G-Z])[A-Z0-9]+")
"""Not hex, which may be a commit or an id."""
_HEX_OR_UUID = lazy_pattern(
    r"(?<![A-Za-z0-9])(?:[0-9a-f]{24,}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\Z", re.IGNORECASE
)
_TELLING_IN_FRONT = lazy_pattern(
    r"""(?<!cache[ _-])(?<!primary[ _-])(?<!foreign[ _-])(?<!public[ _-])(?<!sort[ _-])(?<!hash[ _-])(?<![A-Za-z])
    (?:[a-z]{0,8}key|token|tkn|secret|password|passphrase|credentials?|bearer|authorization|[spar]k(?=[-_])|api(?=[-_])|pat(?=[-_])
    |auth(?=[-_])|pwd(?=[-_])|pass(?=[-_]))(?:[-_](?:live|test|prod|dev|v1|v2|us|eu))?[-_]?["'`]?
    (?:\s{1,2}(?:is|was|for|of|my|our|the|new|old|we|use|used|value|to|(?-i:[A-Z])[\w.]{1,20})){0,4}
    \s{0,2}[:=(]?\s{0,2}["'`(<]{0,2}\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_CHECKSUM_IN_FRONT = lazy_pattern(
    r"(?:sha-?[0-9]{1,3}|md5|crc32c?|blake\w{1,3}|xxh\w{1,3}|etag|digest|checksum|hash|fingerprint|integrity|base64)"
    r"""["'\\]{0,3}\s?[-=:~,(]{0,2}\s?["'\\]{0,3}\Z""",
    re.IGNORECASE,
)
_PICTURES: Final = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")
"""How PNG, JPEG, GIF and WebP begin in Base64."""


def mask_random_tokens(text: str, mask: str, mask_text: Mask, *, guesses: bool) -> str:
    """Return `text` with each part replaced by `mask` that is called a key, or is a secret in Base64 or hex.

    With `guesses`, for free text, also each part that looks like a token. Commits, ids, checksums, pictures in Base64,
    parts of paths and file names, and settings (`run_name=…`) stay. `mask_text` says what a decoded text holds.
    """
    return _RUN.sub(lambda match: _masked(match, mask, mask_text, guesses), text)


def is_random(text: str) -> bool:
    """Return whether letters of both cases and digits alternate in `text` as in no name."""
    upper, numbers = sum(map(str.isupper, text)), sum(map(str.isdigit, text))
    if not 0 < upper < len(text) - numbers or 5 * numbers > 3 * len(text) or (not numbers and len(text) < 24):
        return False
    in_words = sum(map(len, _WORDS.findall(text)))
    return 20 * _changes(text) >= (6 if numbers else 9) * len(text) and 20 * in_words <= 13 * len(text)


def is_token(text: str) -> bool:
    """Return whether `text`, of letters, digits, dashes and underscores, looks like a token."""
    # _Z: a name that a C++ compiler made.
    if len(text) > _LONGEST or text.startswith("_Z"):
        return False
    parts = re.split(r"[-_]+", text)
    last, body = parts[-1], "".join(part for part in parts if len(part) >= 6)
    if len(body) >= 16 and max(map(len, parts)) >= 10 and is_random(body):
        return True
    # Of one case, after a prefix (`napi_…`) or long.
    numbers = sum(map(str.isdigit, last))
    is_mixed = 12 * numbers >= len(last) >= 2 * numbers and 5 * _changes(last) >= len(last)
    is_long = len(last) >= (SHORTEST if len(parts) > 1 else 28)
    return is_long and is_mixed and _ONE_CASE.fullmatch(last) is not None


def _changes(text: str) -> int:
    """Return how often small letters, capitals and digits follow one another."""
    kinds = text.translate(_KINDS)
    return sum(map(ne, kinds, kinds[1:]))


def _masked(match: re.Match[str], mask: str, mask_text: Mask, guesses: bool) -> str:
    run, text, start = match[0], match.string, match.start()
    body = run.rstrip("=")
    for part in dict.fromkeys((body, *body.split("/"))):
        if _holds_a_secret(part, mask_text) or _is_called_a_key(part, text, start + run.find(part)):
            return run.replace(part, mask)
    if not guesses or _is_data(run, text, start) or _is_name(match):
        return run
    found = [part for part in run.split("/") if len(part) >= SHORTEST and is_token(part)]
    # Two of them between slashes are parts of data in Base64.
    return run.replace(found[0], mask) if len(found) == 1 else run


def _is_name(match: re.Match[str]) -> bool:
    """Return whether a part of a text is in a path or the name of a file, or is the value of a plain setting."""
    run, text, start = match[0], match.string, match.start()
    if run.startswith("//") or _ADDRESS_IN_FRONT.search(text, max(0, start - _LONGEST), start):
        return False
    if "/" in run or text[start - 1 : start] == "\\" or _GOES_ON.match(text, match.end()):
        return True
    setting = _SETTING_IN_FRONT.search(text, max(0, start - 100), start)
    return setting is not None and secrecy_of(setting[1] or setting[2]) is Secrecy.OPEN


def _is_called_a_key(run: str, text: str, start: int) -> bool:
    """Return whether a word of secrets is in front of hex digits or a UUID: `hl_sk_…`, `the Deepgram key is …`."""
    found = _HEX_OR_UUID.search(run)
    if found is None or text[start + len(run) : start + len(run) + 1] == ":":
        return False
    end = start + found.start()
    return _TELLING_IN_FRONT.search(text, max(0, end - 64), end) is not None


def _is_data(run: str, text: str, start: int) -> bool:
    """Return whether a run of characters is a checksum, or a picture or other data in Base64."""
    begins_a_line = start > _LINE and text[start - 1] == "\n"
    return (
        len(run) == _LINE
        or (begins_a_line and _RUN.fullmatch(text, start - _LINE - 1, start - 1) is not None)
        or "+" in run
        or "=" in run
        or len(run) > _LONGEST
        or run.startswith(_PICTURES)
        or _CHECKSUM_IN_FRONT.search(text, max(0, start - 32), start) is not None
    )


def _holds_a_secret(run: str, mask_text: Mask) -> bool:
    if not SHORTEST <= len(run) <= _LONGEST_ENCODED:
        return False
    for decode in (bytes.fromhex, _from_base64):
        try:
            if _PRINTABLE.fullmatch(decode(run[:8])):
                decoded = decode(run).decode("ascii")
                return mask_text(decoded) != decoded
        except ValueError:
            continue
    return False


def _from_base64(text: str) -> bytes:
    text = text.replace("-", "+").replace("_", "/")
    return base64.b64decode(text + "=" * (-len(text) % 4))
