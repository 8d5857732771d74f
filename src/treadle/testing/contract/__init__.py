"""The contract of a store, as tests: what a new store must pass to be one.

Needs pytest and pytest-asyncio. In the tests of your store:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def database(self, tmp_path):
            return MyDatabase(tmp_path)        # a treadle.testing.contract.Database

Each part can also stand alone, which spreads better over several test processes.
"""

from treadle.testing.contract.claiming import (
    ClaimContract,
    ClaimOrderContract,
    DeadlineContract,
    LastAttemptContract,
    ManyClaimersContract,
    PauseContract,
)
from treadle.testing.contract.gates import (
    QueuePolicyContract,
    RateContract,
    RejectPolicyContract,
    ReplacePolicyContract,
)
from treadle.testing.contract.inserting import DedupeContract, IdempotencyContract, InsertContract
from treadle.testing.contract.invariants import InvariantContract, WalkContract
from treadle.testing.contract.keeping import LeaderContract, OpenContract, PruneContract, TemplateContract
from treadle.testing.contract.leases import CancelRequestContract, LeaseContract, LostClaimContract, TouchContract
from treadle.testing.contract.looking import (
    EventsContract,
    GetContract,
    HintsContract,
    ListContract,
    ObstaclesContract,
    StatsContract,
    TopicsContract,
)
from treadle.testing.contract.moving import PromoteContract, ReclaimContract
from treadle.testing.contract.races import GateRaceContract, KeyRaceContract, RaceContract
from treadle.testing.contract.requests import (
    CancelContract,
    DeleteContract,
    ReleaseContract,
    RequeueContract,
    RescheduleContract,
)
from treadle.testing.contract.settling import (
    BadDataContract,
    CancelledWhileRunningContract,
    GuardContract,
    SettleContract,
)
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import (
    DAY,
    ENDED,
    HOUR,
    MINUTE,
    PENDING,
    RUNNING,
    SECOND,
    STATES,
    TOPIC,
    Database,
    Workbench,
    eventually,
    new_job,
    settlement,
)


class StoreContract(
    InsertContract,
    IdempotencyContract,
    DedupeContract,
    LeaseContract,
    TouchContract,
    CancelRequestContract,
    LostClaimContract,
):
    """Everything at once."""
