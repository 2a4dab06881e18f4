"""Replaces e-mail, network and hardware addresses, phone numbers and internal host names in a text."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Final

Replace = Callable[[str, str], str]
"""Called with a kind and the private text, returns the replacement."""


def replace_addresses(text: str, replace: Replace, *, may_be_version: bool = False) -> str:
    """Return `text` with every address in it replaced; `may_be_version` keeps four numbers."""
    if _MANY_DIGITS.search(text):
        text = _PHONE.sub(lambda match: _phone(match, replace), text)
    if "@" in text or "%40" in text:
        text = _EMAIL.sub(lambda match: _email(match, replace), text)
    if ":" in text or "-" in text:
        text = _MAC.sub(lambda match: replace("mac", match[0]), text)
        text = _DEVICE.sub(lambda match: replace("device", match[0]), text)
    if ":" in text:
        text = _IPV6.sub(lambda match: _ipv6(match, replace), text)
    if "." in text:
        if not may_be_version:
            text = _IPV4.sub(lambda match: _ipv4(match, replace), text)
        text = _INTERNAL_HOST.sub(lambda match: _internal_host(match, replace), text)
    if "ip-" in text:
        text = _CLOUD_HOST.sub(lambda match: replace("host", match[0]), text)
    return text


def replace_logins(text: str, replace: Replace) -> str:
    """Return `text` with the user and host of logins replaced; a path after the host is kept."""
    return _LOGIN.sub(lambda match: _login(match, replace), text) if "@" in text else text


def holds_a_version(name: str) -> bool:
    """Return whether a setting called `name` holds a version, in which four numbers are not an address."""
    small = name.lower()
    return "version" in small or "packages" in small or _NAME_OF_A_VERSION.search(name) is not None


def is_address(text: str) -> bool:
    """Return whether `text` is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_EMAIL = re.compile(
    r"(?P<name>[\w.+'-]{1,64})(?P<at>@|%40)(?P<domain>(?:[^\W_](?:[^\W_]|-){0,62}\.){1,6}(?P<last>[^\W\d_]{2,24}))(?![\w(])"
)
_NO_EMAILS: Final = frozenset({"weight", "bias", "mT", "data", "grad", "shape"})
"""What follows the dot if `x@layer.weight` is a product of matrices."""

# "bob@nas01:/data", as scp has it, and "ssh bob@nas01".
_LOGIN = re.compile(
    r"(?P<front>\b(?:ssh|scp|sftp|mosh|rsync)\b[^\n@]{0,80}?\s)?(?<![\w.+%-])(?P<name>[^\W_][\w.-]{0,63})@"
    r"(?P<host>[^\W_](?:[\w.-]{0,62}[^\W_])?|<(?:host|ip)-[0-9]{1,6}>)(?P<path>(?=:[/~]))?"
)

# +49 170 1234567; (555) 123-4567; after "tel." and similar words any that is long enough.
_PHONE_IN_FRONT: Final = "|".join(
    rf"(?<={word}{sign})"
    for word in (
        "tel",
        "phone",
        "telefon",
        "telephone",
        "mobile",
        "mobil",
        "fax",
        "whatsapp",
        "call[ ]me[ ]at",
    )
    for sign in ("[ .:]", r"[.:][ ]")
)
_PHONE = re.compile(
    rf"""(?<![\w.+-])(?P<number>
      \+[1-9](?:[ ./-]?\(?[0-9]{{1,5}}\)?){{2,7}}
    | \([2-9][0-9]{{2}}\)[ ]?[0-9]{{3}}-[0-9]{{4}} | [2-9][0-9]{{2}}-[0-9]{{3}}-[0-9]{{4}}
    | (?:{_PHONE_IN_FRONT})\(?0[0-9]{{1,5}}\)?(?:[ /-]?[0-9]{{1,6}}){{1,5}}
    )(?!\w|[.:/-][0-9])(?P<unit>[ ]?(?:bytes|[KMGT]?i?B|steps?|tokens?|samples?|params?|ms|s|%)\b)?""",
    re.VERBOSE | re.IGNORECASE,
)
_MANY_DIGITS = re.compile(r"(?:[0-9][ ()./-]{0,3}){7}")

_MAC = re.compile(
    r"(?<![\w:.-])(?:(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}"
    r"|(?=[0-9-]*[A-Fa-f])(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2})(?!\w|[:-]\w)"
)
_DEVICE = re.compile(r"(?<![\w-])(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_IPV4 = re.compile(
    r"(?<![\w.])(?P<address>(?:[0-9]{1,3}\.){3}[0-9]{1,3})(?!\w|\.[0-9])"
    r"(?P<behind>-py[0-9]|\.whl|\.dist-info|\.tar|\.zip|\+[a-z])?"
)
_HAS_VERSIONS = (
    r"(?:versions?|release|build|driver|firmware|toolkit|runtime|python|nvidia-[\w-]+|torch\w*|tensorrt|nvcc|nccl|rocm|hip"
    r"|cu(?:da|dnn|blas|fft|rand|solver|sparse|tensor)\w*)"
)
_VERSION_IN_FRONT = re.compile(rf"(?:[=<>~!]=|\b{_HAS_VERSIONS}[ :=/-]{{1,2}}|\bv|\.so\.)\Z", re.IGNORECASE)
_NAME_OF_A_VERSION = re.compile(rf"(?:\A|[/_.-]){_HAS_VERSIONS}\Z", re.IGNORECASE)
_HARMLESS_IPV4: Final = frozenset({"127.0.0.1", "255.255.255.255", "255.255.255.0", "1.1.1.1", "8.8.8.8"})

_IPV6 = re.compile(r"(?<![\w:.])(?P<address>[0-9A-Fa-f:]{6,48})(?:%[\w.-]{1,16})?(?![\w:]|\.[0-9])")

_INTERNAL_HOST = re.compile(
    r"(?<![\w.@-])(?P<name>(?:[^\W_][\w-]{0,62}\.){1,12})"
    r"(?P<last>internal|local|lan|corp|intranet|intra|localdomain|home\.arpa)"
    r"(?![\w(-]|\.\w)",
    re.IGNORECASE,
)
_CLOUD_HOST = re.compile(r"(?<![\w-])ip-[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3}(?![0-9])")


def _email(match: re.Match[str], replace: Replace) -> str:
    name = match["name"].lstrip(".'-")
    if name.rpartition("'")[2] == "git" or not name or match["last"] in _NO_EMAILS:
        # git@github.com is not personal.
        return match[0]
    return match["name"][: len(match["name"]) - len(name)] + replace("email", f"{name}@{match['domain']}")


def _phone(match: re.Match[str], replace: Replace) -> str:
    number = match["number"]
    digits = sum(map(str.isdigit, number))
    # +0.123456789 and +12345.6789 are numbers, and so is anything followed by a unit.
    is_number = number[0] == "+" and number.count(".") == 1 and not re.search(r"[ /()-]", number)
    if not 7 <= digits <= 15 or match["unit"] or is_number:
        return match[0]
    return replace("phone", "".join(filter(str.isdigit, number)))


def _login(match: re.Match[str], replace: Replace) -> str:
    is_login = match["front"] is not None or match["path"] is not None
    if not is_login or match["name"] == "git":
        return match[0]
    host = match["host"] if match["host"].startswith("<") else replace("host", match["host"])
    return f"{match['front'] or ''}{replace('user', match['name'])}@{host}"


def _ipv4(match: re.Match[str], replace: Replace) -> str:
    address = match["address"]
    if (
        address in _HARMLESS_IPV4
        or set(address) == {"0", "."}
        or any(int(part) > 255 for part in address.split("."))
    ):
        return match[0]
    if match["behind"] or _VERSION_IN_FRONT.search(match.string, max(0, match.start() - 48), match.start()):
        return match[0]
    return replace("ip", address)


def _ipv6(match: re.Match[str], replace: Replace) -> str:
    text = match["address"].rstrip(":") if not match["address"].endswith("::") else match["address"]
    behind = match[0][len(text) :]
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return match[0]
    groups = [group for group in text.split(":") if group]
    before = match.string[max(0, match.start() - 2) : match.start()]
    is_slice = len(before) == 2 and before[1] == "[" and (before[0].isalnum() or before[0] in "_)]")
    if (
        address.is_loopback
        or address.is_unspecified
        or is_slice
        or (len(groups) < 3 and (text.startswith("::") or len(groups[0]) < 4))
    ):
        return match[0]
    return replace("ip", text) + (behind if behind.startswith(":") else "")


def _internal_host(match: re.Match[str], replace: Replace) -> str:
    name = match["name"]
    if match["last"].lower() in ("local", "internal", "home.arpa") and not re.search(r"[0-9-]", name):
        # threading.local, torch.distributed.internal
        return match[0] if name.count(".") == 1 or name.islower() else replace("host", match[0])
    return replace("host", match[0])
