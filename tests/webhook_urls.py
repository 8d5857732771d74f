"""URLs that lead a careless client into the network of the server, in the spellings that parsers and resolvers know."""

from collections.abc import Iterator
from ipaddress import IPv4Address

# This machine, its cloud's metadata, private networks, multicast and "any".
INSIDE = "127.0.0.1 127.8.9.10 169.254.169.254 10.0.0.1 172.16.5.4 192.168.1.1 100.64.0.1 0.0.0.0 224.0.0.1".split()
INSIDE_6 = (
    "::1 :: fe80::1 fec0::1 fc00::1 fd00:ec2::254 ff02::1 ff0e::1 ::7f00:1 100::1 2001:db8::1 2001:2::1 2001:20::1 "
    "3fff::1 5f00::1 4000::1 64:ff9b:1::7f00:1 fe80::5efe:7f00:1 2600::5efe:7f00:1 2600::200:5efe:a00:1"
).split()
_FULL_WIDTH = str.maketrans("0123456789.", "０１２３４５６７８９．")
_CIRCLED = str.maketrans("123456789", "①②③④⑤⑥⑦⑧⑨")


def disguises(address: str) -> Iterator[str]:
    """Spellings of an IPv4 address as a URL's host."""
    number = int(IPv4Address(address))
    first, second, third, fourth = parts = [int(part) for part in address.split(".")]
    high, low = number >> 16, number & 0xFFFF
    yield from (str(number), hex(number), f"0{number:o}", f"{number:#x}".upper())
    yield from (f"{first}.{number & 0xFFFFFF}", f"{first}.{second}.{low}", f"{first:#x}.{number & 0xFFFFFF}")
    yield from (".".join(map(hex, parts)), ".".join(f"{part:04o}" for part in parts))
    yield from (f"{first:03d}.{second}.{third}.{fourth:05d}", f"{address}.", f"{number + 2**32}")
    yield from (address.translate(_FULL_WIDTH), address.translate(_CIRCLED), address.replace(".", "。"))
    yield from (address.replace(".", "%2e"), address.replace("1", "%31"), f"{address}%00.example.com")
    yield from (f"[::ffff:{address}]", f"[::ffff:{high:x}:{low:x}]", f"[::{address}]")
    yield from (f"[64:ff9b::{high:x}:{low:x}]", f"64:ff9b::{high:x}:{low:x}", f"[64:ff9b::{address}]")
    yield from (f"[2002:{high:x}:{low:x}::1]", f"[2001:0:{high:x}:{low:x}::]", f"[::ffff:0:{address}]")
    yield f"[2001:0:808:808::{high ^ 0xFFFF:x}:{low ^ 0xFFFF:x}]"


def odd_urls(port: int) -> Iterator[str]:
    """URLs in which parsers have disagreed about the host, and schemes that are not the web's."""
    at = f"127.0.0.1:{port}"
    yield from (f"https://{at}", f"http://{at}/", f"https://localhost:{port}/", f"https://LOCALHOST.:{port}/")
    yield from (f"https://a.localhost:{port}/", f"https://[::1]:{port}/", f"https://[::1%lo]:{port}/")
    yield from (f"https://example.com@{at}/", f"https://example.com:x@{at}/", f"https://@{at}/", f"https://:@{at}/")
    yield from (f"https://example.com\\@{at}/", f"https://{at}\\@example.com/", f"https://example.com\t@{at}/")
    yield from (f"https://\n{at}/", f" https://{at}/", f"https://{at}/ ", f"https:\\\\{at}/", f"https:///{at}/")
    yield from (f"https:/{at}/", f"https:{at}/", f"//{at}/", f"{at}/", f"https://{at}#@example.com/")
    yield from (f"https://{at}\r\nHost: example.com/", f"https://example.com/\r\nX: {at}", "https://example.com/\x00")
    yield from (f"file://{at}/etc/passwd", "file:///etc/passwd", f"gopher://{at}/_x", f"ftp://{at}/", f"dict://{at}/")
    yield from ("unix:///var/run/docker.sock", f"ws://{at}/", "data:text/plain,x", "javascript:alert(1)", "")
    yield from (f"https://127.0.0.1 :{port}/", f"https://[127.0.0.1]:{port}/", f"https://[::ffff:127.0.0.1:{port}/")
    yield from (
        "https://127.0.0.1:22/",
        "https://example.com:22/",
        "https://example.com:0/",
        "https://example.com:99999/",
    )
    yield from (f"https://127.0.0.1:{port}:{port}/", f"https://127.0.0.1:+{port}/", f"https://127.0.0.1:{port}x/")
    yield from (f"https://127.0.0.1:０{port}/", f"https://0:{port}/", f"https://0x:{port}/", f"https://...:{port}/")


def bad_urls(port: int) -> list[str]:
    hosts = [*(host for address in INSIDE for host in disguises(address)), *(f"[{one}]" for one in INSIDE_6), *INSIDE]
    return [*(f"https://{host}:{port}/hook" for host in hosts), *odd_urls(port)]
