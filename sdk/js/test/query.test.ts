import assert from "node:assert/strict";
import { test } from "node:test";
import { QueryClient, QueryObserver } from "@tanstack/query-core";
import { followQueries, type Job, jobQuery, jobsQuery, type Page } from "treadle";
import { Fetches, signedIn, topicOf, until } from "./support.js";

test("queries are patched and kept fresh from one stream", async () => {
  const fetches = new Fetches();
  const client = await signedIn({ fetch: fetches.fetch });
  const topic = topicOf("query");
  const { id } = await client.jobs.enqueue(topic, { n: 1 });
  const queries = new QueryClient();
  queries.mount();
  const one = new QueryObserver<Job>(queries, jobQuery(id, client));
  const list = new QueryObserver<Page<Job>>(queries, jobsQuery({ topic }, client));
  const ends = [one.subscribe(() => {}), list.subscribe(() => {})];
  await until(() => one.getCurrentResult().data && list.getCurrentResult().data);
  const stop = followQueries(queries, client);
  // The stream begins now: an event tells that it is open.
  const first = await until(async () => {
    const made = await client.jobs.enqueue(topic, {});
    return list.getCurrentResult().data?.items.length !== 1 && made;
  });
  assert.ok(first);
  const reads = fetches.of(`/api/jobs/${id}`);
  await client.jobs.cancel(id, { reason: "enough" });
  await until(() => one.getCurrentResult().data?.status === "cancelled");
  await until(() => list.getCurrentResult().data?.items.find((job) => job.id === id)?.status === "cancelled");
  assert.equal(fetches.urls.filter((url) => url.endsWith(`/api/jobs/${id}`)).length, reads, "patched, not read again");
  const other = await client.jobs.enqueue(topic, { n: 2 });
  await until(() => list.getCurrentResult().data?.items.some((job) => job.id === other.id));
  assert.equal(fetches.of("/stream"), 1);
  stop();
  for (const end of ends) end();
  queries.unmount();
});
