"""Schedules: from code and over the API."""
