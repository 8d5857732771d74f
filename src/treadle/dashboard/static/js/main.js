import "./toasts.js";
import "./times.js";
import "./theme.js";
import "./copy.js";
import "./dialogs.js";
import "./menu.js";
import "./selection.js";
import "./search.js";
import "./load.js";
import "./live.js";
import "./output.js";
import "./keys.js";
import "./schedule-form.js";

// Every handler is there: for tests, which are quicker than people.
document.documentElement.dataset.ready = "";
