"""The end of an attempt."""

from treadle.testing import contract


class TestSettle(contract.SettleContract): ...


class TestGuard(contract.GuardContract): ...


class TestCancelledWhileRunning(contract.CancelledWhileRunningContract): ...


class TestBadData(contract.BadDataContract): ...


class TestEffects(contract.EffectsContract): ...
