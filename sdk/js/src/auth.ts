export interface AuthRecord {
  id: string;
  email: string;
  collectionName: string;
  [field: string]: unknown;
}

export interface AuthResult {
  token: string;
  record: AuthRecord;
}

/** Where a client keeps who has signed in. */
export interface AuthStore {
  readonly token: string;
  readonly record: AuthRecord | null;
  save(token: string, record: AuthRecord | null): void;
  clear(): void;
  /** Called after each change; returns what ends it. */
  onChange(run: (token: string) => void): () => void;
  /** Asked for the token before each request and connection, if tokens come from elsewhere. */
  provide?(): string | Promise<string>;
}

/** Forgets when the page or the process ends. */
export class MemoryAuthStore implements AuthStore {
  readonly #listeners = new Set<(token: string) => void>();
  #token = "";
  #record: AuthRecord | null = null;

  get token(): string {
    return this.#token;
  }

  get record(): AuthRecord | null {
    return this.#record;
  }

  save(token: string, record: AuthRecord | null): void {
    this.#token = token;
    this.#record = record;
    this.changed();
  }

  clear(): void {
    this.save("", null);
  }

  onChange(run: (token: string) => void): () => void {
    this.#listeners.add(run);
    return () => {
      this.#listeners.delete(run);
    };
  }

  protected changed(): void {
    for (const run of [...this.#listeners]) run(this.token);
  }
}

/** Survives a reload, and is shared by the tabs of an origin. */
export class LocalAuthStore extends MemoryAuthStore {
  readonly #key: string;

  constructor(key = "treadle_auth") {
    super();
    this.#key = key;
    globalThis.addEventListener?.("storage", (event) => {
      if ((event as StorageEvent).key === key) this.changed();
    });
  }

  override get token(): string {
    return this.#kept()?.token ?? super.token;
  }

  override get record(): AuthRecord | null {
    return this.#kept()?.record ?? super.record;
  }

  override save(token: string, record: AuthRecord | null): void {
    try {
      if (token) localStorage.setItem(this.#key, JSON.stringify({ token, record }));
      else localStorage.removeItem(this.#key);
      super.save("", null);
    } catch {
      super.save(token, record); // storage is full or forbidden
    }
  }

  #kept(): { token: string; record: AuthRecord | null } | null {
    try {
      return JSON.parse(localStorage.getItem(this.#key) ?? "null");
    } catch {
      return null;
    }
  }
}

/** A store that asks for the token each time, for example another service's client. */
export function providedAuth(provide: () => string | Promise<string>): AuthStore {
  return Object.assign(new MemoryAuthStore(), { provide });
}

/** When a token expires, in ms since 1970; null if it does not say. */
export function expiryOf(token: string): number | null {
  try {
    const claims = token.split(".")[1] ?? "";
    const { exp } = JSON.parse(atob(claims.replace(/-/g, "+").replace(/_/g, "/")));
    return typeof exp === "number" ? exp * 1000 : null;
  } catch {
    return null;
  }
}

const SOON_MS = 5 * 60_000;

/** Refreshes a token when it is used shortly before it expires: not by a timer, which a sleeping machine would miss. */
export class Refresher {
  #running: Promise<boolean> | null = null;
  #newest = "";
  #refreshAt = 0;

  constructor(
    private readonly current: () => string,
    private readonly refresh: () => Promise<string>,
  ) {}

  /** Refresh a token that expires soon; if that fails, it may still do. */
  async fresh(): Promise<void> {
    const token = this.current();
    const expiry = token ? expiryOf(token) : null;
    if (expiry === null) return;
    const due = token === this.#newest ? this.#refreshAt : expiry - SOON_MS;
    if (Date.now() >= due) await this.renew(token);
  }

  /** Whether there is another token now than the one that was refused. */
  renew(refused: string): Promise<boolean> {
    const token = this.current();
    if (!token) return Promise.resolve(false);
    if (token !== refused) return Promise.resolve(true);
    this.#running ??= this.#renewed().finally(() => {
      this.#running = null;
    });
    return this.#running;
  }

  async #renewed(): Promise<boolean> {
    try {
      const token = await this.refresh();
      const life = (expiryOf(token) ?? 0) - Date.now();
      this.#newest = token;
      this.#refreshAt = Date.now() + Math.max(life - SOON_MS, life / 2); // short-lived ones not at every use
      return true;
    } catch {
      return false;
    }
  }
}
