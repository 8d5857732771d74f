"""`treadle superuser`, `treadle user` and `treadle api-key`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cli.command import SECONDS, Command, Ran
from tests.waiting import until
from treadle import Queue
from treadle.accounts import Account, Accounts, Caller

EMAIL = "ann@example.com"
PASSWORD = "correct horse"


def sign_in(treadle: Command, collection: str, password: str, email: str = EMAIL) -> Account:
    async def enter() -> Account:
        async with Queue(treadle.database) as queue:
            return await Accounts(queue.store).sign_in(collection, email, password, "192.0.2.1")

    return asyncio.run(enter())


def caller(treadle: Command, secret: str) -> Caller | None:
    async def ask() -> Caller | None:
        async with Queue(treadle.database) as queue:
            accounts = Accounts(queue.store)
            found = await accounts.caller(secret)
            if found and found.kind == "api_key":
                await until(lambda: _noted(accounts, found.account_id))
            return found

    return asyncio.run(ask())


async def _noted(accounts: Accounts, key_id: str | None) -> bool:
    return any(key.last_used_at for key in await accounts.api_keys.list() if key.id == key_id)


def items(ran: Ran) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ran.done().json["items"]
    return found


# -- superuser ---------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_superuser_is_made_in_a_new_database_and_then_changed(treadle: Command) -> None:
    assert treadle("superuser", "upsert", EMAIL, PASSWORD).done().out == f"saved superuser {EMAIL}\n"
    made = sign_in(treadle, "_superusers", PASSWORD)
    changed = treadle("superuser", "upsert", EMAIL.upper(), "another horse", "--json").done().json
    assert (changed["id"], changed["collectionName"], changed["email"]) == (made.id, "_superusers", EMAIL.upper())
    assert sign_in(treadle, "_superusers", "another horse").id == made.id


def test_the_password_comes_from_stdin(treadle: Command) -> None:
    treadle("superuser", "upsert", EMAIL, "-", stdin=f"{PASSWORD} ü\r\nnot this\n").done()
    assert sign_in(treadle, "_superusers", f"{PASSWORD} ü").email == EMAIL


def test_without_a_password_and_without_a_terminal(treadle: Command) -> None:
    assert "there is no password" in treadle("superuser", "upsert", EMAIL).refused(2)
    assert "there is no password" in treadle("user", "create", EMAIL, stdin=PASSWORD).refused(2)


@pytest.mark.parametrize(
    ("words", "saved", "collection"),
    [
        (["superuser", "upsert", EMAIL], f"saved superuser {EMAIL}", "_superusers"),
        (["superuser", "upsert", EMAIL, "-"], f"saved superuser {EMAIL}", "_superusers"),
        (["user", "create", EMAIL], f"made user {EMAIL}", "users"),
    ],
)
def test_a_terminal_is_asked_twice_and_shows_nothing(
    treadle: Command, words: list[str], saved: str, collection: str
) -> None:
    with treadle.at_terminal(*words, "--db", str(treadle.database)) as terminal:
        terminal.until("Password: ")  # by then the echo is off
        terminal.type(f"{PASSWORD}\n")
        terminal.until("Repeat for confirmation: ")
        terminal.type(f"{PASSWORD}\n")
        terminal.read_all()
        assert terminal.process.wait(SECONDS) == 0, terminal.shown
    assert saved in terminal.shown
    assert PASSWORD not in terminal.shown
    assert sign_in(treadle, collection, PASSWORD).email == EMAIL


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nobody", PASSWORD], "'nobody' is not an e-mail address"),
        ([EMAIL, "short"], "password: use 8 to 1,000 characters, not 5"),
        ([EMAIL, "-"], "password: use 8 to 1,000 characters, not 0"),
        ([], "Missing argument 'EMAIL'"),
    ],
)
def test_a_bad_superuser_is_refused(treadle: Command, words: list[str], told: str) -> None:
    assert told in treadle("superuser", "upsert", *words).refused(2)


@pytest.mark.every_store
def test_superusers_are_listed(treadle: Command) -> None:
    treadle("migrate").done()
    assert treadle("superuser", "list").done().out.startswith("no superusers; make one with")
    for email in (EMAIL, "bob@example.com"):
        treadle("superuser", "upsert", email, PASSWORD).done()
    assert [one["email"] for one in items(treadle("superuser", "list", "--json"))] == [EMAIL, "bob@example.com"]
    lines = treadle("superuser", "list").done().out.splitlines()
    assert lines[0].split() == ["ID", "EMAIL", "AGE"]
    assert [line.split()[1] for line in lines[1:]] == [EMAIL, "bob@example.com"]


@pytest.mark.every_store
def test_a_superuser_is_deleted_but_not_the_last(treadle: Command) -> None:
    for email in (EMAIL, "bob@example.com"):
        treadle("superuser", "upsert", email, PASSWORD).done()
    assert treadle("superuser", "delete", EMAIL).done().out == f"deleted superuser {EMAIL}\n"
    assert f"there is no account {EMAIL}" in treadle("superuser", "delete", EMAIL).refused(1)
    assert "bob@example.com is the only superuser" in treadle("superuser", "delete", "bob@example.com").refused(1)
    treadle("superuser", "upsert", EMAIL, PASSWORD).done()
    [bob] = [one for one in items(treadle("superuser", "list", "--json")) if one["email"] != EMAIL]
    assert treadle("superuser", "delete", bob["id"], "--json").done().json == bob


# -- user --------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_user_is_made(treadle: Command) -> None:
    made = treadle("user", "create", EMAIL, PASSWORD, "--data", '{"role": "editor"}', "--json").done().json
    assert (made["email"], made["verified"], made["role"], made["collectionName"]) == (EMAIL, False, "editor", "users")
    assert sign_in(treadle, "users", PASSWORD).id == made["id"]
    out = treadle("user", "create", "bob@example.com", "-", "--verified", stdin=PASSWORD).done().out
    assert out.startswith("made user bob@example.com (")
    assert sign_in(treadle, "users", PASSWORD, "bob@example.com").verified


def test_a_user_is_made_once(treadle: Command) -> None:
    treadle("user", "create", EMAIL, PASSWORD).done()
    assert f"{EMAIL.upper()} belongs to another account" in treadle("user", "create", EMAIL.upper(), PASSWORD).refused(
        1
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("{", "--data is not JSON"),
        ("[1]", "--data: write an object"),
        ('{"id": "root"}', "data: id can't be set here"),
        ('{"a": "%s"}' % ("x" * 17_000), "the limit is 16,384"),
    ],
)
def test_bad_data_is_refused(treadle: Command, data: str, told: str) -> None:
    assert told in treadle("user", "create", EMAIL, PASSWORD, "--data", data).refused(2)


@pytest.mark.every_store
def test_a_user_is_changed(treadle: Command) -> None:
    made = treadle("user", "create", EMAIL, PASSWORD, "--data", '{"role": "editor", "team": 1}', "--json").json
    words = ["--data", '{"role": null, "level": 2}', "--verified", "--email", "zoe@example.com", "--password", "-"]
    changed = treadle("user", "update", EMAIL, *words, "--json", stdin="another horse\n").done().json
    assert (changed["id"], changed["email"], changed["verified"]) == (made["id"], "zoe@example.com", True)
    assert (changed.get("role"), changed["team"], changed["level"]) == (None, 1, 2)
    assert sign_in(treadle, "users", "another horse", "zoe@example.com").id == made["id"]
    out = treadle("user", "update", made["id"], "--unverified").done().out
    assert out == f"changed user zoe@example.com ({made['id']})\n"
    assert not sign_in(treadle, "users", "another horse", "zoe@example.com").verified


@pytest.mark.every_store
def test_users_are_listed_and_deleted(treadle: Command) -> None:
    treadle("migrate").done()
    assert treadle("user", "list").done().out == "no users\n"
    treadle("user", "create", EMAIL, PASSWORD, "--data", '{"note": "\\u001b[31mred"}').done()
    treadle("user", "create", "bob@example.com", PASSWORD).done()
    assert [one["email"] for one in items(treadle("user", "list", "--json"))] == [EMAIL, "bob@example.com"]
    assert [one["email"] for one in items(treadle("user", "list", "--limit", "1", "--json"))] == [EMAIL]
    table = treadle("user", "list").done().out
    assert "\x1b" not in table
    assert table.splitlines()[0].split() == ["ID", "EMAIL", "VERIFIED", "AGE", "DATA"]
    assert treadle("user", "delete", EMAIL).done().out.startswith(f"deleted user {EMAIL} (")
    for words in (["delete", EMAIL], ["update", EMAIL, "--verified"]):
        assert f"there is no account {EMAIL}" in treadle("user", *words).refused(1)


def test_an_update_without_options_is_refused(treadle: Command) -> None:
    treadle("user", "create", EMAIL, PASSWORD).done()
    assert treadle("user", "update", EMAIL).refused(2) == "nothing to change; see treadle user update --help"


def test_no_password_or_hash_is_ever_printed(treadle: Command) -> None:
    outputs = [
        treadle("user", "create", EMAIL, PASSWORD, "--json"),
        treadle("user", "update", EMAIL, "--password", "another horse", "--json"),
        treadle("superuser", "upsert", EMAIL, PASSWORD, "--json"),
        treadle("user", "list", "--json"),
        treadle("superuser", "list"),
    ]
    for ran in outputs:
        assert not any(word in ran.done().out for word in (PASSWORD, "another horse", "argon2", "tokenKey"))


# -- api-key -----------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_an_api_key_is_made_and_shown_once(treadle: Command) -> None:
    made = (
        treadle("api-key", "create", "ci", "--scope", "enqueue", "--scope", "metrics", "--expires", "90d", "--json")
        .done()
        .json
    )
    assert (made["name"], made["scopes"]) == ("ci", ["enqueue", "metrics"])
    found = caller(treadle, made["secret"])
    assert found is not None
    assert (found.kind, sorted(found.scopes)) == ("api_key", ["enqueue", "metrics"])
    [listed] = items(treadle("api-key", "list", "--json"))
    assert (made["createdBy"], made["lastUsedAt"]) == ("command line", None)
    assert listed.pop("lastUsedAt") is not None
    assert listed == {name: value for name, value in made.items() if name not in ("secret", "lastUsedAt")}
    assert made["secret"] not in treadle("api-key", "list").done().out


def test_an_api_key_for_people(treadle: Command) -> None:
    first, secret = treadle("api-key", "create", "ci", "--scope", "manage").done().out.splitlines()
    assert first.startswith("made API key ci (")
    assert treadle("api-key", "list").done().out.split()[-2:] == ["never", "never"]
    assert caller(treadle, secret)
    lines = treadle("api-key", "list").done().out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "SCOPES", "AGE", "USED", "EXPIRES"]
    assert lines[1].split()[1:3] == ["ci", "manage"]
    assert lines[1].endswith("never")


@pytest.mark.every_store
def test_an_api_key_is_revoked(treadle: Command) -> None:
    made = treadle("api-key", "create", "ci", "--scope", "enqueue", "--json").done().json
    assert treadle("api-key", "revoke", made["id"]).done().out == f"revoked API key {made['id']}\n"
    assert caller(treadle, made["secret"]) is None
    assert f"there is no API key {made['id']}" in treadle("api-key", "revoke", made["id"]).refused(1)
    assert treadle("api-key", "list").done().out == "no API keys\n"
    other = treadle("api-key", "create", "ci", "--scope", "enqueue", "--json").done().json
    assert treadle("api-key", "revoke", other["id"], "--json").done().json == {"id": other["id"]}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ci"], "Missing option '--scope'"),
        (["ci", "--scope", ""], "scopes: name at least one of enqueue, manage"),
        (["ci", "--scope", "admin"], "scopes: there is no admin"),
        (["ci", "--scope", "enqueue", "--expires", "soon"], "--expires: 'soon' is not a duration"),
        (["ci", "--scope", "enqueue", "--expires", "0s"], "in the past"),
        (["\x1b[31m", "--scope", "enqueue"], "name: use 1 to 100 printable characters"),
    ],
)
def test_a_bad_api_key_is_refused(treadle: Command, words: list[str], told: str) -> None:
    assert told in treadle("api-key", "create", *words).refused(2)
