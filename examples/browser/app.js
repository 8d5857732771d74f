// Signs in, starts a job, shows its progress and output, and cancels it.
// In the repository's folder: npm --prefix sdk/js ci && npm --prefix sdk/js run build && python -m http.server
// then open http://localhost:8000/examples/browser/ while `treadle demo` runs.

import { createJob, Treadle } from "treadle";

const find = (id) => document.getElementById(id);
let client;
let job;
let output;

function show(now) {
  find("job").hidden = now === null;
  if (now === null) return;
  find("progress").value = now.progress;
  find("status").textContent = now.status;
  find("message").textContent = now.lastError?.trim().split("\n").at(-1) ?? now.progressMessage ?? "";
  find("cancel").disabled = now.endedAt !== null || now.status === "cancelling";
}

async function showOutput(id) {
  output?.close();
  find("output").textContent = "";
  output = client.jobs.output(id, "tokens", { onReset: () => find("output").replaceChildren() });
  for await (const value of output) find("output").append(`${JSON.stringify(value)}\n`);
}

/** Whatever goes wrong is told in the same place. */
const told = (work) => async (event) => {
  event.preventDefault();
  find("error").textContent = "";
  try {
    await work(new FormData(event.target.closest("form") ?? undefined));
  } catch (error) {
    if (!error.isAbort) find("error").textContent = error.message;
  }
};

find("sign-in").addEventListener(
  "submit",
  told(async (fields) => {
    const signing = new Treadle(fields.get("server"));
    const superuser = { collection: "_superusers" };
    const [email, password] = [fields.get("email"), fields.get("password")];
    const { record } = await signing
      .authWithPassword(email, password)
      .catch(() => signing.authWithPassword(email, password, superuser));
    client = signing;
    find("who").textContent = record.email;
    find("sign-in").hidden = true;
    find("work").hidden = false;
  }),
);

find("start").addEventListener(
  "submit",
  told(async (fields) => {
    job?.cleanup();
    job = createJob(fields.get("topic"), client);
    job.subscribe(show);
    const { id } = await job.start(JSON.parse(fields.get("payload")));
    await showOutput(id);
  }),
);

find("cancel").addEventListener("click", told(() => job.cancel("not needed any more")));

find("sign-out").addEventListener(
  "click",
  told(async () => {
    job?.cleanup();
    output?.close();
    show(null);
    client.auth.clear();
    find("sign-in").hidden = false;
    find("work").hidden = true;
  }),
);
