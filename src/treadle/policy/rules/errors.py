"""Errors about invalid rules."""

from __future__ import annotations

from treadle.model.errors import InvalidInput


class InvalidRule(InvalidInput):
    """An invalid rule or filter; `data["position"]` is the offset in characters from 0."""

    code = "invalid_rule"


def invalid(text: str, position: int, problem: str) -> InvalidRule:
    """The problem with its position, counted from 1."""
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return InvalidRule(f"line {line}, column {column}: {problem}", position=position, line=line, column=column)
