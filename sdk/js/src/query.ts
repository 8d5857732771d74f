import { defaultClient } from "./default_client.js";
import { hasEnded, pageOf } from "./documents.js";
import type { Jobs } from "./jobs.js";
import type { Job, JobEvent, ListQuery, Page, Topic } from "./types.js";

const ROOT = "treadle";
const JOB = "job";
const JOBS = "jobs";

export interface QueryOptions<Key extends readonly unknown[], R> {
  queryKey: Key;
  queryFn: (context: { signal?: AbortSignal }) => Promise<R>;
}

/** One job, for TanStack Query's `useQuery`. */
export const jobQuery = <T extends Topic = Topic>(
  id: string,
  client?: { jobs: Jobs },
): QueryOptions<readonly [typeof ROOT, typeof JOB, string], Job<T>> => ({
  queryKey: [ROOT, JOB, id],
  queryFn: ({ signal }) => (client ?? defaultClient()).jobs.get<T>(id, { signal }),
});

/** A page of jobs, for TanStack Query's `useQuery`. */
export const jobsQuery = <T extends Topic = Topic>(
  query: ListQuery & { topic?: T } = {},
  client?: { jobs: Jobs },
): QueryOptions<readonly [typeof ROOT, typeof JOBS, ListQuery], Page<Job<T>>> => ({
  queryKey: [ROOT, JOBS, query],
  queryFn: ({ signal }) => (client ?? defaultClient()).jobs.list<T>(query, { signal }),
});

/** What of a QueryClient is used here. */
export interface QueryCacheClient {
  getQueriesData(filters: { queryKey: readonly unknown[] }): (readonly [readonly unknown[], unknown])[];
  setQueryData(key: readonly unknown[], data: unknown): unknown;
  invalidateQueries(filters: { queryKey: readonly unknown[] }): Promise<unknown>;
}

/** Patches the cached queries from one stream of events, until the returned function is called. */
export function followQueries(queries: QueryCacheClient, client?: { jobs: Jobs }): () => void {
  const stream = (client ?? defaultClient()).jobs.stream();
  const run = async () => {
    for await (const event of stream) tell(queries, event);
  };
  run().catch(() => {}); // without a stream, queries are as fresh as their own refetches
  return () => stream.close();
}

function tell(queries: QueryCacheClient, event: JobEvent): void {
  if (event.event === "resync" || event.event === "snapshot") {
    if (event.event === "resync") void queries.invalidateQueries({ queryKey: [ROOT] });
  } else if ("deletedJobId" in event) {
    void queries.invalidateQueries({ queryKey: [ROOT, JOB, event.deletedJobId] });
    void queries.invalidateQueries({ queryKey: [ROOT, JOBS] });
  } else {
    patch(queries, event.event, event.job);
  }
}

function patch(queries: QueryCacheClient, event: string, job: Job): void {
  for (const [key, data] of queries.getQueriesData({ queryKey: [ROOT, JOB, job.id] })) {
    if (data) queries.setQueryData(key, merged(data as Job, job));
  }
  for (const [key, data] of queries.getQueriesData({ queryKey: [ROOT, JOBS] })) {
    const page = data as Page<Job> | undefined;
    if (page?.items.some((one) => one.id === job.id)) queries.setQueryData(key, withJob(page, job));
  }
  // Who belongs to which list is for the server to say.
  const isMove = event === "job:enqueued" || event === "job:requeued" || hasEnded(job);
  if (isMove) void queries.invalidateQueries({ queryKey: [ROOT, JOBS] });
}

/** An event may come without payload and result. */
const merged = (known: Job, job: Job): Job => (job.truncated ? { ...job, payload: known.payload } : job);

function withJob(page: Page<Job>, job: Job): Page<Job> {
  const items = page.items.map((one) => (one.id === job.id ? merged(one, job) : one));
  return pageOf(page, items);
}
