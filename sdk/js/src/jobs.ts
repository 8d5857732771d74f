import { type Document, pageOf, plain, toJob, toStep, withCreatedAt } from "./documents.js";
import { SharedStream } from "./shared.js";
import { EventStream, OutputStream } from "./stream.js";
import { Follow, setTracking, type Tracker, type Tracking, trackerOf } from "./tracker.js";
import type {
  AnswersOf,
  BulkAction,
  BulkOptions,
  BulkResult,
  Call,
  EnqueueOptions,
  EnqueueRequest,
  Job,
  JobChanges,
  JobOutput,
  JobStream,
  ListQuery,
  OutputOptions,
  Page,
  PayloadOf,
  RequeueOptions,
  ResultOf,
  Stats,
  Step,
  StreamQuery,
  TimelineEvent,
  Topic,
  TrackOptions,
  Why,
} from "./types.js";
import { call, jobPath, randomId, tracking as trackingWire, type Wire } from "./wire.js";
import { type WorkContext, Worker, type WorkHandle, type WorkOptions } from "./work.js";

/** All about jobs; `client.jobs`, and `pb.jobs` after `withJobs(pb)`. */
export interface Jobs {
  enqueue<T extends Topic>(topic: T, payload: PayloadOf<T>, options?: EnqueueOptions): Promise<Job<T>>;
  /** All or none. */
  enqueueMany(jobs: EnqueueRequest[], options?: Call): Promise<Job[]>;
  get<T extends Topic = Topic>(id: string, options?: Call): Promise<Job<T>>;
  /** One page, newest first. */
  list<T extends Topic = Topic>(query?: ListQuery & { topic?: T }, options?: Call): Promise<Page<Job<T>>>;
  /** All jobs that match, page by page; those that are made meanwhile are not among them. */
  each<T extends Topic = Topic>(
    query?: Omit<ListQuery, "offset" | "page" | "skipTotal" | "sort"> & { topic?: T },
    options?: Call,
  ): AsyncGenerator<Job<T>, void, void>;
  /** Change a pending job. */
  update<T extends Topic = Topic>(id: string, changes: JobChanges, options?: Call): Promise<Job<T>>;
  requeue<T extends Topic = Topic>(
    id: string,
    options?: RequeueOptions,
  ): Promise<Job<T> & { wouldRun: string[] | null }>;
  cancel<T extends Topic = Topic>(id: string, options?: Call & { reason?: string }): Promise<Job<T>>;
  /** Take a running job from its worker, its attempt unspent. */
  release<T extends Topic = Topic>(id: string, options?: Call): Promise<Job<T>>;
  delete(id: string, options?: Call & { force?: boolean }): Promise<void>;
  stats(query?: { topic?: Topic; since?: Date | string }, options?: Call): Promise<Stats>;
  /** The job's timeline, oldest first. */
  events(id: string, options?: Call): Promise<TimelineEvent[]>;
  /** Why it is not running. */
  why(id: string, options?: Call): Promise<Why>;
  /** The runs of a step with their whole results. */
  steps(
    id: string,
    step: string,
    options?: Call & { offset?: number; limit?: number },
  ): Promise<{ items: Step[]; totalItems: number; limit: number; offset: number }>;
  /** One action for every job that the filter matches. */
  bulk(action: BulkAction, filter: string, options?: BulkOptions): Promise<BulkResult>;
  /** Answer a step that waits, or will. */
  signal<T extends Topic = Topic, S extends string & keyof AnswersOf<T> = string & keyof AnswersOf<T>>(
    id: string,
    step: S,
    result: AnswersOf<T>[S],
    options?: Call & { key?: string },
  ): Promise<Job<T>>;
  /** Let a step that waits fail. */
  signalError(id: string, step: string, error: string, options?: Call & { key?: string }): Promise<Job>;
  stream(query?: StreamQuery, options?: Call): JobStream;
  /** What the job emits to a channel, from its start. */
  output<T = unknown>(id: string, channel: string, options?: OutputOptions): JobOutput<T>;
  /**
   * Follow one job, over one connection for all trackers; with `lazy`, from the first subscriber on. A `token` is the
   * `trackToken` of an enqueue with `track`, for those who have not signed in.
   */
  track<T extends Topic = Topic>(id: string, options?: TrackOptions): Tracker<T>;
  /** Run jobs of a topic here, until `stop()`. */
  work<T extends Topic>(
    topic: T,
    handler: (job: Job<T>, context: WorkContext) => Promise<ResultOf<T>> | ResultOf<T>,
    options?: WorkOptions,
  ): WorkHandle;
  /** Ends the streams and trackers. */
  close(): void;
}

interface Items {
  items: Document[];
}

const POST = "POST";
/** Keys that only make a repeated request safe begin like this; a template's own key comes first. */
const ONCE = "once:";

const named = <T extends object>({ idempotencyKey, ...rest }: T & { idempotencyKey?: string }): Document => ({
  ...plain(rest),
  idempotencyKey: idempotencyKey ?? ONCE + randomId(),
});

/** What is for the call, and what is for the server. */
function apart<O extends Call>(options: O): [Call, Omit<O, keyof Call>] {
  const { signal, timeoutMs, headers, retries, ...rest } = options;
  return [{ signal, timeoutMs, headers, retries }, rest];
}

export function makeJobs(wire: Wire): Jobs {
  const jobs = new JobsOfWire(wire);
  setTracking(jobs, jobs.tracking);
  return jobs;
}

class JobsOfWire implements Jobs {
  readonly tracking: Tracking;
  readonly #streams = new Set<{ close(): void }>();

  constructor(private readonly wire: Wire) {
    this.tracking = this.#trackingOf(wire);
  }

  #trackingOf(wire: Wire): Tracking {
    return {
      shared: new SharedStream(wire),
      document: (id) => call<Document>(wire, jobPath(id)),
      enqueue: (topic, payload, options) => this.#enqueue(topic, payload, options),
    };
  }

  /** A connection of its own, which ends with the client. */
  #trackingWith(token: string): Tracking {
    const tracked = this.#trackingOf(trackingWire(this.wire, token));
    this.#streams.add(tracked.shared);
    return tracked;
  }

  async enqueue<T extends Topic>(topic: T, payload: PayloadOf<T>, options?: EnqueueOptions): Promise<Job<T>> {
    return toJob<T>(await this.#enqueue(topic, payload, options));
  }

  #enqueue(topic: Topic, payload: unknown, options: EnqueueOptions = {}): Promise<Document> {
    const [how, rest] = apart(options);
    const body = { topic, payload: payload ?? {}, ...named(rest) };
    return call<Document>(this.wire, "/api/jobs/enqueue", { method: POST, body, repeatable: true }, how);
  }

  async enqueueMany(jobs: EnqueueRequest[], options?: Call): Promise<Job[]> {
    const body = { jobs: jobs.map(named) };
    const request = { method: POST, body, repeatable: true };
    return (await call<Items>(this.wire, "/api/jobs/enqueue-many", request, options)).items.map((one) => toJob(one));
  }

  async get<T extends Topic>(id: string, options?: Call): Promise<Job<T>> {
    return toJob<T>(await call<Document>(this.wire, jobPath(id), {}, options));
  }

  async list<T extends Topic>(query: ListQuery = {}, options?: Call): Promise<Page<Job<T>>> {
    const page = await call<Omit<Page<Document>, typeof Symbol.iterator>>(
      this.wire,
      "/api/jobs",
      { query: plain(query) },
      options,
    );
    const items = page.items.map((one) => toJob<T>(one));
    return pageOf(page, items);
  }

  async *each<T extends Topic>(query: ListQuery = {}, options?: Call): AsyncGenerator<Job<T>, void, void> {
    const { limit, perPage, filter, ...rest } = query;
    const size = limit ?? perPage ?? 200;
    for (let below = ""; ; ) {
      // From id to id: a page by number would move when jobs come and go.
      const condition = [filter && `(${filter})`, below && `id < "${below}"`].filter(Boolean).join(" && ");
      const asked = { ...rest, filter: condition || undefined, sort: "-id", limit: size, skipTotal: true };
      const page = await this.list<T>(asked, options);
      yield* page;
      const last = page.items.at(-1);
      if (!last || page.items.length < page.limit) return;
      below = last.id;
    }
  }

  async update<T extends Topic>(id: string, changes: JobChanges, options?: Call): Promise<Job<T>> {
    return toJob<T>(await call(this.wire, jobPath(id), { method: "PATCH", body: plain(changes) }, options));
  }

  async requeue<T extends Topic>(id: string, options: RequeueOptions = {}) {
    const [how, rest] = apart(options);
    const found = await this.#steer(id, "/requeue", plain(rest), how);
    return toJob<T>(found) as Job<T> & { wouldRun: string[] | null };
  }

  async cancel<T extends Topic>(id: string, options: Call & { reason?: string } = {}): Promise<Job<T>> {
    const [how, rest] = apart(options);
    return toJob<T>(await this.#steer(id, "/cancel", plain(rest), how));
  }

  async release<T extends Topic>(id: string, options: Call = {}): Promise<Job<T>> {
    return toJob<T>(await this.#steer(id, "/release", {}, options));
  }

  #steer(id: string, what: string, body: Document, options: Call): Promise<Document> {
    return call<Document>(this.wire, jobPath(id, what), { method: POST, body }, options);
  }

  async delete(id: string, options: Call & { force?: boolean } = {}): Promise<void> {
    const [how, rest] = apart(options);
    await call(this.wire, jobPath(id), { method: "DELETE", query: rest }, how);
  }

  stats(query: { topic?: Topic; since?: Date | string } = {}, options?: Call): Promise<Stats> {
    return call<Stats>(this.wire, "/api/jobs/stats", { query: plain(query) }, options);
  }

  async events(id: string, options?: Call): Promise<TimelineEvent[]> {
    const found = await call<Items>(this.wire, jobPath(id, "/events"), {}, options);
    return found.items.map((one) => withCreatedAt<TimelineEvent>(one));
  }

  why(id: string, options?: Call): Promise<Why> {
    return call<Why>(this.wire, jobPath(id, "/why"), {}, options);
  }

  async steps(id: string, step: string, options: Call & { offset?: number; limit?: number } = {}) {
    const [how, query] = apart(options);
    const path = jobPath(id, `/steps/${step.split("/").map(encodeURIComponent).join("/")}`);
    const page = await call<Items & { totalItems: number; limit: number; offset: number }>(
      this.wire,
      path,
      { query },
      how,
    );
    return { ...page, items: page.items.map(toStep) };
  }

  bulk(action: BulkAction, filter: string, options: BulkOptions = {}): Promise<BulkResult> {
    const [how, rest] = apart(options);
    const body = { action, filter, ...plain(rest) };
    return call<BulkResult>(this.wire, "/api/jobs/bulk", { method: POST, body }, how);
  }

  async signal<T extends Topic>(
    id: string,
    step: string,
    result: unknown,
    options: Call & { key?: string } = {},
  ): Promise<Job<T>> {
    const [how, rest] = apart(options);
    return toJob<T>(await this.#steer(id, "/signal", { step, result: result ?? null, ...plain(rest) }, how));
  }

  async signalError(id: string, step: string, error: string, options: Call & { key?: string } = {}): Promise<Job> {
    const [how, rest] = apart(options);
    return toJob(await this.#steer(id, "/signal", { step, error, ...plain(rest) }, how));
  }

  stream(query: StreamQuery = {}, options: Call = {}): JobStream {
    return new EventStream(this.wire, query, options, this.#streams);
  }

  output<T>(id: string, channel: string, { token, ...options }: OutputOptions = {}): JobOutput<T> {
    return new OutputStream<T>(
      token === undefined ? this.wire : trackingWire(this.wire, token),
      jobPath(id, `/output/${encodeURIComponent(channel)}`),
      options,
      this.#streams,
    );
  }

  track<T extends Topic>(id: string, options: TrackOptions = {}): Tracker<T> {
    const { signal, lazy = false, token } = options;
    const tracked = token === undefined ? this.tracking : this.#trackingWith(token);
    const follow = new Follow<T>(() => tracked, id, lazy || signal?.aborted === true);
    signal?.addEventListener("abort", () => follow.close(), { once: true });
    if (signal?.aborted) follow.close();
    return trackerOf(follow, () => this);
  }

  work<T extends Topic>(
    topic: T,
    handler: (job: Job<T>, context: WorkContext) => Promise<ResultOf<T>> | ResultOf<T>,
    options?: WorkOptions,
  ): WorkHandle {
    return new Worker(this.wire, topic, handler as (job: Job, context: WorkContext) => unknown, options);
  }

  close(): void {
    this.tracking.shared.close();
    for (const stream of [...this.#streams]) stream.close();
  }
}
