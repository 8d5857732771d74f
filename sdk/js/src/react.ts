import { useCallback, useMemo, useSyncExternalStore } from "react";
import { defaultClient } from "./default_client.js";
import type { TreadleError } from "./errors.js";
import type { Jobs } from "./jobs.js";
import { listenTo, type Tracker } from "./tracker.js";
import type { Topic, TrackedJob } from "./types.js";

export interface UseJobOptions {
  client?: { jobs: Jobs };
  /** `false` lets the connection go; `true` takes it up again. */
  enabled?: boolean;
}

export interface UseJob<T extends Topic = Topic> {
  job: TrackedJob<T> | null;
  error: TreadleError | null;
}

const nothing = () => null;
const ended = () => {};

/** A job as it is now. All components share one connection. */
export function useJob<T extends Topic = Topic>(id: string | null | undefined, options: UseJobOptions = {}): UseJob<T> {
  const { enabled = true } = options;
  const jobs = id && enabled ? (options.client ?? defaultClient()).jobs : null;
  const tracker = useMemo(() => (jobs && id ? jobs.track<T>(id, { lazy: true }) : null), [jobs, id]);
  const subscribe = useCallback(
    (run: () => void) => (tracker ? listenTo(tracker as Tracker<never>, run) : ended),
    [tracker],
  );
  const job = useSyncExternalStore(subscribe, tracker?.getSnapshot ?? nothing, nothing);
  const error = useSyncExternalStore(subscribe, () => tracker?.error ?? null, nothing);
  return { job, error };
}

export interface UseJobs<T extends Topic = Topic> {
  /** In the order of the ids; null until a job is known. */
  jobs: readonly (TrackedJob<T> | null)[];
  errors: readonly (TreadleError | null)[];
}

/** Many jobs; a new array with the same ids changes nothing. */
export function useJobs<T extends Topic = Topic>(ids: readonly string[], options: UseJobOptions = {}): UseJobs<T> {
  const { enabled = true } = options;
  const found = enabled && ids.length > 0 ? (options.client ?? defaultClient()).jobs : null;
  const key = ids.join("\n");
  const store = useMemo(() => {
    const wanted = key === "" ? [] : key.split("\n");
    const trackers = found ? wanted.map((id) => found.track<T>(id, { lazy: true })) : [];
    const read = (): UseJobs<T> => ({
      jobs: found ? trackers.map((one) => one.current) : wanted.map(nothing),
      errors: found ? trackers.map((one) => one.error) : wanted.map(nothing),
    });
    let shown = read();
    return {
      subscribe(run: () => void) {
        const ends = trackers.map((one) =>
          listenTo(one as Tracker<never>, () => {
            shown = read();
            run();
          }),
        );
        return () => {
          for (const end of ends) end();
        };
      },
      get: () => shown,
    };
  }, [found, key]);
  return useSyncExternalStore(store.subscribe, store.get, store.get);
}
