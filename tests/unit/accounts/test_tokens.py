"""Tokens: what is in them, and what is taken for one."""

import base64
import json
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.accounts.test_account import account
from treadle.accounts.tokens import claimed, is_genuine, sign

INSTALL = "install-key-of-more-than-32-characters"
NOW = 1_800_000_000.0
ANN = account(token_key="token-key-of-ann-of-more-than-32-characters")
KEY = ANN.token_key + INSTALL
CLAIMS = {
    "id": ANN.id,
    "collectionId": "_pb_users_auth_",
    "type": "auth",
    "refreshable": True,
    "exp": 1_800_000_000 + 5 * 86_400,
}


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_a_token_says_what_pocketbases_say() -> None:
    token = sign(ANN, INSTALL, NOW)
    assert jwt.get_unverified_header(token) == {"alg": "HS256", "typ": "JWT"}
    assert jwt.decode(token, KEY, ["HS256"], options={"verify_exp": False}) == CLAIMS
    assert (claimed(token) or ())[:3] == ("users", ANN.id, CLAIMS["exp"])
    assert is_genuine(token, ANN, INSTALL)


def test_superusers_have_less_time() -> None:
    token = sign(account(collection="_superusers"), INSTALL, NOW)
    assert (claimed(token) or ())[:3] == ("_superusers", ANN.id, 1_800_000_000 + 86_400)


def test_another_install_or_another_token_key_ends_it() -> None:
    token = sign(ANN, INSTALL, NOW)
    assert not is_genuine(token, ANN, "another" + INSTALL)
    assert not is_genuine(token, account(token_key="another"), INSTALL)


@pytest.mark.parametrize("algorithm", ["none", "None", "HS384", "HS512", "RS256", "", "hs256"])
def test_the_algorithm_is_ours_to_choose(algorithm: str) -> None:
    signature = jwt.encode(CLAIMS, KEY, "HS256").split(".")[2]
    if algorithm in ("HS384", "HS512"):
        token = jwt.encode(CLAIMS, KEY * 2, algorithm)
    else:
        token = f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(CLAIMS)}.{signature}"
    assert not is_genuine(token, ANN, INSTALL)
    assert not is_genuine(token.rpartition(".")[0] + ".", ANN, INSTALL)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "abcdefghij01235"},
        {"collectionId": "pbc_3142635823"},
        {"exp": 2**60},
        {"type": "verification"},
        {"more": 1},
    ],
)
def test_a_tampered_token_is_not_genuine(change: dict[str, Any]) -> None:
    head, _, signature = sign(ANN, INSTALL, NOW).split(".")
    assert not is_genuine(f"{head}.{part(CLAIMS | change)}.{signature}", ANN, INSTALL)


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": None},
        {"id": "a\x00b"},
        {"id": ["abcdefghij01234"]},
        {"id": "ABCDEFGHIJ01234"},
        {"collectionId": "jobs"},
        {"collectionId": None},
        {"collectionId": []},
        {"type": "verification"},
        {"type": None},
        {"exp": None},
        {"exp": "2030"},
        {"exp": 1.5},
        {"exp": True},
        {"exp": float("inf")},
    ],
)
def test_odd_claims_are_nobodys(change: dict[str, Any]) -> None:
    assert claimed(f"{part({'alg': 'HS256'})}.{part(CLAIMS | change)}.x") is None


def test_a_claim_that_is_missing_is_nobodys() -> None:
    for name in ("id", "collectionId", "type", "exp"):
        assert claimed(jwt.encode({k: v for k, v in CLAIMS.items() if k != name}, KEY, "HS256")) is None


def test_an_oversized_token_is_not_even_read() -> None:
    token = sign(ANN, INSTALL, NOW)
    assert claimed(token + "A" * (4096 - len(token)))
    padded = jwt.encode(CLAIMS | {"pad": "x" * 4096}, KEY, "HS256")
    assert is_genuine(padded, ANN, INSTALL)
    assert claimed(padded) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "\x00",
        "é.é.é",
        "\ud800",
        f"{part([])}.{part([])}.x",
        f"{part({'alg': 'HS256'})}.{part([1])}.x",
        f"{part({'alg': 'HS256'})}.{part('x')}.x",
        f"{part({'alg': 'HS256'})}.{'[' * 1500}.x",
        f"{part({'alg': 'HS256'})}.{base64.urlsafe_b64encode(b'[' * 2500).decode()}.x",
        f"{part({'alg': 'HS256', 'crit': ['b64'], 'b64': False})}.{part(CLAIMS)}.x",
    ],
)
def test_what_is_no_token_is_nobodys(text: str) -> None:
    assert claimed(text) is None or not is_genuine(text, ANN, INSTALL)


@given(st.text() | st.lists(st.text(alphabet="abcXYZ019-_=", max_size=40), max_size=5).map(".".join))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert claimed(text) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(header=st.dictionaries(st.sampled_from(["alg", "typ", "kid", "crit", "b64"]), JSON), claims=JSON)
def test_any_claims_are_read_without_an_error(header: dict[str, Any], claims: Any) -> None:
    token = f"{part(header)}.{part(claims)}.AAAA"
    claimed(token)
    assert not is_genuine(token, ANN, INSTALL)
