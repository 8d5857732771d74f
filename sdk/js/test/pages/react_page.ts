/** Bundled for the tests in a browser: components that follow jobs, and buttons that change what they ask. */
import { createElement as element, StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { setDefaultClient, Treadle } from "treadle";
import { useJob, useJobs, useOutput } from "treadle/react";

let streams = 0;

const counting: typeof fetch = (input, init) => {
  if (String(input).includes("/stream")) streams++;
  return fetch(input, init);
};

function One({ id, enabled }: { id: string; enabled: boolean }) {
  const { job, error } = useJob(id, { enabled });
  const text = error ? `error ${error.status}` : job ? `${job.status} ${job.progress_percent}` : "nothing";
  return element("p", { className: "one" }, text);
}

function Tokens({ id }: { id: string }) {
  const { values, error, ended } = useOutput<{ word: number }>(id, "tokens");
  const text = values.map((value) => value.word).join(" ");
  return element("p", { id: "tokens" }, `${text}${ended ? " end" : ""}${error ? ` error ${error.status}` : ""}`);
}

function Page({ ids }: { ids: string[] }) {
  const [enabled, setEnabled] = useState(false);
  const [renders, setRenders] = useState(0);
  // A new array with equal ids, and a new object of options, at each render.
  const { jobs } = useJobs([...ids], { enabled });
  return element(
    "div",
    null,
    element("button", { type: "button", onClick: () => setEnabled(!enabled) }, enabled ? "stop" : "follow"),
    element("button", { type: "button", onClick: () => setRenders(renders + 1) }, "render"),
    ids.map((id) => element(One, { key: id, id, enabled })),
    element("p", { id: "all" }, jobs.map((job) => job?.status ?? "nothing").join()),
    element("p", { id: "renders" }, String(renders)),
  );
}

Object.assign(globalThis, {
  streams: () => streams,
  async begin(url: string, token: string, ids: string[]) {
    const client = new Treadle(url, { fetch: counting, apiKey: token });
    setDefaultClient(client);
    const root = document.body.appendChild(document.createElement("main"));
    createRoot(root).render(element(StrictMode, null, element(Page, { ids })));
  },
  async beginTokens(url: string, token: string, id: string) {
    setDefaultClient(new Treadle(url, { apiKey: token }));
    const root = document.body.appendChild(document.createElement("main"));
    createRoot(root).render(element(StrictMode, null, element(Tokens, { id })));
  },
});
