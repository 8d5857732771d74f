"""Rules and filters, parsed and checked once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from treadle.policy.rules.binding import RequestFacts
from treadle.policy.rules.conditions import Condition, JobField, JobPath, always, looked_for, looks_inside
from treadle.policy.rules.errors import InvalidRule
from treadle.policy.rules.grammar import Compared, Every, Expression, Some, parse
from treadle.policy.rules.operands import Changed, Macro, Name, RequestValue
from treadle.policy.rules.prepared import PreparedRule
from treadle.policy.rules.status_names import in_our_words

MAX_FILTER_BYTES = 3_500
# Each of them reads the JSON of every job that the rest of the filter matches.
MAX_INSIDE = 30
# No database can be interrupted while it evaluates one job, which may be a megabyte.
MAX_LOOKED_FOR = 500


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule about who may do something, or with which jobs."""

    text: str
    expression: Expression
    names_job_fields: bool
    """If false, the request alone decides."""
    asks_only_who: bool
    """It uses at most the signed-in user from the request, so the same user always gets the same condition."""

    names_body: bool
    """It uses the request's body."""
    query_names: frozenset[str]
    """The query parameters that it uses."""

    def bind(self, request: RequestFacts) -> Condition:
        """The condition on jobs for this request; an evaluation error denies access."""
        return self.prepare(request).bind(request.body)

    def prepare(self, request: RequestFacts) -> PreparedRule:
        """The rule for this request and any body."""
        return PreparedRule(self.expression, request)


@lru_cache(maxsize=256)
def parse_rule(text: str) -> Rule:
    """Parse a rule; InvalidRule if it is invalid. Rules are checked here before they are saved."""
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
        names_body=any(
            isinstance(name, Changed) or (isinstance(name, RequestValue) and name.part == "body") for name in names
        ),
        query_names=frozenset(
            name.path[0] for name in names if isinstance(name, RequestValue) and name.part == "query"
        ),
    )


def parse_filter(text: str, now: datetime | None = None) -> Condition:
    """A client's filter, over job fields only; an empty one matches everything."""
    if not text:
        return always
    if len(text) > MAX_FILTER_BYTES or len(text.encode(errors="surrogatepass")) > MAX_FILTER_BYTES:
        raise InvalidRule(f"the filter has more than {MAX_FILTER_BYTES:,} bytes", position=0)
    expression = in_our_words(parse(text))
    if any(isinstance(name, RequestValue | Changed) for name in _names(expression)):
        raise InvalidRule("a filter can't name @request: it is about jobs only", position=text.find("@request"))
    condition = PreparedRule(expression, RequestFacts(now=now or datetime.now(UTC))).bind({})
    if looks_inside(condition) > MAX_INSIDE:
        raise InvalidRule(f"more than {MAX_INSIDE} comparisons with payload, result or steps", position=0)
    if looked_for(condition) > MAX_LOOKED_FOR:
        raise InvalidRule(f"the texts after ~ have more than {MAX_LOOKED_FOR} characters together", position=0)
    return condition


def _names(expression: Expression) -> list[Name]:
    match expression:
        case Compared():
            return [expression.left, expression.right]
        case Every() | Some():
            return [name for part in expression.parts for name in _names(part)]
