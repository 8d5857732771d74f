"""Steps, waits and answers."""

from treadle.testing import contract


class TestCheckpoint(contract.CheckpointContract): ...


class TestWait(contract.WaitContract): ...


class TestRequeueSteps(contract.RequeueStepsContract): ...


class TestKept(contract.KeptContract): ...


class TestAnswer(contract.AnswerContract): ...


class TestFollowUp(contract.FollowUpContract): ...
