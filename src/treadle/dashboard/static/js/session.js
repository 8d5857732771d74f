// A session that has ended: say so, and come back to this page after signing in.
import { base, make, one } from "./dom.js";
import { say } from "./toasts.js";

export const signIn = () => `${base()}/login?next=${encodeURIComponent(location.pathname + location.search)}`;

export const isSignIn = (url) => new URL(url, location.href).pathname === `${base()}/login`;

export function sayEnded() {
  if (one("[data-signed-out]")) return;
  const link = make("a", { href: signIn(), "data-signed-out": true }, "Sign in again");
  say(["Your session has ended. ", link, "."], "bad");
}
