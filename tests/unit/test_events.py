"""Names of events."""

from treadle.model import events
from treadle.model.events import Event

# Word for word from the design, §7: `job:enqueued started progress …`.
DESIGN = (
    "enqueued started progress step:completed completed failed retrying snoozed released reclaimed waiting cancelling "
    "cancelled expired requeued stale deleted webhook:delivered webhook:failed"
)


def test_the_events_are_those_of_the_design() -> None:
    assert {f"job:{name}" for name in DESIGN.split()} == events.NAMES


def test_the_plain_path_is_among_them() -> None:
    assert (events.ENQUEUED, events.STARTED, events.COMPLETED) == ("job:enqueued", "job:started", "job:completed")


def test_an_event_of_the_plain_path_has_no_id() -> None:
    event = Event(None, "a", events.ENQUEUED, None, "pending", "", {}, 0)
    assert (event.id, event.job_id, event.to_status) == (None, "a", "pending")


def test_every_event_is_described() -> None:
    assert all(text and text[0].islower() and not text.endswith(".") for text in events.DESCRIBED.values())
