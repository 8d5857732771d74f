"""Which IP addresses webhooks may connect to.

An allow-list by exclusion from the registries of IANA, not `ipaddress.is_global`: that differs between patch releases
of Python (CVE-2024-4032), and passes multicast, `fec0::/10`, `::7f00:1` and every form that wraps an IPv4 address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from treadle.model.errors import InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
        "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
        "168.63.129.16/32"  # in Azure, a service of the machine's own host
    ).split()
]
_GLOBAL_UNICAST_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = [IPv6Network(text) for text in "2001::/23 2001:db8::/32 3fff::/20".split()]

_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
# The interface identifiers of ISATAP, which wraps an IPv4 address under any prefix.
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_\-]{0,61}[a-z0-9_])?")
_LOCALHOST = (ip_address("127.0.0.1"), ip_address("::1"))


def is_public(address: Address) -> bool:
    """Whether this is a global unicast address, and so is each IPv4 address wrapped in it."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if wrapped := unwrapped(address):
        return all(is_public(one) for one in wrapped)
    return (
        address.scope_id is None
        and address in _GLOBAL_UNICAST_6
        and not any(address in network for network in _NOT_PUBLIC_6)
    )


def unwrapped(address: IPv6Address) -> list[IPv4Address]:
    """The IPv4 addresses that packets to this address may end up at."""
    bits = int(address)
    if address.scope_id is not None:
        return []
    if address in _MAPPED or address in _NAT64:
        return [IPv4Address(bits & 0xFFFF_FFFF)]
    if address in _6TO4:
        return [IPv4Address(bits >> 80 & 0xFFFF_FFFF)]
    if address in _TEREDO:  # the server, and the client with all bits flipped
        return [IPv4Address(bits >> 64 & 0xFFFF_FFFF), IPv4Address(~bits & 0xFFFF_FFFF)]
    if address in _GLOBAL_UNICAST_6 and bits >> 32 & 0xFFFF_FFFF in _ISATAP:
        return [IPv4Address(bits & 0xFFFF_FFFF)]
    return []


@dataclass(frozen=True, slots=True)
class Exempt:
    """Hosts and networks that operators exempt from the address check with `TREADLE_WEBHOOK_ALLOW`."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @staticmethod
    def parse(text: str, field: str = "webhook_allow") -> Exempt:
        """Names, addresses and networks, separated by commas or spaces."""
        hosts: set[str] = set()
        networks: list[Network] = []
        for word in text.replace(",", " ").split():
            if "/" in word or ":" in word or word.replace(".", "").isdecimal():
                networks.append(_network(word, field))
            elif not is_name(plain_host(word)):
                message = f"{field}: {word[:80]!r} is not a name, an address or a network; write 0.0.0.0/0 ::/0 for all"
                raise InvalidInput(message, field=field)
            else:
                hosts.add(plain_host(word))
        return Exempt(frozenset(hosts), tuple(networks))

    def name(self, host: str) -> bool:
        """Whether the host is listed by its name, so that what it resolves to is not checked."""
        return plain_host(host) in self.hosts

    def host(self, host: str) -> bool:
        """Whether the host is listed, by name or as an address. `localhost` is exempt if 127.0.0.1 or ::1 is."""
        if self.name(host):
            return True
        if is_localhost(host):
            return any(self.address(one) for one in _LOCALHOST)
        address = literal(host)
        return address is not None and self.address(address)

    def address(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def _network(word: str, field: str) -> Network:
    try:
        return ip_network(word.replace("[", "").replace("]", ""))
    except ValueError as error:
        raise InvalidInput(f"{field}: {error}; write it like 10.0.0.0/8", field=field) from None


def plain_host(host: str) -> str:
    return host.lower().removesuffix(".")


def is_name(name: str) -> bool:
    return len(name) <= 253 and all(_LABEL.fullmatch(label) for label in name.split("."))


def is_localhost(host: str) -> bool:
    return plain_host(host) == "localhost" or plain_host(host).endswith(".localhost")


def literal(host: str) -> Address | None:
    """The address that a URL's host is, if it is one in its usual spelling."""
    try:
        return ip_address(host)
    except ValueError:
        return None
