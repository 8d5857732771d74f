"""Both stores observe how long their statements take."""

import pytest

from treadle.store.connect import make_store
from treadle.store.sql.store import SqlStore


async def test_reads_and_the_statements_of_scripts_are_observed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(url, stale_after_ms=1)
    assert isinstance(store, SqlStore)
    await store.open()
    seen: dict[str, float] = {}
    monkeypatch.setattr(type(store.slow), "observe", lambda self, name, seconds: seen.update({name: seconds}))
    await store.now()
    await store.tidy()
    await store.close()
    assert {"clock", "drop_empty_tally"} <= seen.keys()
    assert all(0 <= seconds < 60 for seconds in seen.values())
    assert "treadle doctor" in store.slow_advice
