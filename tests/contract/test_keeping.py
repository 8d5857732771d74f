"""What a store keeps for the long run."""

from treadle.testing import contract


class TestLeader(contract.LeaderContract): ...


class TestPrune(contract.PruneContract): ...


class TestOpen(contract.OpenContract): ...


class TestStale(contract.StaleContract): ...


class TestStaleNews(contract.StaleNewsContract): ...


class TestEnded(contract.EndedContract): ...
