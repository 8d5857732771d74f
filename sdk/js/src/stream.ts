import { type Document, toEvent } from "./documents.js";
import { contentType, TreadleError } from "./errors.js";
import { type Message, SseParser } from "./sse.js";
import type { Call, JobEvent, JobStream, StreamQuery } from "./types.js";
import { type Failure, Limit, pathWith, pauseMs, type Wire } from "./wire.js";

/** The server pings every 15 s. */
const SILENCE_MS = 45_000;
/** A tab that wakes distrusts a connection that has been silent for longer than this. */
const DISTRUST_MS = 20_000;
const CONNECT_MS = 30_000;

export type LinkState = "connecting" | "live" | "reconnecting";

export interface LinkOptions extends Call {
  lastEventId?: string | null;
  /** Asked before each connection. */
  query: () => object;
  onState?: (state: LinkState) => void;
}

/** The messages of a stream, over as many connections as it takes. Ends by an error, or when `limit` is aborted. */
export class Link {
  lastEventId: string | null;
  readonly #limit: Limit;
  #wakeUp: (() => void) | null = null;
  #heardAt = 0;

  constructor(
    private readonly wire: Wire,
    private readonly options: LinkOptions,
  ) {
    this.lastEventId = options.lastEventId ?? null;
    this.#limit = new Limit(options.signal);
  }

  close(): void {
    this.#limit.fail(new TreadleError("the stream is closed", { code: "closed", isAbort: true }));
  }

  async *messages(): AsyncGenerator<Message, void, void> {
    const forget = onWake(() => this.#wake());
    let failures = 0;
    let renewed = false;
    this.options.onState?.("connecting");
    try {
      for (;;) {
        this.#limit.check();
        let token = "";
        try {
          token = await this.#limit.race(this.wire.token());
          for await (const messages of this.#connection()) {
            failures = 0;
            renewed = false;
            yield* messages;
          }
        } catch (error) {
          this.#limit.check();
          const { status } = error as Failure;
          if (status === 401 && !renewed && (await this.#limit.race(this.wire.renew(token)))) {
            renewed = true;
            continue;
          }
          if (isFinal(error as Failure)) throw error;
          this.options.onState?.("reconnecting");
          await this.#pause(pauseMs(failures++, (error as Failure).retryAfterMs));
          continue;
        }
        this.options.onState?.("reconnecting");
        await this.#pause(pauseMs(failures++));
      }
    } finally {
      forget();
      this.#limit.end();
    }
  }

  /** What one connection brings, a list for each piece of the body. */
  async *#connection(): AsyncGenerator<Message[], void, void> {
    const { headers, timeoutMs } = this.options;
    const attempt = new Limit(this.#limit.signal, timeoutMs ?? CONNECT_MS);
    let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
    this.#wakeUp = () => {
      if (Date.now() - this.#heardAt > DISTRUST_MS) attempt.fail(new TreadleError("asleep", { code: "network_error" }));
    };
    try {
      this.#heardAt = Date.now();
      const last: Record<string, string> = this.lastEventId === null ? {} : { "Last-Event-ID": this.lastEventId };
      const request = { headers: { Accept: "text/event-stream", ...headers, ...last }, signal: attempt.signal };
      const path = pathWith("/api/jobs/stream", this.options.query());
      const response = await attempt.race(this.wire.open(path, request));
      reader = readerOf(response);
      attempt.connected();
      this.options.onState?.("live");
      let told: Message[] = [];
      const parser = new SseParser((message) => told.push(message));
      const text = new TextDecoder();
      for (;;) {
        const { done, value } = await attempt.race(silent(reader.read(), () => attempt.fail(tooQuiet())));
        if (done) return;
        this.#heardAt = Date.now();
        parser.push(text.decode(value, { stream: true }));
        // Told before the id moves on, so that what nobody took is told again.
        yield told;
        told = [];
        this.lastEventId = parser.lastEventId ?? this.lastEventId;
      }
    } finally {
      this.#wakeUp = null;
      attempt.fail(tooQuiet());
      attempt.end();
      reader?.cancel().catch(() => {});
    }
  }

  async #pause(ms: number): Promise<void> {
    const woken = new Promise<void>((resolve) => {
      this.#wakeUp = resolve;
    });
    await Promise.race([this.#limit.pause(ms), woken]).finally(() => {
      this.#wakeUp = null;
    });
  }

  #wake(): void {
    this.#wakeUp?.();
  }
}

const tooQuiet = () => new TreadleError("the connection has gone quiet", { code: "network_error" });

/** Whether trying again is of no use. */
const isFinal = ({ status, code, isAbort }: Failure): boolean =>
  isAbort === true || code === "no_streams" || (status >= 400 && status < 500 && status !== 429 && status !== 408);

function readerOf(response: Response): ReadableStreamDefaultReader<Uint8Array> {
  if (!response.body) throw new TreadleError("this fetch can't read streams", { code: "no_streams" });
  if (contentType(response) !== "text/event-stream") {
    response.body.cancel().catch(() => {});
    const message = `expected a stream of events, got ${contentType(response) || "no type"}`;
    throw new TreadleError(message, { status: 502, code: "not_json" });
  }
  return response.body.getReader();
}

async function silent<R>(work: Promise<R>, run: () => void): Promise<R> {
  const timer = setTimeout(run, SILENCE_MS);
  return work.finally(() => clearTimeout(timer));
}

/** A page that is seen again, or a machine that is online again. */
function onWake(run: () => void): () => void {
  const page = globalThis.document as Document | EventTarget | undefined;
  const seen = () => {
    if ((globalThis.document as { hidden?: boolean } | undefined)?.hidden !== true) run();
  };
  const here = globalThis as unknown as Partial<EventTarget>;
  (page as EventTarget | undefined)?.addEventListener("visibilitychange", seen);
  here.addEventListener?.("online", run);
  return () => {
    (page as EventTarget | undefined)?.removeEventListener("visibilitychange", seen);
    here.removeEventListener?.("online", run);
  };
}

/** A stream as its user holds it. */
export class EventStream implements JobStream {
  lastEventId: string | null;
  readonly #link: Link | null = null;
  readonly #events: AsyncGenerator<JobEvent, void, void>;
  #closed = false;

  constructor(wire: Wire, query: StreamQuery, options: Call = {}) {
    const { ids, topic, snapshot, fields, lastEventId = null } = query;
    this.lastEventId = lastEventId;
    const asked = { id: ids, topic, snapshot: snapshot || undefined, fields: fields?.join(",") };
    if (ids?.length !== 0) this.#link = new Link(wire, { ...options, lastEventId, query: () => asked });
    this.#events = this.#told();
  }

  async *#told(): AsyncGenerator<JobEvent, void, void> {
    if (!this.#link) return; // no ids: nothing to hear
    for await (const { event, id, data } of this.#link.messages()) {
      if (event === "ping") continue;
      const told = toEvent(event, id, JSON.parse(data) as Document);
      this.lastEventId = id ?? this.lastEventId;
      yield told;
    }
  }

  async next(): Promise<IteratorResult<JobEvent, void>> {
    try {
      return await this.#events.next();
    } catch (error) {
      if (this.#closed) return { done: true, value: undefined };
      throw error;
    }
  }

  async return(): Promise<IteratorResult<JobEvent, void>> {
    this.close();
    await this.#events.return().catch(() => {});
    return { done: true, value: undefined };
  }

  close(): void {
    this.#closed = true;
    this.#link?.close();
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
