"""Signatures of webhooks, checked by the official library and by the seed's own way."""

import hashlib
import hmac
import json
import time
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from treadle.model.errors import InvalidInput
from treadle.policy.webhook_signing import checked_secret, secret_of, signed_headers

OLD, NEW = secret_of(bytes(range(24))), secret_of(bytes(range(100, 164)))
BODY = json.dumps({"type": "job:completed", "data": {"job": "é \N{SNOWMAN}"}}).encode()


@given(st.binary(min_size=24, max_size=64), st.text(st.characters(codec="utf-8")))
def test_the_official_library_verifies_every_signature(key: bytes, text: str) -> None:
    body = json.dumps({"text": text}, ensure_ascii=False).encode()
    headers = signed_headers("msg_1", int(time.time()), body, [secret_of(key)])
    assert Webhook(secret_of(key)).verify(body, headers) == {"text": text}


@pytest.mark.parametrize("secret", [OLD, NEW])
def test_during_a_rotation_both_secrets_verify(secret: str) -> None:
    headers = signed_headers("msg_1", int(time.time()), BODY, [NEW, OLD])
    assert Webhook(secret).verify(BODY, headers) == json.loads(BODY)
    assert headers["webhook-signature"].count("v1,") == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": str(int(time.time()) - 1)},
        {"webhook-signature": "v1," + b64encode(bytes(32)).decode()},
    ],
)
def test_a_changed_header_is_found_out(changes: dict[str, str]) -> None:
    headers = signed_headers("msg_1", int(time.time()), BODY, [NEW])
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(BODY, headers | changes)
    with pytest.raises(WebhookVerificationError):
        Webhook(OLD).verify(BODY, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(BODY + b" ", headers)


def test_the_key_is_the_decoded_secret_and_the_other_signature_uses_its_text() -> None:
    headers = signed_headers("msg_1", 1_700_000_000, BODY, [NEW, OLD])
    key = b64decode(NEW.removeprefix("whsec_"))
    standard = hmac.new(key, b"msg_1.1700000000." + BODY, hashlib.sha256).digest()
    assert headers["webhook-signature"].split()[0] == "v1," + b64encode(standard).decode()
    assert headers["X-JobQueue-Signature"] == "sha256=" + hmac.new(NEW.encode(), BODY, hashlib.sha256).hexdigest()


def test_a_secret_without_the_prefix_is_text_for_both() -> None:
    headers = signed_headers("msg_1", 1_700_000_000, BODY, ["secret"])
    standard = hmac.new(b"secret", b"msg_1.1700000000." + BODY, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + b64encode(standard).decode()
    assert headers["X-JobQueue-Signature"] == "sha256=" + hmac.new(b"secret", BODY, hashlib.sha256).hexdigest()


def test_without_a_secret_nothing_is_signed() -> None:
    assert signed_headers("msg_1", 5, BODY, []) == {"webhook-id": "msg_1", "webhook-timestamp": "5"}


def test_padding_may_be_missing() -> None:
    secret = secret_of(bytes(25)).rstrip("=")
    assert checked_secret(secret) == secret
    assert Webhook(secret).verify(BODY, signed_headers("m", int(time.time()), BODY, [secret]))


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        ("", "printable ASCII"),
        ("whsec_two words", "is not base64"),
        ("line\n", "printable ASCII"),
        ("schlüssel", "printable ASCII"),
        ("whsec_", "24 to 64 bytes in base64, not by 0"),
        ("whsec_???", "is not base64"),
        ("whsec_a", "is not base64"),
        (secret_of(bytes(23)), "not by 23"),
        (secret_of(bytes(65)), "not by 65"),
    ],
)
def test_a_bad_secret_is_refused_without_repeating_it(secret: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match="^webhook_secret: ") as caught:
        checked_secret(secret, "webhook_secret")
    assert problem in caught.value.message
    assert len(secret) < 7 or secret not in caught.value.message
