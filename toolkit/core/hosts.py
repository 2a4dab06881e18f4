"""What a host in an address may look like, and whether it is this machine."""

from __future__ import annotations

import ipaddress
import re

HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")


def is_this_machine(host: str) -> bool:
    """Say whether `host` is a loopback address or `localhost`; `127.example.org` is another machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
