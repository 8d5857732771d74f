"""What is said of a rule that can't be used."""

from __future__ import annotations

from treadle.errors import InvalidInput


class InvalidRule(InvalidInput):
    """A rule or filter that is not one; `data["position"]` is where, counted in characters from 0."""

    code = "invalid_rule"


def invalid(text: str, position: int, problem: str) -> InvalidRule:
    """The problem with the place where it is, as a person counts."""
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return InvalidRule(f"line {line}, column {column}: {problem}", position=position, line=line, column=column)
