"""Replaces internal hosts, logins and private repositories in web and git addresses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from toolkit.core.formatting import words
from toolkit.privacy.addresses import Replace
from toolkit.privacy.pseudonyms import PLACEHOLDER
from toolkit.privacy.secret_shapes import MASK

IsPublic = Callable[[str], bool]
"""Returns whether `organisation/name` is public."""


def replace_urls(text: str, replace: Replace, is_public: IsPublic) -> str:
    """Return `text` with the private parts of its addresses replaced.

    These are logins, hosts without a domain, and repositories that do not belong to a public organisation.
    """
    if "://" in text:
        text = _URL.sub(lambda match: _shown_url(match, replace, is_public), text)
    if "git@" in text:
        text = _GIT.sub(lambda match: _shown_git(match, replace, is_public), text)
    return text


def is_url(text: str) -> bool:
    """Return whether `text` is an address."""
    return _URL.match(text) is not None


_URL = re.compile(
    r"(?P<scheme>\b(?:https?|wss?|ftps?|tcp|udp|grpc|redis|amqp|mqtt|postgres(?:ql)?|mysql|mongodb|ssh|git|otlp)"
    r"(?:\+\w{1,16})?://)(?:(?P<login>[^\s/@\"']{1,400})@)?"
    r"(?P<host>[\w.*<>-]{1,253})(?P<port>(?::[0-9]{1,5})?)(?P<path>(?:/[^\s\"'<>|`,;\\]{0,4096})?)",
    re.IGNORECASE,
)
_GIT = re.compile(
    r"(?<![\w/@.-])git@(?P<host>[\w.-]{1,253}):(?P<path>[\w.~-]{1,128}(?:/[\w.~-]{1,128}){1,8})"
)
_TRAILING: Final = ".,;:!?)]}"
_MODEL_SITES: Final = frozenset({"huggingface.co", "hf.co"})
_CODE_SITES: Final = frozenset({"github.com", "gitlab.com", "bitbucket.org", "wandb.ai"})
_PUBLIC_PAGES: Final = words(
    """
    docs blog papers tasks learn models pricing settings join site home login authorize features topics
    explore api terms privacy orgs
    """
)


def _shown_url(match: re.Match[str], replace: Replace, is_public: IsPublic) -> str:
    host, path = match["host"], match["path"].rstrip(_TRAILING)
    behind = match["path"][len(path) :]
    login = match["login"]
    if login is not None:
        is_personal = login not in ("git", MASK) and PLACEHOLDER.fullmatch(login) is None
        login = (replace("user", login) if is_personal else login) + "@"
    site = host.lower().removeprefix("www.")
    if site in _MODEL_SITES or site in _CODE_SITES:
        path = _shown_page(path, "model" if site in _MODEL_SITES else "url", replace, is_public)
    if "." not in host and site not in ("localhost", MASK) and PLACEHOLDER.fullmatch(host) is None:
        host = replace("host", host)
    return f"{match['scheme']}{login or ''}{host}{match['port']}{path}{behind}"


def _shown_page(path: str, kind: str, replace: Replace, is_public: IsPublic) -> str:
    parts = path.split("/")
    first = 2 if len(parts) > 3 and parts[1] == "api" and parts[2] in ("models", "datasets", "spaces") else 1
    first += len(parts) > first + 2 and parts[first] in ("models", "datasets", "spaces")
    name = "/".join(parts[first : first + 2]).removesuffix(".git")
    if len(parts) <= 2 or parts[first] in _PUBLIC_PAGES or is_public(name) or PLACEHOLDER.search(name):
        return path
    # What follows the name, such as a file, may be private too.
    return "/".join([*parts[:first], replace(kind, name)])


def _shown_git(match: re.Match[str], replace: Replace, is_public: IsPublic) -> str:
    host, path = match["host"], match["path"]
    if host.lower() in _CODE_SITES and is_public(path.removesuffix(".git")):
        return match[0]
    return replace("url", f"{host}:{path}")
