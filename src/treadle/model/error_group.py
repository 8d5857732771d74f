"""A short id for failures that look the same: type, message without details, and where it was raised."""

from __future__ import annotations

import re
from hashlib import sha256

from treadle.model.error_line import error_line

# Parts that differ between two occurrences of one error: ids, numbers, addresses, quoted values.
_DETAILS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|0x[0-9a-f]+|'[^']*'|\"[^\"]*\"|\d+", re.IGNORECASE
)
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+, in (.+)$', re.MULTILINE)
_NOT_OWN = ("site-packages", "dist-packages", "/lib/python", "<frozen")


def error_group(error_type: str, error: str) -> str:
    message = _DETAILS.sub("?", error_line(error, error_type)[:500]) if error.strip() else ""
    return sha256("\n".join((error_type, message, _last_own_frame(error))).encode("utf-8", "replace")).hexdigest()[:12]


def _last_own_frame(error: str) -> str:
    """File and function without the line number, because a deploy moves lines while the error stays the same."""
    frames: list[tuple[str, str]] = _FRAME.findall(error)
    own = [frame for frame in frames if not any(part in frame[0] for part in _NOT_OWN)]
    file, function = (own or frames or [("", "")])[-1]
    return f"{file.replace(chr(92), '/').rpartition('/')[2]}:{function}"
