"""The grammar of rules and filters, and the limits on their size.

Lark builds the parser once, on first use. Limits on length, depth and the number of parts are checked before parsing,
in one quick pass over the text; a text that passes is parsed in milliseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from treadle.policy.rules.conditions import Constant
from treadle.policy.rules.errors import invalid
from treadle.policy.rules.operands import Name, UnknownName, resolve
from treadle.policy.rules.values import MAX_PATTERN

if TYPE_CHECKING:
    from lark import Lark, Token

MAX_CHARACTERS = 10_000
MAX_COMPARISONS = 200
MAX_DEPTH = 100
MAX_GROUPS = 400
SIGNS = frozenset("= != > >= < <= ~ !~ ?= ?!= ?> ?>= ?< ?<= ?~ ?!~".split())

# Not Lark's whitespace: a carriage return or a no-break space is an error, as in PocketBase.
GRAMMAR = r"""
start: some
some: every (OR every)*
every: term (AND term)*
?term: comparison | "(" some ")"
comparison: operand SIGN operand
operand: NAME | TEXT | NUMBER

OR: "||"
AND: "&&"
SIGN: /[=?!<>~]+/
NAME: /[A-Za-z_@#][A-Za-z0-9_.:]*/
NUMBER: /-?[0-9]+(\.[0-9]+)?(?![A-Za-z0-9_.:@#])/
TEXT: /'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"/s
BLANK: /(?:[ \t\n]+|\/\/[^\n]*)+/
%ignore BLANK
"""

# NUL and lone surrogates, which databases can't store.
UNUSABLE = re.compile("[\0\ud800-\udfff]")
_LANDMARKS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|//[^\n]*|[=?!<>~]+|[()'"]""", re.S)
_ESCAPE = re.compile(r"""\\([\\'"nrt])""")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class Compared:
    left: Name
    sign: str
    right: Name


@dataclass(frozen=True, slots=True)
class Every:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Some:
    parts: tuple[Expression, ...]


Expression: TypeAlias = Compared | Every | Some


def parse(text: str) -> Expression:
    """Parse a text into an expression; InvalidRule says what is wrong and where."""
    from lark.exceptions import UnexpectedInput

    _check_bounds(text)
    try:
        tree = _parser().parse(text)
    except UnexpectedInput as error:
        raise _explained(text, error) from None
    return _Reader(text).expression(tree.children[0])


def comparisons(text: str) -> list[tuple[str, str, str]]:
    """Left side, sign and right side of each comparison of a valid text, as they are written."""
    from lark import Token

    tree = _parser().parse(text)
    tokens = map(str, tree.scan_values(lambda leaf: isinstance(leaf, Token) and leaf.type not in ("OR", "AND")))
    return list(zip(tokens, tokens, tokens, strict=True))


@cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", lexer="basic", propagate_positions=False)


# -- bounds ----------------------------------------------------------------------------------------


def _check_bounds(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise invalid(text, MAX_CHARACTERS, f"{len(text):,} characters are too many; the limit is {MAX_CHARACTERS:,}")
    if found := UNUSABLE.search(text):
        raise invalid(text, found.start(), f"the character {found[0]!r} can't be used")
    _check_structure(text)


def _check_structure(text: str) -> None:
    comparisons = groups = depth = 0
    for found in _LANDMARKS.finditer(text):
        mark = found[0]
        if mark == "(":
            groups, depth = groups + 1, depth + 1
        elif mark == ")":
            depth -= 1
        elif mark in ("'", '"'):
            raise invalid(text, found.start(), f"a text begins here and is not closed; add {mark}")
        elif mark[0] in "=?!<>~":
            comparisons += 1
            if mark not in SIGNS:
                raise invalid(text, found.start(), f"{mark[:20]} is not a sign; there are {' '.join(sorted(SIGNS))}")
        if comparisons > MAX_COMPARISONS:
            raise invalid(text, found.start(), f"more than {MAX_COMPARISONS} comparisons")
        if depth > MAX_DEPTH:
            raise invalid(text, found.start(), f"brackets more than {MAX_DEPTH} deep")
        if groups > MAX_GROUPS:
            raise invalid(text, found.start(), f"more than {MAX_GROUPS} pairs of brackets")
        if depth < 0:
            raise invalid(text, found.start(), "a bracket is closed that was not opened")


# -- reading Lark's tree ---------------------------------------------------------------------------


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text

    def expression(self, tree: Any) -> Expression:
        if tree.data == "comparison":
            left, sign, right = tree.children
            compared = Compared(self.operand(left), str(sign), self.operand(right))
            self.check_pattern(compared, sign.start_pos or 0)
            return compared
        parts = tuple(self.expression(child) for child in tree.children[::2])
        if len(parts) == 1:
            return parts[0]
        return Some(parts) if tree.data == "some" else Every(parts)

    def check_pattern(self, compared: Compared, position: int) -> None:
        match compared:
            case Compared(sign="~" | "!~" | "?~" | "?!~", right=Constant(str() as text)) if len(text) > MAX_PATTERN:
                raise invalid(self.text, position, f"the text to look for has more than {MAX_PATTERN} characters")

    def operand(self, tree: Any) -> Name:
        token: Token = tree.children[0]
        match token.type:
            case "TEXT":
                return Constant(unescaped(token[1:-1]))
            case "NUMBER":
                return Constant(self.number(token))
            case _:
                return self.name(token)

    def number(self, token: Token) -> int | float:
        if "." not in token and len(token) < 20 and abs(int(token)) < 2**63:
            return int(token)
        number = float(token)
        if number in (float("inf"), float("-inf")):
            raise invalid(self.text, token.start_pos or 0, "the number is too large")
        return number

    def name(self, token: Token) -> Name:
        position = token.start_pos or 0
        if token[-1] in ".:":
            raise invalid(self.text, position, f"a name can't end in {token[-1]!r}")
        try:
            return resolve(str(token))
        except UnknownName as error:
            raise invalid(self.text, position, str(error)) from None


def unescaped(text: str) -> str:
    r"""\\ \' \" \n \r \t mean one character; any other backslash stays."""
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


# -- saying what is wrong --------------------------------------------------------------------------


def _explained(text: str, error: Any) -> Exception:
    token = getattr(error, "token", None)
    if token is None:
        position = error.pos_in_stream
        return invalid(text, position, f"{text[position]!r} can't stand here")
    if token.type == "$END":
        if not re.sub(r"//[^\n]*|[ \t\n]", "", text):
            return invalid(text, 0, "there is nothing in it; write an expression such as status = 'failed'")
        return invalid(text, len(text), f"it ends too early: {_wanted(error)}")
    if token.type == "LPAR" and "SIGN" in error.accepts:
        return invalid(text, token.start_pos, "there are no functions and no negation; join groups by && or ||")
    return invalid(text, token.start_pos, f"{str(token)[:40]!r} can't stand here: {_wanted(error)}")


def _wanted(error: Any) -> str:
    accepts = error.accepts or error.expected
    if "SIGN" in accepts:
        return "a sign such as = must follow; a value alone is no expression"
    if "NAME" in accepts:
        return "a field, a value or a bracket must follow"
    if "RPAR" in accepts:
        return "&&, || or a closing bracket must follow"
    return "&& or || must follow"
