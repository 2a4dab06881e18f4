"""Names of people and machines: those of this machine, and those in paths and settings."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Final

from toolkit.core.formatting import words
from toolkit.privacy.harmless_words import is_plain

SHORTEST: Final = 4
"""A shorter name also occurs inside ordinary words."""
_LONGEST: Final = 64

_USER_VARIABLES: Final = ("USER", "LOGNAME", "USERNAME", "LNAME", "SUDO_USER", "NB_USER", "JUPYTERHUB_USER")
_HOME_VARIABLES: Final = ("HOME", "USERPROFILE")
_HOST_VARIABLES: Final = ("HOSTNAME", "HOST", "COMPUTERNAME", "SLURMD_NODENAME", "USERDOMAIN")

_GENERIC: Final = words(
    """
    abuse admin administrator all anonymous azureuser bitnami centos cloud coder codespace colab contact
    container debian default dev developer docker donotreply ec2-user example fedora guest hello help host
    hostname info internal ip6-localhost ip6-loopback jovyan jupyter kaggle linux localhost
    localhost.localdomain mail me mlflow no-reply nobody node none noreply null office opc oracle owner pi
    postgres postmaster public ray rocky root runner sagemaker-user sales server service shared student support
    system team test ubuntu unknown user username vagrant vscode webmaster worker workspace www www-data you
    """
)
"""Names that many machines have: they identify no one."""


def machine_names(environ: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the kind (`user` or `host`) and the text of each name of this machine and its user."""
    environ = os.environ if environ is None else environ
    for variable in _USER_VARIABLES:
        yield "user", environ.get(variable, "")
    for variable in _HOME_VARIABLES:
        yield "user", re.split(r"[/\\]", environ.get(variable, "").rstrip("/\\"))[-1]
    for variable in _HOST_VARIABLES:
        yield "host", environ.get(variable, "")
    try:
        yield "user", getpass.getuser()
    except (ImportError, KeyError, OSError):
        # A process in a container may have a user id without a user.
        pass
    yield "host", socket.gethostname()


def is_generic(name: str) -> bool:
    """Return whether many users or machines have this name."""
    return name.lower() in _GENERIC


def is_identifying(name: str, *, is_host: bool = False) -> bool:
    """Return whether `name` in running text identifies someone, rather than being an ordinary word.

    A machine's name may be made of ordinary words: `gpu-box-17` still does not occur by chance.
    """
    return (
        SHORTEST <= len(name) <= _LONGEST
        and not is_generic(name)
        and (not is_plain(name) or (is_host and _COMPOUND.search(name) is not None))
        and not name.replace(".", "").isdigit()
        and "<" not in name
    )


def names_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of the names in paths, addresses and assignments in `text`."""
    if "/" in text or "\\" in text:
        for match in _HOME.finditer(text):
            yield "user", (match["name"] or match["short"]).rstrip(".")
    if "@" in text:
        for match in _MAILBOX.finditer(text):
            yield "user", match["name"]
    if "=" in text or ":" in text:
        for match in _ASSIGNED.finditer(text):
            # "Host: Welcome to the show" is a line of a conversation.
            if match["colon"] is None or re.search(r"[0-9.-]", match["name"]):
                yield ("host" if match["host"] else "user"), match["name"]


def host_names(name: str) -> Iterator[str]:
    """Yield `name` and, if it has a domain, the part before that."""
    yield name
    if "." in name:
        yield name.partition(".")[0]


_COMPOUND = re.compile(r"[A-Za-z][0-9-]")
_HOME = re.compile(
    r"""(?:[/\\](?:home|Users)[/\\]{1,2}(?P<name>[^\W_][\w.-]{1,62})|(?<![\w~/.])~(?P<short>[^\W_][\w.-]{1,62})(?=[/\\]))"""
)
_MAILBOX = re.compile(r"(?<![\w.+%-])(?P<name>[^\W_][\w.-]{2,62}[^\W_])@[^\W_][\w-]{0,62}\.[^\W\d_]")
_ASSIGNED = re.compile(
    r"""(?<![\w.-])(?:(?P<host>hostname|nodename|node_name|host)["']?\s{0,2}(?:=|(?P<colon>:))|user(?:name)?["']?\s{0,2}=)
    \s{0,2}["']?(?P<name>[^\W_][\w.-]{3,62})""",
    re.IGNORECASE | re.VERBOSE,
)
