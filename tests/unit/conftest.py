"""Property tests here try the same examples in every run, and leave nothing behind."""

from hypothesis import settings

settings.register_profile("unit", derandomize=True, deadline=None, max_examples=200)
settings.load_profile("unit")
