"""Test helpers for programs that use Treadle. The fixtures `treadle_queue` and `treadle_clock` need no import."""

from treadle.testing.asserting import assert_enqueued, refute_enqueued
from treadle.testing.clock import Clock
from treadle.testing.inlining import inline

__all__ = ["Clock", "assert_enqueued", "inline", "refute_enqueued"]
