"""Basic values shared by all packages: no I/O, no clock."""
