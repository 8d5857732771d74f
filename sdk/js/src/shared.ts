import type { Document } from "./documents.js";
import { TreadleError } from "./errors.js";
import { Link, type LinkState } from "./stream.js";
import type { Wire } from "./wire.js";

/** What the server allows for one connection. */
const MOST_IDS = 100;

/** Who wants to know about a job. */
export interface Follower {
  readonly id: string;
  onJob(job: Document): void;
  onDeleted(): void;
  /** The job is not in the snapshot: there is none, or the snapshot was full. */
  onAbsent(): void;
  onState(state: LinkState): void;
  onError(error: unknown): void;
}

/** One connection for all followers of a client; another one above the server's limit of ids. */
export class SharedStream {
  readonly #groups = new Set<Group>();

  constructor(private readonly wire: Wire) {}

  /** Returns what ends it. */
  follow(follower: Follower): () => void {
    let group = [...this.#groups].find((one) => one.has(follower.id) || one.size < MOST_IDS);
    if (!group) {
      group = new Group(this.wire, (one) => this.#groups.delete(one));
      this.#groups.add(group);
    }
    return group.add(follower);
  }

  close(): void {
    for (const group of [...this.#groups]) {
      group.fail(new TreadleError("the client is closed", { code: "closed", isAbort: true }));
    }
  }
}

class Group {
  readonly #followers = new Map<string, Set<Follower>>();
  #link: Link | null = null;
  #state: LinkState = "connecting";
  #starting = false;

  constructor(
    private readonly wire: Wire,
    private readonly onEmpty: (group: Group) => void,
  ) {}

  get size(): number {
    return this.#followers.size;
  }

  has(id: string): boolean {
    return this.#followers.has(id);
  }

  add(follower: Follower): () => void {
    const followers = this.#followers.get(follower.id) ?? new Set();
    this.#followers.set(follower.id, followers.add(follower));
    follower.onState(this.#state);
    this.#restart();
    return () => this.#remove(follower);
  }

  #remove(follower: Follower): void {
    const followers = this.#followers.get(follower.id);
    if (!followers?.delete(follower) || followers.size > 0) return;
    this.#followers.delete(follower.id);
    if (this.size === 0) this.#end();
  }

  #end(): void {
    this.#link?.close();
    this.#link = null;
    this.onEmpty(this);
  }

  fail(error: unknown): void {
    const all = this.#all();
    this.#followers.clear();
    this.#end();
    for (const one of all) one.onError(error);
  }

  #all(): Follower[] {
    return [...this.#followers.values()].flatMap((followers) => [...followers]);
  }

  /** A new connection with a snapshot, one for all that are added in the same moment. */
  #restart(): void {
    if (this.#starting) return;
    this.#starting = true;
    setTimeout(() => {
      this.#starting = false;
      this.#link?.close();
      if (this.size > 0) this.#run();
    });
  }

  async #run(): Promise<void> {
    const link = new Link(this.wire, {
      query: () => ({ id: [...this.#followers.keys()], snapshot: true }),
      onState: (state) => {
        if (link === this.#link) this.#tellState(state);
      },
    });
    this.#link = link;
    try {
      for await (const { event, data } of link.messages()) {
        if (link !== this.#link) return;
        this.#tell(event, JSON.parse(data));
      }
    } catch (error) {
      if (link === this.#link) this.fail(error);
    }
  }

  #tellState(state: LinkState): void {
    this.#state = state;
    for (const one of this.#all()) one.onState(state);
  }

  #tell(event: string, document: Document): void {
    if (event === "snapshot") {
      const jobs = new Map<string, Document>(document.jobs.map((job: Document) => [job.id, job]));
      for (const one of this.#all()) {
        const job = jobs.get(one.id);
        if (job) one.onJob(job);
        else one.onAbsent();
      }
    } else if (event === "job:deleted") {
      for (const one of [...(this.#followers.get(document.deletedJobId) ?? [])]) one.onDeleted();
    } else if (document.job) {
      for (const one of [...(this.#followers.get(document.job.id) ?? [])]) one.onJob(document.job);
    }
  }
}
