import type PocketBase from "pocketbase";
import type { RecordAuthResponse, SendOptions } from "pocketbase";
import { Refresher } from "./auth.js";
import { contentType, notJson, retryAfterMs } from "./errors.js";
import { type Jobs, makeJobs } from "./jobs.js";
import { pathWith, type Wire, type WireRequest } from "./wire.js";

export type { Jobs } from "./jobs.js";

export interface WithJobs {
  readonly jobs: Jobs;
  /** Sign in as a user. */
  authWithPassword(email: string, password: string): Promise<RecordAuthResponse>;
}

/** Gives PocketBase's client `jobs`: the same session, errors and hooks. */
export function withJobs<P extends PocketBase>(pb: P): P & WithJobs {
  if (!("jobs" in pb)) {
    Object.defineProperty(pb, "jobs", { value: makeJobs(new PocketBaseWire(pb)), enumerable: true });
  }
  if (!("authWithPassword" in pb)) {
    const value = (email: string, password: string) => pb.collection("users").authWithPassword(email, password);
    Object.defineProperty(pb, "authWithPassword", { value });
  }
  return pb as P & WithJobs;
}

class PocketBaseWire implements Wire {
  readonly timeoutMs = 0;
  readonly retries = 3;
  readonly #refresher: Refresher;

  constructor(private readonly pb: PocketBase) {
    this.#refresher = new Refresher(
      () => pb.authStore.token,
      async () => {
        const collection = pb.authStore.record?.collectionName ?? "users";
        try {
          return (await pb.collection(collection).authRefresh({ requestKey: null })).token;
        } catch (error) {
          if ((error as { status: number }).status === 401) pb.authStore.clear();
          throw error;
        }
      },
    );
  }

  async token(): Promise<string> {
    await this.#refresher.fresh();
    return this.pb.authStore.token;
  }

  renew(refused: string): Promise<boolean> {
    return this.#refresher.renew(refused);
  }

  async send(path: string, request: WireRequest): Promise<unknown> {
    return this.#attempt(path, request, async (response) => {
      if (response.status === 204 || contentType(response).endsWith("json")) return response;
      throw notJson(response);
    });
  }

  async open(path: string, request: WireRequest): Promise<Response> {
    let opened: Response | null = null;
    await this.#attempt(path, request, async (response) => {
      opened = response;
      return new Response("{}", { headers: { "Content-Type": "application/json" } });
    });
    return opened as unknown as Response;
  }

  /** Through `pb.send`, so that its hooks run and its errors are thrown. */
  async #attempt(path: string, request: WireRequest, take: (response: Response) => Promise<Response>) {
    let pauseMs: number | null = null;
    const options: SendOptions = {
      method: request.method ?? "GET",
      body: request.body,
      headers: request.headers,
      signal: request.signal,
      // PocketBase cancels the first of two alike calls, and replaces the caller's signal to do so.
      requestKey: null,
      fetch: async (url, init) => {
        const response = await fetch(url, init);
        pauseMs = retryAfterMs(response.headers);
        return response.ok ? take(response) : response;
      },
    };
    try {
      return await this.pb.send(pathWith(path, request.query), options);
    } catch (error) {
      throw Object.assign(error as Error, { retryAfterMs: pauseMs });
    }
  }
}
