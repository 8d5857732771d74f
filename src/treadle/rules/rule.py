"""Rules and filters: texts that were read and checked once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from treadle.rules.binding import RequestFacts, bind
from treadle.rules.conditions import Condition, JobField, JobPath, always
from treadle.rules.errors import InvalidRule
from treadle.rules.grammar import Compared, Every, Expression, Some, parse
from treadle.rules.operands import Changed, Macro, Name, RequestValue

MAX_FILTER_BYTES = 3_500


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may do something, or with which jobs."""

    text: str
    expression: Expression
    names_job_fields: bool
    """Without them the request alone decides."""
    asks_only_who: bool
    """Of the request it names the signed-in user at most: the same user, the same condition."""

    def bind(self, request: RequestFacts) -> Condition:
        """What is left to be asked of a job; an error in the rule's evaluation leaves nobody in."""
        return bind(self.expression, request)


@lru_cache(maxsize=256)
def parse_rule(text: str) -> Rule:
    """InvalidRule if it is not one; what is refused here was never saved."""
    expression = parse(text)
    names = _names(expression)
    return Rule(
        text,
        expression,
        names_job_fields=any(isinstance(name, JobField | JobPath | Changed) for name in names),
        asks_only_who=not any(
            isinstance(name, Macro | Changed) or (isinstance(name, RequestValue) and name.part != "auth")
            for name in names
        ),
    )


def parse_filter(text: str, now: datetime | None = None) -> Condition:
    """A client's own filter, over job fields only; an empty one lets everything through."""
    if not text:
        return always
    if len(text) > MAX_FILTER_BYTES or len(text.encode(errors="surrogatepass")) > MAX_FILTER_BYTES:
        raise InvalidRule(f"the filter has more than {MAX_FILTER_BYTES:,} bytes", position=0)
    expression = parse(text)
    if any(isinstance(name, RequestValue | Changed) for name in _names(expression)):
        raise InvalidRule("a filter can't name @request: it is about jobs only", position=text.find("@request"))
    return bind(expression, RequestFacts(now=now or datetime.now(UTC)))


def _names(expression: Expression) -> list[Name]:
    match expression:
        case Compared():
            return [expression.left, expression.right]
        case Every() | Some():
            return [name for part in expression.parts for name in _names(part)]
