"""Which addresses messages may be sent to, and which IP addresses those may resolve to."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from toolkit.telemetry.core.checks import HOST, is_this_machine

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressError(ValueError):
    """A refused address; the text shows its host at most, as the rest may be a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress:
    """A checked address. Its `repr` hides the path, which is the secret in most of these addresses."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query."""
    is_loopback: bool
    allows_private: bool = False
    """Whether it may resolve to a private address."""

    def __repr__(self) -> str:
        return f"<{self.shown}>"

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is used."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host and port, as in the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The part that is not secret."""
        return f"{self.scheme}://{self.authority}"

    def may_be(self, address: str) -> bool:
        """Return whether this host's name may resolve to `address`.

        A public name must resolve to a public address: this machine, the local network and a cloud's metadata service
        are refused, so that DNS cannot redirect messages there. If private addresses are allowed, a name may resolve to
        one, and with http only to one.
        """
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if self.is_loopback:
            return ip.is_loopback
        if not self.is_encrypted:
            return is_private(ip)
        return is_public(ip) or (self.allows_private and is_private(ip))


def web_address(url: str, *, allow_private: bool = False) -> WebAddress:
    """Return the checked address `url`; with `allow_private` it may be in a private network, over http too.

    Raises:
        AddressError: it is invalid, or not allowed.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise AddressError("contains characters that must be percent-encoded")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError("has an invalid host or port") from error
    if parts.scheme not in _PORTS or not host:
        raise AddressError("is not an https address")
    if "@" in parts.netloc:
        raise AddressError(f"has a login in front of {host}; use secret_env for a secret")
    if port == 0 or not HOST.fullmatch(host):
        raise AddressError("has an invalid host or port")
    literal = _ip_or_none(host)
    is_loopback = is_this_machine(host)
    if literal is not None and not is_loopback and not is_public(literal):
        if not is_private(literal):
            raise AddressError(f"goes to {host}, which is not a public address")
        if not allow_private:
            raise AddressError(
                f"goes to {host}, which is in a private network; that needs allow_private: true"
            )
    elif parts.scheme == "http" and not is_loopback and (literal is not None or not allow_private):
        raise AddressError(f"goes to {host} over unencrypted http; it must be https")
    return WebAddress(
        scheme=parts.scheme,
        host=host,
        port=port or _PORTS[parts.scheme],
        target=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        is_loopback=is_loopback,
        allows_private=allow_private,
    )


def is_public(ip: IPAddress) -> bool:
    """Return whether `ip` is on the public internet; an IPv6 address of NAT64 holds one of IPv4."""
    if ip in _NAT64:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


def is_private(ip: IPAddress) -> bool:
    """Return whether `ip` is in a private network and is not a metadata service that hands out credentials."""
    return any(ip in network for network in _PRIVATE) and ip not in _METADATA


_PORTS: Final = {"http": 80, "https": 443}

# Not public, but not known as such to every supported Python.
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # includes the metadata service of Oracle
        "192.88.99.0/24",
        "168.63.129.16/32",  # the metadata service of Azure
        "64:ff9b:1::/48",
        "100::/64",
        "fec0::/10",
        "::ffff:0:0/96",  # these three have an IPv4 address inside, which may be any
        "2001::/32",
        "2002::/16",
    )
)
_PRIVATE: Final = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
# Metadata services of AWS, Google and Alibaba inside such a network.
_METADATA: Final = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200")))
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def _ip_or_none(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
