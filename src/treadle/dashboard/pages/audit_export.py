"""The audit log as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from starlette.responses import Response

from treadle.dashboard.page import Page
from treadle.model.job import rfc3339
from treadle.queue.audit import AuditEntry

MOST = 50_000
COLUMNS = ("at", "who", "kind", "action", "target", "filter", "reason", "changed", "skipped")


async def export(page: Page) -> Response:
    """The entries that match the search, newest first."""
    entries = await page.state.audit.search(page.query("audit")[:200], MOST, who=page.query("who")[:200], among=MOST)
    headers = {
        "Cache-Control": "no-store",
        "Content-Disposition": f'attachment; filename="treadle-audit-{page.now:%Y-%m-%d}.csv"',
    }
    return Response(as_csv(entries), headers=headers, media_type="text/csv")


def as_csv(entries: Sequence[AuditEntry]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for entry in entries:
        writer.writerow([rfc3339(entry.at), *(_cell(getattr(entry, name)) for name in COLUMNS[1:])])
    return text.getvalue()


def _cell(value: str | int | None) -> str | int | None:
    """A spreadsheet would run a text that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple("=+-@\t\r")) else value
