import type { Job } from "./types.js";

export interface ErrorDetails {
  status?: number;
  code?: string;
  data?: Record<string, unknown>;
  isAbort?: boolean;
  retryAfterMs?: number | null;
  cause?: unknown;
}

/** What every call throws. `status` is 0 when there was no response. */
export class TreadleError extends Error {
  readonly status: number;
  /** Stable, for programs: the server's code, or `aborted`, `timeout`, `network_error`, `not_json`, `closed`. */
  readonly code: string;
  readonly data: Record<string, unknown>;
  /** The caller aborted it. */
  readonly isAbort: boolean;
  readonly retryAfterMs: number | null;

  constructor(message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.name = new.target.name;
    this.status = details.status ?? 0;
    this.code = details.code ?? "error";
    this.data = details.data ?? {};
    this.isAbort = details.isAbort ?? false;
    this.retryAfterMs = details.retryAfterMs ?? null;
  }
}

/** The job failed, was cancelled or has expired. */
export class JobEndedError extends TreadleError {
  readonly job: Job;

  constructor(job: Job) {
    const reason = job.lastError?.trim().split("\n").at(-1) ?? job.cancelReason;
    super(
      `job ${job.id} ${job.status === "failed" ? "has failed" : `is ${job.status}`}${reason ? `: ${reason}` : ""}`,
      {
        code: `job_${job.status}`,
      },
    );
    this.job = job;
  }
}

export const aborted = (cause?: unknown): TreadleError =>
  new TreadleError("the call was aborted", { code: "aborted", isAbort: true, cause });

/** React Native throws an error whose only mark is its message. */
export function isAbortError(error: unknown): boolean {
  const { name, message } = error as Error;
  return name === "AbortError" || message === "Aborted";
}

/** The error of a response that is not OK. */
export function refusal(response: Response, text: string): TreadleError {
  const said = parsed(text);
  const { code, message, data } = said ?? {};
  const details: ErrorDetails = {
    status: response.status,
    code: typeof code === "string" ? code : said ? "error" : "not_json",
    data: isObject(data) ? data : {},
    retryAfterMs: retryAfterMs(response.headers),
  };
  return new TreadleError(typeof message === "string" ? message : `the server answered ${response.status}`, details);
}

/** An answer that is not JSON: a proxy's page, or another server. */
export const notJson = (response: Response): TreadleError =>
  new TreadleError(`expected JSON from ${response.url || "the server"}, got ${contentType(response) || "no type"}`, {
    status: response.status,
    code: "not_json",
  });

export const contentType = (response: Response): string =>
  (response.headers.get("content-type") ?? "").split(";")[0]?.trim().toLowerCase() ?? "";

export function retryAfterMs(headers: Headers): number | null {
  const said = headers.get("retry-after");
  if (!said) return null;
  const ms = /^\d+$/.test(said) ? Number(said) * 1000 : Date.parse(said) - Date.now();
  return Number.isNaN(ms) ? null : Math.max(ms, 0);
}

function parsed(text: string): Record<string, unknown> | null {
  try {
    const found: unknown = JSON.parse(text);
    return isObject(found) ? found : null;
  } catch {
    return null;
  }
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
