"""Real processes, real signals, real servers: what must hold when things go wrong (RELIABILITY.md)."""
