"""Children that steps wait for."""

from treadle.testing import contract


class TestChild(contract.ChildContract): ...


class TestChildrenAgain(contract.ChildrenAgainContract): ...


class TestFamily(contract.FamilyContract): ...
