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

export interface UseOutput<T = unknown> {
  values: readonly T[];
  error: TreadleError | null;
  ended: boolean;
}

const NO_OUTPUT: UseOutput<never> = { values: [], error: null, ended: false };
/** A page that shows tokens as they come need not render for each. */
const PUBLISH_MS = 50;

/** What a job emits to a channel so far; begins anew with a new attempt. */
export function useOutput<T = unknown>(
  id: string | null | undefined,
  channel: string,
  options: UseJobOptions = {},
): UseOutput<T> {
  const { enabled = true } = options;
  const jobs = id && enabled ? (options.client ?? defaultClient()).jobs : null;
  const store = useMemo(() => outputStore<T>(jobs, id ?? "", channel), [jobs, id, channel]);
  return useSyncExternalStore(store.subscribe, store.get, () => NO_OUTPUT);
}

function outputStore<T>(jobs: Jobs | null, id: string, channel: string) {
  let shown: UseOutput<T> = NO_OUTPUT;
  return {
    get: () => shown,
    subscribe(run: () => void): () => void {
      if (!jobs) return ended;
      let values: T[] = [];
      let open = true;
      let timer: ReturnType<typeof setTimeout> | undefined;
      const publish = (more: Partial<UseOutput<T>> = {}) => {
        clearTimeout(timer);
        timer = undefined;
        if (!open) return;
        shown = { values: [...values], error: null, ended: false, ...more };
        run();
      };
      const output = jobs.output<T>(id, channel, {
        onReset: () => {
          values = [];
        },
      });
      const read = async () => {
        for await (const value of output) {
          values.push(value);
          timer ??= setTimeout(publish, PUBLISH_MS);
        }
      };
      read().then(
        () => publish({ ended: true }),
        (error) => publish({ error, ended: true }),
      );
      return () => {
        open = false;
        clearTimeout(timer);
        output.close();
      };
    },
  };
}
