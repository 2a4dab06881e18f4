"""Secrets that are known by how they look, wherever in a text they stand."""

from __future__ import annotations

import re
from typing import Final

from toolkit.telemetry.privacy.secret_names import Secrecy, secrecy_of

MASK: Final = "***"


def mask_text(text: str) -> str:
    """Return `text` with every part that looks like a secret replaced by `***`."""
    if len(text) < _SHORTEST:
        return text
    text = _PEM_BLOCK.sub(MASK, text)
    text = _URL_LOGIN.sub(_mask_login, text)
    for after_this in (_SIGNED_URL, _AUTHORIZATION, _BEARER, _WANDB_KEY):
        text = after_this.sub(rf"\1{MASK}", text)
    text = _OPTION.sub(_mask_option, text)
    text = _mask_assignments(text)
    return _KNOWN_SHAPE.sub(MASK, text)


_SHORTEST: Final = 6

_KNOWN_SHAPE = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      hf_[A-Za-z0-9]{20,}                                  # Hugging Face
    | sk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,}        # OpenAI, Anthropic, and others after them
    | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{20,}      # GitHub
    | glpat-[\w-]{16,}                                     # GitLab
    | (?:AKIA|ASIA)[0-9A-Z]{16}                            # AWS
    | AIza[\w-]{30,}                                       # Google
    | xox[a-z]-[A-Za-z0-9-]{10,}                           # Slack
    | wandb_v[0-9]+_\w{20,}                                # W&B; its older keys are 40 hex digits, as commits are
    | eyJ[\w-]{14,}(?:\.[\w-]+){0,4}                        # a JSON web token, or other JSON in base64
    | https://hooks\.slack\.com/services/[\w/-]+
    | https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/[\w/-]+
    )""",
    re.VERBOSE,
)

# A block that is cut off before its end is hidden to the end of the text.
_PEM_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)", re.DOTALL)

_URL_LOGIN = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?P<login>[^\s/@?#\"']{1,400})@")

_SIGNED_URL = re.compile(
    r"([?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=)[^\s&\"'#]+",
    re.IGNORECASE,
)

_AUTHORIZATION = re.compile(
    r"""(\bauthorization["']?\s{0,3}[:=]\s{0,3}["']?(?:(?:bearer|basic|token|digest)\s{1,3})?)[^\s"',;]+""",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(\bbearer\s{1,3})(?=[^\s\"',;]*[0-9])[^\s\"',;]{8,}", re.IGNORECASE)

_WANDB_KEY = re.compile(
    r"""(\bwandb(?:\s{1,3}login\s{1,3}(?:--\S+\s{1,3})*|[\w.-]*["']?\s{0,3}[=:]\s{0,3}["']?))[0-9a-f]{40}\b""",
    re.IGNORECASE,
)

# "--hf-token abc", inside a command line that is one text.
_OPTION = re.compile(r"(?<!\S)(?P<name>--?[A-Za-z][\w.-]{0,80})(?P<between>\s{1,3})(?P<value>[^\s-]\S*)")

# "token=abc", "password: abc", '"api_key": "abc"'.
_ASSIGNED_NAME = re.compile(
    r"""(?<![\w.-])-{0,2}(?P<name>[A-Za-z_][\w.-]{0,80})(?P<between>["']?\s{0,3}[=:]\s{0,3})"""
)
_ASSIGNED_VALUE = re.compile(r"""(?P<quote>["'])[^"'\n]*(?P=quote)|[^\s,;&"'(){}\[\]]+""")
_NO_SECRETS: Final = frozenset({"None", "True", "False", "null", "true", "false", '""', "''"})


def _mask_login(match: re.Match[str]) -> str:
    login = match["login"]
    # A name alone is no secret (ssh://git@…), unless it is long enough to be a token.
    return f"{match['scheme']}{MASK}@" if ":" in login or len(login) >= 16 else match[0]


def _mask_option(match: re.Match[str]) -> str:
    if secrecy_of(match["name"]) is Secrecy.OPEN:
        return match[0]
    return f"{match['name']}{match['between']}{MASK}"


def _mask_assignments(text: str) -> str:
    parts = []
    done = 0
    for match in _ASSIGNED_NAME.finditer(text):
        if match.start() < done or not _assigns_a_secret(match):
            continue
        value = _ASSIGNED_VALUE.match(text, match.end())
        if value is None or value[0] in _NO_SECRETS:
            continue
        quote = value["quote"] or ""
        parts += [text[done : match.end()], quote, MASK, quote]
        done = value.end()
    return "".join([*parts, text[done:]]) if parts else text


def _assigns_a_secret(match: re.Match[str]) -> bool:
    secrecy = secrecy_of(match["name"])
    if ":" not in match["between"] or match["between"][0] in "\"'":
        return secrecy is not Secrecy.OPEN
    # A bare colon is also how sentences go ("token: the smallest piece of text"); there only the plainest names count.
    return secrecy is Secrecy.ALL
