"""Settings, in order of precedence: arguments in code, `TREADLE_*`, `treadle.toml`, defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from treadle.model.durations import duration_ms
from treadle.model.errors import InvalidInput

DAY_MS = 86_400_000
LEAST_KEY_CHARACTERS = 32
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations are milliseconds here and written as "30s" outside."""

    db: str = "sqlite:///jobs.db"
    host: str = "127.0.0.1"
    port: int = 8090
    slots: int = 10
    lease_ms: int = 300_000
    poll_interval_ms: int = 1_000
    reap_interval_ms: int = 5_000
    stale_after_ms: int = 7 * DAY_MS
    delete_after_ms: int = 7 * DAY_MS
    output_after_ms: int = DAY_MS
    retention_interval_ms: int = 3_600_000
    metrics_public: bool = False
    log_format: str = "text"
    cors_origins: str = "*"
    """Origins allowed to call the API with a token, such as https://app.example.com; `*` for all, or `none`."""
    public_url: str = ""
    """The public address of the server, such as https://jobs.example.com."""
    trusted_proxies: str = ""
    """Addresses and networks of trusted proxies, such as 10.0.0.0/8. Only their forwarding headers count."""
    secret_key: str = field(default="", repr=False)
    """Signs the tokens of accounts, the same on every server. Without it, a random key is made and kept."""
    environment: str = ""
    """A label shown on every page of the dashboard, such as production."""
    read_only: bool = False
    """Makes the dashboard read-only, and its sessions over the API."""
    streams: int = 2_000
    """Open streams of events, of all callers of a server together."""
    streams_per_caller: int = 100
    webhook_url: str = ""
    """A webhook for all jobs of the queue, but for those that name a URL themselves."""
    webhook_secret: str = field(default="", repr=False)
    """Signs the webhooks of endpoints without a secret, and of jobs that name a URL."""
    webhook_allow: str = ""
    """Hosts and networks to which webhooks may be sent although they are not public, such as 127.0.0.0/8."""
    webhook_http: bool = False
    """Allows webhooks over plain http."""

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 10_000:
            raise InvalidInput(f"slots: {self.slots} is not between 1 and 10,000", field="slots")
        for name in ("streams", "streams_per_caller"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name}: must be at least 1", field=name)
        if not 0 <= self.port <= 65_535:
            raise InvalidInput(f"port: {self.port} is not between 0 and 65,535", field="port")
        for name in ("lease_ms", "poll_interval_ms", "reap_interval_ms", "retention_interval_ms"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name.removesuffix('_ms')}: must be longer than 0", field=name)
        if self.log_format not in ("text", "json"):
            raise InvalidInput(f"log_format: {self.log_format!r} is not text or json", field="log_format")
        if self.secret_key and len(self.secret_key) < LEAST_KEY_CHARACTERS:
            message = f"secret_key: has fewer than {LEAST_KEY_CHARACTERS} characters; use a random one"
            raise InvalidInput(message, field="secret_key")
        if self.public_url and not _is_address(self.public_url):
            message = f"public_url: {self.public_url[:80]!r} is not an address such as https://jobs.example.com"
            raise InvalidInput(message, field="public_url")
        for one in self.trusted_proxies.replace(",", " ").split():
            _check_network(one)
        for one in self.allowed_origins:
            if one != "*" and not _ORIGIN.fullmatch(one):
                message = f"cors_origins: {one[:80]!r} is not an origin such as https://app.example.com, * or none"
                raise InvalidInput(message, field="cors_origins")

    @property
    def allowed_origins(self) -> list[str]:
        return [one for one in self.cors_origins.replace(",", " ").split() if one != "none"]

    def override(self, values: Mapping[str, Any]) -> Settings:
        """A copy with these values, by their public names (`lease`, `slots`, …); None changes nothing."""
        known = {one.name.removesuffix("_ms"): one.name for one in fields(self)}
        changes: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise InvalidInput(f"{name!r} is not a setting; use one of {', '.join(known)}", field=name)
            if value is not None:
                changes[known[name]] = _parse(known[name], value)
        return replace(self, **changes)


def _is_address(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in ("http", "https") and bool(parts.netloc) and not parts.query and not parts.fragment


def _check_network(text: str) -> None:
    try:
        ip_network(text)
    except ValueError as error:
        raise InvalidInput(f"trusted_proxies: {error}", field="trusted_proxies") from None


def _parse(name: str, value: Any) -> Any:
    if name.endswith("_ms"):
        return duration_ms(value, name.removesuffix("_ms"))
    if name in ("slots", "port", "streams", "streams_per_caller"):
        return _parse_count(name, value)
    if name in ("metrics_public", "read_only", "webhook_http"):
        return _parse_switch(name, value)
    if name in ("cors_origins", "webhook_allow") and isinstance(value, list):
        return " ".join(str(one) for one in value) or ("none" if name == "cors_origins" else "")
    return str(value)


def _parse_count(name: str, value: Any) -> int:
    if isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return int(value)
        except ValueError:
            pass
    raise InvalidInput(f"{name}: {value!r} is not a number", field=name)


def _parse_switch(name: str, value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if str(value).lower() not in words:
        raise InvalidInput(f"{name}: {value!r} is not true or false", field=name)
    return words[str(value).lower()]


def combined(file: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """The settings of a process with this file and this environment."""
    settings = Settings().override(file)
    names = {one.name.removesuffix("_ms") for one in fields(Settings)}
    return settings.override({name: environ.get(f"TREADLE_{name.upper()}") or None for name in names})
