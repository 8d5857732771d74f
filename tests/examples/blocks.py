"""The code blocks of a Markdown page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


class Block(NamedTuple):
    language: str
    code: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for found in _BLOCK.finditer(text):
        yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 2)
