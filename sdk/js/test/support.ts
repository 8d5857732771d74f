import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { type AuthResult, type Collection, Treadle, type TreadleOptions } from "treadle";

/** Of the server that the tests run against. */
export const URL_OF_SERVER = needed("TREADLE_TEST_URL");
export const PASSWORD = needed("TREADLE_TEST_PASSWORD");
export const USER = "ann@example.com";
export const SUPERUSER = "root@example.com";

function needed(name: string): string {
  const found = process.env[name];
  if (!found) throw new Error(`${name} is not set: run these tests with pytest tests/sdk`);
  return found;
}

const sessions = new Map<string, Promise<AuthResult>>();

/** Signing in is slow on purpose, so each account does it once. */
async function session(client: Treadle, identity: string, collection: Collection): Promise<Treadle> {
  const found =
    sessions.get(identity) ?? new Treadle(URL_OF_SERVER).authWithPassword(identity, PASSWORD, { collection });
  sessions.set(identity, found);
  const { token, record } = await found;
  client.auth.save(token, record);
  return client;
}

export const signedIn = (options: TreadleOptions = {}, url = URL_OF_SERVER): Promise<Treadle> =>
  session(new Treadle(url, options), USER, "users");

export const asSuperuser = (options: TreadleOptions = {}, url = URL_OF_SERVER): Promise<Treadle> =>
  session(new Treadle(url, options), SUPERUSER, "_superusers");

/** Waits until it is so; the test runner's timeout is the limit. */
export async function until<R>(look: () => R | Promise<R>): Promise<Exclude<NonNullable<R>, false>> {
  for (;;) {
    const found = await look();
    if (found) return found as Exclude<NonNullable<R>, false>;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

export const topicOf = (name: string): string => `${name}_${Math.random().toString(36).slice(2, 8)}`;

/** A fetch that counts, and that can be told to answer by itself. */
export class Fetches {
  readonly urls: string[] = [];
  readonly inits: RequestInit[] = [];
  answer: (url: string, init: RequestInit) => Promise<Response | null> | Response | null = () => null;

  readonly fetch = async (input: string | URL | Request, init: RequestInit = {}): Promise<Response> => {
    const url = String(input);
    this.urls.push(url);
    this.inits.push(init);
    return (await this.answer(url, init)) ?? fetch(url, init);
  };

  header(index: number, name: string): string | null {
    return new Headers(this.inits.at(index)?.headers).get(name);
  }

  bodies(): Record<string, unknown>[] {
    return this.inits.filter((init) => init.body).map((init) => JSON.parse(String(init.body)));
  }

  of(part: string): number {
    return this.urls.filter((url) => url.includes(part)).length;
  }
}

export const json = (status: number, body: unknown, headers: Record<string, string> = {}): Response =>
  new Response(JSON.stringify(body), { status, headers: { "Content-Type": "application/json", ...headers } });

/** A body of server-sent events that goes on until it is ended. */
export class Sse {
  readonly #encoder = new TextEncoder();
  #controller!: ReadableStreamDefaultController<Uint8Array>;
  cancelled = false;
  readonly response: Response;

  constructor(signal?: AbortSignal | null) {
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#controller = controller;
      },
      cancel: () => {
        this.cancelled = true;
      },
    });
    signal?.addEventListener("abort", () => {
      this.cancelled = true;
      this.drop();
    });
    this.response = new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  }

  write(text: string): void {
    this.#controller.enqueue(this.#encoder.encode(text));
  }

  tell(id: number, event: string, data: object): void {
    this.write(`id: ${id}\r\nevent: ${event}\r\ndata: ${JSON.stringify({ event, ...data })}\r\n\r\n`);
  }

  drop(): void {
    try {
      this.#controller.error(new TypeError("terminated"));
    } catch {
      // it has ended already
    }
  }
}

/** Stands between client and server, and cuts connections. */
export class CuttingProxy {
  readonly #server: Server;
  readonly #open = new Set<Socket>();
  accepted = 0;
  /** How many bytes of an answer a new connection lets through before it is cut; null: all. */
  cutAfter: () => number | null = () => null;

  constructor(target: string) {
    const { hostname, port } = new URL(target);
    this.#server = createServer((near) => {
      this.accepted++;
      const far = connect(Number(port), hostname);
      const limit = this.cutAfter();
      let passed = 0;
      for (const [one, other] of [
        [near, far],
        [far, near],
      ] as const) {
        this.#open.add(one);
        one.on("error", () => {});
        one.on("close", () => {
          this.#open.delete(one);
          other.destroy();
        });
      }
      near.pipe(far);
      far.on("data", (piece) => {
        if (limit !== null && passed + piece.length >= limit) {
          near.write(piece.subarray(0, limit - passed), () => near.destroy());
          far.destroy();
          return;
        }
        passed += piece.length;
        near.write(piece);
      });
      far.on("end", () => near.end());
    });
  }

  async listen(): Promise<string> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  get connections(): number {
    return this.#open.size / 2;
  }

  cut(): void {
    for (const one of this.#open) one.destroy();
  }

  close(): void {
    this.cut();
    this.#server.close();
  }
}
