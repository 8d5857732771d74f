"""The dashboard at `/_/`: server-rendered pages for superusers, updated by server-sent events."""

from treadle.dashboard.app import create_app

__all__ = ["create_app"]
