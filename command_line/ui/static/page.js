// What every page does: copying commands, switching colours, keys, and the streams of runs at work.
"use strict";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  const before = button.textContent;
  button.textContent = "copied";
  setTimeout(() => { button.textContent = before; }, 1200);
});

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  document.dispatchEvent(new Event("themechange"));
});

// `/` goes to the search field, `j` and `k` to the next and previous page or thing.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) return;
  if (event.key === "/") {
    const field = document.querySelector('[data-focus="/"]');
    if (field) { event.preventDefault(); field.focus(); }
    return;
  }
  const link = /^[a-z]$/.test(event.key) && document.querySelector(`[data-key="${event.key}"]`);
  if (link) link.click();
});

// A run at work tells of each commit; the pieces of the page that show it, and its curves, are fetched again.
const live = document.querySelector("[data-live]");
if (live) {
  let source = null;
  let shown = null;
  let ended = false;
  const show = () => {
    htmx.ajax("GET", live.dataset.part, { target: "#live", swap: "innerHTML" });
    document.dispatchEvent(new Event("runchange"));
  };
  // Only while the tab is seen: a browser opens six connections to a server at most, for all tabs together.
  const listen = () => {
    if (document.hidden || ended) {
      source?.close();
      source = null;
      return;
    }
    if (source) return;
    source = new EventSource(live.dataset.live);
    source.addEventListener("state", (event) => {
      if (event.data === shown) return;
      shown = event.data;
      show();
    });
    source.addEventListener("ended", () => {
      ended = true;
      listen();
      show();
    });
  };
  document.addEventListener("visibilitychange", listen);
  listen();
}
