from treadle.testing.plugin import treadle_clock, treadle_queue

__all__ = ["treadle_clock", "treadle_queue"]
