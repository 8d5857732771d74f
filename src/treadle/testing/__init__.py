"""What tests need. `treadle.testing.contract` (which needs pytest) is the suite that every store passes."""
