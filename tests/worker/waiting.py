"""Waiting for jobs."""

from tests.waiting import ended, event_types, in_status, until

__all__ = ["ended", "event_types", "in_status", "until"]
