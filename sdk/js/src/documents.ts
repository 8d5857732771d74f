import type { Job, JobEvent, Page, Schedule, Step, Template, Topic, TrackedJob } from "./types.js";

/** What the server sends, before its dates are dates. */
// biome-ignore lint/suspicious/noExplicitAny: JSON
export type Document = Record<string, any>;

const JOB_DATES =
  "staleAt runAt expiresAt createdAt updatedAt scheduledAt claimedAt startedAt endedAt completedAt failedAt cancelledAt lastHeartbeatAt lockedUntil cancelRequestedAt".split(
    " ",
  );
const STEP_DATES = ["startedAt", "completedAt", "waitsUntil"];
const MADE_AND_CHANGED = ["createdAt", "updatedAt"];

function withDates(document: Document, names: readonly string[]): Document {
  const found = { ...document };
  for (const name of names) if (typeof found[name] === "string") found[name] = new Date(found[name]);
  return found;
}

export const toStep = (document: Document): Step => withDates(document, STEP_DATES) as Step;

export function toJob<T extends Topic>(document: Document): Job<T> {
  const job = withDates(document, JOB_DATES);
  if (job.steps) job.steps = job.steps.map(toStep);
  return job as Job<T>;
}

export function toTracked<T extends Topic>(document: Document): TrackedJob<T> {
  const job = toJob<T>(document);
  return {
    ...job,
    progress_percent: job.progress,
    progress_message: job.progressMessage,
    last_error: job.lastError,
  };
}

/** A page can be iterated itself. */
export function pageOf<T>(page: Omit<Page<unknown>, typeof Symbol.iterator>, items: T[]): Page<T> {
  const iterator = { value: () => items[Symbol.iterator]() };
  return Object.defineProperty({ ...page, items }, Symbol.iterator, iterator) as Page<T>;
}

export function toEvent(event: string, id: string | null, document: Document): JobEvent {
  const told: Document = { ...withDates(document, ["at"]), event, id };
  if (told.job) told.job = toJob(told.job);
  if (told.jobs) told.jobs = told.jobs.map(toJob);
  return told as JobEvent;
}

export const toSchedule = (document: Document): Schedule => {
  const schedule = withDates(document, [...MADE_AND_CHANGED, "startAt", "endAt", "nextRunAt", "lastRunAt"]);
  schedule.next = (schedule.next ?? []).map((at: string) => new Date(at));
  return schedule as Schedule;
};

export const toTemplate = (document: Document): Template => withDates(document, MADE_AND_CHANGED) as Template;

export const withCreatedAt = <R>(document: Document): R => withDates(document, ["createdAt"]) as R;

/** Dates, and PocketBase's `2026-01-08 10:00:00.000Z`, as the server reads them. */
export function instant(at: Date | string): string {
  return typeof at === "string" ? at.replace(/^(\d{4}-\d\d-\d\d) /, "$1T") : at.toISOString();
}

const INSTANTS = new Set(["runAt", "expiresAt", "startAt", "endAt", "asOf", "since"]);

/** A body or query without what is undefined, its dates as texts. */
export function plain(options: object): Document {
  const found: Document = {};
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined) continue;
    found[name] = INSTANTS.has(name) && value !== null ? instant(value) : value;
  }
  return found;
}

const ENDED = new Set(["completed", "failed", "cancelled", "expired"]);

export const hasEnded = (job: { status: string }): boolean => ENDED.has(job.status);
