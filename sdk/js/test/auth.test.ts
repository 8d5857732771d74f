import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { LocalAuthStore, MemoryAuthStore, providedAuth, Treadle } from "treadle";
import { Fetches, json, PASSWORD, Sse, URL_OF_SERVER, USER, until } from "./support.js";

const PAGE = { items: [], page: 1 };
const RECORD = { id: "1", email: "ann@example.com", collectionName: "users" };

const tokenFor = (name: string, seconds: number): string =>
  `e30.${btoa(JSON.stringify({ name, exp: Math.floor(Date.now() / 1000) + seconds }))}.sign`;

interface Fake {
  client: Treadle;
  fetches: Fetches;
  refreshes: () => number;
  /** The tokens that the server takes. */
  good: Set<string>;
}

function faked(token: string, next: () => string | null): Fake {
  const fetches = new Fetches();
  const good = new Set<string>();
  fetches.answer = (url, init) => {
    const sent = new Headers(init.headers).get("Authorization")?.replace("Bearer ", "") ?? "";
    if (!url.includes("auth-refresh")) return good.has(sent) ? json(200, PAGE) : json(401, { code: "invalid_token" });
    const fresh = next();
    if (fresh === null) return json(401, { code: "invalid_token" });
    good.add(fresh);
    return json(200, { token: fresh, record: RECORD });
  };
  const client = new Treadle("http://queue.test", { fetch: fetches.fetch, auth: new MemoryAuthStore() });
  client.auth.save(token, RECORD);
  return { client, fetches, good, refreshes: () => fetches.of("auth-refresh") };
}

test("a token near its end is refreshed before use, once for calls at once", async () => {
  const { client, fetches, refreshes } = faked(tokenFor("old", 60), () => tokenFor("new", 86_400));
  await Promise.all([client.jobs.list(), client.jobs.list(), client.jobs.stats()]);
  assert.equal(refreshes(), 1);
  assert.ok(fetches.urls[0]?.includes("auth-refresh"));
  assert.match(atob(client.auth.token.split(".")[1] ?? ""), /new/);
  await client.jobs.list();
  assert.equal(refreshes(), 1);
});

test("a token with time left is not refreshed, and nothing runs by a timer", async () => {
  const token = tokenFor("good", 3600);
  const { client, good, refreshes } = faked(token, () => null);
  good.add(token);
  await client.jobs.list();
  assert.equal(refreshes(), 0);
});

test("short-lived tokens are not refreshed at every use", async () => {
  const { client, refreshes } = faked(tokenFor("old", 1), () => tokenFor("short", 100));
  for (let n = 0; n < 5; n++) await client.jobs.list();
  assert.equal(refreshes(), 1);
});

test("a refused token is refreshed once, and the call repeated", async () => {
  const { client, fetches, refreshes } = faked(tokenFor("revoked", 3600), () => tokenFor("new", 3600));
  assert.equal((await client.jobs.list()).page, 1);
  assert.equal(refreshes(), 1);
  assert.equal(fetches.urls.length, 3);
});

test("without a new token a call stops with 401, and the old one is forgotten", async () => {
  const { client, fetches, refreshes } = faked(tokenFor("revoked", 3600), () => null);
  await assert.rejects(client.jobs.list(), { status: 401, code: "invalid_token" });
  assert.equal(refreshes(), 1);
  assert.equal(fetches.urls.length, 2);
  assert.equal(client.auth.token, "");
});

test("a stream with an expired token refreshes once, else stops with 401", async () => {
  const expired = tokenFor("expired", -10);
  const { client, fetches, refreshes } = faked(expired, () => null);
  await assert.rejects(client.jobs.stream().next(), { status: 401 });
  assert.equal(refreshes(), 1);
  assert.equal(fetches.of("/stream"), 1);

  const other = faked(tokenFor("revoked", 3600), () => tokenFor("new", 3600));
  const opened: Sse[] = [];
  const answer = other.fetches.answer;
  other.fetches.answer = async (url, init) => {
    const answered = await answer(url, init);
    if (!url.includes("/stream") || !answered?.ok) return answered;
    const sse = new Sse(init.signal);
    opened.push(sse);
    sse.tell(1, "job:deleted", { deletedJobId: "1" });
    return sse.response;
  };
  const stream = other.client.jobs.stream();
  assert.equal((await stream.next()).value?.id, "1");
  assert.equal(other.refreshes(), 1);
  stream.close();
});

test("a provider is asked before each call and each connection", async () => {
  let asked = 0;
  const fetches = new Fetches();
  const opened: Sse[] = [];
  fetches.answer = (url, init) => {
    if (!url.includes("/stream")) return json(200, PAGE);
    const sse = new Sse(init.signal);
    opened.push(sse);
    return sse.response;
  };
  const client = new Treadle("http://queue.test", { fetch: fetches.fetch, auth: async () => `token-${++asked}` });
  await client.jobs.list();
  await client.jobs.list();
  const stream = client.jobs.stream();
  const waiting = stream.next();
  await until(() => opened[0]);
  opened[0]?.drop();
  await until(() => opened[1]);
  const sent = fetches.inits.map((init) => new Headers(init.headers).get("Authorization"));
  assert.deepEqual(sent, ["Bearer token-1", "Bearer token-2", "Bearer token-3", "Bearer token-4"]);
  stream.close();
  await waiting;
  const given = providedAuth(() => "fixed");
  assert.equal(await given.provide?.(), "fixed");
});

test("a hidden tab that wakes asks the provider again before it connects", async (context) => {
  const page = Object.assign(new EventTarget(), { hidden: true });
  Object.assign(globalThis, { document: page });
  afterEach(() => {
    Reflect.deleteProperty(globalThis, "document");
  });
  context.mock.timers.enable({ apis: ["Date"], now: Date.now() });
  let asked = 0;
  const fetches = new Fetches();
  const opened: Sse[] = [];
  fetches.answer = (_, init) => {
    const sse = new Sse(init.signal);
    opened.push(sse);
    return sse.response;
  };
  const client = new Treadle("http://queue.test", { fetch: fetches.fetch, auth: () => `token-${++asked}` });
  const stream = client.jobs.stream();
  const waiting = stream.next();
  const first = await until(() => opened[0]);
  first.write("id: 3\r\n\r\n");
  await until(() => fetches.urls.length === 1);
  await new Promise((resolve) => setTimeout(resolve, 20));
  page.dispatchEvent(new Event("visibilitychange"));
  assert.equal(asked, 1, "it is still hidden");
  context.mock.timers.setTime(Date.now() + 3_600_000); // asleep for an hour
  page.hidden = false;
  page.dispatchEvent(new Event("visibilitychange"));
  await until(() => opened[1]);
  assert.equal(first.cancelled, true);
  assert.deepEqual([asked, fetches.header(1, "Authorization")], [2, "Bearer token-2"]);
  assert.equal(fetches.header(1, "Last-Event-ID"), "3");
  stream.close();
  await waiting;
});

test("stores tell of changes", () => {
  const store = new MemoryAuthStore();
  const seen: string[] = [];
  const end = store.onChange((token) => seen.push(token));
  store.save("a", RECORD);
  store.clear();
  end();
  store.save("b", RECORD);
  assert.deepEqual(seen, ["a", ""]);
  assert.deepEqual([store.token, store.record], ["b", RECORD]);
});

test("localStorage is shared by clients, and its failure is survived", () => {
  const kept = new Map<string, string>();
  let full = false;
  Object.assign(globalThis, {
    localStorage: {
      getItem: (key: string) => kept.get(key) ?? null,
      setItem: (key: string, value: string) => {
        if (full) throw new Error("quota");
        kept.set(key, value);
      },
      removeItem: (key: string) => kept.delete(key),
    },
  });
  try {
    const one = new LocalAuthStore();
    const two = new LocalAuthStore();
    one.save("a", RECORD);
    assert.deepEqual([two.token, two.record], ["a", RECORD]);
    two.clear();
    assert.equal(one.token, "");
    full = true;
    one.save("b", RECORD);
    assert.equal(one.token, "b");
  } finally {
    Reflect.deleteProperty(globalThis, "localStorage");
  }
});

test("a session of the real server goes on with a refreshed token", async () => {
  const client = new Treadle(URL_OF_SERVER);
  const { token } = await client.authWithPassword(USER, PASSWORD);
  const again = await client.authRefresh();
  assert.equal(again.record.email, USER);
  const other = new Treadle(URL_OF_SERVER);
  other.auth.save(`${token}x`, again.record);
  await assert.rejects(other.jobs.list(), { status: 401 });
  assert.equal(other.auth.token, "");
});
