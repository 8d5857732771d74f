import assert from "node:assert/strict";
import { test } from "node:test";
import { createJob, JobEndedError, setDefaultClient, type TrackedJob, Treadle } from "treadle";
import { asSuperuser, CuttingProxy, Fetches, json, Sse, signedIn, topicOf, URL_OF_SERVER, until } from "./support.js";

const AT = "2026-01-01T00:00:00.000Z";

function document(id: string, more: object = {}): Record<string, unknown> {
  return {
    id,
    topic: "mail",
    status: "processing",
    attempt: 1,
    progress: 0,
    payload: {},
    steps: [],
    updatedAt: AT,
    ...more,
  };
}

/** A client whose server is the test. */
function faked(): { client: Treadle; fetches: Fetches; opened: Sse[] } {
  const fetches = new Fetches();
  const opened: Sse[] = [];
  fetches.answer = (url, init) => {
    if (!url.includes("/stream")) return json(404, { code: "not_found", message: "not found", data: {} });
    const sse = new Sse(init.signal);
    opened.push(sse);
    return sse.response;
  };
  return { client: new Treadle("http://queue.test", { fetch: fetches.fetch }), fetches, opened };
}

const snapshot = (sse: Sse | undefined, id: number, ...jobs: object[]) => sse?.tell(id, "snapshot", { jobs });

test("a tracker follows a job to its end, with the seed's names", async () => {
  const client = await signedIn();
  const job = createJob("export_users", client);
  const seen: (TrackedJob | null)[] = [];
  const unsubscribe = job.subscribe((now) => seen.push(now));
  assert.deepEqual([...seen], [null], "subscribe calls synchronously");
  assert.equal(job.state, "idle");
  await job.start({ format: "csv", rows: 20 });
  assert.deepEqual(await job.result(), { count: 20 });
  assert.equal(job.state, "ended");
  const last = seen.at(-1);
  assert.deepEqual([last?.progress_percent, last?.progress, last?.last_error], [100, 100, null]);
  assert.ok(seen.some((one) => one?.progress_message?.startsWith("row ")));
  const progress = seen.filter((one) => one?.status === "processing").map((one) => one?.progress ?? 0);
  assert.deepEqual(
    progress,
    [...progress].sort((a, b) => a - b),
  );
  unsubscribe();
});

test("all trackers of a client share one connection", async () => {
  const fetches = new Fetches();
  const client = await signedIn({ fetch: fetches.fetch });
  const topic = topicOf("share");
  const jobs = await client.jobs.enqueueMany(Array.from({ length: 30 }, () => ({ topic })));
  const trackers = jobs.map((job) => client.jobs.track(job.id));
  await until(() => trackers.every((one) => one.current !== null));
  assert.equal(fetches.of("/stream"), 1);
  await client.jobs.bulk("cancel", `topic = '${topic}'`);
  for (const tracker of trackers) await assert.rejects(tracker.result(), JobEndedError);
  assert.equal(fetches.of("/stream"), 1);
});

test("above 100 ids there is a second connection", async () => {
  const { client, fetches, opened } = faked();
  const trackers = Array.from({ length: 101 }, (_, n) => client.jobs.track(`j${n}`));
  await until(() => opened.length === 2);
  assert.deepEqual(
    fetches.urls.map((url) => url.split("id=").length - 1),
    [100, 1],
  );
  for (const tracker of trackers) tracker.cleanup();
  assert.ok(opened.every((one) => one.cancelled));
});

test("a dropped stream is not completion", async () => {
  const { client, opened } = faked();
  const tracker = client.jobs.track("j1");
  let ended = false;
  const result = tracker.result().then((value) => {
    ended = true;
    return value;
  });
  snapshot(await until(() => opened[0]), 1, document("j1"));
  await until(() => tracker.current);
  opened[0]?.drop();
  await until(() => tracker.state === "reconnecting");
  assert.equal(ended, false);
  assert.equal(tracker.current?.status, "processing");
  (await until(() => opened[1])).tell(2, "job:completed", { job: document("j1", { status: "completed", result: 7 }) });
  assert.equal(await result, 7);
});

test("after the end there are no requests", async () => {
  const { client, fetches, opened } = faked();
  const tracker = client.jobs.track("j1");
  snapshot(await until(() => opened[0]), 1, document("j1", { status: "completed", result: 1 }));
  assert.equal(await tracker.result(), 1);
  assert.equal(opened[0]?.cancelled, true);
  const calls = fetches.urls.length;
  tracker.subscribe(() => {})();
  assert.equal(await tracker.result(), 1);
  await new Promise((resolve) => setTimeout(resolve, 600)); // longer than the first reconnect would take
  assert.equal(fetches.urls.length, calls);
});

test("state never goes back", async () => {
  const { client, opened } = faked();
  const tracker = client.jobs.track("j1");
  const seen: unknown[] = [];
  tracker.subscribe((job) => job && seen.push([job.status, job.attempt, job.progress]));
  const sse = await until(() => opened[0]);
  const later = "2026-01-01T00:00:05.000Z";
  snapshot(sse, 1, document("j1", { progress: 60, updatedAt: later }));
  sse.tell(2, "job:progress", { job: document("j1", { progress: 40, updatedAt: later }) });
  sse.tell(3, "job:started", { job: document("j1", { progress: 0 }) });
  sse.tell(4, "job:started", { job: document("j1", { attempt: 0, status: "pending", updatedAt: later }) });
  sse.tell(5, "job:progress", { job: document("j1", { progress: 80, updatedAt: later }) });
  await until(() => tracker.current?.progress === 80);
  assert.deepEqual(seen, [
    ["processing", 1, 60],
    ["processing", 1, 80],
  ]);
  tracker.cleanup();
});

test("what happened while offline comes by a snapshot", async () => {
  const proxy = new CuttingProxy(URL_OF_SERVER);
  const direct = await signedIn();
  const client = await signedIn({}, await proxy.listen());
  const { id } = await direct.jobs.enqueue(topicOf("offline"), {});
  const tracker = client.jobs.track(id);
  await until(() => tracker.state === "live" && tracker.current);
  proxy.cutAfter = () => 0;
  proxy.cut();
  await direct.jobs.cancel(id, { reason: "while you were away" });
  await until(() => tracker.state === "reconnecting");
  proxy.cutAfter = () => null;
  const ended = await tracker.result().catch((error) => error);
  assert.ok(ended instanceof JobEndedError);
  assert.equal(ended.job.cancelReason, "while you were away");
  assert.match(ended.message, /is cancelled: while you were away/);
  proxy.close();
});

test("equal data does not notify, and the snapshot stays the same object", async () => {
  const { client, opened } = faked();
  const tracker = client.jobs.track("j1");
  let calls = 0;
  tracker.subscribe(() => calls++);
  const sse = await until(() => opened[0]);
  snapshot(sse, 1, document("j1", { progress: 10 }));
  await until(() => tracker.current);
  const before = tracker.getSnapshot();
  snapshot(sse, 2, document("j1", { progress: 10 }));
  sse.tell(3, "job:progress", { job: document("j1", { progress: 10 }) });
  sse.tell(4, "job:progress", { job: document("j1", { progress: 11 }) });
  await until(() => tracker.current?.progress === 11);
  assert.equal(calls, 3, "at once, the snapshot, 11");
  assert.notEqual(tracker.getSnapshot(), before);
  assert.equal(tracker.getSnapshot(), tracker.getSnapshot());
  tracker.cleanup();
});

test("functions work on their own, and cleanup is for good", async () => {
  const { client, opened } = faked();
  const { cleanup, subscribe, getSnapshot, result } = client.jobs.track("j1");
  const waiting = result();
  subscribe(() => {});
  await until(() => opened[0]);
  cleanup();
  await assert.rejects(waiting, { code: "closed", isAbort: true });
  assert.equal(getSnapshot(), null);
  assert.equal(opened[0]?.cancelled, true);
});

test("without subscribers the connection is let go, and taken up again", async () => {
  const { client, opened } = faked();
  const tracker = client.jobs.track("j1", { lazy: true });
  assert.equal(tracker.state, "idle");
  const leave = tracker.subscribe(() => {});
  const stay = tracker.subscribe(() => {});
  snapshot(await until(() => opened[0]), 1, document("j1"));
  await until(() => tracker.current);
  leave();
  leave();
  assert.equal(tracker.state, "live");
  stay();
  assert.equal(tracker.state, "idle");
  assert.equal(opened[0]?.cancelled, true);
  tracker.subscribe(() => {});
  await until(() => opened.length === 2);
  tracker.cleanup();
});

test("subscribing and leaving in one moment opens nothing", async () => {
  const { client, opened } = faked();
  client.jobs.track("j1", { lazy: true }).subscribe(() => {})();
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(opened.length, 0);
});

test("a job that is not there, or is deleted, is an error", async () => {
  const client = await signedIn();
  const none = client.jobs.track("01890000-0000-7000-8000-000000000000");
  await assert.rejects(none.result(), { status: 404, code: "not_found" });
  assert.deepEqual([none.state, none.error?.status], ["closed", 404]);
  const { id } = await client.jobs.enqueue(topicOf("deleted"), {});
  const tracker = client.jobs.track(id);
  await until(() => tracker.current);
  await client.jobs.delete(id);
  await assert.rejects(tracker.result(), { status: 404 });
});

test("a result that is too large for an event is read", async () => {
  const client = await signedIn();
  const job = createJob("large", client);
  await job.start({ text: "y".repeat(20_000) });
  assert.equal((await job.result()).length, 30_000);
  assert.equal(job.current?.payload.text.length, 20_000);
  assert.equal(job.current?.truncated, undefined);
});

test("a failed job is an error with the job in it", async () => {
  const client = await signedIn();
  const job = createJob("breaks", client);
  await job.start({});
  const error = await job.result().catch((error) => error);
  assert.ok(error instanceof JobEndedError);
  assert.deepEqual([error.code, error.job.status], ["job_failed", "failed"]);
  assert.match(error.message, /SMTP is down/);
});

test("cancelling, and starting again", async () => {
  const client = await signedIn();
  const job = createJob("endless", client);
  await assert.rejects(job.cancel(), { code: "not_started" });
  const first = await job.start({});
  await until(() => (job.current?.progress ?? 0) > 0);
  await job.cancel("enough");
  await assert.rejects(job.result(), { code: "job_cancelled" });
  assert.equal(job.current?.cancelReason, "enough");
  const second = await job.start({});
  assert.notEqual(second.id, first.id);
  assert.equal(job.current?.id, second.id);
  job.cleanup();
  assert.equal(job.state, "closed");
  await client.jobs.cancel(second.id);
});

test("iterating tells every state that there is time for, and ends", async () => {
  const client = await signedIn();
  const { id } = await client.jobs.enqueue("export_users", { format: "csv", rows: 5 });
  const seen = [];
  for await (const job of client.jobs.track(id)) seen.push(job.status);
  assert.equal(seen.at(-1), "completed");
});

test("result() can be given up", async () => {
  const { client } = faked();
  const tracker = client.jobs.track("j1");
  await assert.rejects(tracker.result({ timeoutMs: 20 }), { code: "timeout" });
  await assert.rejects(tracker.result({ signal: AbortSignal.abort() }), { isAbort: true });
  tracker.cleanup();
});

test("a default client, or a clear error", async () => {
  const job = createJob("mail");
  await assert.rejects(job.start({}), { code: "no_client" });
  setDefaultClient(await signedIn());
  assert.equal((await job.start({})).topic, "mail");
  job.cleanup();
});

test("closing a client ends its trackers and streams", async () => {
  const { client, opened } = faked();
  const tracker = client.jobs.track("j1");
  const waiting = client.jobs.stream().next();
  await until(() => opened[1]);
  client.close();
  assert.equal((await waiting).done, true);
  assert.equal(opened[1]?.cancelled, true);
  assert.equal(tracker.state, "closed");
  assert.equal(opened[0]?.cancelled, true);
});

test("two clients see the same", async () => {
  const one = await signedIn();
  const two = await asSuperuser();
  const { id } = await one.jobs.enqueue("export_users", { format: "csv", rows: 10 });
  const [here, there] = await Promise.all([one.jobs.track(id).result(), two.jobs.track(id).result()]);
  assert.deepEqual(here, there);
});

test("a track token follows one job without a session", async () => {
  const client = await signedIn();
  const job = await client.jobs.enqueue("export_users", { format: "csv", rows: 3 }, { track: true });
  const other = await client.jobs.enqueue("export_users", { format: "csv", rows: 1 });
  const token = job.trackToken as string;
  const visitor = new Treadle(URL_OF_SERVER);
  assert.deepEqual(await visitor.jobs.track(job.id, { token }).result(), { count: 3 });
  const refused = visitor.jobs.track(other.id, { token });
  await until(() => refused.error !== null);
  assert.equal(refused.error?.status, 404);
  visitor.close();
});
