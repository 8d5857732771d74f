"""The read side."""

from treadle.testing import contract


class TestGet(contract.GetContract): ...


class TestList(contract.ListContract): ...


class TestEvents(contract.EventsContract): ...


class TestStats(contract.StatsContract): ...


class TestTopics(contract.TopicsContract): ...


class TestObstacles(contract.ObstaclesContract): ...


class TestHints(contract.HintsContract): ...
