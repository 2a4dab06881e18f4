"""Host names in messages of NCCL, torch, Slurm, MPI and ssh; there a short name counts too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from toolkit.core.formatting import words
from toolkit.privacy.addresses import Replace, is_address
from toolkit.privacy.harmless_words import has_known_extension
from toolkit.privacy.names import is_generic


def replace_message_hosts(text: str, replace: Replace) -> str:
    """Return `text` with each host name in a message replaced."""
    if not _may_have_one(text):
        return text
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: _shown(match, replace), text)
    return text


def message_hosts(text: str) -> Iterator[str]:
    """Yield the host names in messages in `text`."""
    if _may_have_one(text):
        for pattern in _PATTERNS:
            yield from (match["host"] for match in pattern.finditer(text) if _is_a_host(match["host"]))


_HOST: Final = r"(?P<host>[A-Za-z][A-Za-z0-9.-]{0,62})"
_PATTERNS: Final = (
    # node07:1234:5678 [0] NCCL INFO …
    re.compile(rf"(?<![\w./-]){_HOST}:[0-9]{{1,8}}:[0-9]{{1,8}}[ ]\[[0-9]{{1,3}}\]"),
    # Connect to node07<41234> failed
    re.compile(rf"\b(?:to|from|with|by|peer|remote)[ ]{_HOST}<[0-9]{{2,5}}>"),
    # failed to connect to [node07]:29500; addresses of (node07, 29500)
    re.compile(
        r"\b(?:connect(?:ed|ing)?[ ](?:to|from)|addresses[ ]of|listen(?:ing)?[ ]on)[ ]"
        rf"[\[(]{_HOST}(?:\]:|,[ ])[0-9]{{2,5}}"
    ),
    # srun: error: node07: task 3: Killed; JOB 12 ON node07 CANCELLED
    re.compile(rf"\b(?:srun|slurmstepd|slurmd|salloc|sbatch|mpirun|pdsh):[ ](?:error:[ ])?{_HOST}:[ ]"),
    re.compile(rf"\bJOB[ ][0-9]{{1,12}}[ ]ON[ ]{_HOST}\b"),
    # [node07:12345] *** Process received signal ***
    re.compile(rf"^\[{_HOST}:[0-9]{{2,8}}\](?=[ ])", re.MULTILINE),
    # ssh: connect to host node07 port 22; Could not resolve host: node07
    re.compile(rf"\b(?:connect[ ]to[ ](?:host[ ])?|resolve[ ]host(?:name)?:?[ ]){_HOST}\b(?!\()"),
    re.compile(
        r"\b(?:MASTER_ADDR|master[_-]addr|rdzv[_-]endpoint|SLURMD_NODENAME|SLURM_NODELIST)\b"
        rf"""["']?[ ]?[=: ][ ]?["']?{_HOST}""",
        re.IGNORECASE,
    ),
)
_HINTS: Final = (
    *(
        "NCCL",
        ">",
        "connect",
        "addresses of",
        "listen",
        "srun",
        "slurm",
        "salloc",
        "sbatch",
        "mpirun",
        "pdsh",
    ),
    *(" ON ", "] ", "resolve host", "addr", "ADDR", "endpoint", "SLURM", "ENDPOINT"),
)
"""One of these is in every such message."""
_NO_HOSTS: Final = words("the a an any all remote peer server port host store it error")


def _may_have_one(text: str) -> bool:
    return any(hint in text for hint in _HINTS)


def _is_a_host(name: str) -> bool:
    is_file = has_known_extension(name) or name.endswith((".cc", ".cuh"))
    return not (
        is_generic(name) or name.lower() in _NO_HOSTS or is_address(name) or ("." in name and is_file)
    )


def _shown(match: re.Match[str], replace: Replace) -> str:
    if not _is_a_host(match["host"]):
        return match[0]
    start = match.start("host") - match.start()
    return match[0][:start] + replace("host", match["host"]) + match[0][start + len(match["host"]) :]
