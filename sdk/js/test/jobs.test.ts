import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Treadle, TreadleError } from "treadle";
import { asSuperuser, PASSWORD, signedIn, topicOf, URL_OF_SERVER, USER, until } from "./support.js";

let client: Treadle;
let root: Treadle;

before(async () => {
  client = await signedIn();
  root = await asSuperuser();
});

after(() => {
  client.close();
  root.close();
});

test("a job is enqueued and read, with dates as dates", async () => {
  const runAt = new Date(Date.now() + 3_600_000);
  const job = await client.jobs.enqueue("mail", { userId: "ü123", n: [1, 2.5, null] }, { runAt, priority: "high" });
  assert.equal(job.status, "pending");
  assert.deepEqual(job.runAt, runAt);
  assert.equal(job.priority, 75);
  const read = await client.jobs.get(job.id);
  assert.deepEqual(read.payload, { userId: "ü123", n: [1, 2.5, null] });
  assert.deepEqual({ ...read, deduplicated: false }, job);
  assert.equal(read.completedAt, null);
  assert.ok(read.createdAt instanceof Date);
});

test("many jobs are enqueued, all or none", async () => {
  const topic = topicOf("many");
  const jobs = await client.jobs.enqueueMany([
    { topic, payload: { n: 1 } },
    { topic, payload: { n: 2 }, delay: "1h" },
  ]);
  assert.deepEqual(
    jobs.map((job) => job.payload),
    [{ n: 1 }, { n: 2 }],
  );
  await assert.rejects(client.jobs.enqueueMany([{ topic }, { topic, maxRetries: 0 }]), { status: 400 });
  assert.equal((await client.jobs.list({ topic })).totalItems, 2);
});

test("a list is a page, and can be iterated", async () => {
  const topic = topicOf("page");
  await client.jobs.enqueueMany([1, 2, 3].map((n) => ({ topic, payload: { n } })));
  const page = await client.jobs.list({ topic, perPage: 2 });
  assert.deepEqual(
    [...page].map((job) => job.payload.n),
    [3, 2],
  );
  assert.deepEqual([page.page, page.perPage, page.limit, page.offset], [1, 2, 2, 0]);
  assert.deepEqual([page.totalItems, page.totalPages, page.totalCapped], [3, 2, false]);
  const rest = await client.jobs.list({ topic, limit: 2, offset: 2, status: "queued" });
  assert.deepEqual(
    [...rest].map((job) => job.payload.n),
    [1],
  );
});

test("each job of a list, page by page, none twice", async () => {
  const topic = topicOf("each");
  await client.jobs.enqueueMany(Array.from({ length: 25 }, (_, n) => ({ topic, payload: { n } })));
  const found: number[] = [];
  for await (const job of client.jobs.each({ topic, filter: "payload.n >= 5 || payload.n = 0", limit: 4 })) {
    found.push(job.payload.n);
    if (found.length % 3 === 0) {
      await client.jobs.enqueue(topic, { n: 99 });
      await client.jobs.delete(job.id);
    }
  }
  assert.deepEqual(
    found.sort((a, b) => a - b),
    [0, ...Array.from({ length: 20 }, (_, n) => n + 5)],
  );
});

test("times are taken as PocketBase writes them", async () => {
  const job = await client.jobs.enqueue("mail", {}, { runAt: "2046-01-08 10:00:00.000Z" });
  assert.equal(job.runAt.toISOString(), "2046-01-08T10:00:00.000Z");
  const found = await client.jobs.list({ filter: `runAt = '2046-01-08 10:00:00.000Z' && id = '${job.id}'` });
  assert.equal(found.items.length, 1);
  const since = "2026-01-08 10:00:00.000Z";
  assert.equal(typeof (await client.jobs.stats({ since })).pending, "number");
});

test("a job is changed, cancelled, requeued and deleted", async () => {
  const { id } = await client.jobs.enqueue("mail", {});
  assert.equal((await client.jobs.update(id, { priority: 7, runAt: new Date(Date.now() + 60_000) })).priority, 7);
  const cancelled = await client.jobs.cancel(id, { reason: "no need" });
  assert.deepEqual([cancelled.status, cancelled.cancelReason], ["cancelled", "no need"]);
  assert.equal((await client.jobs.requeue(id, { dryRun: true })).status, "cancelled");
  assert.equal((await client.jobs.requeue(id)).status, "pending");
  const types = (await client.jobs.events(id)).map((event) => event.type);
  assert.deepEqual(types, ["job:enqueued", "job:cancelled", "job:requeued"]);
  assert.ok((await client.jobs.events(id))[0]?.createdAt instanceof Date);
  assert.equal(await client.jobs.delete(id), undefined);
  await assert.rejects(client.jobs.get(id), { status: 404, code: "not_found", name: "TreadleError" });
});

test("why a job does not run", async () => {
  const { id } = await client.jobs.enqueue("nobody", {}, { delay: "1h" });
  const { reasons } = await client.jobs.why(id);
  assert.ok(reasons.length > 0);
});

test("many jobs are changed by a filter", async () => {
  const topic = topicOf("bulk");
  await client.jobs.enqueueMany([{ topic }, { topic }]);
  assert.deepEqual((await client.jobs.bulk("cancel", `topic = '${topic}'`, { dryRun: true })).matched, 2);
  assert.deepEqual((await client.jobs.bulk("cancel", `topic = '${topic}'`, { reason: "stop" })).changed, 2);
  assert.equal((await client.jobs.stats({ topic })).cancelled, 2);
});

test("a step that waits is answered", async () => {
  const job = await client.jobs.enqueue("publish", {});
  await until(async () => (await client.jobs.get(job.id)).status === "waiting");
  await assert.rejects(client.jobs.signal(job.id, "approve", { ok: "perhaps" }), { code: "invalid_answer" });
  await client.jobs.signal(job.id, "approve", { ok: true });
  assert.equal(await client.jobs.track(job.id).result(), true);
  const { items } = await client.jobs.steps(job.id, "draft");
  assert.equal(items[0]?.result, "a draft");
  assert.ok(items[0]?.completedAt instanceof Date);
  await assert.rejects(client.jobs.signal(job.id, "approve", { ok: true }), { status: 409, code: "step_ended" });
});

test("schedules are made, changed, run and deleted", async () => {
  const made = await root.schedules.create({
    topic: "mail",
    cron: "0 9 * * *",
    timezone: "Asia/Taipei",
    enabled: false,
  });
  assert.equal(made.next.length > 0 ? made.next[0] instanceof Date : true, true);
  const changed = await root.schedules.update(made.id, { enabled: true, version: made.version });
  assert.ok(changed.enabled && changed.nextRunAt instanceof Date);
  await assert.rejects(root.schedules.update(made.id, { enabled: false, version: made.version }), {
    code: "version_conflict",
  });
  assert.equal((await root.schedules.run(made.id)).scheduleId, made.id);
  assert.ok((await root.schedules.list({ topic: "mail" })).some((one) => one.id === made.id));
  assert.deepEqual(await root.schedules.events(made.id), []);
  await root.schedules.delete(made.id);
  await assert.rejects(root.schedules.get(made.id), { status: 404 });
});

test("templates are read, switched off and on", async () => {
  assert.ok((await root.templates.list()).some((one) => one.topic === "export_users"));
  const template = await root.templates.get("export_users");
  assert.equal(template.payloadSchema?.type, "object");
  assert.ok(template.updatedAt instanceof Date);
  assert.equal((await root.templates.versions("export_users"))[0]?.current, true);
  try {
    assert.equal((await root.templates.update("breaks", { enabled: false })).enabled, false);
    await assert.rejects(root.jobs.enqueue("breaks", {}), { status: 409, code: "template_disabled" });
  } finally {
    await root.templates.update("breaks", { enabled: true });
  }
});

test("any other request", async () => {
  const health = await client.send<{ code: number }>("/api/health");
  assert.equal(health.code, 200);
  const made = await client.send<{ id: string }>("/api/jobs/enqueue", { method: "POST", body: { topic: "mail" } });
  assert.equal((await client.send<{ id: string }>(`/api/jobs/${made.id}`)).id, made.id);
});

test("errors tell status, code and the fields at fault", async () => {
  const error: TreadleError = await client.jobs.enqueue("mail", {}, { maxRetries: 0 }).catch((error) => error);
  assert.ok(error instanceof TreadleError && error instanceof Error);
  assert.deepEqual([error.status, error.code, error.isAbort, error.retryAfterMs], [400, "invalid_input", false, null]);
  assert.deepEqual(Object.keys(error.data), ["maxRetries"]);
});

test("an API key", async () => {
  const service = new Treadle(URL_OF_SERVER, { apiKey: process.env.TREADLE_TEST_API_KEY });
  const job = await service.jobs.enqueue("mail", {});
  assert.match(job.createdBy ?? "", /./);
  const bad = new Treadle(URL_OF_SERVER, { apiKey: "no" });
  await assert.rejects(bad.jobs.list(), { status: 401 });
});

test("a key that only makes enqueue safe to repeat gives way to the template's", async () => {
  const payload = { payment: topicOf("p") };
  const first = await client.jobs.enqueue("pay_once", payload);
  const again = await client.jobs.enqueue("pay_once", payload);
  assert.deepEqual([again.id, again.deduplicated], [first.id, true]);
});

test("signing in, refreshing, signing out", async () => {
  const mine = new Treadle(URL_OF_SERVER);
  await assert.rejects(mine.jobs.enqueue("mail", {}), { status: 401 });
  await assert.rejects(mine.authWithPassword(USER, "wrong horse"), { status: 400, message: "Failed to authenticate." });
  const found = await mine.authWithPassword(USER, PASSWORD);
  assert.deepEqual([found.record.email, found.record.collectionName], [USER, "users"]);
  assert.equal(mine.auth.token, found.token);
  assert.equal((await mine.authRefresh()).record.email, USER);
  assert.equal((await mine.jobs.list()).page, 1);
  mine.auth.clear();
  await assert.rejects(mine.jobs.enqueue("mail", {}), { status: 401 });
});
