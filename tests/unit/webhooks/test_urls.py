"""Where webhooks may be sent: URLs, and the addresses that their names resolve to."""

import contextlib
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from tests.webhook_urls import INSIDE, INSIDE_6, bad_urls
from treadle.model.errors import InvalidInput
from treadle.policy.addresses import Exempt, is_public
from treadle.policy.webhook_urls import WebhookUrl, check_url

LOOPBACK = Exempt.parse("127.0.0.0/8")


def refusal(url: str, allow: str = "", http_allowed: bool = True, field: str = "url") -> str:
    with pytest.raises(InvalidInput) as caught:
        check_url(url, Exempt.parse(allow), http_allowed, field)
    assert caught.value.data == {"field": field}
    return caught.value.message


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("https://example.com/hook", "https://example.com", "/hook"),
        ("HTTPS://Example.COM", "https://example.com", "/"),
        ("https://example.com?x=%20#top", "https://example.com", "/?x=%20"),
        ("https://example.com:443/a//b/../c", "https://example.com", "/a//b/../c"),
        ("https://example.com:8443/", "https://example.com:8443", "/"),
        ("http://example.com:80/", "http://example.com", "/"),
        ("https://my_host.internal-1.example/", "https://my_host.internal-1.example", "/"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example", "/"),
        ("https://8.8.8.8/", "https://8.8.8.8", "/"),
        ("https://[2606:4700:0::1111]:1024/", "https://[2606:4700::1111]:1024", "/"),
    ],
)
def test_a_plain_url_is_taken_apart(url: str, origin: str, target: str) -> None:
    checked = check_url(url, http_allowed=True)
    assert (checked.origin, checked.target, str(checked)) == (origin, target, origin + target)


def accepted(urls: Iterable[str], allow: Exempt) -> Iterator[WebhookUrl]:
    for url in urls:
        with contextlib.suppress(InvalidInput):
            yield check_url(url, allow, http_allowed=True)


def test_every_url_that_leads_inside_is_refused() -> None:
    urls = bad_urls(8080)
    assert len(set(urls)) >= 200
    assert list(accepted(urls, Exempt())) == []


def test_disguises_stay_refused_where_the_address_is_allowed() -> None:
    """With loopback allowed only its plain spellings count."""
    plain = {"127.0.0.1", "127.8.9.10", "localhost", "localhost.", "a.localhost"}
    assert {url.host for url in accepted(bad_urls(8080), LOOPBACK)} == plain


@given(st.text(max_size=60) | st.text("0123456789abcdefx.:[]%@/\\?#-_ ", max_size=40).map("https://{}".format))
def test_any_text_is_refused_or_read_as_the_client_reads_it(text: str) -> None:
    try:
        checked = check_url(text, http_allowed=True)
    except InvalidInput:
        return
    url = URL(str(checked), encoded=True)
    assert (url.scheme, url.host, url.port) == (checked.scheme, checked.host, checked.port)
    assert check_url(str(checked), http_allowed=True) == checked


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://example.com/", "not by 'ftp'"),
        ("https://me:pw@example.com/", "a name or password"),
        ("https://example.com:22/", "port 22 is not allowed"),
        ("https://example.com:http/", "'http' is not a port"),
        ("https://0x7f.1/", "'0x7f.1' is not an IP address in its usual spelling"),
        ("https://１２７.0.0.1/", "U+FF11"),
        ("https://exa\tmple.com/", "U+0009"),
        ("https://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1 wraps 127.0.0.1"),
        ("https://10.1.2.3/", "10.1.2.3 is not a public address; operators can allow it with TREADLE_WEBHOOK_ALLOW"),
        ("https://localhost/", "localhost is this machine"),
        ("https://" + "a" * 2000, "2,008 characters"),
        ("https://" + "a" * 64 + ".com/", "is not the name of a host"),
        ("https://", "names no host"),
        ("example.com", "'example.com' is not a URL such as https://example.com/hook"),
    ],
)
def test_a_refusal_names_what_is_wrong(url: str, problem: str) -> None:
    assert problem in refusal(url, field="webhookUrl")[len("webhookUrl: ") :] or problem in refusal(url)


def test_http_is_for_allowed_hosts_and_for_those_who_switch_it_on() -> None:
    assert "TREADLE_WEBHOOK_HTTP=true" in refusal("http://example.com/", http_allowed=False)
    assert check_url("http://example.com/", http_allowed=True)
    assert check_url("http://Intern.example./", Exempt.parse("intern.example"))
    assert check_url("http://127.0.0.1:8080/", LOOPBACK)
    assert check_url("http://localhost:8080/", LOOPBACK)
    assert check_url("http://[fd00::1]:8080/", Exempt.parse("10.0.0.0/8, [fd00::]/8"))
    assert "10.0.0.1 is not a public address" in refusal("http://10.0.0.1/", "127.0.0.0/8", http_allowed=False)


@pytest.mark.parametrize("text", ["10.0.0.1/8", "127.0.0.0/33", "1.2.3", "fe80::/129", "hooks/8"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="webhook_allow: .*write it like 10"):
        Exempt.parse(f"example.com {text}")


@pytest.mark.parametrize("text", ["*", "*.example.com", "example..com", "-a", "b\u00fccher.example"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="webhook_allow: .*is not a name, an address or a network"):
        Exempt.parse(f"example.com {text}")


def test_everything_can_be_allowed() -> None:
    everything = Exempt.parse("0.0.0.0/0 ::/0")
    assert check_url("http://10.0.0.1/", everything)
    assert check_url("http://[::1]/", everything)
    assert check_url("http://localhost/", everything)


@pytest.mark.parametrize("text", [*INSIDE, *INSIDE_6, "168.63.129.16", "255.255.255.255", "192.0.0.9", "192.88.99.1"])
def test_an_address_inside_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize(
    "form", ["::ffff:{}", "64:ff9b::{}", "2002:{:x}:{:x}::1", "2001:0:{:x}:{:x}::", "2600::5efe:{}"]
)
def test_an_address_that_wraps_one_inside_is_not_public(form: str, inside: str) -> None:
    number = int(IPv4Address(inside))
    assert not is_public(IPv6Address(form.format(*([number >> 16, number & 0xFFFF] if ":x" in form else [inside]))))


@pytest.mark.parametrize(
    "text",
    [
        *("8.8.8.8", "1.1.1.1", "223.255.255.255", "100.63.255.255", "172.32.0.1", "192.0.1.1"),
        *("2606:4700::1111", "2a00::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"),
        "2001:0:808:808::f7f7:f7f7",
    ],
)
def test_a_public_address_is_public_also_behind_a_translator(text: str) -> None:
    assert is_public(ip_address(text))


@given(st.ip_addresses())
def test_nothing_is_public_that_python_calls_private_or_multicast(address: IPv4Address | IPv6Address) -> None:
    if is_public(address) and not (isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour)):
        assert address.is_global or str(address).startswith("64:ff9b::")
        assert not address.is_multicast
        assert not address.is_link_local
