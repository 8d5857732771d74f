"""Reads: lists, statistics, timelines, event feeds, and why a job is not running."""
