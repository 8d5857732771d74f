"""Access rules, filters and searches: PocketBase's rule language over a request and the fields of jobs.

A rule is read and checked once (`parse_rule`), bound to a request (`Rule.bind`), and what is left is a
condition over job fields: asked of one job here (`matches`), of all jobs by the stores in SQL.
"""

from treadle.rules.binding import RequestFacts
from treadle.rules.conditions import (
    All,
    Comparison,
    Condition,
    Constant,
    Either,
    JobField,
    JobPath,
    Wildcard,
    always,
    both,
    either,
    matches,
    never,
)
from treadle.rules.errors import InvalidRule
from treadle.rules.fields import DOCUMENTS, FIELDS, Kind
from treadle.rules.rule import Rule, parse_filter, parse_rule
from treadle.rules.search import SortKey, parse_search, parse_sort

__all__ = [
    "DOCUMENTS",
    "FIELDS",
    "All",
    "Comparison",
    "Condition",
    "Constant",
    "Either",
    "InvalidRule",
    "JobField",
    "JobPath",
    "Kind",
    "RequestFacts",
    "Rule",
    "SortKey",
    "Wildcard",
    "always",
    "both",
    "either",
    "matches",
    "never",
    "parse_filter",
    "parse_rule",
    "parse_search",
    "parse_sort",
]
