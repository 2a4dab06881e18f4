"""Which addresses messages may be sent to, and which machines those may turn out to be."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from toolkit.core.hosts import HOST, is_this_machine

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressError(ValueError):
    """An address that nothing is sent to; the sentence shows its host at most, for the rest may be a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress:
    """A checked address. Its `repr` shows no path: in most of these addresses that is the secret."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, as they stand in a request."""
    is_loopback: bool
    allows_private: bool = False
    """Whether it may be a machine in a private network."""

    def __repr__(self) -> str:
        return f"<{self.shown}>"

    @property
    def is_encrypted(self) -> bool:
        """Whether it is spoken to by TLS."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host and port as the `Host` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """The part of it that is no secret."""
        return f"{self.scheme}://{self.authority}"

    @property
    def kind(self) -> str:
        """What kind of machine it has to be, in words."""
        if self.is_loopback:
            return "this machine"
        if self.allows_private:
            return "in a public or private network" if self.is_encrypted else "in a private network"
        return "a public machine"

    def may_be(self, address: str) -> bool:
        """Say whether the machine at `address` is one that this host's name may stand for.

        A name on the internet stands for a public machine. One that turns out to be this machine, the network around
        it, or the service that hands out a cloud machine's credentials, has been given that meaning by somebody else.
        Where private machines are allowed, a name may lead to one, and by http to no other.
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

    def would_be_allowed(self, address: str) -> bool:
        """Say whether the machine at `address` is one that it may be as soon as private ones are allowed."""
        return not self.allows_private and replace(self, allows_private=True).may_be(address)


def web_address(url: str, *, allow_private: bool = False) -> WebAddress:
    """Return the address that `url` states; with `allow_private` it may be in a private network, by http too.

    Raises:
        AddressError: it is none, or one that nothing may be sent to.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise AddressError("has a letter that no address has; such letters are written %20 and the like")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise AddressError("has a host or port that is none") from error
    if parts.scheme not in _PORTS or not host:
        raise AddressError("is no address that begins with https://")
    if "@" in parts.netloc:
        raise AddressError(f"has a login in front of {host}; give a secret by secret_env instead")
    if port == 0 or not HOST.fullmatch(host):
        raise AddressError("has a host or port that is none")
    literal = _ip_or_none(host)
    is_loopback = is_this_machine(host)
    if literal is not None and not is_loopback and not is_public(literal):
        if not is_private(literal):
            raise AddressError(f"goes to {host}, which is no public address")
        if not allow_private:
            raise AddressError(f"goes to {host}, which is in a private network, without allow_private: true")
    elif parts.scheme == "http" and not is_loopback and (literal is not None or not allow_private):
        raise AddressError(f"goes to {host} by http, for everybody on the way to read; it must be https")
    return WebAddress(
        scheme=parts.scheme,
        host=host,
        port=port or _PORTS[parts.scheme],
        target=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        is_loopback=is_loopback,
        allows_private=allow_private,
    )


def is_public(ip: IPAddress) -> bool:
    """Say whether `ip` is the address of a machine on the internet, and of no other kind of machine inside it."""
    inner = _ipv4_inside(ip)
    if inner is not None and not is_public(inner):
        return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


def is_private(ip: IPAddress) -> bool:
    """Say whether `ip` is in a network that everybody may have at home, and is not known to hand out credentials."""
    return any(ip in network for network in _PRIVATE if network.version == ip.version) and ip not in _METADATA


def is_secret_by_itself(service: str, address: WebAddress) -> bool:
    """Say whether whoever knows the address may write there: then it is a password, and belongs into no file."""
    return service in ("lark", "slack", "discord") and not address.is_loopback


_PORTS: Final = {"http": 80, "https": 443}

# Beyond what every supported Python knows to be no public address.
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # among them the place where Oracle's machines find their credentials
        "192.88.99.0/24",
        "168.63.129.16/32",  # the same for Azure's
        "64:ff9b:1::/48",
        "100::/64",
        "fec0::/10",
    )
)
_PRIVATE: Final = tuple(
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
# Where the machines of AWS, Google and Alibaba find their credentials, inside of such a network.
_METADATA: Final = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200")))
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def _ip_or_none(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _ipv4_inside(ip: IPAddress) -> ipaddress.IPv4Address | None:
    """Return the address of the old kind that `ip` leads to, where it is one of the wrappings of such."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip.teredo is not None:
        return ip.teredo[1]
    return ip.ipv4_mapped or ip.sixtofour
