"""Conditions in SQL, for both dialects: the same answers as `treadle.rules.matches`, with bound values only.

A value is null, a number or a text, and inside a document only the row knows which. So each side of a comparison
becomes two expressions, its number and its text, at most one of them not null. Two values are equal if both pairs are.
Impossible pairs are left out here, not in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from treadle.model.fields import KEPT_FIELDS
from treadle.model.job import EPOCH, is_job_id
from treadle.policy.rules import (
    All,
    Comparison,
    Condition,
    Constant,
    Either,
    FieldKind,
    JobField,
    JobPath,
    WholeDocument,
    Wildcard,
)
from treadle.policy.rules.conditions import Operand
from treadle.policy.rules.values import MAX_PATTERN, canonical_date, instant, is_empty, written
from treadle.store.sql.dialect import Dialect, Lookup, SqlValue

# Where a job's fields are, in terms of the `view` query: {j} is the job, {l} its lane, {s} its lease, {x} its note, {p}
# the first table, and {o} {r} {q} {a} {h} {k} are the places. It is `job_from_row` in SQL.
_ATTEMPT = "coalesce({o}.attempt, {r}.attempt, {q}.attempt, {a}.attempt, {h}.attempt, {k}.attempt, 0)"
# For fields that no job has yet.
_NO_TEXT = "CAST(NULL AS text)"
COLUMNS: Mapping[str, str] = {
    "id": "{j}.id",
    "topic": "{j}.topic",
    "status": "CASE WHEN {o}.n IS NOT NULL THEN {o}.status WHEN {k}.n IS NOT NULL THEN 'waiting' "
    "WHEN {r}.n IS NULL THEN 'pending' WHEN {r}.cancel_at IS NULL THEN 'processing' ELSE 'cancelling' END",
    "staleAt": "CASE WHEN {o}.n IS NOT NULL THEN {stale_at} END",
    "priority": "{j}.priority",
    "payload": "{j}.payload",
    "result": "{o}.result",
    "lastError": "coalesce({o}.error, {x}.error)",
    "errorType": "coalesce({o}.error_type, {x}.error_type)",
    "progress": "CASE WHEN {o}.status = 'completed' THEN 100 ELSE coalesce({o}.progress, {r}.progress, "
    "CASE WHEN ({j}.flags & 32) <> 0 THEN coalesce({step_progress}, {x}.progress) END, 0) END",
    "progressMessage": "coalesce({o}.message, {r}.message, {x}.message)",
    "step": "CASE WHEN ({j}.flags & 32) <> 0 THEN {current_step} END",
    "steps": "coalesce(CASE WHEN ({j}.flags & 32) <> 0 THEN {step_document} END, {empty_list})",
    "attempt": _ATTEMPT,
    "maxAttempts": "{j}.max_attempts",
    "retries": "CASE WHEN ({r}.n IS NOT NULL OR {o}.status = 'completed') AND "
    f"{_ATTEMPT} > 0 THEN {_ATTEMPT} - 1 ELSE {_ATTEMPT} END",
    "maxRetries": "{j}.max_attempts",
    "runAt": "{j}.run_at",
    "expiresAt": "{j}.expires_at",
    "createdAt": "{j}.created_at",
    "updatedAt": "{greatest}({j}.created_at, coalesce({j}.changed_at, 0), coalesce({o}.ended_at, 0), "
    "coalesce({o}.claimed_at, {r}.claimed_at, 0), "
    "coalesce({o}.started_at, {r}.started_at, 0), coalesce({o}.cancel_at, {r}.cancel_at, 0), "
    "coalesce((SELECT max(e.created_at) FROM {events} e WHERE e.n = {p}.n), 0))",
    "claimedAt": "coalesce({o}.claimed_at, {r}.claimed_at)",
    "startedAt": "coalesce({o}.started_at, {r}.started_at)",
    "endedAt": "{o}.ended_at",
    "completedAt": "CASE WHEN {o}.status = 'completed' THEN {o}.ended_at END",
    "failedAt": "CASE WHEN {o}.status = 'failed' THEN {o}.ended_at END",
    "cancelledAt": "CASE WHEN {o}.status = 'cancelled' THEN {o}.ended_at END",
    "lastHeartbeatAt": "CASE WHEN {s}.renewed_at < {r}.claimed_at THEN {r}.claimed_at ELSE {s}.renewed_at END",
    "lastWorker": "coalesce({s}.worker, "
    "(SELECT w.name FROM {workers} w WHERE w.id = coalesce({o}.worker, {x}.worker)))",
    "errorGroup": "{o}.error_group",
    "lockedBy": "{s}.worker",
    "lockedUntil": "{s}.until",
    "eventsCount": "1 + ({told_events} WHERE e.n = {p}.n) + CASE WHEN {o}.status = 'completed' THEN 1 ELSE 0 END + "
    "CASE WHEN CASE WHEN {o}.n IS NULL OR {o}.status = 'completed' THEN coalesce({o}.started_at, {r}.started_at) END "
    "IS NULL THEN 0 ELSE 1 END + CASE WHEN {o}.n IS NULL OR {stale_at} IS NULL THEN 0 ELSE 1 END",
    "cancelRequestedAt": "coalesce({o}.cancel_at, {r}.cancel_at)",
    "cancelReason": "coalesce({o}.cancel_reason, {r}.cancel_reason)",
    "capability": "{l}.capability",
    "parentId": _NO_TEXT,
    "webhookUrl": _NO_TEXT,
    "webhookSent": "CAST(NULL AS integer)",
    **{field.json: f"{{j}}.{field.name}" for field in KEPT_FIELDS},
}
_STARTED = "coalesce({o}.started_at, {r}.started_at)"
DERIVED_COLUMNS: Mapping[str, str] = {
    "ranMs": f"coalesce({{o}}.ended_at, {{clock}}) - {_STARTED}",
    "waitedMs": f"CASE WHEN {{o}}.n IS NULL OR {_STARTED} IS NOT NULL THEN coalesce({_STARTED}, {{clock}}) "
    "- CASE WHEN {j}.run_at > {j}.created_at THEN {j}.run_at ELSE {j}.created_at END END",
}
# Below every date and number that a job can have.
LOWEST = -(2**62)
YES, NO = "1 = 1", "1 = 0"


class Conditions:
    """Writes conditions over the columns that `column` names and the documents' values that `lookup` finds."""

    def __init__(
        self, dialect: Dialect, column: Callable[[str], str], lookup: Callable[[JobPath], Lookup] | None = None
    ) -> None:
        self.dialect = dialect
        self.column = column
        self._lookup = lookup

    def lookup(self, path: JobPath) -> Lookup:
        assert self._lookup, "a condition over documents needs a select around it"
        return self._lookup(path)

    def sql(self, condition: Condition) -> str:
        match condition:
            case bool():
                return YES if condition else NO
            case Comparison():
                return self._comparison(condition)
            case All():
                return _joined(" AND ", [f"({self.sql(part)})" for part in condition.parts])
            case Either():
                return _joined(" OR ", [f"({self.sql(part)})" for part in condition.parts])

    def sort_key(self, name: str) -> str:
        """What to order by: text by its bytes, and absent values before all others."""
        column, kind = self.column(name), JobField(name).kind
        if kind is not FieldKind.TEXT:
            return f"coalesce({column}, {LOWEST})"
        if name == "id":
            return column
        return self.dialect.in_bytes(f"coalesce({column}, '')")

    # -- comparisons ---------------------------------------------------------------------------

    def _comparison(self, one: Comparison) -> str:
        if isinstance(one.right, WholeDocument):
            return NO  # comes from a body, and jobs are listed without one; SQLite can't compare JSON by value
        if one.sign in ("~", "!~"):
            return self._like(one.left, one.right, one.sign == "~")
        if _is_date(one.left) and _is_date(one.right):
            return f"{self._date(one.left)} {'<>' if one.sign == '!=' else one.sign} {self._date(one.right)}"
        if _is_id(one.left) and one.sign == "=" and isinstance(one.right, Constant):
            return self._same_id(one.right)
        if one.sign in ("=", "!="):
            return self._equal(one)
        if not _kinds(one.left) & _kinds(one.right):
            return NO
        return self._in_order(self._value(one.left), one.sign, self._value(one.right))

    def _equal(self, one: Comparison) -> str:
        wanted = one.sign == "="
        if any(_is_set(side) for side in (one.left, one.right)) and not _kinds(one.left) & _kinds(one.right):
            return NO if wanted else YES
        left, right = self._to_equal(one.left, one.right, one.strict), self._to_equal(one.right, one.left, one.strict)
        sides = [pair for pair in zip(left, right, strict=True) if any(pair)]
        if _is_set(one.left) or _is_set(one.right):
            # The other side must have the constant's kind to be equal, so an index can be used.
            sides = [pair for pair in sides if all(pair)]
            equals = "=" if wanted else self.dialect.differs
        else:
            equals = self.dialect.same if wanted else self.dialect.differs
        answers = [f"{this or 'NULL'} {equals} {that or 'NULL'}" for this, that in sides]
        if wanted:
            return " AND ".join(answers) or YES
        return " OR ".join(answers) or NO

    def _same_id(self, constant: Constant) -> str:
        """By the index on ids, which are not texts in PostgreSQL."""
        if not isinstance(constant.value, str) or not is_job_id(constant.value):
            return NO
        return f"{self.column('id')} = {self.dialect.bound_id(constant.value)}"

    def _date(self, operand: Operand) -> str:
        """In milliseconds."""
        if isinstance(operand, JobField):
            return f"coalesce({self.column(operand.name)}, {LOWEST})"
        assert isinstance(operand, Constant)
        when = instant(str(operand.value))
        assert when is not None
        return self.dialect.bound_number((when - EPOCH) // timedelta(milliseconds=1))

    def _in_order(self, left: SqlValue, sign: str, right: SqlValue) -> str:
        answers = []
        if left.number and right.number:
            answers.append(f"{left.number} {sign} {right.number}")
        if left.text and right.text:
            answers.append(f"{self.dialect.in_bytes(left.text)} {sign} {right.text}")
        return " OR ".join(answers)

    def _like(self, left: Operand, right: Operand, wanted: bool) -> str:
        if Constant(None) in (left, right):
            return NO
        whole = self.dialect.lower(self._written(left))
        if isinstance(right, Wildcard):
            pattern = self.dialect.bound_text(right.pattern)
            return f"{whole} {'' if wanted else 'NOT '}LIKE {pattern} ESCAPE '\\'"
        part = self._written(right)
        found = self.dialect.contains(whole, self.dialect.lower(part))
        if not isinstance(right, Constant):  # of any length; null is like nothing and unlike nothing
            found = f"CASE WHEN length({part}) <= {MAX_PATTERN} THEN {found} END"
        return found if wanted else f"NOT ({found})"

    # -- operands ------------------------------------------------------------------------------

    def _to_equal(self, operand: Operand, other: Operand, strict: bool) -> SqlValue:
        """For = and !=: unless strict, the empty text is null; next to a constant this can be left out."""
        if isinstance(operand, Constant) and not strict and is_empty(operand.value):
            return SqlValue()
        if isinstance(operand, JobField) and operand.kind is not FieldKind.NUMBER and not strict:
            text = self._text(operand)
            return SqlValue(text=text if _is_set(other) else f"NULLIF({text}, '')")
        return self._value(operand)

    def _value(self, operand: Operand) -> SqlValue:
        match operand:
            case Constant(value=None):
                return SqlValue()
            case Constant(value=str() as text):
                return SqlValue(text=self.dialect.bound_text(text))
            case Constant(value=int() | float() as number):
                return SqlValue(number=self.dialect.bound_number(number))
            case JobField() if operand.kind is FieldKind.NUMBER:
                return SqlValue(number=f"({self.column(operand.name)})")
            case JobField():
                return SqlValue(text=f"coalesce({self._text(operand)}, '')")
            case JobPath():
                return self.lookup(operand).value
            case _:
                raise AssertionError(f"{operand} stands on the right of ~ only")

    def _text(self, field: JobField) -> str:
        column = self.column(field.name)
        if field.name == "id":
            column = self.dialect.id_text(column)
        elif field.kind is FieldKind.DATE:
            column = self.dialect.date_text(column)
        return self.dialect.lower(column) if field.lower else column

    def _written(self, operand: Operand) -> str:
        """The text that ~ searches."""
        match operand:
            case Constant():
                return self.dialect.bound_text(written(operand.value) or "")
            case JobField() if operand.kind is FieldKind.NUMBER:
                return f"CAST({self.column(operand.name)} AS text)"
            case JobField():
                return f"coalesce({self._text(operand)}, '')"
            case JobPath():
                return self.lookup(operand).written
            case _:
                raise AssertionError(f"{operand} stands on the right of ~ only")


def _joined(word: str, parts: list[str]) -> str:
    """By halves: SQLite rejects expressions more than a thousand deep, and a plain chain of n parts is n deep."""
    if len(parts) <= 8:
        return word.join(parts)
    middle = len(parts) // 2
    return f"({_joined(word, parts[:middle])}){word}({_joined(word, parts[middle:])})"


# A bound value must appear in the statement, so impossible pairs are found before anything is bound.


def _kinds(operand: Operand) -> set[type]:
    """Whether it can be a number, a text, or either."""
    match operand:
        case Constant(value=None):
            return set()
        case Constant(value=str()):
            return {str}
        case Constant():
            return {float}
        case JobField() if operand.kind is FieldKind.NUMBER:
            return {float}
        case JobPath():
            return {float, str}
        case _:
            return {str}


def _is_set(operand: Operand) -> bool:
    return isinstance(operand, Constant) and not is_empty(operand.value)


def _is_id(operand: Operand) -> bool:
    return operand == JobField("id")


def _is_date(operand: Operand) -> bool:
    """Texts that are dates compare like the texts do, but by a number."""
    match operand:
        case JobField():
            return operand.kind is FieldKind.DATE
        case Constant(value=str() as text):
            return canonical_date(text) == text
        case _:
            return False
