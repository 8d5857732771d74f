"""What may be in an account, a key and a caller, and what of it is shown."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from treadle.accounts import SCOPES, Account, ApiKey, Caller
from treadle.accounts.account import (
    checked_collection,
    checked_data,
    checked_email,
    checked_key_name,
    checked_password,
    checked_scopes,
    email_key,
    is_id,
    new_id,
    record_time,
)
from treadle.model.errors import InvalidInput

WHEN = datetime(2026, 1, 2, 3, 4, 5, 67_890, UTC)


def account(**changes: Any) -> Account:
    fields: dict[str, Any] = {
        "id": "abcdefghij01234",
        "collection": "users",
        "email": "Ann@example.com",
        "verified": True,
        "created": WHEN,
        "updated": WHEN,
        "data": {"role": "editor"},
        "password_hash": "$argon2id$hash",
        "token_key": "token-key",
        "version": 1,
    }
    return Account(**(fields | changes))


@pytest.mark.parametrize(
    "email", ["ann@example.com", "a.b+c_d-e'f@sub.example.co.uk", "admin@localhost", "zoë@exämple.org"]
)
def test_an_address_is_accepted(email: str) -> None:
    assert checked_email(email) == email


def test_blanks_around_an_address_are_no_part_of_it() -> None:
    assert checked_email("  ann@example.com\n") == "ann@example.com"


@pytest.mark.parametrize(
    "email",
    [
        "",
        " ",
        "ann",
        "@example.com",
        "ann@",
        "a@b@c",
        "ann smith@example.com",
        "ann@exam ple.com",
        "<ann@example.com>",
        "ann,bob@example.com",
        "a\x00@example.com",
        "a\nb@example.com",
        "a\x1b@example.com",
        "a\ud800@example.com",
        "a\u202e@example.com",
        "a" * 65 + "@example.com",
        "a@" + "b" * 253,
        None,
        5,
    ],
)
def test_what_is_no_address_is_refused(email: Any) -> None:
    with pytest.raises(InvalidInput, match="is not an e-mail address") as refusal:
        checked_email(email)
    assert refusal.value.data == {"field": "email"}


def test_addresses_are_found_in_any_case() -> None:
    assert email_key(" Ann@Example.COM ") == email_key("ann@example.com")


@pytest.mark.parametrize("length", [8, 72, 73, 1000])
def test_a_password_may_be_long(length: int) -> None:
    assert checked_password("ü" * length) == "ü" * length


@pytest.mark.parametrize("password", ["", "1234567", "x" * 1001, None, 12345678])
def test_a_password_out_of_bounds_is_refused_and_not_shown(password: Any) -> None:
    with pytest.raises(InvalidInput, match="8 to 1,000 characters") as refusal:
        checked_password(password)
    assert not password or str(password) not in str(refusal.value)


def test_data_is_plain_json() -> None:
    data = {"role": "editor", "teams": ["a", {"b": None}], "ö": 1.5}
    assert checked_data(data) == data
    assert checked_data({"when": WHEN}) == {"when": "2026-01-02T03:04:05.067890Z"}


@pytest.mark.parametrize("data", [{"n": float("nan")}, {"a": "\x00"}, {"a": "\ud800"}, {"a": 2**64}, {1: 2}, [], "x"])
def test_data_that_is_no_json_object_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput):
        checked_data(data)


def test_data_has_its_limit() -> None:
    checked_data({"a": "x" * (16_384 - 8)})
    with pytest.raises(InvalidInput, match="16,385 bytes of JSON, the limit is 16,384"):
        checked_data({"a": "x" * (16_385 - 8)})


@pytest.mark.parametrize("name", ["id", "email", "verified", "collectionName", "passwordHash", "tokenKey", "password"])
def test_data_can_not_pose_as_the_accounts_own_fields(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name} can't be set here"):
        checked_data({name: "x", "role": "editor"})


def test_ids_are_like_pocketbases() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(is_id(id) for id in ids)
    assert not any(is_id(text) for text in ("", "abc", "ABCDEFGHIJ01234", "abcdefghij0123\n", "abcdefghij012345", 5))


def test_times_are_like_pocketbases() -> None:
    assert record_time(WHEN) == "2026-01-02 03:04:05.067Z"
    assert record_time(datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == "2026-01-01 00:00:00.000Z"


def test_an_account_in_json() -> None:
    assert account().as_json() == {
        "id": "abcdefghij01234",
        "collectionId": "_pb_users_auth_",
        "collectionName": "users",
        "email": "Ann@example.com",
        "emailVisibility": False,
        "verified": True,
        "created": "2026-01-02 03:04:05.067Z",
        "updated": "2026-01-02 03:04:05.067Z",
        "role": "editor",
    }


def test_what_is_secret_is_nowhere_to_be_seen() -> None:
    one = account()
    caller = Caller.of_account(one)
    for text in (repr(one), str(one.as_json()), repr(caller), str(dict(caller.record))):
        assert "argon2" not in text
        assert "token-key" not in text


def test_old_data_can_not_pose_as_the_accounts_own_fields_either() -> None:
    assert account(data={"id": "root", "verified": False}).as_json()["id"] == "abcdefghij01234"


def test_callers() -> None:
    user, superuser = Caller.of_account(account()), Caller.of_account(account(collection="_superusers"))
    key = Caller.of_key(ApiKey("k", "ci", frozenset({"enqueue"}), WHEN, None))
    assert [one.kind for one in (Caller.anonymous, user, superuser, key)] == [
        "anonymous",
        "user",
        "superuser",
        "api_key",
    ]
    assert [one.account_id for one in (Caller.anonymous, user, key)] == [None, "abcdefghij01234", "k"]
    assert [one.may("enqueue") for one in (Caller.anonymous, user, superuser, key)] == [False, False, True, True]
    assert not key.may("settings")
    assert user.record["role"] == "editor"
    assert dict(Caller.anonymous.record) == dict(key.record) == {}


def test_what_rules_see_can_not_be_changed() -> None:
    with pytest.raises(TypeError):
        Caller.of_account(account()).record["role"] = "admin"  # type: ignore[index]


def test_collections() -> None:
    assert checked_collection("users") == "users"
    with pytest.raises(InvalidInput, match="'jobs' is not a collection; there are users and _superusers"):
        checked_collection("jobs")


@pytest.mark.parametrize("name", ["", " ", "x" * 101, "a\nb", "\x1b[31m", None])
def test_a_key_needs_a_name(name: Any) -> None:
    with pytest.raises(InvalidInput, match="name"):
        checked_key_name(name)


def test_scopes() -> None:
    assert checked_scopes(SCOPES) == SCOPES
    assert checked_scopes("enqueue") == {"enqueue"}
    with pytest.raises(InvalidInput, match="there is no admin; there are enqueue, manage"):
        checked_scopes(["enqueue", "admin"])
    with pytest.raises(InvalidInput, match="at least one"):
        checked_scopes([])
