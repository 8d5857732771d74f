// Runs before the page is drawn, so that nothing moves when the modules have loaded.
document.documentElement.classList.add("js");
