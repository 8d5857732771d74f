/** Topics with their payloads and results; `treadle codegen typescript` fills it with `declare module "treadle"`. */
// biome-ignore lint/suspicious/noEmptyInterface: it is there to be extended
export interface Topics {}

export type Topic = keyof Topics | (string & {});

type Known<T, Name extends string, Else> = [T] extends [keyof Topics]
  ? Topics[T] extends { [name in Name]: infer Found }
    ? Found
    : Else
  : Else;

// biome-ignore lint/suspicious/noExplicitAny: payloads of topics without generated types
type Anything = any;

export type PayloadOf<T extends Topic> = Known<T, "payload", Record<string, Anything>>;
export type ResultOf<T extends Topic> = Known<T, "result", Anything>;
export type AnswersOf<T extends Topic> = Known<T, "answers", Record<string, Anything>>;

/** Options of every call. */
export interface Call {
  signal?: AbortSignal;
  /** For the whole call with its retries; for a stream, for each connection until its first byte. */
  timeoutMs?: number;
  headers?: Record<string, string>;
  /** How often a call is repeated after network errors, 429 and 503. */
  retries?: number;
}

export type Status =
  | "pending"
  | "processing"
  | "waiting"
  | "cancelling"
  | "completed"
  | "failed"
  | "cancelled"
  | "expired";
export type StepStatus = "pending" | "processing" | "waiting" | "completed" | "failed" | "skipped" | "cancelled";
export type Priority = "critical" | "high" | "normal" | "low" | "background" | (number & {});
/** `"30s"`, `"5m"`, `"2h"`, or seconds. */
export type Duration = string | number;

export interface Step {
  id: string;
  name: string;
  status: StepStatus;
  progress: number;
  message: string | null;
  attempt: number;
  startedAt: Date | null;
  completedAt: Date | null;
  error: string | null;
  result: unknown;
  resultSize: number | null;
  key: string | null;
  items: { total: number; done: number; failed: number } | null;
}

export interface Job<T extends Topic = Topic> {
  id: string;
  topic: T;
  status: Status;
  staleAt: Date | null;
  priority: number;
  payload: PayloadOf<T>;
  result: ResultOf<T> | null;
  /** The error of the newest failed attempt, with its stack. */
  lastError: string | null;
  errorType: string | null;
  /** 0 to 100. */
  progress: number;
  progressMessage: string | null;
  step: string | null;
  steps: Step[];
  attempt: number;
  maxAttempts: number;
  retries: number;
  maxRetries: number;
  runAt: Date;
  expiresAt: Date | null;
  createdAt: Date;
  updatedAt: Date;
  scheduledAt: Date | null;
  claimedAt: Date | null;
  startedAt: Date | null;
  endedAt: Date | null;
  completedAt: Date | null;
  failedAt: Date | null;
  cancelledAt: Date | null;
  lastHeartbeatAt: Date | null;
  lastWorker: string | null;
  lockedBy: string | null;
  lockedUntil: Date | null;
  eventsCount: number;
  cancelRequestedAt: Date | null;
  cancelReason: string | null;
  errorGroup: string | null;
  scope: string | null;
  scopeId: string | null;
  createdBy: string | null;
  idempotencyKey: string | null;
  capability: string | null;
  templateVersion: number | null;
  scheduleId: string | null;
  parentId: string | null;
  webhookUrl: string | null;
  webhookSent: boolean | null;
  /** Payload and result were left out because they are large: `get` has them. */
  truncated?: true;
  /** In the answer to `enqueue`: the job existed already. */
  deduplicated?: boolean;
  /** After an enqueue with `track`: lets others follow this job. Null if an existing job stands for the new one. */
  trackToken?: string | null;
}

/** A job of a tracker, also with the names that PostgreSQL columns have. */
export interface TrackedJob<T extends Topic = Topic> extends Job<T> {
  progress_percent: number;
  progress_message: string | null;
  last_error: string | null;
}

export interface JobOptions {
  runAt?: Date | string;
  delay?: Duration;
  expiresAt?: Date | string;
  maxRetries?: number;
  maxAttempts?: number;
  priority?: Priority;
  capability?: string;
  /** Made for every enqueue, so that it can be repeated; a key of yours, or of the topic's template, comes first. */
  idempotencyKey?: string;
  scope?: string;
  scopeId?: string;
  webhookUrl?: string;
  /** Make a `trackToken`, with which others may follow this one job. */
  track?: boolean;
}

export interface EnqueueOptions extends JobOptions, Call {}

export interface EnqueueRequest<T extends Topic = Topic> extends JobOptions {
  topic: T;
  payload?: PayloadOf<T>;
}

export interface ListQuery {
  topic?: Topic;
  /** A status, or another word for one (`running`, `dead_letter`). */
  status?: Status | "stale" | (string & {});
  scope?: string;
  scopeId?: string;
  /** Only the children of this job. */
  parentId?: string;
  /** What one types into the search box: `topic:mail status:failed some words`. */
  q?: string;
  /** An expression over the job's fields: `priority >= 75 && payload.userId = '123'`. */
  filter?: string;
  /** Up to five fields, `-priority,createdAt`. */
  sort?: string;
  limit?: number;
  offset?: number;
  page?: number;
  perPage?: number;
  /** Don't count: `totalItems` and `totalPages` are -1. */
  skipTotal?: boolean;
}

export interface Page<T> extends Iterable<T> {
  items: T[];
  page: number;
  perPage: number;
  limit: number;
  offset: number;
  totalItems: number;
  totalPages: number;
  /** There are more than `totalItems`. */
  totalCapped?: boolean;
  /** Payloads, results or steps were searched in this many of the newest jobs only; null: in all. */
  searched?: number | null;
}

export type Stats = Record<Status, number> & {
  /** 0 to 1; null when nothing has ended. */
  successRate: number | null;
  /** In milliseconds, of completed jobs. */
  avgExecutionTime: number | null;
  topics: Record<string, Record<Status, number>>;
};

export interface TimelineEvent {
  /** Null for what is derived from the job's own times. */
  id: number | null;
  jobId: string;
  type: string;
  from: Status | null;
  to: Status | null;
  message: string;
  metadata: Record<string, unknown>;
  createdAt: Date;
}

export interface Why {
  id: string;
  status: Status;
  reasons: string[];
}

export interface JobChanges {
  runAt?: Date | string;
  priority?: Priority;
  maxRetries?: number;
  maxAttempts?: number;
}

export interface RequeueOptions extends Call {
  /** What runs again in a job with steps; `unfinished` by default. */
  mode?: "unfinished" | "all" | "from";
  step?: string;
  /** Also a completed job. */
  force?: boolean;
  /** Change nothing: the job with `wouldRun`, or the error that a requeue would give. */
  dryRun?: boolean;
  /** Run everything again with this payload. */
  payload?: Record<string, unknown>;
}

export type BulkAction = "cancel" | "requeue" | "delete" | "release" | "patch";

export interface BulkOptions extends Call, JobChanges {
  dryRun?: boolean;
  asOf?: Date | string;
  background?: boolean;
  reason?: string;
  force?: boolean;
}

export interface BulkResult {
  action: BulkAction;
  dryRun: boolean;
  matched: number;
  changed: number;
  refused: number;
  operationId: string | null;
}

export type JobEventName = `job:${string}`;

/** What a stream tells. `id` is the place to resume from. */
export type JobEvent =
  | { event: Exclude<JobEventName, "job:deleted">; id: string | null; at: Date; job: Job; truncated?: true }
  | { event: "job:deleted"; id: string | null; at: Date; deletedJobId: string }
  | { event: "snapshot"; id: string | null; jobs: Job[]; truncated?: true }
  /** Events were missed; a snapshot follows. */
  | { event: "resync"; id: string | null; at: Date };

export interface StreamQuery {
  /** At most 100. */
  ids?: readonly string[];
  topic?: Topic;
  /** First send the jobs as they are now. */
  snapshot?: boolean;
  /** What the jobs in events carry besides their id; everything if it is left out. */
  fields?: readonly (keyof Job)[];
  /** Resume after this event, for example after a reload. */
  lastEventId?: string | null;
}

/** Reconnects by itself, with no gap and no double. `break` closes the connection. */
export interface JobStream extends AsyncIterableIterator<JobEvent> {
  /** The id of the last event that you have got. */
  readonly lastEventId: string | null;
  close(): void;
}

export interface TrackOptions {
  signal?: AbortSignal;
  lazy?: boolean;
  token?: string;
}

export interface OutputOptions extends Call {
  /** The job's track token. */
  token?: string;
  /** Resume after the value with this number: the `lastEventId` of an earlier reader. */
  after?: string | null;
  /** `latest`: only what comes next. */
  from?: "start" | "latest";
  /** A new attempt writes to the channel: what came before counts no more. */
  onReset?: (attempt: number) => void;
}

/** The values of a channel in order; ends when the job has ended. Reconnects by itself. */
export interface JobOutput<T = unknown> extends AsyncIterableIterator<T> {
  /** The number of the last value that you have got. */
  readonly lastEventId: string | null;
  close(): void;
}

export type Missed = "skip" | "one" | "all";
export type Overlap = "allow" | "skip" | "queue";

export interface ScheduleChanges {
  topic?: Topic;
  cron?: string | null;
  every?: Duration | null;
  startAt?: Date | string | null;
  endAt?: Date | string | null;
  timezone?: string;
  payload?: Record<string, unknown>;
  scope?: string | null;
  scopeId?: string | null;
  enabled?: boolean;
  missed?: Missed;
  overlap?: Overlap;
  jitterSeconds?: number;
}

export interface NewSchedule extends ScheduleChanges {
  id?: string;
  topic: Topic;
}

export interface Schedule {
  id: string;
  topic: Topic;
  cron: string | null;
  every: string | null;
  startAt: Date | null;
  endAt: Date | null;
  timezone: string;
  payload: Record<string, unknown>;
  scope: string | null;
  scopeId: string | null;
  createdBy: string | null;
  createdAt: Date;
  updatedAt: Date;
  version: number;
  enabled: boolean;
  missed: Missed;
  overlap: Overlap;
  jitterSeconds: number;
  nextRunAt: Date | null;
  lastRunAt: Date | null;
  lastJobId: string | null;
  /** When it runs, in words. */
  description: string;
  /** The next five runs. */
  next: Date[];
  source: string | null;
  /** Why it makes no jobs. */
  problem: string | null;
}

export interface ScheduleEvent {
  type: string;
  message: string;
  createdAt: Date;
}

export interface TemplateStep {
  id: string;
  name?: string;
  workerType?: string | null;
  [other: string]: unknown;
}

export interface Template {
  topic: string;
  version: number;
  name: string;
  description: string;
  enabled: boolean;
  repeatable: boolean;
  concurrencyPolicy: "allow" | "reject_same_scope" | "queue_same_scope" | "replace_same_scope";
  concurrencyKeys: string[];
  concurrencyLimit: number | null;
  rate: { n: number; perSeconds: number } | null;
  dedupeKeys: string[];
  idempotencyKey: string | null;
  capability: string | null;
  priority: number;
  timeoutSeconds: number;
  expiresSeconds: number | null;
  cancelPolicy: { supported: boolean; mode: "cooperative" | "kill"; graceSeconds: number };
  retryPolicy: { maxAttempts: number; backoffSeconds: number[] };
  steps: TemplateStep[];
  payloadSchema: Record<string, unknown> | null;
  resultSchema: Record<string, unknown> | null;
  schedulable: boolean;
  createdAt: Date;
  updatedAt: Date;
  /** In `versions`: whether new jobs get this one. */
  current?: boolean;
}
