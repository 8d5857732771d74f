"""How the server is reached from outside: trusted proxies, the public address, and the session cookie."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from treadle.http.errors import ApiError
from treadle.model.settings import Settings

COOKIE = "treadle_auth"
# Browsers accept a cookie with this prefix only over HTTPS, for exactly this host and all its paths.
SECURE_COOKIE = f"__Host-{COOKIE}"
READS = frozenset(("GET", "HEAD", "OPTIONS"))

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Origin:
    public_url: str
    """Empty if the public address is not configured."""
    proxies: tuple[Network, ...]

    @classmethod
    def of(cls, settings: Settings) -> Origin:
        networks = settings.trusted_proxies.replace(",", " ").split()
        return cls(settings.public_url.rstrip("/"), tuple(ipaddress.ip_network(one) for one in networks))

    # -- where a request comes from ----------------------------------------------------------------

    def client(self, request: Request) -> str:
        """The address that attempts are counted under; for IPv6 the /64, which belongs to one customer.

        Clients can forge forwarding headers, so only the part written by trusted proxies counts.
        """
        peer = request.client.host if request.client else "unknown"
        if self._trusted(peer):
            forwarded = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
            for hop in reversed([one.strip() for one in forwarded if one.strip()]):
                peer = hop
                if not self._trusted(hop):
                    break
        return _network_of(peer)

    def scheme(self, request: Request) -> str:
        peer = request.client.host if request.client else ""
        told = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
        return told if told in ("http", "https") and self._trusted(peer) else request.url.scheme

    def _trusted(self, address: str) -> bool:
        found = _address(address)
        return found is not None and any(found in network for network in self.proxies)

    # -- which pages may use the session -----------------------------------------------------------

    def require_same_origin(self, request: Request) -> None:
        """Browsers send the cookie with requests from any page; only our pages may use it."""
        site = request.headers.get("sec-fetch-site")
        origin = request.headers.get("origin")
        theirs = bool(origin) and not self._ours(origin or "", request)
        from_elsewhere = site in ("cross-site", "same-site") and request.method not in READS
        if theirs or from_elsewhere:
            message = "A page from another origin can't use this session; send a token."
            if theirs and origin and urlsplit(origin).netloc == request.headers.get("host"):
                message = f"This server does not know the address {origin[:100]}; set TREADLE_PUBLIC_URL to it."
            raise ApiError(403, "cross_origin", message)

    def _ours(self, origin: str, request: Request) -> bool:
        own = f"{self.scheme(request)}://{request.headers.get('host', '')}"
        return origin.lower() in (own.lower(), _origin(self.public_url))

    # -- the session's cookie ----------------------------------------------------------------------

    @property
    def cookie(self) -> str:
        return SECURE_COOKIE if self.public_url.startswith("https://") else COOKIE

    def token(self, request: Request) -> str | None:
        return request.cookies.get(self.cookie)

    def set_cookie(self, request: Request, response: Response, token: str, seconds: int) -> None:
        secure = self._secure(request)
        response.set_cookie(self.cookie, token, seconds, path="/", httponly=True, samesite="lax", secure=secure)
        response.headers["Cache-Control"] = "no-store"

    def drop_cookie(self, request: Request, response: Response) -> None:
        secure = self._secure(request)
        response.delete_cookie(self.cookie, path="/", httponly=True, samesite="lax", secure=secure)

    def _secure(self, request: Request) -> bool:
        return self.cookie == SECURE_COOKIE or self.scheme(request) == "https"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower() if parts.netloc else ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, ipaddress.IPv6Address) else found


def _network_of(text: str) -> str:
    found = _address(text)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found) if found else text[:64]
