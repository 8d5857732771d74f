"""Two at the same instant: a short run here, ten thousand times each with TREADLE_FAULT=full."""

import pytest

from treadle.testing import contract


@pytest.mark.fault
class TestRace(contract.RaceContract): ...


@pytest.mark.fault
class TestKeyRace(contract.KeyRaceContract): ...


@pytest.mark.fault
class TestGateRace(contract.GateRaceContract): ...
