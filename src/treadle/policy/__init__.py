"""Treadle's rules as pure functions: no I/O, no clock."""
