export {
  type AuthRecord,
  type AuthResult,
  type AuthStore,
  LocalAuthStore,
  MemoryAuthStore,
  providedAuth,
} from "./auth.js";
export { type Collection, type SendOptions, Treadle, type TreadleOptions } from "./client.js";
export { createJob, setDefaultClient } from "./default_client.js";
export { JobEndedError, TreadleError } from "./errors.js";
export type { Jobs } from "./jobs.js";
export type { Schedules, Templates } from "./planning.js";
export { followQueries, jobQuery, jobsQuery } from "./query.js";
export type { StartableTracker, Tracker, TrackerState } from "./tracker.js";
export type * from "./types.js";
export { Fail, type WorkContext, type WorkHandle, type WorkOptions } from "./work.js";
