import {
  type AuthRecord,
  type AuthResult,
  type AuthStore,
  LocalAuthStore,
  MemoryAuthStore,
  providedAuth,
  Refresher,
} from "./auth.js";
import { aborted, isAbortError, notJson, refusal, TreadleError } from "./errors.js";
import { type Jobs, makeJobs } from "./jobs.js";
import { Schedules, Templates } from "./planning.js";
import type { Call } from "./types.js";
import { call, pathWith, type Wire, type WireRequest } from "./wire.js";

export type Collection = "users" | "_superusers";

export interface TreadleOptions {
  /** Where the session is kept, or a function that is asked for the token. */
  auth?: AuthStore | (() => string | Promise<string>);
  apiKey?: string;
  fetch?: typeof fetch;
  /** 30 s by default; 0 waits for ever. */
  timeoutMs?: number;
  /** 3 by default. */
  retries?: number;
}

export interface SendOptions extends Call {
  method?: string;
  query?: object;
  body?: unknown;
}

const hasWindow = (): boolean => typeof window !== "undefined";

/** A client of one server. */
export class Treadle {
  readonly auth: AuthStore;
  readonly jobs: Jobs;
  readonly schedules: Schedules;
  readonly templates: Templates;
  readonly #wire: FetchWire;

  /** `url` is the page's own origin by default, in Node a server on this machine. */
  constructor(url?: string, options: TreadleOptions = {}) {
    const { auth } = options;
    this.auth =
      typeof auth === "function"
        ? providedAuth(auth)
        : (auth ?? new (hasWindow() ? LocalAuthStore : MemoryAuthStore)());
    const base = url ?? (hasWindow() ? "" : "http://127.0.0.1:8090");
    this.#wire = new FetchWire(base.replace(/\/+$/, ""), this.auth, options);
    this.jobs = makeJobs(this.#wire);
    this.schedules = new Schedules(this.#wire);
    this.templates = new Templates(this.#wire);
  }

  async authWithPassword(
    identity: string,
    password: string,
    options: Call & { collection?: Collection } = {},
  ): Promise<AuthResult> {
    const { collection = "users", ...rest } = options;
    const found = await this.#wire.signIn(collection, "auth-with-password", { identity, password }, rest);
    this.auth.save(found.token, found.record);
    return found;
  }

  async authRefresh(options: Call = {}): Promise<AuthResult> {
    return this.#wire.refreshed(options);
  }

  /** Any request to the server. */
  send<R>(path: string, options: SendOptions = {}): Promise<R> {
    const { method = "GET", query, body, ...rest } = options;
    const keyed = (body as { idempotencyKey?: string } | undefined)?.idempotencyKey !== undefined;
    return call(this.#wire, path, { method, query, body, repeatable: method === "GET" || keyed }, rest);
  }

  /** Ends all streams and trackers. */
  close(): void {
    this.jobs.close();
  }
}

class FetchWire implements Wire {
  readonly timeoutMs: number;
  readonly retries: number;
  readonly #fetch: typeof fetch;
  readonly #refresher: Refresher;
  #collection = "";

  constructor(
    private readonly base: string,
    private readonly auth: AuthStore,
    private readonly options: TreadleOptions,
  ) {
    this.timeoutMs = options.timeoutMs ?? 30_000;
    this.retries = options.retries ?? 3;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.#refresher = new Refresher(
      () => this.auth.token,
      async () => (await this.refreshed()).token,
    );
  }

  async token(): Promise<string> {
    if (this.options.apiKey) return this.options.apiKey;
    if (this.auth.provide) {
      const token = (await this.auth.provide()) ?? "";
      if (token !== this.auth.token) this.auth.save(token, null);
      return token;
    }
    await this.#refresher.fresh();
    return this.auth.token;
  }

  async renew(refused: string): Promise<boolean> {
    if (this.options.apiKey) return false;
    if (this.auth.provide) return (await this.token()) !== refused;
    return this.#refresher.renew(refused);
  }

  /** A new token for the one in the store; a refused one is forgotten. */
  async refreshed(options: Call = {}): Promise<AuthResult> {
    const { token, record } = this.auth;
    const collection = (record?.collectionName ?? this.#collection) || "users";
    try {
      const found = await this.signIn(collection, "auth-refresh", undefined, options, token);
      if (this.auth.token === token) this.auth.save(found.token, found.record);
      return found;
    } catch (error) {
      if (token && (error as TreadleError).status === 401 && this.auth.token === token) this.auth.clear();
      throw error;
    }
  }

  signIn(collection: string, how: string, body: unknown, options: Call, token = ""): Promise<AuthResult> {
    this.#collection = collection;
    const wire: Wire = { ...this.#plain(token), timeoutMs: this.timeoutMs, retries: this.retries };
    return call<{ token: string; record: AuthRecord }>(
      wire,
      `/api/collections/${collection}/${how}`,
      { method: "POST", body },
      options,
    );
  }

  /** Without a look at the store. */
  #plain(token: string): Pick<Wire, "send" | "open" | "token" | "renew"> {
    return {
      send: async (path, request) => this.#read(await this.#attempt(path, request, token)),
      open: (path, request) => this.#attempt(path, request, token),
      token: async () => token,
      renew: async () => false,
    };
  }

  async send(path: string, request: WireRequest): Promise<unknown> {
    return this.#read(await this.#attempt(path, request, this.#now()));
  }

  open(path: string, request: WireRequest): Promise<Response> {
    return this.#attempt(path, request, this.#now());
  }

  #now(): string {
    return this.options.apiKey ?? this.auth.token;
  }

  async #attempt(path: string, request: WireRequest, token: string): Promise<Response> {
    const headers: Record<string, string> = { Accept: "application/json" };
    if (request.body !== undefined) headers["Content-Type"] = "application/json";
    if (token) headers.Authorization = `Bearer ${token}`;
    const response = await this.#guarded(request, () =>
      this.#fetch(this.base + pathWith(path, request.query), {
        method: request.method ?? "GET",
        headers: { ...headers, ...request.headers },
        body: request.body === undefined ? undefined : JSON.stringify(request.body),
        signal: request.signal,
      }),
    );
    if (response.ok) return response;
    throw refusal(response, await this.#guarded(request, () => response.text()));
  }

  async #read(response: Response): Promise<unknown> {
    const text = await this.#guarded({}, () => response.text());
    if (!text) return undefined;
    try {
      return JSON.parse(text);
    } catch {
      throw notJson(response);
    }
  }

  /** Errors of the network as ours. */
  async #guarded<R>(request: WireRequest, work: () => Promise<R>): Promise<R> {
    try {
      return await work();
    } catch (error) {
      if (request.signal?.aborted || isAbortError(error)) throw aborted(error);
      throw new TreadleError(`the server can't be reached: ${(error as Error).message}`, {
        code: "network_error",
        cause: error,
      });
    }
  }
}
