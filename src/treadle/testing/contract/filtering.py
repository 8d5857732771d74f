"""Lists with filters and sort orders: the store must agree with `treadle.rules.matches`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from treadle.model.errors import InvalidInput
from treadle.model.job import Job
from treadle.model.status import Status
from treadle.policy import rules
from treadle.policy.lifecycle import Completed, Failed
from treadle.policy.rules import Condition, matches
from treadle.queue import steering
from treadle.store.values import Touch
from treadle.store.views import Listing
from treadle.testing.contract.suite import ContractPart
from treadle.testing.workbench import DAY, HOUR, MINUTE, STATES, Workbench

PAYLOADS = [
    "{}",
    '{"x":null}',
    '{"x":""}',
    '{"x":"a"}',
    '{"x":"A"}',
    '{"x":"ä"}',
    '{"x":1}',
    '{"x":1.0}',
    '{"x":"1"}',
    '{"x":true}',
    '{"x":false}',
    '{"x":"true"}',
    '{"x":0}',
    '{"x":2.5}',
    '{"x":0.30000000000000004}',
    '{"x":9007199254740993}',
    '{"x":-5}',
    '{"x":1e+300}',
    '{"x":[]}',
    '{"x":["a","b"]}',
    '{"x":{"y":"a"}}',
    '{"x":{"y":[{"z":1}]}}',
    '{"x":{"0":"key"}}',
    '{"x":"50% off_now\\\\"}',
    '{"x":"line\\nbreak \\"quoted\\""}',
    '{"X":"a"}',
]

FILTERS = [
    "payload.x = 1",
    "payload.x = '1'",
    "payload.x != 1",
    "payload.x = null",
    "payload.x != null",
    "payload.x = ''",
    "payload.x != ''",
    "payload.x = true",
    "payload.x = 0",
    "payload.x > 0",
    "payload.x >= 2.5",
    "payload.x < 1",
    "payload.x = 0.30000000000000004",
    "payload.x = 9007199254740993",
    "payload.x > 'Z'",
    "payload.x < 'b'",
    "payload.x <= ''",
    "payload.x ~ 'A'",
    "payload.x !~ 'a'",
    "payload.x ~ ''",
    "payload.x ~ 'Ä'",
    "payload.x ~ 'ä'",
    "payload.x ~ '1'",
    "payload.x ~ 1",
    "payload.x !~ 1",
    "payload.x ~ '0.30000000000000004'",
    "payload.x ~ '_'",
    "payload.x ~ '%'",
    "payload.x ~ '5_\\% %'",
    "payload.x ~ '%w\\\\\\\\'",
    "payload.x ~ 'now\\\\\\\\'",
    "payload.x = '[]'",
    'payload.x = \'["a","b"]\'',
    "payload.x.0 = 'a'",
    "payload.x.1 != null",
    "payload.x.y = 'a'",
    "payload.x.y.0.z = 1",
    "payload.x.y ~ '\"z\":1'",
    "payload.X = 'a'",
    "payload.x = payload.X",
    "payload.x = payload.x",
    "payload.x != payload.y",
    "payload.x < payload.x.y",
    "payload.x ~ payload.x",
    "payload ~ '\"X\"'",
    "payload = '{}'",
    "payload.99999999999 = null",
    "topic = payload.x",
    "topic != payload.x",
    "topic > payload.x",
    "priority = payload.x",
    "priority != payload.x",
    "priority > payload.x",
    "templateVersion = payload.x",
    "scope = payload.x",
    "scope = ''",
    "scope != ''",
    "scope = topic",
    "scope != scopeId",
    "scope < 'z'",
    "scope ~ 'x' || topic !~ '_'",
    "topic:lower = 'mail_digest'",
    "'a user here' ~ scope",
    "topic = 5",
    "topic != 5",
    "priority = '50'",
    "priority != '50'",
    "priority = 50.0",
    "priority = 50.5",
    "priority >= 50",
    "priority ~ 5",
    "1 = 1",
    "1 = 2",
    "payload.x = 1 || payload.x = 'a' && topic = 'mail_digest'",
    "(payload.x = 1 || payload.x = 'a') && topic = 'mail_digest'",
]


class FilterContract(ContractPart):
    async def agreed(
        self, bench: Workbench, wanted: Condition | str, among: Sequence[Job] | None = None, **options: Any
    ) -> list[str]:
        """The jobs that the store finds, checked against the rule evaluated in Python."""
        condition = rules.parse_filter(wanted) if isinstance(wanted, str) else wanted
        if among is None:
            among = await bench.store.list(Listing(limit=1000, **options))
        expected = [job.id for job in among if matches(condition, job.as_json())]
        listing = Listing(limit=1000, condition=condition, **options)
        assert [job.id for job in await bench.store.list(listing)] == expected, wanted
        assert await bench.store.count(listing) == len(expected), wanted
        return expected

    async def test_by_what_is_in_the_payload(self, bench: Workbench) -> None:
        for payload in PAYLOADS:
            await bench.enqueue_one(payload=payload, topic="mail_digest")
        for options in ({}, {"scope": ""}, {"scope": "user", "scope_id": "user", "template_version": 1}):
            await bench.enqueue_one(payload='{"x":1}', topic="other", priority=1, **options)
        jobs = await bench.store.list(Listing(limit=1000))
        counts = [len(await self.agreed(bench, text, jobs)) for text in FILTERS]
        assert sum(0 < count < len(PAYLOADS) for count in counts) > 40

    @pytest.mark.parametrize(
        ("text", "states"),
        [
            ("status = 'pending'", "pending delayed retrying held"),
            ("status != 'pending'", "processing cancelling completed failed cancelled expired"),
            ("status ~ 'cancel'", "cancelling cancelled"),
            ("status = 'failed' || status = 'expired'", "failed expired"),
            ("attempt = 1", "processing cancelling completed failed retrying expired"),
            ("retries > 0", "failed retrying expired"),
            ("retries = attempt", "pending delayed held retrying failed cancelled expired"),
            ("progress = 100", "completed"),
            ("lastError ~ 'boom'", "failed retrying"),
            ("errorType = 'Boom'", "failed retrying"),
            ("lockedBy = 'w1'", "processing cancelling"),
            ("lockedBy = ''", "pending delayed held retrying completed failed cancelled expired"),
            ("claimedAt != ''", "processing cancelling completed failed expired"),
            ("startedAt = ''", "pending delayed held retrying processing cancelling cancelled expired"),
            ("completedAt != ''", "completed"),
            ("failedAt < @tomorrow && failedAt != ''", "failed"),
            ("cancelledAt > '2020-01-01'", "cancelled"),
            ("cancelReason = 'not wanted'", "cancelling cancelled"),
            ("runAt > @now", "delayed retrying"),
            ("maxAttempts = 1", "expired"),
            (
                "maxRetries = 3 && createdAt <= @tomorrow",
                " ".join(STATES).replace(" expired", "").replace("expired ", ""),
            ),
            ("result.sent = 1", "completed"),
            ("result = null", " ".join(state for state in STATES if state != "completed")),
            ("status = 'failed' && lastError ~ 'no more'", "failed"),
            ("status = 'processing' && lockedBy != '' && attempt = 1", "processing"),
            ("status = 'pending' && attempt > 0", "retrying"),
            ("status = 'cancelled' && status = 'failed'", ""),
            ("status = 'stale'", ""),
            ("status != 'stale'", " ".join(STATES)),
            ("lockedUntil > @now", "processing cancelling"),
            ("lastHeartbeatAt = ''", "pending delayed held retrying completed failed cancelled expired"),
            ("cancelRequestedAt != ''", "cancelling cancelled"),
            ("eventsCount = 1", "pending delayed held processing"),
            ("eventsCount = 3", "retrying completed failed"),
            ("steps = '[]' && steps.0 = null && step = ''", " ".join(STATES)),
            ("parentId != '' || scheduleId ~ 'a' || webhookUrl > 'a' || webhookSent = false", ""),
        ],
    )
    async def test_by_state(self, bench: Workbench, text: str, states: str) -> None:
        made = {state: await bench.make(state, topic=f"t.{state}") for state in STATES}
        found = await self.agreed(bench, f"({text}) && topic != 'in.front'")
        assert set(found) == {made[state] for state in states.split()}

    async def test_every_field_is_what_the_job_says(self, bench: Workbench) -> None:
        for state in STATES:
            await bench.make(
                state, topic=f"t.{state}", scope="user", scope_id="ann", created_by="bob", template_version=2
            )
        await bench.enqueue_one(idempotency_key="k", capability="media", expires_in_ms=HOUR)
        await bench.pass_time(8 * DAY)
        await bench.make("failed", topic="new")
        jobs = await bench.store.list(Listing(limit=100))
        for name, kind in rules.FIELDS.items():
            values = [job.as_json()[name] for job in jobs]
            for value in dict.fromkeys(values):
                literal = "null" if value is None else value if kind is rules.FieldKind.NUMBER else repr(str(value))
                found = await self.agreed(bench, f"{name} = {literal}", jobs)
                assert len(found) == values.count(value), name
                await self.agreed(bench, f"{name} > {literal} || {name} !~ {literal}", jobs)

    async def test_by_its_last_change(self, bench: Workbench) -> None:
        """The latest of a job's timestamps."""
        topics = ("retried", "completed", "cancelling", "started", "claimed")
        waiting, *ids = [await bench.enqueue_one(topic=topic) for topic in ("waiting", *topics)]
        made = dict(zip(topics, ids, strict=True))
        await bench.pass_time(MINUTE)
        jobs = {topic: await bench.claim_one(topics=[topic]) for topic in topics}
        await bench.pass_time(MINUTE)
        for topic in ("started", "completed", "cancelling"):
            await bench.store.touch(jobs[topic].lease, [Touch(jobs[topic].n, jobs[topic].token, 0, None, None)])
        await bench.pass_time(MINUTE)
        await bench.settle(jobs["retried"], Failed("Boom", "Boom", retry_in_ms=HOUR))
        await bench.settle(jobs["completed"], Completed())
        await steering.cancel(bench.store, [made["cancelling"]], "")
        for text, found in {
            "updatedAt = createdAt": waiting,
            "updatedAt = claimedAt": made["claimed"],
            "updatedAt = startedAt": made["started"],
            "updatedAt = cancelRequestedAt": made["cancelling"],
            "updatedAt = completedAt": made["completed"],
            "updatedAt > createdAt && claimedAt = ''": made["retried"],
        }.items():
            assert await self.agreed(bench, text) == [found], text

    async def test_together_with_the_listings_own_choice(self, bench: Workbench) -> None:
        for state in STATES:
            await bench.make(state, topic=f"t.{state}", scope="user", scope_id=state)
        await bench.pass_time(8 * DAY)
        failed = await bench.make("failed", topic="new", scope="user", scope_id="ann")
        for text in (
            "payload.to = 'ann'",
            "status = 'failed'",
            "status = 'stale'",
            "topic = 'new'",
            "scope = 'user' && scopeId = 'ann'",
        ):
            for options in ({}, {"stale": True}, {"topic": "new"}, {"scope": "user"}, {"scope_id": "ann"}):
                await self.agreed(bench, text, **options)
            for status in Status:
                await self.agreed(bench, text, status=status)
        assert await self.agreed(bench, "status = 'failed' && scopeId = 'ann'", topic="new") == [failed]
        assert await self.agreed(bench, "staleAt = ''", status=Status.FAILED) == [failed]
        assert await self.agreed(bench, "status != 'stale' && status = 'failed'") == [failed]
        assert failed not in await self.agreed(bench, "status = 'stale'")

    async def test_by_id(self, bench: Workbench) -> None:
        a, b = await bench.enqueue(2)
        assert await self.agreed(bench, f"id = '{a}'") == [a]
        assert await self.agreed(bench, f"'{a}' = id") == [a]
        assert await self.agreed(bench, f"id != '{a}'") == [b]
        assert await self.agreed(bench, f"id:lower = '{b}'") == [b]
        for text in ("id = 'nonsense'", "id = ''", "id = null", "id = 1", f"id = '{a.upper()}'"):
            assert await self.agreed(bench, text) == []
        assert await self.agreed(bench, f"id ~ '{a[-6:]}'") == [a]
        assert await self.agreed(bench, f"id ~ '{a[:8]}%'")

    async def test_search(self, bench: Workbench) -> None:
        failed = await bench.make("failed", payload='{"userId":123}')
        text = await bench.enqueue_one(payload='{"userId":"123"}', idempotency_key="Key_7%", topic="digest")
        other = await bench.enqueue_one(payload='{"userId":124}', priority=75, scope="user", scope_id="ann")
        for words, found in {
            "payload.userId:123": [text, failed],
            "-payload.userId:123": [other],
            "boom": [failed],
            "-boom": [other, text],
            "error:BOOM status:failed": [failed],
            "key_7%": [text],
            "7_": [],
            "topic:digest": [text],
            "priority:high scope:user": [other],
            "scopeId:ann -topic:digest": [other],
            f"id:{other}": [other],
            "status:stale": [],
            "": [other, text, failed],
        }.items():
            assert await self.agreed(bench, rules.parse_search(words)) == found, words

    async def test_search_by_time(self, bench: Workbench) -> None:
        failed = await bench.make("failed")
        pending = await bench.enqueue_one()
        for words, found in {
            "created:1h": [pending, failed],
            "created:>1h": [],
            "failed:1h": [failed],
            "-failed:1h": [pending],
            "ended:1h status:failed": [failed],
            "ran:<1h": [failed],
            "-ran:>1h": [failed],
            "ran:>1h": [],
            "waited:<1h": [pending, failed],
            "waited:>1h": [],
        }.items():
            assert await self.agreed(bench, rules.parse_search(words)) == found, words
        job = (await bench.store.get([failed]))[0]
        assert job
        assert await self.agreed(bench, rules.parse_search(f'worker:"{job.last_worker}"')) == [failed]

    async def test_values_are_values(self, bench: Workbench) -> None:
        await bench.enqueue(2)
        jobs = await bench.store.list(Listing())
        for text in ("' OR 1=1 --", "%", "_", "$1", "?1", "{}", "\\\\", '\\"', "{j}", ":x", "ü☃"):
            literal = "'" + text.replace("'", "\\'") + "'"
            for name in ("topic", "payload.x", "errorType", "createdAt", "id", "payload"):
                await self.agreed(bench, f"{name} = {literal} || {name} ~ {literal}", jobs)
                await self.agreed(bench, f"{name} > {literal}", jobs)
        for name in ("select", "payload", "a_b", "_", "x1"):
            assert await self.agreed(bench, f"payload.{name} != null") == []

    async def test_the_largest_condition(self, bench: Workbench) -> None:
        (id,) = await bench.enqueue(1, payload='{"a":{"b":199}}')
        assert await self.agreed(bench, " || ".join(f"payload.a.b = {n}" for n in range(30))) == []
        parts = [f"payload.a.b = {n} && status ~ 'p'" for n in range(100, 200)]
        rule = rules.parse_rule(" || ".join(parts))
        assert await self.agreed(bench, rule.bind(rules.RequestFacts())) == [id]
        assert await self.agreed(bench, "(" * 100 + "payload.a.b = 199" + ")" * 100) == [id]

    async def test_documents_of_the_newest_jobs_only(self, bench: Workbench) -> None:
        made = [await bench.enqueue_one(topic=topic, payload=f'{{"x":{i % 2}}}') for i, topic in enumerate("aabaab")]
        odd = rules.parse_filter("payload.x = 1")
        for newest, wanted in ((6, [5, 3, 1]), (4, [5, 3]), (1, [5])):
            listing = Listing(condition=odd, newest=newest)
            assert [job.id for job in await bench.store.list(listing)] == [made[i] for i in wanted]
            assert await bench.store.count(listing) == len(wanted)
        # Conditions on plain columns apply before `newest`.
        listing = Listing(condition=rules.both(odd, rules.parse_filter("topic = 'a'")), newest=2)
        assert [job.id for job in await bench.store.list(listing)] == [made[3]]
        oldest = Listing(condition=odd, newest=4, sort=rules.parse_sort("createdAt"))
        assert [job.id for job in await bench.store.list(oldest)] == [made[3], made[5]]
        by_topic = Listing(condition=odd, newest=4, sort=rules.parse_sort("-topic,createdAt"), limit=1)
        assert [job.id for job in await bench.store.list(by_topic)] == [made[5]]

    async def test_a_long_list_in_the_callers_record(self, bench: Workbench) -> None:
        mine = await bench.enqueue_one(scope_id="team1499")
        await bench.enqueue_one(scope_id="team1500")
        caller = rules.RequestFacts(auth={"id": "u1", "teams": [f"team{n}" for n in range(1500)]})
        assert await self.agreed(bench, rules.parse_rule("scopeId ?= @request.auth.teams:each").bind(caller)) == [mine]

    async def test_a_filter_too_large_for_one_statement_is_refused(self, bench: Workbench) -> None:
        caller = rules.RequestFacts(auth={"id": "u1", "teams": [f"team{n}" for n in range(1900)]})
        heavy = rules.parse_rule("payload ~ payload && retries ?~ @request.auth.teams:each").bind(caller)
        for _ in range(3):
            heavy = rules.both(heavy, rules.either(heavy, rules.parse_filter("topic = 'a'")))
        with pytest.raises(InvalidInput, match="too large"):
            await bench.store.list(Listing(condition=heavy, status=Status.PENDING))

    async def test_page_by_page_and_capped(self, bench: Workbench) -> None:
        for i in range(7):
            await bench.enqueue_one(payload=f'{{"even":{i % 2}}}')
            await bench.enqueue_one(payload='{"even":2}', delay_ms=HOUR)
        wanted = rules.parse_filter("payload.even < 2 || payload.even = 2 && status = 'pending'")
        pages = [await bench.store.list(Listing(condition=wanted, limit=5, offset=offset)) for offset in (0, 5, 10, 15)]
        everything = await bench.store.list(Listing(limit=100))
        assert [job.id for page in pages for job in page] == [job.id for job in everything]
        assert await bench.store.count(Listing(condition=wanted), cap=9) == 10
        assert await bench.store.count(Listing(condition=rules.never)) == 0
        assert await bench.store.list(Listing(condition=rules.never)) == []
        assert len(await bench.store.list(Listing(condition=rules.always))) == 14


class SortContract(ContractPart):
    async def listed(self, bench: Workbench, sort: str, **options: Any) -> list[str]:
        jobs = await bench.store.list(Listing(sort=rules.parse_sort(sort), **{"limit": 100, **options}))
        return [job.id for job in jobs]

    async def test_by_fields(self, bench: Workbench) -> None:
        a = await bench.enqueue_one(priority=50, topic="b", scope="Z")
        b = await bench.enqueue_one(priority=75, topic="a", scope="a")
        c = await bench.enqueue_one(priority=50, topic="a", delay_ms=HOUR)
        for sort, order in {
            "": [c, b, a],
            "createdAt": [a, b, c],
            "-createdAt": [c, b, a],
            "priority": [a, c, b],
            "-priority": [b, c, a],
            "-priority,createdAt": [b, a, c],
            "priority,-createdAt,topic": [c, a, b],
            "topic,-priority": [b, c, a],
            "scope": [c, a, b],
            "-scope": [b, a, c],
            "id": [a, b, c],
            "-runAt,topic": [c, b, a],
        }.items():
            assert await self.listed(bench, sort) == order, sort

    async def test_every_field_in_the_order_of_its_values(self, bench: Workbench) -> None:
        for state in STATES:
            await bench.make(state, topic=f"t.{state}")
        await bench.enqueue_one(scope="user", template_version=3, capability="media", idempotency_key="k")
        jobs = {job.id: job.as_json() for job in await bench.store.list(Listing(limit=100))}
        for name in rules.FIELDS:
            for sort in (name, f"-{name}"):
                values = [jobs[id][name] for id in await self.listed(bench, sort)]
                lowest: Any = -1 if rules.FIELDS[name] is rules.FieldKind.NUMBER else ""
                in_order = [lowest if value is None else value for value in values]
                assert in_order == sorted(in_order, reverse=sort.startswith("-")), sort
                assert len(values) == len(jobs)

    async def test_with_a_status_and_a_condition(self, bench: Workbench) -> None:
        ids = []
        for i in range(6):
            delay = HOUR if i % 2 else 0
            ids.append(await bench.enqueue_one(priority=i % 3, delay_ms=delay, payload=f'{{"i":{i}}}'))
        for options in ({}, {"status": Status.PENDING}, {"condition": rules.parse_filter("payload.i >= 0")}):
            pages = [await self.listed(bench, "-priority,createdAt", limit=2, offset=o, **options) for o in (0, 2, 4)]
            assert [id for page in pages for id in page] == [ids[i] for i in (2, 5, 1, 4, 0, 3)]
        few = {"condition": rules.parse_filter("payload.i > 3"), "status": Status.PENDING}
        assert await self.listed(bench, "createdAt", **few) == ids[4:]

    async def test_of_ended_jobs(self, bench: Workbench) -> None:
        await bench.enqueue(3)
        slow, quick, bad = await bench.claim(3)
        await bench.settle(quick, Completed())
        await bench.settle(bad, Failed("Boom", "Boom"))
        await bench.settle(slow, Completed())
        assert await self.listed(bench, "status,id", status=None) == [slow.id, quick.id, bad.id]
        assert await self.listed(bench, "-id", status=Status.COMPLETED) == [quick.id, slow.id]
