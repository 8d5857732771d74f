"""Measurements. Only ratios within one run on one machine count; see `python -m bench --help`."""
