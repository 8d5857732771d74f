"""Live streams of events."""
