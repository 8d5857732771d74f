"""What people ask for."""

from treadle.testing import contract


class TestCancel(contract.CancelContract): ...


class TestRequeue(contract.RequeueContract): ...


class TestRelease(contract.ReleaseContract): ...


class TestReschedule(contract.RescheduleContract): ...


class TestDelete(contract.DeleteContract): ...


class TestDryRun(contract.DryRunContract): ...
