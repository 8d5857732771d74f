import { type Document, hasEnded, toTracked } from "./documents.js";
import { JobEndedError, TreadleError } from "./errors.js";
import type { Jobs } from "./jobs.js";
import type { SharedStream } from "./shared.js";
import type { Call, EnqueueOptions, Job, PayloadOf, ResultOf, Topic, TrackedJob } from "./types.js";
import { Limit } from "./wire.js";

export type TrackerState = "idle" | "connecting" | "live" | "reconnecting" | "ended" | "closed";

/** Follows one job. A store for Svelte; all functions can be passed around on their own. */
export interface Tracker<T extends Topic = Topic> extends AsyncIterable<TrackedJob<T>> {
  readonly current: TrackedJob<T> | null;
  readonly error: TreadleError | null;
  readonly state: TrackerState;
  /** Calls `run` immediately and after each change; returns what ends it. */
  subscribe(this: void, run: (job: TrackedJob<T> | null) => void): () => void;
  /** The same object until the job changes. */
  getSnapshot(this: void): TrackedJob<T> | null;
  /** Waits for the end; throws JobEndedError unless the job has completed. */
  result(this: void, options?: Call): Promise<ResultOf<T>>;
  cancel(this: void, reason?: string): Promise<Job<T>>;
  /** Ends the tracker, not the job. */
  cleanup(this: void): void;
}

export interface StartableTracker<T extends Topic = Topic> extends Tracker<T> {
  /** Enqueue a job and follow it; the one before is let go. */
  start(this: void, payload: PayloadOf<T>, options?: EnqueueOptions): Promise<Job<T>>;
}

/** What a tracker needs of a client besides its jobs. */
export interface Tracking {
  shared: SharedStream;
  /** A job as the server sent it. */
  document(id: string): Promise<Document>;
  enqueue(topic: Topic, payload: unknown, options?: EnqueueOptions): Promise<Document>;
}

type Listener = () => void;

/** The state of a tracker, without the faces that it shows. */
export class Follow<T extends Topic> {
  current: TrackedJob<T> | null = null;
  error: TreadleError | null = null;
  state: TrackerState = "idle";
  readonly #listeners = new Set<Listener>();
  #document: Document | null = null;
  #text = "";
  #id: string | null = null;
  /** Who wants the connection; nobody: it is let go. */
  #wanted = 0;
  #held = false;
  #unfollow: (() => void) | null = null;

  constructor(
    private readonly tracking: () => Tracking,
    id: string | null,
    lazy: boolean,
  ) {
    this.#id = id;
    if (id !== null && !lazy) this.#hold();
  }

  get id(): string | null {
    return this.#id;
  }

  /** Go on with this job, which has just been made. */
  begin(document: Document): void {
    this.#disconnect();
    this.#id = document.id;
    this.#document = null;
    this.#text = "";
    this.current = null;
    this.error = null;
    this.state = "idle";
    this.#take(document);
    this.#hold();
  }

  /** Until the first listener has gone, a tracker follows its job without one. */
  #hold(): void {
    this.#held = true;
    this.#connect();
  }

  listen(run: Listener): () => void {
    // Each subscription counts, also of the same function.
    const listener = () => run();
    this.#listeners.add(listener);
    this.#wanted++;
    this.#connect();
    return () => {
      if (!this.#listeners.delete(listener)) return;
      this.#wanted--;
      if (this.#wanted > 0) return;
      this.#held = false;
      this.#disconnect();
      if (this.isOpen) this.#set("idle");
    };
  }

  /** By its user, for good. */
  isClosed = false;

  get isOpen(): boolean {
    return this.state !== "ended" && this.state !== "closed";
  }

  close(): void {
    this.#disconnect();
    this.isClosed = true;
    this.#set("closed");
    this.#tell();
    this.#listeners.clear();
  }

  #connect(): void {
    if (this.#id === null || this.#unfollow || !this.isOpen || !(this.#held || this.#wanted)) return;
    this.#set("connecting");
    this.#unfollow = this.tracking().shared.follow({
      id: this.#id,
      onJob: (job) => this.#take(job),
      onDeleted: () => this.#fail(new TreadleError("the job was deleted", { status: 404, code: "not_found" })),
      onAbsent: () => this.#look(),
      onState: (state) => this.#set(state),
      onError: (error) => this.#fail(error),
    });
  }

  #disconnect(): void {
    this.#unfollow?.();
    this.#unfollow = null;
  }

  #set(state: TrackerState): void {
    if (this.isOpen) this.state = state;
  }

  #take(job: Document): void {
    if (!this.isOpen || job.id !== this.#id) return;
    const known = this.#document;
    if (known && isOlder(job, known)) return;
    if (job.truncated && hasEnded(job as Job)) {
      this.#look(job);
      return;
    }
    // What a payload was it stays, though an event may be too small for it.
    const whole = job.truncated && known ? { ...job, payload: known.payload } : job;
    const text = JSON.stringify(whole);
    this.#document = whole;
    if (hasEnded(job as Job)) {
      this.#disconnect();
      this.state = "ended";
    }
    if (text === this.#text) return;
    this.#text = text;
    this.current = toTracked<T>(whole);
    this.#tell();
  }

  /** Read the job itself: it was not in the snapshot, or it is too large for an event. */
  async #look(otherwise?: Document): Promise<void> {
    const id = this.#id;
    if (id === null) return;
    try {
      const job = await this.tracking().document(id);
      this.#take(job);
    } catch (error) {
      if (id !== this.#id) return;
      if (otherwise) this.#take({ ...otherwise, truncated: undefined });
      else this.#fail(error);
    }
  }

  #fail(error: unknown): void {
    if (!this.isOpen) return;
    this.#disconnect();
    this.error = error as TreadleError;
    this.state = "closed";
    this.#tell();
  }

  #tell(): void {
    for (const run of [...this.#listeners]) run();
  }
}

/** State never goes back: an event may be read again, and an answer may come late. */
function isOlder(job: Document, known: Document): boolean {
  if (job.updatedAt !== known.updatedAt) return job.updatedAt < known.updatedAt;
  if (job.attempt !== known.attempt) return job.attempt < known.attempt;
  return job.status === known.status && job.progress < known.progress;
}

/** A tracker that starts its own job; its functions read what is current from the one below. */
export function startable<T extends Topic>(topic: T, client: () => { jobs: Jobs }): StartableTracker<T> {
  const follow = new Follow<T>(() => trackingOf(client().jobs), null, true);
  return Object.defineProperties({} as StartableTracker<T>, {
    ...Object.getOwnPropertyDescriptors(trackerOf(follow, () => client().jobs)),
    start: {
      enumerable: true,
      value: async (payload: PayloadOf<T>, options?: EnqueueOptions) => {
        const tracking = trackingOf(client().jobs);
        const document = await tracking.enqueue(topic, payload, options);
        if (follow.isClosed) return toTracked<T>(document);
        follow.begin(document);
        return follow.current;
      },
    },
  });
}

const trackings = new WeakMap<object, Tracking>();

export function setTracking(jobs: Jobs, tracking: Tracking): void {
  trackings.set(jobs, tracking);
}

function trackingOf(jobs: Jobs): Tracking {
  const found = trackings.get(jobs);
  if (!found) throw new TreadleError("these jobs are not of a client of this package", { code: "not_a_client" });
  return found;
}

export function trackerOf<T extends Topic>(follow: Follow<T>, jobs: () => Jobs): Tracker<T> {
  const ended = (): TreadleError =>
    follow.error ?? new TreadleError("the tracker is closed", { code: "closed", isAbort: true });

  async function* changes(): AsyncGenerator<TrackedJob<T>, void, void> {
    let wake: () => void = () => {};
    const unlisten = follow.listen(() => wake());
    let told: TrackedJob<T> | null = null;
    try {
      for (;;) {
        const changed = new Promise<void>((resolve) => {
          wake = resolve;
        });
        if (follow.current && follow.current !== told) {
          told = follow.current;
          yield told;
          continue;
        }
        if (follow.state === "ended") return;
        if (follow.error) throw follow.error;
        if (follow.state === "closed") return;
        await changed;
      }
    } finally {
      unlisten();
    }
  }

  const tracker: Tracker<T> = {
    get current() {
      return follow.current;
    },
    get error() {
      return follow.error;
    },
    get state() {
      return follow.state;
    },
    subscribe(run) {
      let told: unknown;
      let failed: unknown = null;
      const tell = () => {
        if (told === follow.current && failed === follow.error) return;
        told = follow.current;
        failed = follow.error;
        run(follow.current);
      };
      tell();
      return follow.listen(tell);
    },
    getSnapshot: () => follow.current,
    async result(options = {}) {
      const limit = new Limit(options.signal, options.timeoutMs);
      let unlisten = () => {};
      try {
        await limit.race(
          new Promise<void>((resolve) => {
            const look = () => {
              if (!follow.isOpen) resolve();
            };
            unlisten = follow.listen(look);
            look();
          }),
        );
      } finally {
        unlisten();
        limit.end();
      }
      const job = follow.current;
      if (follow.state !== "ended" || !job) throw ended();
      if (job.status !== "completed") throw new JobEndedError(job as Job);
      return job.result as ResultOf<T>;
    },
    async cancel(reason) {
      if (follow.id === null) throw new TreadleError("no job was started", { code: "not_started" });
      return (await jobs().cancel(follow.id, { reason })) as Job<T>;
    },
    cleanup: () => follow.close(),
    [Symbol.asyncIterator]: changes,
  };
  listening.set(tracker, (run) => follow.listen(run));
  return tracker;
}

const listening = new WeakMap<object, (run: Listener) => () => void>();

/** Calls `run` after each change of the job or the error. */
export function listenTo(tracker: Tracker<never>, run: Listener): () => void {
  return listening.get(tracker)?.(run) ?? tracker.subscribe(run);
}
