import { type Document, plain, toJob, toSchedule, toTemplate, withCreatedAt } from "./documents.js";
import type { Call, Job, NewSchedule, Schedule, ScheduleChanges, ScheduleEvent, Template, Topic } from "./types.js";
import { call, type Wire } from "./wire.js";

interface Items {
  items: Document[];
}

const at = (folder: string, name: string, what = ""): string => `/api/${folder}/${encodeURIComponent(name)}${what}`;

export class Schedules {
  constructor(private readonly wire: Wire) {}

  async list(query: { topic?: Topic } = {}, options?: Call): Promise<Schedule[]> {
    return (await call<Items>(this.wire, "/api/schedules", { query }, options)).items.map(toSchedule);
  }

  async get(id: string, options?: Call): Promise<Schedule> {
    return toSchedule(await call<Document>(this.wire, at("schedules", id), {}, options));
  }

  async create(schedule: NewSchedule, options?: Call): Promise<Schedule> {
    return toSchedule(await call(this.wire, "/api/schedules", { method: "POST", body: plain(schedule) }, options));
  }

  /** With the `version` that you read, 409 if somebody else was faster. */
  async update(id: string, changes: ScheduleChanges & { version?: number }, options?: Call): Promise<Schedule> {
    return toSchedule(await call(this.wire, at("schedules", id), { method: "PATCH", body: plain(changes) }, options));
  }

  async delete(id: string, options?: Call): Promise<void> {
    await call(this.wire, at("schedules", id), { method: "DELETE" }, options);
  }

  /** Make a job now; the next run stays. */
  async run(id: string, options?: Call): Promise<Job> {
    return toJob(await call<Document>(this.wire, at("schedules", id, "/run"), { method: "POST" }, options));
  }

  /** The newest slots that made no job, and why. */
  async events(id: string, options?: Call): Promise<ScheduleEvent[]> {
    const found = await call<Items>(this.wire, at("schedules", id, "/events"), {}, options);
    return found.items.map((one) => withCreatedAt<ScheduleEvent>(one));
  }
}

export class Templates {
  constructor(private readonly wire: Wire) {}

  async list(options?: Call): Promise<Template[]> {
    return (await call<Items>(this.wire, "/api/templates", {}, options)).items.map(toTemplate);
  }

  async get(topic: Topic, options?: Call): Promise<Template> {
    return toTemplate(await call<Document>(this.wire, at("templates", topic), {}, options));
  }

  async versions(topic: Topic, options?: Call): Promise<Template[]> {
    return (await call<Items>(this.wire, at("templates", topic, "/versions"), {}, options)).items.map(toTemplate);
  }

  /** Switch it off or on, or make a saved version the current one. */
  async update(
    topic: Topic,
    changes: { enabled?: boolean; useVersion?: number; version?: number },
    options?: Call,
  ): Promise<Template> {
    return toTemplate(await call(this.wire, at("templates", topic), { method: "PATCH", body: changes }, options));
  }
}
