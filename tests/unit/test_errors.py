"""One small tree of errors, each with a stable code."""

import inspect
from datetime import timedelta
from typing import Any

import pytest

from treadle.model import errors
from treadle.model.errors import Fail, JobCancelled, RetryAfter, Snooze, TreadleError

CODES = {
    "TreadleError": "error",
    "InvalidInput": "invalid_input",
    "InvalidPayload": "invalid_payload",
    "PayloadTooLarge": "payload_too_large",
    "InvalidCron": "invalid_cron",
    "UnknownTimezone": "unknown_timezone",
    "JobNotFound": "not_found",
    "WrongState": "wrong_state",
    "NotCancelable": "not_cancelable",
    "LeaseLost": "lease_lost",
    "Refused": "refused",
    "KeyReused": "idempotency_key_reused",
    "ConcurrencyRejected": "concurrency_rejected",
    "NotRepeatable": "not_repeatable",
    "TemplateDisabled": "template_disabled",
    "NotSchedulable": "not_schedulable",
    "HasChildren": "has_children",
    "TooDeep": "too_deep",
    "ScheduleNotFound": "not_found",
    "EndpointNotFound": "not_found",
    "DeliveryNotFound": "not_found",
    "TemplateNotFound": "not_found",
    "VersionConflict": "version_conflict",
    "CodeDefined": "code_defined",
    "UnknownStep": "unknown_step",
    "StepEnded": "step_ended",
    "InvalidAnswer": "invalid_answer",
    "DoubledStep": "doubled_step",
    "TooManySteps": "too_many_steps",
    "StoreUnavailable": "store_unavailable",
    "QueryTooSlow": "query_too_slow",
    "StoreBusy": "store_unavailable",
    "SchemaMismatch": "schema_mismatch",
    "JobFailed": "job_failed",
    "ResultTimeout": "result_timeout",
}


NOT_FOUND = [f"{what}NotFound" for what in ("Schedule", "Template", "Endpoint", "Delivery")]


def test_every_error_has_its_own_stable_code() -> None:
    found = {
        name: kind.code
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, TreadleError)
    }
    assert found == CODES
    # Kinds of one error that callers tell apart in Python only: a client sees the same code.
    same = {"StoreBusy": "StoreUnavailable", **dict.fromkeys(NOT_FOUND, "JobNotFound")}
    assert all(CODES[name] == CODES[other] for name, other in same.items())
    assert len(set(CODES.values())) == len(CODES) - len(same)


@pytest.mark.parametrize("name", CODES)
def test_an_error_says_what_was_wrong_and_with_what(name: str) -> None:
    error = getattr(errors, name)("the job is lost", jobId="a", status="failed")
    assert str(error) == error.message == "the job is lost"
    assert error.data == {"jobId": "a", "status": "failed"}
    assert isinstance(error, TreadleError)


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("InvalidInput", ValueError),
        ("PayloadTooLarge", ValueError),
        ("JobNotFound", LookupError),
        ("ResultTimeout", TimeoutError),
        ("PayloadTooLarge", errors.InvalidPayload),
        ("NotCancelable", errors.WrongState),
        ("KeyReused", errors.Refused),
        ("ConcurrencyRejected", errors.Refused),
        ("NotRepeatable", errors.Refused),
        ("TemplateDisabled", errors.Refused),
    ],
)
def test_an_error_can_be_caught_as_what_it_is(name: str, also: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), also)


@pytest.mark.parametrize("delay", ["30s", 30, 0.5, timedelta(seconds=30)])
def test_a_handler_names_its_delay_in_any_spelling(delay: Any) -> None:
    assert RetryAfter(delay).delay == Snooze(delay).delay == delay


def test_a_handler_that_gives_no_reason_gets_one() -> None:
    assert str(RetryAfter("30s")) == "retry after 30s"
    assert str(Snooze("1h")) == "snoozed for 1h"
    assert str(RetryAfter("30s", "the API asked for it")) == "the API asked for it"
    assert str(Snooze("1h", "not yet")) == "not yet"


def test_what_a_handler_raises_is_none_of_treadles_own_errors() -> None:
    for kind in (Fail, RetryAfter, Snooze, JobCancelled):
        assert not issubclass(kind, TreadleError)


def test_a_cancel_is_not_swallowed_by_except_exception() -> None:
    assert not issubclass(JobCancelled, Exception)
