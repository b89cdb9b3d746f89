// What cannot wait until the page is complete.
"use strict";

// Before the first paint: the colours that the reader chose, else those of the system.
const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;

// Menus that are a form of their own send it at once. They can be used as soon as they are seen, before the
// other scripts run.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
});
