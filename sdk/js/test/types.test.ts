/** Checked by the compiler; node only sees that it loads. */
import type PocketBase from "pocketbase";
import { createJob, type Job, type JobEvent, type Jobs, type Page, type Stats, Treadle } from "treadle";
import { withJobs } from "treadle/pocketbase";
import { useJob } from "treadle/react";

declare module "treadle" {
  interface Topics {
    typed_export: {
      payload: { format: "csv" | "json"; rows?: number };
      result: { count: number };
      answers: { approve: { ok: boolean } };
    };
  }
}

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
const same = <A, B>(_: Equal<A, B>): void => {};

function useTyped(): void {
  const { job: shown } = useJob<"typed_export">(null);
  same<NonNullable<typeof shown>["result"], { count: number } | null>(true);
}

export async function typed(client: Treadle, pb: PocketBase): Promise<void> {
  const job = await client.jobs.enqueue("typed_export", { format: "csv" }, { runAt: new Date(), priority: "high" });
  same<typeof job, Job<"typed_export">>(true);
  same<(typeof job)["result"], { count: number } | null>(true);
  same<(typeof job)["payload"]["format"], "csv" | "json">(true);
  same<(typeof job)["startedAt"], Date | null>(true);
  // @ts-expect-error no such format
  await client.jobs.enqueue("typed_export", { format: "xml" });
  // @ts-expect-error the payload is missing
  await client.jobs.enqueue("typed_export");
  // @ts-expect-error no such priority
  await client.jobs.enqueue("typed_export", { format: "csv" }, { priority: "urgent" });
  await client.jobs.enqueue("any_other", { what: "ever" });

  const tracker = createJob("typed_export", client);
  same<Awaited<ReturnType<typeof tracker.result>>, { count: number }>(true);
  await tracker.start({ format: "json" });
  // @ts-expect-error no such field
  await tracker.start({ format: "json", colour: "red" });
  tracker.current?.progress_percent.toFixed();

  await client.jobs.signal<"typed_export">("id", "approve", { ok: true });
  // @ts-expect-error no such answer
  await client.jobs.signal<"typed_export">("id", "approve", { ok: "yes" });
  // @ts-expect-error no such step
  await client.jobs.signal<"typed_export">("id", "other", { ok: true });
  await client.jobs.signal("id", "whatever", 7);

  client.jobs.work("typed_export", async (one) => ({ count: one.payload.rows ?? 0 }));
  // @ts-expect-error not its result
  client.jobs.work("typed_export", async () => "done");

  const page = await client.jobs.list({ topic: "typed_export", status: "dead_letter" });
  same<typeof page, Page<Job<"typed_export">>>(true);
  for (const one of page) same<typeof one.topic, "typed_export">(true);
  const stats: Stats = await client.jobs.stats();
  stats.pending.toFixed();
  // @ts-expect-error may be null
  stats.successRate.toFixed();

  for await (const event of client.jobs.stream({ fields: ["status"] })) narrowed(event);
  // @ts-expect-error no such field
  client.jobs.stream({ fields: ["colour"] });

  const extended = withJobs(pb);
  same<(typeof extended)["jobs"], Jobs>(true);
  same<(typeof extended)["collection"], PocketBase["collection"]>(true);
  same<ReturnType<typeof useTyped>, void>(true);
}

function narrowed(event: JobEvent): string {
  if (event.event === "snapshot") return event.jobs.map((job) => job.id).join();
  if (event.event === "resync") return event.at.toISOString();
  return "deletedJobId" in event ? event.deletedJobId : event.job.id;
}

new Treadle("http://queue.test").close();
