import { TreadleError } from "./errors.js";
import type { Jobs } from "./jobs.js";
import { type StartableTracker, startable } from "./tracker.js";
import type { Topic } from "./types.js";

let chosen: { jobs: Jobs } | null = null;

/** The client of `createJob`, `useJob` and the queries that name none. */
export function setDefaultClient(client: { jobs: Jobs }): void {
  chosen = client;
}

export function defaultClient(): { jobs: Jobs } {
  if (!chosen) throw new TreadleError("call setDefaultClient(client), or name a client", { code: "no_client" });
  return chosen;
}

/** A tracker that starts its own jobs. */
export const createJob = <T extends Topic>(topic: T, client?: { jobs: Jobs }): StartableTracker<T> =>
  startable(topic, () => client ?? defaultClient());
