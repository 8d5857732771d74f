import { type Document, toJob } from "./documents.js";
import { TreadleError } from "./errors.js";
import type { Job, Topic } from "./types.js";
import { call, type Failure, pauseMs, randomId, type Wire } from "./wire.js";

export interface WorkOptions {
  /** How many jobs run at once; 1 by default. */
  concurrency?: number;
  /** What this worker can do; jobs that need something else go to others. */
  capabilities?: string[];
  /** How the dashboard names this worker. */
  name?: string;
  /** 5 s to 1 h, 60 by default: how long a job stays with a worker that has died. */
  leaseSeconds?: number;
  /** How often a running job's lease is renewed and a cancel noticed: every 5 s by default. */
  heartbeatSeconds?: number;
}

/** What a handler can do. */
export interface WorkContext {
  /** Aborted when a cancel was asked, the lease is lost, or the worker is stopped with `force`. */
  readonly signal: AbortSignal;
  readonly attempt: number;
  readonly isRetry: boolean;
  readonly isLastAttempt: boolean;
  /** 0 to 100; also renews the lease. */
  progress(percent: number, message?: string): Promise<void>;
  heartbeat(): Promise<void>;
}

export interface WorkHandle {
  readonly name: string;
  /** Resolves after `stop()`; rejects if the server refuses this worker. */
  readonly done: Promise<void>;
  /** Claims nothing more and waits for what runs; with `force`, what runs is aborted and given back. */
  stop(options?: { force?: boolean }): Promise<void>;
}

/** Thrown by a handler: the job has failed for good. */
export class Fail extends Error {
  readonly fatal = true;
}

type Handler = (job: Job, context: WorkContext) => unknown;

/** How long a claim waits for a job; `stop()` waits for its answer, so that no claimed job is lost. */
const CLAIM_WAIT = "5s";
const FINAL = new Set([400, 401, 403, 404]);

export class Worker implements WorkHandle {
  readonly name: string;
  readonly done: Promise<void>;
  readonly #running = new Map<string, Run>();
  readonly #slots: number;
  #stopping = false;
  #freed: () => void = () => {};

  constructor(
    private readonly wire: Wire,
    private readonly topic: Topic,
    private readonly handler: Handler,
    private readonly options: WorkOptions = {},
  ) {
    this.name = options.name ?? `js-${randomId().slice(0, 8)}`;
    this.#slots = Math.max(options.concurrency ?? 1, 1);
    this.done = this.#work();
  }

  async stop(options: { force?: boolean } = {}): Promise<void> {
    this.#stopping = true;
    this.#freed();
    if (options.force) for (const run of this.#running.values()) run.release();
    await this.done;
  }

  async #work(): Promise<void> {
    try {
      for (let failures = 0; !this.#stopping; ) {
        const free = this.#slots - this.#running.size;
        if (free <= 0) {
          await this.#oneFreed();
          continue;
        }
        try {
          for (const job of await this.#claim(Math.min(free, 100))) this.#start(job);
          failures = 0;
        } catch (error) {
          const { status, retryAfterMs } = error as Failure;
          if (FINAL.has(status)) throw error;
          await Promise.race([
            new Promise((go) => setTimeout(go, pauseMs(failures++, retryAfterMs))),
            this.#oneFreed(),
          ]);
        }
      }
    } finally {
      await Promise.all([...this.#running.values()].map((run) => run.done));
    }
  }

  #oneFreed(): Promise<void> {
    return new Promise((resolve) => {
      this.#freed = resolve;
    });
  }

  async #claim(limit: number): Promise<Document[]> {
    const { capabilities = [], leaseSeconds = 60 } = this.options;
    const topics = [this.topic];
    const body = { workerId: this.name, topics, capabilities, limit, wait: CLAIM_WAIT, lease: leaseSeconds };
    const found = await call<{ items: Document[] }>(this.wire, "/api/workers/claim", { method: "POST", body });
    return found.items;
  }

  #start(job: Document): void {
    const everyMs = (this.options.heartbeatSeconds ?? Math.min(5, (this.options.leaseSeconds ?? 60) / 3)) * 1000;
    const run = new Run(this.wire, job, this.handler, everyMs, () => {
      this.#running.delete(job.id);
      this.#freed();
    });
    this.#running.set(job.id, run);
    if (this.#stopping) run.release();
  }
}

/** One claimed job. */
class Run {
  readonly done: Promise<void>;
  readonly #abort = new AbortController();
  readonly #token: string;
  #cancelled = false;
  #released = false;
  #lost = false;

  constructor(
    private readonly wire: Wire,
    private readonly document: Document,
    private readonly handler: Handler,
    private readonly everyMs: number,
    private readonly onDone: () => void,
  ) {
    this.#token = document.token;
    this.done = Promise.resolve().then(() => this.#run());
  }

  /** Give the job back. */
  release(): void {
    this.#released = true;
    this.#abort.abort(new TreadleError("the worker is stopping", { code: "stopping", isAbort: true }));
  }

  async #run(): Promise<void> {
    const timer = setInterval(() => this.#heartbeat().catch(() => {}), this.everyMs);
    try {
      const { token: _, ...document } = this.document;
      const job = toJob(document);
      if (this.#released) return await this.#report("release", {});
      const result = await this.handler(job, this.#context(job));
      await this.#report("complete", { result: result ?? null });
    } catch (error) {
      await this.#failed(error);
    } finally {
      clearInterval(timer);
      this.onDone();
    }
  }

  async #failed(error: unknown): Promise<void> {
    if (this.#lost) return;
    if (this.#released) return this.#report("release", { reason: "the worker is stopping" });
    if (this.#cancelled) return this.#report("ack-cancel", {});
    const { stack, fatal } = error as { stack?: string; fatal?: boolean };
    await this.#report("fail", { error: (stack ?? String(error)).slice(0, 32_000) || "error", fatal: fatal === true });
  }

  #context(job: Job): WorkContext {
    return {
      signal: this.#abort.signal,
      attempt: job.attempt,
      isRetry: job.attempt > 1,
      isLastAttempt: job.attempt >= job.maxAttempts,
      progress: async (percent, message) => this.#held(await this.#send("progress", { percent, message })),
      heartbeat: () => this.#heartbeat(),
    };
  }

  async #heartbeat(): Promise<void> {
    this.#held(await this.#send("heartbeat", {}));
  }

  #held(answer: { cancelRequested: boolean }): void {
    if (!answer.cancelRequested || this.#cancelled) return;
    this.#cancelled = true;
    this.#abort.abort(new TreadleError("the job is cancelled", { code: "cancelled", isAbort: true }));
  }

  /** The outcome; if the lease is lost, it is another worker's to tell. */
  async #report(how: string, body: object): Promise<void> {
    await this.#send(how, body).catch(() => {});
  }

  // biome-ignore lint/suspicious/noExplicitAny: the answers differ
  async #send(how: string, body: object): Promise<any> {
    try {
      const path = `/api/workers/jobs/${this.document.id}/${how}`;
      // The token makes each of them safe to repeat.
      return await call(this.wire, path, { method: "POST", body: { token: this.#token, ...body }, repeatable: true });
    } catch (error) {
      if ((error as Failure).status === 409 || (error as Failure).status === 404) {
        this.#lost = true;
        this.#abort.abort(error);
      }
      throw error;
    }
  }
}
