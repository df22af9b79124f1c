// The report works without this. It remembers language and theme, and copies commands.
(() => {
  "use strict";
  const root = document.documentElement;
  const kept = (name, value) => {
    try {  // a file that was mailed may have no storage
      if (value === undefined) return localStorage.getItem("trainmark." + name);
      localStorage.setItem("trainmark." + name, value);
    } catch { /* it is not remembered */ }
    return null;
  };
  const shown = () => {
    const lang = document.querySelector("input[name=lang]:checked").value;
    const theme = document.querySelector("input[name=theme]:checked").value;
    root.lang = document.getElementById(lang).lang;
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
  };
  for (const input of document.querySelectorAll(".switch input")) {
    if (kept(input.name) === input.value) input.checked = true;
    input.addEventListener("change", () => { kept(input.name, input.value); shown(); cut(); });
  }
  // A table that goes on beyond the edge says so; its edge has a shadow without this.
  const cut = () => {
    for (const place of document.querySelectorAll(".scroll"))
      place.classList.toggle("cut", place.scrollWidth > place.clientWidth + 1);
  };
  shown();
  cut();
  addEventListener("resize", cut);
  document.addEventListener("toggle", cut, true);  // of a section that is opened
  for (const button of document.querySelectorAll("button.copy")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.dataset.done = "";
    });
  }
})();
