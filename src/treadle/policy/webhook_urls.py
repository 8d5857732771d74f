"""Which URLs webhooks may be sent to.

A URL is checked when it is given and again before each attempt, because `TREADLE_WEBHOOK_ALLOW` and
`TREADLE_WEBHOOK_HTTP` can change. What its name resolves to is checked at each attempt (`maintenance/addresses.py`).

Parsers differ over unusual URLs, and each difference is a way around a check. So only the plain spelling is accepted:
printable ASCII, names of letters, digits, hyphens and underscores, IPv4 addresses as four decimal numbers, and IPv6
addresses in brackets.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple, NoReturn

from treadle.model.errors import InvalidInput
from treadle.policy.addresses import Address, Exempt, is_localhost, is_name, is_public, literal, plain_host, unwrapped

MAX_URL = 2000
DEFAULT_PORTS = {"http": 80, "https": 443}
FIRST_FREE_PORT = 1024
NOTHING_EXEMPT = Exempt()

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*):(?://(?P<authority>[^/?#]*)(?P<target>[^#]*))?.*", re.DOTALL)
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>[^:]*))?")
_ENDS_IN_A_NUMBER = re.compile(r"(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)\.?$")


class WebhookUrl(NamedTuple):
    """The parts of a URL that was checked."""

    scheme: str
    host: str
    """Lower case; an IPv6 address without brackets."""
    port: int
    target: str
    """Path and query, as they are sent."""

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    def __str__(self) -> str:
        return self.origin + self.target


def check_url(text: str, allow: Exempt = NOTHING_EXEMPT, http_allowed: bool = False, field: str = "url") -> WebhookUrl:
    """The parts of the URL; InvalidInput says what is wrong with it."""
    return _Check(text, allow, http_allowed, field).url()


class _Check:
    def __init__(self, text: str, allow: Exempt, http_allowed: bool, field: str) -> None:
        self._text = text
        self._allow = allow
        self._http_allowed = http_allowed
        self._field = field

    def url(self) -> WebhookUrl:
        self._check_characters()
        found = _URL.fullmatch(self._text)
        if not found:
            self._refuse(f"{self._text[:80]!r} is not a URL such as https://example.com/hook")
        scheme = found["scheme"].lower()
        if scheme not in DEFAULT_PORTS:
            self._refuse(f"webhooks are sent by https, not by {scheme[:40]!r}")
        if not found["authority"]:
            self._refuse("the URL names no host")
        if "@" in found["authority"]:
            self._refuse("a name or password in the URL (before @) is not supported; receivers check the signature")
        host, port = self._host_and_port(found["authority"], DEFAULT_PORTS[scheme])
        if scheme == "http" and not self._http_allowed and not self._allow.host(host):
            self._refuse("use https, or allow http with TREADLE_WEBHOOK_HTTP=true or the host in TREADLE_WEBHOOK_ALLOW")
        target = found["target"]
        return WebhookUrl(scheme, host, port, target if target.startswith("/") else "/" + target)

    def _check_characters(self) -> None:
        if len(self._text) > MAX_URL:
            self._refuse(f"the URL has {len(self._text):,} characters, the limit is {MAX_URL:,}")
        for character in self._text:
            if not "!" <= character <= "~" or character == "\\":
                name = f"U+{ord(character):04X}"
                self._refuse(f"the character {name} is not allowed; write it percent-encoded, or a name as xn--…")

    def _host_and_port(self, authority: str, default_port: int) -> tuple[str, int]:
        found = _HOST_AND_PORT.fullmatch(authority)
        if not found:
            self._refuse(f"{authority[:80]!r} is not a host, or a host and a port")
        return self._host(found["host"].lower()), self._port(found["port"], default_port)

    def _port(self, text: str | None, default: int) -> int:
        if text is None:
            return default
        if not re.fullmatch("[1-9][0-9]{0,4}", text):
            self._refuse(f"{text[:40]!r} is not a port")
        port = int(text)
        if port not in DEFAULT_PORTS.values() and not FIRST_FREE_PORT <= port <= 65_535:
            self._refuse(f"port {port} is not allowed; use 80, 443 or 1024 to 65535")
        return port

    def _host(self, host: str) -> str:
        if host.startswith("["):
            return self._checked_address(host[1:-1], IPv6Address)
        if _ENDS_IN_A_NUMBER.search(host):
            return self._checked_address(host, IPv4Address)
        self._check_name(host)
        return host

    def _check_name(self, host: str) -> None:
        name = plain_host(host)
        if not is_name(name):
            self._refuse(f"{host[:80]!r} is not the name of a host")
        if is_localhost(name) and not self._allow.host(name):
            self._refuse(f"{name} is this machine; {_HOW_TO_ALLOW}")

    def _checked_address(self, host: str, kind: type[Address]) -> str:
        address = literal(host)
        if not isinstance(address, kind) or "%" in host:
            self._refuse(f"{host[:80]!r} is not an IP address in its usual spelling, such as 198.51.100.7")
        if not self._allow.address(address):
            self._check_public(host, address)
        return str(address)

    def _check_public(self, host: str, address: Address) -> None:
        if isinstance(address, IPv6Address) and (inside := unwrapped(address)):
            self._refuse(f"{host} wraps {inside[-1]}; name the host instead")
        if not is_public(address):
            self._refuse(f"{address} is not a public address; {_HOW_TO_ALLOW}")

    def _refuse(self, problem: str) -> NoReturn:
        raise InvalidInput(f"{self._field}: {problem}", field=self._field)


_HOW_TO_ALLOW = "operators can allow it with TREADLE_WEBHOOK_ALLOW"
