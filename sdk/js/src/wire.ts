import { aborted, TreadleError } from "./errors.js";
import type { Call } from "./types.js";

export interface WireRequest {
  method?: string;
  query?: object;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** For others than GET: whether sending it twice does the same as once. */
  repeatable?: boolean;
}

/** One attempt at a request: how a client reaches its server, and the errors that its users know. */
export interface Wire {
  readonly timeoutMs: number;
  readonly retries: number;
  /** The body of the response, read. */
  send(path: string, request: WireRequest): Promise<unknown>;
  /** A response whose body is a stream. */
  open(path: string, request: WireRequest): Promise<Response>;
  /** The token to use now. One that is about to expire is replaced first. */
  token(): Promise<string>;
  /** Whether there is another token, after the server has refused this one. */
  renew(refused: string): Promise<boolean>;
}

/** The same connection with a track token, which opens one job, in the place of the session. */
export function tracking(wire: Wire, token: string): Wire {
  const bearing = (request: WireRequest): WireRequest => ({
    ...request,
    headers: { ...request.headers, Authorization: `Bearer ${token}` },
  });
  return {
    timeoutMs: wire.timeoutMs,
    retries: wire.retries,
    send: (path, request) => wire.send(path, bearing(request)),
    open: (path, request) => wire.open(path, bearing(request)),
    token: async () => token,
    renew: async () => false,
  };
}

/** What any client's error tells. */
export interface Failure {
  status: number;
  isAbort?: boolean;
  code?: string;
  retryAfterMs?: number | null;
}

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 15_000;

/** Send until there is an answer, as often as that is safe. */
export async function call<R>(wire: Wire, path: string, request: WireRequest = {}, options: Call = {}): Promise<R> {
  const method = request.method ?? "GET";
  const repeatable = request.repeatable ?? method === "GET";
  const most = repeatable ? (options.retries ?? wire.retries) : 0;
  const limit = new Limit(options.signal, options.timeoutMs ?? wire.timeoutMs);
  let renewed = false;
  try {
    for (let attempt = 0; ; attempt++) {
      limit.check();
      const token = await limit.race(wire.token());
      try {
        const headers = { ...request.headers, ...options.headers };
        return (await wire.send(path, { ...request, method, headers, signal: limit.signal })) as R;
      } catch (error) {
        limit.check();
        const failure = error as Failure;
        if (failure.status === 401 && !renewed && (await limit.race(wire.renew(token)))) {
          renewed = true;
          attempt--;
          continue;
        }
        const pause = pauseMs(attempt, failure.retryAfterMs);
        if (attempt >= most || !isTransient(failure) || pause > limit.leftMs) throw error;
        await limit.pause(pause);
      }
    }
  } finally {
    limit.end();
  }
}

const isTransient = (failure: Failure): boolean =>
  !failure.isAbort && (failure.status === 0 || failure.status === 429 || failure.status === 503);

export function pauseMs(failures: number, atLeastMs?: number | null): number {
  const most = Math.min(FIRST_PAUSE_MS * 2 ** failures, LONGEST_PAUSE_MS);
  return (atLeastMs ?? 0) + most * (0.5 + Math.random() / 2);
}

/** The caller's signal and a timeout in one signal. */
export class Limit {
  readonly #abort = new AbortController();
  readonly #outer: AbortSignal | undefined;
  readonly #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #until: number;
  #error: TreadleError | null = null;

  constructor(outer?: AbortSignal, timeoutMs = 0) {
    this.#outer = outer;
    this.#until = timeoutMs > 0 ? Date.now() + timeoutMs : Number.POSITIVE_INFINITY;
    if (outer?.aborted) this.#aborted();
    outer?.addEventListener("abort", this.#aborted);
    if (timeoutMs > 0 && timeoutMs < 2 ** 31) {
      const message = `no answer within ${timeoutMs} ms`;
      this.#timer = setTimeout(() => this.fail(new TreadleError(message, { code: "timeout" })), timeoutMs);
    }
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  get leftMs(): number {
    return this.#until - Date.now();
  }

  readonly #aborted = (): void => this.fail(aborted(this.#outer?.reason));

  fail(error: TreadleError): void {
    this.#error ??= error;
    this.#abort.abort(this.#error);
  }

  /** Throws once the call was aborted or has taken too long. */
  check(): void {
    if (this.#error) throw this.#error;
  }

  /** The timeout has passed its use; the signal still counts. */
  connected(): void {
    clearTimeout(this.#timer);
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener("abort", this.#aborted);
  }

  race<R>(work: Promise<R>): Promise<R> {
    return new Promise((resolve, reject) => {
      const stop = () => reject(this.#error);
      if (this.signal.aborted) stop();
      this.signal.addEventListener("abort", stop);
      work.then(resolve, reject).finally(() => this.signal.removeEventListener("abort", stop));
    });
  }

  pause(ms: number): Promise<void> {
    let timer: ReturnType<typeof setTimeout>;
    const waited = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, ms);
    });
    return this.race(waited).finally(() => clearTimeout(timer));
  }
}

/** `path` with a query; lists are repeated, and what is undefined or null is left out. */
export function pathWith(path: string, query: object = {}): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null) found.append(name, String(one));
    }
  }
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

export const jobPath = (id: string, what = ""): string => `/api/jobs/${encodeURIComponent(id)}${what}`;

/** `crypto.randomUUID` is missing on pages without TLS. */
export function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
