"""Access rules, filters and searches: PocketBase's rule language over a request and the fields of jobs.

A rule is parsed and checked once (`parse_rule`) and bound to a request (`Rule.bind`). The result is a condition over
job fields, evaluated for one job here (`matches`) and for all jobs by the stores in SQL.
"""

from treadle.model.fields import DOCUMENTS, FIELDS, FieldKind
from treadle.policy.rules.binding import RequestFacts
from treadle.policy.rules.clauses import Clause, clauses
from treadle.policy.rules.conditions import (
    All,
    Comparison,
    Condition,
    Constant,
    Either,
    JobField,
    JobPath,
    WholeDocument,
    Wildcard,
    always,
    both,
    by_cost,
    by_index,
    demanded_status,
    documents_in,
    either,
    looked_for,
    looks_inside,
    matches,
    never,
)
from treadle.policy.rules.errors import InvalidRule
from treadle.policy.rules.prepared import PreparedRule
from treadle.policy.rules.rule import Rule, parse_filter, parse_rule
from treadle.policy.rules.search_text import (
    SortKey,
    nearest_qualifiers,
    parse_search,
    parse_sort,
    search_terms,
    unknown_qualifier,
)
from treadle.policy.rules.search_times import LENGTHS, TIMES, time_bounds
from treadle.policy.rules.status_names import status_is

__all__ = [
    "DOCUMENTS",
    "FIELDS",
    "LENGTHS",
    "TIMES",
    "All",
    "Clause",
    "Comparison",
    "Condition",
    "Constant",
    "Either",
    "FieldKind",
    "InvalidRule",
    "JobField",
    "JobPath",
    "PreparedRule",
    "RequestFacts",
    "Rule",
    "SortKey",
    "WholeDocument",
    "Wildcard",
    "always",
    "both",
    "by_cost",
    "by_index",
    "clauses",
    "demanded_status",
    "documents_in",
    "either",
    "looked_for",
    "looks_inside",
    "matches",
    "nearest_qualifiers",
    "never",
    "parse_filter",
    "parse_rule",
    "parse_search",
    "parse_sort",
    "search_terms",
    "status_is",
    "time_bounds",
    "unknown_qualifier",
]
