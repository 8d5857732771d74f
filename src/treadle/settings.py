"""Settings: what the code says, then `TREADLE_*`, then `treadle.toml`, then the defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from treadle.errors import InvalidInput
from treadle.policy import duration_ms

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Settings:
    """Durations are milliseconds here and "30s" outside."""

    db: str = "sqlite:///jobs.db"
    host: str = "127.0.0.1"
    port: int = 8090
    slots: int = 10
    lease_ms: int = 300_000
    poll_interval_ms: int = 1_000
    reap_interval_ms: int = 5_000
    stale_after_ms: int = 7 * DAY_MS
    delete_after_ms: int = 7 * DAY_MS
    retention_interval_ms: int = 3_600_000
    metrics_public: bool = False
    log_format: str = "text"

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= 10_000:
            raise InvalidInput(f"slots: {self.slots} is not between 1 and 10,000", field="slots")
        if not 0 <= self.port <= 65_535:
            raise InvalidInput(f"port: {self.port} is not between 0 and 65,535", field="port")
        for name in ("lease_ms", "poll_interval_ms", "reap_interval_ms", "retention_interval_ms"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name.removesuffix('_ms')}: must be longer than nothing", field=name)
        if self.log_format not in ("text", "json"):
            raise InvalidInput(f"log_format: {self.log_format!r} is not text or json", field="log_format")

    def override(self, values: Mapping[str, Any]) -> Settings:
        """With these values instead, by the names that users know (`lease`, `slots`, …); None changes nothing."""
        known = {one.name.removesuffix("_ms"): one.name for one in fields(self)}
        changes: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise InvalidInput(f"{name!r} is not a setting; there are {', '.join(known)}", field=name)
            if value is not None:
                changes[known[name]] = _parse(known[name], value)
        return replace(self, **changes)


def _parse(name: str, value: Any) -> Any:
    if name.endswith("_ms"):
        return duration_ms(value, name.removesuffix("_ms"))
    if name in ("slots", "port"):
        return _parse_count(name, value)
    if name == "metrics_public":
        return _parse_switch(name, value)
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


def load(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
    """The settings of this process."""
    environ = os.environ if environ is None else environ
    settings = Settings().override(_from_file((folder or Path.cwd()) / "treadle.toml"))
    names = {one.name.removesuffix("_ms") for one in fields(Settings)}
    return settings.override({name: environ.get(f"TREADLE_{name.upper()}") or None for name in names})


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {error}") from None
