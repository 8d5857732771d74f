"""The store contract as a test suite that every store must pass.

Needs pytest and pytest-asyncio. In the tests of your store:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def database(self, tmp_path):
            return MyDatabase(tmp_path)        # a treadle.testing.workbench.Database

You can also subclass each part separately, which spreads better over several test processes. For readable assertion
errors, call `pytest.register_assert_rewrite("treadle.testing.contract")` in conftest.py.
"""

from treadle.testing.contract.changes import BusyChangesContract, ChangesContract, SnapshotContract
from treadle.testing.contract.children import ChildContract, ChildrenAgainContract, FamilyContract
from treadle.testing.contract.claiming import (
    ClaimContract,
    ClaimOrderContract,
    ManyClaimersContract,
)
from treadle.testing.contract.counting import (
    FailedGroupsContract,
    ObstaclesContract,
    OverviewContract,
    StatsContract,
    TopicsContract,
)
from treadle.testing.contract.effects import (
    BadDataContract,
    EffectsContract,
)
from treadle.testing.contract.filtering import FilterContract, SortContract
from treadle.testing.contract.gates import (
    QueuePolicyContract,
    RejectPolicyContract,
    ReplacePolicyContract,
)
from treadle.testing.contract.inserting import DedupeContract, IdempotencyContract, InsertContract
from treadle.testing.contract.invariants import InvariantContract, WalkContract
from treadle.testing.contract.keeping import LeaderContract, OpenContract, PruneContract
from treadle.testing.contract.key_races import GateRaceContract, KeyRaceContract
from treadle.testing.contract.leases import (
    CancelRequestContract,
    LeaseContract,
    LostClaimContract,
    SplitLeaseContract,
    TouchContract,
)
from treadle.testing.contract.looking import (
    AttemptsContract,
    EventsContract,
    GetContract,
    HintsContract,
    ListContract,
    SearchContract,
    SelectContract,
)
from treadle.testing.contract.moving import PromoteContract, ReclaimContract
from treadle.testing.contract.output import OutputContract
from treadle.testing.contract.races import RaceContract
from treadle.testing.contract.rates import (
    RateContract,
)
from treadle.testing.contract.records import RecordContract
from treadle.testing.contract.requests import (
    CancelContract,
    DeleteContract,
    DryRunContract,
    ReleaseContract,
    RequeueContract,
    RescheduleContract,
)
from treadle.testing.contract.retaining import EndedContract, StaleContract, StaleNewsContract
from treadle.testing.contract.settling import (
    CancelledWhileRunningContract,
    GuardContract,
    SettleContract,
)
from treadle.testing.contract.starting import (
    DeadlineContract,
    LastAttemptContract,
    PauseContract,
)
from treadle.testing.contract.step_answers import AnswerContract, FollowUpContract
from treadle.testing.contract.steps import CheckpointContract, WaitContract
from treadle.testing.contract.steps_again import KeptContract, RequeueStepsContract
from treadle.testing.contract.suite import ContractPart
from treadle.testing.contract.webhooks import DeliveryContract, OutboxContract, PollContract


class StoreContract:
    """The whole contract, with one nested class per part."""

    class TestInsert(InsertContract): ...

    class TestIdempotency(IdempotencyContract): ...

    class TestDedupe(DedupeContract): ...

    class TestClaim(ClaimContract): ...

    class TestClaimOrder(ClaimOrderContract): ...

    class TestLastAttempt(LastAttemptContract): ...

    class TestDeadline(DeadlineContract): ...

    class TestPause(PauseContract): ...

    class TestManyClaimers(ManyClaimersContract): ...

    class TestLease(LeaseContract): ...

    class TestTouch(TouchContract): ...

    class TestCancelRequest(CancelRequestContract): ...

    class TestLostClaim(LostClaimContract): ...

    class TestSplitLease(SplitLeaseContract): ...

    class TestSettle(SettleContract): ...

    class TestGuard(GuardContract): ...

    class TestCancelledWhileRunning(CancelledWhileRunningContract): ...

    class TestBadData(BadDataContract): ...

    class TestEffects(EffectsContract): ...

    class TestCheckpoint(CheckpointContract): ...

    class TestWait(WaitContract): ...

    class TestRequeueSteps(RequeueStepsContract): ...

    class TestKept(KeptContract): ...

    class TestOutput(OutputContract): ...

    class TestOutbox(OutboxContract): ...

    class TestDelivery(DeliveryContract): ...

    class TestPoll(PollContract): ...

    class TestAnswer(AnswerContract): ...

    class TestFollowUp(FollowUpContract): ...

    class TestChild(ChildContract): ...

    class TestChildrenAgain(ChildrenAgainContract): ...

    class TestFamily(FamilyContract): ...

    class TestPromote(PromoteContract): ...

    class TestReclaim(ReclaimContract): ...

    class TestCancel(CancelContract): ...

    class TestRequeue(RequeueContract): ...

    class TestRelease(ReleaseContract): ...

    class TestReschedule(RescheduleContract): ...

    class TestDelete(DeleteContract): ...

    class TestDryRun(DryRunContract): ...

    class TestQueuePolicy(QueuePolicyContract): ...

    class TestRejectPolicy(RejectPolicyContract): ...

    class TestReplacePolicy(ReplacePolicyContract): ...

    class TestRate(RateContract): ...

    class TestSearch(SearchContract): ...

    class TestGet(GetContract): ...

    class TestList(ListContract): ...

    class TestFilter(FilterContract): ...

    class TestSort(SortContract): ...

    class TestAttempts(AttemptsContract): ...

    class TestEvents(EventsContract): ...

    class TestStats(StatsContract): ...

    class TestOverview(OverviewContract): ...

    class TestFailedGroups(FailedGroupsContract): ...

    class TestSelect(SelectContract): ...

    class TestTopics(TopicsContract): ...

    class TestObstacles(ObstaclesContract): ...

    class TestHints(HintsContract): ...

    class TestChanges(ChangesContract): ...

    class TestSnapshot(SnapshotContract): ...

    class TestBusyChanges(BusyChangesContract): ...

    class TestLeader(LeaderContract): ...

    class TestPrune(PruneContract): ...

    class TestStale(StaleContract): ...

    class TestStaleNews(StaleNewsContract): ...

    class TestEnded(EndedContract): ...

    class TestOpen(OpenContract): ...

    class TestRecord(RecordContract): ...

    class TestInvariant(InvariantContract): ...

    class TestWalk(WalkContract): ...

    class TestRace(RaceContract): ...

    class TestKeyRace(KeyRaceContract): ...

    class TestGateRace(GateRaceContract): ...


__all__ = [
    "AnswerContract",
    "AttemptsContract",
    "BadDataContract",
    "BusyChangesContract",
    "CancelContract",
    "CancelRequestContract",
    "CancelledWhileRunningContract",
    "ChangesContract",
    "CheckpointContract",
    "ChildContract",
    "ChildrenAgainContract",
    "ClaimContract",
    "ClaimOrderContract",
    "ContractPart",
    "DeadlineContract",
    "DedupeContract",
    "DeleteContract",
    "DeliveryContract",
    "DryRunContract",
    "EffectsContract",
    "EndedContract",
    "EventsContract",
    "FailedGroupsContract",
    "FamilyContract",
    "FilterContract",
    "FollowUpContract",
    "GateRaceContract",
    "GetContract",
    "GuardContract",
    "HintsContract",
    "IdempotencyContract",
    "InsertContract",
    "InvariantContract",
    "KeptContract",
    "KeyRaceContract",
    "LastAttemptContract",
    "LeaderContract",
    "LeaseContract",
    "ListContract",
    "LostClaimContract",
    "ManyClaimersContract",
    "ObstaclesContract",
    "OpenContract",
    "OutboxContract",
    "OutputContract",
    "OverviewContract",
    "PauseContract",
    "PollContract",
    "PromoteContract",
    "PruneContract",
    "QueuePolicyContract",
    "RaceContract",
    "RateContract",
    "ReclaimContract",
    "RecordContract",
    "RejectPolicyContract",
    "ReleaseContract",
    "ReplacePolicyContract",
    "RequeueContract",
    "RequeueStepsContract",
    "RescheduleContract",
    "SearchContract",
    "SelectContract",
    "SettleContract",
    "SnapshotContract",
    "SortContract",
    "SplitLeaseContract",
    "StaleContract",
    "StaleNewsContract",
    "StatsContract",
    "StoreContract",
    "TopicsContract",
    "TouchContract",
    "WaitContract",
    "WalkContract",
]
