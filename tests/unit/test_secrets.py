"""Which values of a payload are hidden."""

from typing import Any

import pytest

from treadle import Concurrency, InvalidInput
from treadle.model.secrets import HIDDEN, hide, is_hidden, restore, secret_paths, touches
from treadle.model.template import Template


@pytest.mark.parametrize(
    ("payload", "secret", "shown"),
    [
        ({"a": 1, "token": "x"}, ["token"], {"a": 1, "token": "***"}),
        ({"card": {"number": 4, "name": "ann"}}, ["card.number"], {"card": {"number": "***", "name": "ann"}}),
        ({"card": {"number": 4}}, ["card"], {"card": "***"}),
        ({"cards": [{"number": 4}, {"number": 5}, 6]}, ["cards.number"], {"cards": [{"number": "***"}] * 2 + [6]}),
        ({"token": None}, ["token"], {"token": "***"}),
        ({"a": 1}, ["token"], {"a": 1}),
        ({"card": "none"}, ["card.number"], {"card": "none"}),
        ({"token": "x"}, ["input.token"], {"token": "***"}),
        ({"token": "x"}, ["payload.token"], {"token": "***"}),
        ({"token": "x"}, [], {"token": "x"}),
    ],
)
def test_the_values_at_secret_paths_are_hidden_and_no_others(payload: Any, secret: list[str], shown: Any) -> None:
    before = str(payload)
    assert hide(payload, secret_paths(secret)) == shown
    assert str(payload) == before


@pytest.mark.parametrize(
    ("path", "touched"),
    [
        ((), True),
        (("card",), True),
        (("card", "number"), True),
        (("card", "number", "first"), True),
        (("card", 0, "number"), True),
        (("cards",), False),
        (("card", "name"), False),
    ],
)
def test_a_path_touches_a_secret_that_it_contains_or_is_part_of(path: tuple[str | int, ...], touched: bool) -> None:
    assert touches(path, secret_paths(["card.number"])) is touched


def test_asterisks_are_told_from_values() -> None:
    assert is_hidden({"card": [{"number": "***"}]}, ("card", "number"))
    assert not is_hidden({"card": [{"number": "4111"}], "note": "***"}, ("card", "number"))


@pytest.mark.parametrize(
    "keys",
    [
        {"idempotency_key": "input.token"},
        {"dedupe_keys": ["user", "token"]},
        {"concurrency": Concurrency(keys=["token.first"])},
    ],
)
def test_a_key_cannot_be_made_from_a_secret(keys: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="is used in a key, and keys are shown to people"):
        Template("mail", secret=["token"], **keys)


@pytest.mark.parametrize("secret", ["token", ["a b"], [""], [1]])
def test_what_names_no_field_is_refused(secret: Any) -> None:
    with pytest.raises(InvalidInput):
        Template("mail", secret=secret)


def test_only_a_template_with_secrets_says_so_in_json() -> None:
    plain, secret = Template("mail"), Template("mail", secret=["token"])
    assert "secret" not in plain.as_json()
    assert Template.from_json(secret.as_json()).secret == ["token"]
    assert Template.from_json(plain.as_json()).secret == ()


def test_asterisks_that_were_left_become_the_old_values() -> None:
    paths = secret_paths(["token", "card.number", "people.pin"])
    old = {"token": "t", "card": {"number": 1, "name": "a"}, "people": [{"id": 1, "pin": 11}, {"id": 2, "pin": 22}]}
    shown = hide(old, paths)
    assert restore(shown, old, paths) == old
    assert restore({**shown, "token": "new"}, old, paths) == {**old, "token": "new"}
    assert restore({**shown, "card": {"number": HIDDEN, "name": "b"}}, old, paths)["card"] == {"number": 1, "name": "b"}
    assert restore({"free": HIDDEN, "token": HIDDEN}, {"token": "t"}, paths) == {"free": HIDDEN, "token": "t"}


def test_an_item_that_moved_gets_no_secret_of_another() -> None:
    paths = secret_paths(["people.pin"])
    old = {"people": [{"id": 1, "pin": 11}, {"id": 2, "pin": 22}]}
    swapped = {"people": [{"id": 2, "pin": HIDDEN}, {"id": 1, "pin": HIDDEN}]}
    assert restore(swapped, old, paths) == swapped
    shorter = {"people": [{"id": 2, "pin": HIDDEN}]}
    assert restore(shorter, old, paths) == shorter
