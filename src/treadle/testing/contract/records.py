"""Records: small documents stored by kind, id and key, and updated by compare-and-set on their version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.model.errors import InvalidInput, KeyReused, VersionConflict
from treadle.store.protocol import Store
from treadle.store.values import Inserted, Record, RecordWrite, TopicOptions
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import HOUR, MINUTE, TOPIC, Workbench, new_job

ODD = ["", "NULL", "a'b", 'a"b', "a\\b", "{}", "%", "_", "Ünïcödé 🎉", "a\nb\tc", "x" * 1000]


async def put(
    store: Store, kind: str, id: str, key: str, body: str, version: int | None = None, due: int | None = None
) -> Record | None:
    (record,) = await store.write_records([RecordWrite(kind, id, key, body, due, version)])
    return record


async def made(bench: Workbench, id: str = "a", key: str | None = None, kind: str = "users") -> Record:
    record = await put(bench.store, kind, id, key or f"{id}@example.com", '{"n":1}')
    assert record is not None
    return record


class RecordContract(ContractPart):
    async def test_what_was_made_comes_back(self, bench: Workbench) -> None:
        before = await bench.store.now()
        record = await made(bench)
        after = await bench.store.now()
        assert record == Record("users", "a", "a@example.com", '{"n":1}', 1, record.created_at, record.created_at)
        assert before <= record.created_at <= after < before + MINUTE
        assert await bench.store.get_records([("users", "a")]) == [record]
        assert await bench.store.find_records("users", key="a@example.com") == [record]
        assert await bench.store.find_records("users") == [record]

    async def test_every_process_sees_it_immediately(self, bench: Workbench) -> None:
        other = await bench.another()
        record = await made(bench)
        assert await other.get_records([("users", "a")]) == [record]
        changed = await put(other, "users", "a", "a@example.com", "{}", 1)
        assert await bench.store.get_records([("users", "a")]) == [changed]

    async def test_what_is_not_there(self, bench: Workbench) -> None:
        await made(bench)
        assert await bench.store.get_records([("users", "b"), ("_superusers", "a")]) == [None, None]
        assert await bench.store.find_records("users", key="b@example.com") == []
        assert await bench.store.find_records("_superusers", key="a@example.com") == []
        assert await bench.store.find_records("users", key="a") == []
        assert await bench.store.find_records("_superusers") == []
        assert not await bench.store.delete_records([("_superusers", "a")])

    async def test_many_are_read_together_in_the_order_asked(self, bench: Workbench) -> None:
        a, b = await made(bench, "a"), await made(bench, "b")
        install = await made(bench, "a", "signing", kind="install")
        wanted = [("users", "b"), ("install", "a"), ("users", "x"), ("users", "a"), ("users", "b")]
        assert await bench.store.get_records(wanted) == [b, install, None, a, b]
        assert await bench.store.get_records([]) == []

    async def test_kinds_do_not_know_each_other(self, bench: Workbench) -> None:
        user, superuser = await made(bench, kind="users"), await made(bench, kind="_superusers")
        assert await bench.store.delete_records([("users", "a")])
        assert await bench.store.get_records([("users", "a"), ("_superusers", "a")]) == [None, superuser]
        assert user.key == superuser.key

    async def test_an_id_is_given_once(self, bench: Workbench) -> None:
        record = await made(bench)
        assert await put(bench.store, "users", "a", "other@example.com", "{}") is None
        assert await bench.store.find_records("users") == [record]

    async def test_a_key_is_given_once(self, bench: Workbench) -> None:
        record = await made(bench)
        assert await put(bench.store, "users", "b", "a@example.com", "{}") is None
        assert await bench.store.find_records("users") == [record]

    async def test_a_change_is_a_new_version(self, bench: Workbench) -> None:
        record = await made(bench)
        changed = await put(bench.store, "users", "a", "new@example.com", '{"n":2}', record.version)
        assert changed is not None
        assert changed[:6] == ("users", "a", "new@example.com", '{"n":2}', 2, record.created_at)
        assert changed.updated_at >= record.updated_at
        assert await bench.store.find_records("users", key="new@example.com") == [changed]
        assert await bench.store.find_records("users", key="a@example.com") == []
        assert await put(bench.store, "users", "b", "a@example.com", "{}"), "the old key is free again"

    async def test_a_change_keeps_its_own_key(self, bench: Workbench) -> None:
        record = await made(bench)
        changed = await put(bench.store, "users", "a", record.key, "[]", 1)
        assert changed is not None
        assert (changed.key, changed.body, changed.version) == (record.key, "[]", 2)

    async def test_a_change_over_another_version_is_refused(self, bench: Workbench) -> None:
        record = await made(bench)
        for version in (0, 2, -1, 10**9):
            assert await put(bench.store, "users", "a", "x", "{}", version) is None
        assert await bench.store.get_records([("users", "a")]) == [record]

    async def test_a_change_of_what_is_gone_is_refused(self, bench: Workbench) -> None:
        await made(bench)
        await bench.store.delete_records([("users", "a")])
        assert await put(bench.store, "users", "a", "a@example.com", "{}", 1) is None
        assert await bench.store.get_records([("users", "a")]) == [None]

    async def test_a_change_to_anothers_key_is_refused(self, bench: Workbench) -> None:
        a, b = await made(bench, "a"), await made(bench, "b")
        assert await put(bench.store, "users", "b", a.key, "{}", b.version) is None
        assert await bench.store.find_records("users") == [a, b]

    async def test_deleting_frees_id_and_key(self, bench: Workbench) -> None:
        await made(bench)
        assert await bench.store.delete_records([("users", "a")])
        assert not await bench.store.delete_records([("users", "a")])
        assert await bench.store.find_records("users") == []
        again = await made(bench)
        assert again.version == 1

    async def test_the_oldest_are_listed_first(self, bench: Workbench) -> None:
        ids = ["z", "a", "m", "b"]
        for id in ids:
            await made(bench, id)
        await made(bench, kind="_superusers")
        await put(bench.store, "users", "z", "z@example.com", "{}", 1)
        assert [record.id for record in await bench.store.find_records("users")] == ids
        assert [record.id for record in await bench.store.find_records("users", limit=2)] == ids[:2]
        assert await bench.store.find_records("users", limit=0) == []

    async def test_the_newest_can_be_listed_first(self, bench: Workbench) -> None:
        for id in ("z", "a", "m"):
            await made(bench, id)
        assert [record.id for record in await bench.store.find_records("users", newest=True, limit=2)] == ["m", "a"]

    async def test_texts_are_kept_to_the_letter(self, bench: Workbench) -> None:
        body = '{"b": 1.0,\n "a": "\\u0000 \\ud800 ü 🎉", "a": 12345678901234567890}'
        for i, text in enumerate(ODD):
            record = await put(bench.store, f"kind {text}", f"{i}{text}", text, body)
            assert record is not None
            assert record[:4] == (f"kind {text}", f"{i}{text}", text, body)
            assert await bench.store.find_records(f"kind {text}", key=text) == [record]
            assert await bench.store.get_records([(f"kind {text}", f"{i}{text}")]) == [record]

    async def test_letters_are_compared_to_the_letter(self, bench: Workbench) -> None:
        for id, key in (("a", "k"), ("A", "K"), ("ä", "kk"), ("a ", "k "), (" a", " k")):
            assert await put(bench.store, "users", id, key, "{}")
        assert len(await bench.store.find_records("users")) == 5

    @pytest.mark.parametrize("text", ["a\x00b", "\x00", "\ud800", "a\udfffb"])
    async def test_what_no_database_can_store_is_not_there(self, bench: Workbench, text: str) -> None:
        await made(bench, "a", "a")
        assert await bench.store.find_records("users", key=text) == []
        assert await bench.store.find_records(text, key="a") == []
        assert await bench.store.get_records([("users", text), ("users", "a"), (text, "a")]) == [
            None,
            *await bench.store.find_records("users", key="a"),
            None,
        ]
        assert not await bench.store.delete_records([("users", text)])
        assert await bench.store.find_records(text) == []
        for kind, id, key, body in ((text, "b", "b", "{}"), ("users", text, "b", "{}"), ("users", "b", text, "{}")):
            with pytest.raises(InvalidInput):
                await put(bench.store, kind, id, key, body)
        with pytest.raises(InvalidInput):
            await put(bench.store, "users", "a", "a", text, 1)

    async def test_of_a_batch_the_possible_writes_are_written(self, bench: Workbench) -> None:
        a, b = await made(bench, "a"), await made(bench, "b")
        writes = [
            RecordWrite("users", "c", "c", "{}"),
            RecordWrite("users", "a", "a", "[1]", version=a.version),
            RecordWrite("users", "b", b.key, "[2]", version=b.version + 1),
            RecordWrite("users", "d", b.key, "{}"),
        ]
        answers = await bench.store.write_records(writes)
        assert [one and (one.id, one.body, one.version) for one in answers] == [
            ("c", "{}", 1),
            ("a", "[1]", a.version + 1),
            None,
            None,
        ]
        assert [one.id for one in await bench.store.find_records("users")] == ["a", "b", "c"]
        assert await bench.store.write_records([]) == []

    async def test_of_two_writes_of_a_batch_for_one_record_or_key_the_first_is_written(self, bench: Workbench) -> None:
        a, b = await made(bench, "a"), await made(bench, "b")
        twice = [RecordWrite("users", "a", "a", text, version=a.version) for text in ("[1]", "[2]")]
        answers = await bench.store.write_records(twice)
        assert [one and one.body for one in answers] == ["[1]", None]
        same_key = [RecordWrite("users", "b", "k", "{}", version=b.version), RecordWrite("users", "c", "k", "{}")]
        answers = await bench.store.write_records(same_key)
        assert [one and one.id for one in answers] == ["b", None]

    async def test_many_are_deleted_at_the_same_time(self, bench: Workbench) -> None:
        for id in "abc":
            await made(bench, id)
        assert await bench.store.delete_records([("users", "a"), ("users", "x"), ("users", "c")]) == 2
        assert [one.id for one in await bench.store.find_records("users")] == ["b"]
        assert await bench.store.delete_records([]) == 0

    async def test_of_many_who_make_the_same_one_does(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        for turn in range(5):
            answers = await asyncio.gather(
                *(put(stores[i % 4], "users", f"{turn}-{i}", f"{turn}", f'{{"i":{i}}}') for i in range(12))
            )
            assert sum(answer is not None for answer in answers) == 1
        assert len(await bench.store.find_records("users")) == 5

    async def test_of_many_who_change_the_same_version_one_does(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        await made(bench)
        for version in range(1, 6):
            answers = await asyncio.gather(
                *(put(stores[i % 4], "users", "a", "a", f'{{"i":{i}}}', version) for i in range(12))
            )
            won = [answer for answer in answers if answer is not None]
            assert [record.version for record in won] == [version + 1]
            assert await bench.store.get_records([("users", "a")]) == won

    async def test_of_many_who_want_the_same_key_one_gets_it(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        for i in range(12):
            await made(bench, f"{i}")
        for version in (1, 2, 3):
            current = {record.id: record.version for record in await bench.store.find_records("users")}
            answers = await asyncio.gather(
                *(put(stores[i % 4], "users", f"{i}", f"wanted-{version}", "{}", current[f"{i}"]) for i in range(12))
            )
            assert sum(answer is not None for answer in answers) == 1
        assert len(await bench.store.find_records("users")) == 12

    async def test_of_many_who_delete_one_did(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        await made(bench)
        answers = await asyncio.gather(*(stores[i % 4].delete_records([("users", "a")]) for i in range(12)))
        assert sum(answers) == 1

    async def test_due_records_are_found_earliest_first(self, bench: Workbench) -> None:
        for id, due in (("late", 300), ("never", None), ("early", 100), ("middle", 200)):
            await put(bench.store, "schedule", id, id, "{}", due=due)
        await put(bench.store, "other", "a", "a", "{}", due=50)
        found = await bench.store.find_records("schedule", due_before=300)
        assert [(record.id, record.due) for record in found] == [("early", 100), ("middle", 200)]
        assert [record.id for record in await bench.store.find_records("schedule", due_before=999, limit=2)] == [
            "early",
            "middle",
        ]
        await put(bench.store, "schedule", "early", "early", "{}", 1, due=400)
        await put(bench.store, "schedule", "middle", "middle", "{}", 1)
        found = await bench.store.find_records("schedule", due_before=999)
        assert [record.id for record in found] == ["late", "early"]

    async def test_a_record_and_jobs_commit_together(self, bench: Workbench) -> None:
        await put(bench.store, "schedule", "a", "a", "{}", due=100)
        job = new_job(schedule_id="a", scheduled_at=100, slot="a|100")
        answers = await bench.store.insert([job], records=[RecordWrite("schedule", "a", "a", '{"n":2}', 200, 1)])
        assert isinstance(answers[0], Inserted)
        [record] = await bench.store.get_records([("schedule", "a")])
        assert record is not None
        assert (record.body, record.due, record.version, record.key) == ('{"n":2}', 200, 2, "a")
        [made] = await bench.store.get([job.id])
        assert made is not None
        assert made.schedule_id == "a"
        assert made.as_json()["scheduledAt"] == "1970-01-01T00:00:00.100Z"

    async def test_a_record_that_was_changed_stores_no_job(self, bench: Workbench) -> None:
        for id in ("a", "b"):
            await put(bench.store, "schedule", id, id, "{}", due=100)
        await put(bench.store, "schedule", "a", "a", "{}", 1, due=100)
        job = new_job(schedule_id="a", slot="a|100")
        writes = [RecordWrite("schedule", id, id, "[]", 200, 1) for id in ("b", "a")]
        with pytest.raises(VersionConflict):
            await bench.store.insert([job], records=writes)
        assert await bench.store.get([job.id]) == [None]
        assert [one.due for one in await bench.store.find_records("schedule")] == [100, 100]

    async def test_a_record_is_changed_though_a_job_is_refused(self, bench: Workbench) -> None:
        await put(bench.store, "schedule", "a", "a", "{}", due=100)
        await bench.enqueue(idempotency_key="k")
        reused = new_job(schedule_id="a", slot="a|100", idempotency_key="k", payload='{"to": "bob"}')
        jobs = [reused, new_job(schedule_id="a", slot="a|101")]
        refused, made = await bench.store.insert(
            jobs, atomic=False, records=[RecordWrite("schedule", "a", "a", "{}", None, 1)]
        )
        assert isinstance(refused, KeyReused)
        assert isinstance(made, Inserted)
        assert (await bench.store.find_records("schedule"))[0].due is None

    async def test_a_slot_makes_one_job_for_any_number_of_callers(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        await put(bench.store, "schedule", "a", "a", "{}", due=100)

        async def fire(store: Store, turn: int) -> bool:
            try:
                job = new_job(schedule_id="a", scheduled_at=turn, slot=f"a|{turn}")
                await store.insert([job], records=[RecordWrite("schedule", "a", "a", "{}", 100, turn)])
            except VersionConflict:
                return False
            return True

        for turn in range(1, 6):
            fired = await asyncio.gather(*(fire(stores[i % 4], turn) for i in range(8)))
            assert fired.count(True) == 1
        assert (await bench.store.stats()).counts["pending"] == 5

    async def test_a_slot_that_has_its_job_makes_no_other(self, bench: Workbench) -> None:
        first, second = (new_job(schedule_id="a", slot="a|100", payload=text) for text in ('{"a":1}', '{"a":2}'))
        await bench.store.insert([first])
        [answer] = await bench.store.insert([second])
        assert isinstance(answer, Inserted)
        assert answer.existing_id == first.id

    async def test_records_are_made_and_changed_together(self, bench: Workbench) -> None:
        await bench.store.write_records([RecordWrite("template", "b", "b", "{}")])
        await bench.store.write_records(
            [RecordWrite("template", "b", "b", "[]", version=1), RecordWrite("template", "a", "a", "{}")]
        )
        found = await bench.store.get_records([("template", "a"), ("template", "b")])
        assert [(one.key, one.body, one.version) for one in found if one] == [("a", "{}", 1), ("b", "[]", 2)]

    @pytest.mark.parametrize("version", [None, 2])
    async def test_one_that_is_not_as_expected_leaves_all_as_they_were(
        self, bench: Workbench, version: int | None
    ) -> None:
        [old] = await bench.store.write_records([RecordWrite("template", "b", "b", "{}")])
        writes = [
            RecordWrite("template", "a", "a", "{}"),
            RecordWrite("template", "b", "b", "[]", version=version),
        ]
        with pytest.raises(VersionConflict):
            await bench.store.write_records(writes, atomic=True, topics=[TopicOptions(TOPIC, 1, HOUR)])
        assert await bench.store.find_records("template") == [old]
        await bench.enqueue(2)
        assert len(await bench.claim(2)) == 2, "the rate was not stored"

    async def test_a_taken_key_never_drops_the_rates_that_come_with_it(self, bench: Workbench) -> None:
        [old, _] = await bench.store.write_records([RecordWrite("template", id, id, "{}") for id in ("a", "b")])
        writes = [RecordWrite("template", "a", "b", "[]", version=1), RecordWrite("template", "c", "c", "{}")]
        topics = [TopicOptions(TOPIC, 1, HOUR)]
        with pytest.raises(InvalidInput, match="atomic=True"):
            await bench.store.write_records(writes, topics=topics)
        with pytest.raises(VersionConflict):
            await bench.store.write_records(writes, atomic=True, topics=topics)
        assert [one.id for one in await bench.store.find_records("template")] == ["a", "b"]
        written = await bench.store.write_records(writes[1:], atomic=True, topics=topics)
        assert [one and one.id for one in written] == ["c"]
        assert await bench.store.get_records([("template", "a")]) == [old]
        await bench.enqueue(2)
        assert len(await bench.claim(2)) == 1, "the rate was stored with the record"

    async def test_of_many_who_write_the_same_records_one_does(self, bench: Workbench) -> None:
        stores = [bench.store, *await bench.others(3)]
        await bench.store.write_records([RecordWrite("template", "e", "e", "{}")])

        async def write(store: Any, turn: int) -> bool:
            new = [RecordWrite("template", f"{turn}{letter}", f"{turn}{letter}", "{}") for letter in "dcba"]
            try:
                await store.write_records([*new, RecordWrite("template", "e", "e", "{}", version=turn)], atomic=True)
            except VersionConflict:
                return False
            return True

        for turn in range(1, 6):
            written = await asyncio.gather(*(write(stores[i % 4], turn) for i in range(8)))
            assert written.count(True) == 1
        assert len(await bench.store.find_records("template")) == 21

    async def test_a_text_that_no_database_can_store_is_refused(self, bench: Workbench) -> None:
        with pytest.raises(InvalidInput):
            await bench.store.write_records([RecordWrite("template", "a", "a", "a\x00b")])

    async def test_a_topic_with_a_template_is_a_topic(self, bench: Workbench) -> None:
        await bench.store.write_records([RecordWrite("template", "mail", "mail", "{}")])
        assert [one.topic for one in await bench.store.topics()] == ["mail"]
