/** One server-sent event. */
export interface Message {
  id: string | null;
  event: string;
  data: string;
}

/** Takes text in pieces of any size; an event that was cut off by the end of the connection is never told. */
export class SseParser {
  /** The id of the last whole event. */
  lastEventId: string | null = null;
  #rest = "";
  #id: string | null = null;
  #event = "";
  #data: string[] = [];

  constructor(private readonly tell: (message: Message) => void) {}

  push(text: string): void {
    const all = this.#rest + text;
    // A trailing \r may be half of a line break.
    const end = all.endsWith("\r") ? all.length - 1 : all.length;
    const lines = all.slice(0, end).split(/\r\n|\n|\r/);
    this.#rest = (lines.pop() ?? "") + all.slice(end);
    for (const line of lines) this.#line(line);
  }

  #line(line: string): void {
    if (line === "") {
      this.#dispatch();
      return;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }

  #dispatch(): void {
    if (this.#id !== null) this.lastEventId = this.#id || null;
    if (this.#data.length > 0) {
      this.tell({ id: this.lastEventId, event: this.#event || "message", data: this.#data.join("\n") });
    }
    this.#event = "";
    this.#data = [];
  }
}
