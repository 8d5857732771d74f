// The token is in the fragment, which browsers send to no server and keep out of referrers.
const field = document.querySelector("#token");
const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (field && token) {
  field.value = token;
  field.closest("[data-token-field]").hidden = true;
  history.replaceState(null, "", location.pathname);
  document.querySelector("#email").focus();
}
