// The site works without this, but for filters. It remembers the theme and
// keeps the number of runs that are chosen within what can be compared.
(() => {
  "use strict";
  const root = document.documentElement;
  const kept = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("trainmark.theme");
      localStorage.setItem("trainmark.theme", value);
    } catch { /* it is not remembered */ }
    return null;
  };
  const show = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  show(kept());  // before anything is drawn

  const themes = () => {
    for (const input of document.querySelectorAll("input[name=theme]")) {
      input.checked = input.value === (root.dataset.theme || "auto");
      input.addEventListener("change", () => { kept(input.value); show(input.value); });
    }
  };

  const choosing = () => {
    const button = document.querySelector(".compare button");
    if (!button) return;
    const most = Number(button.dataset.most), form = button.closest("form");
    const update = () => {
      const ticks = [...form.querySelectorAll(".tick input")];
      const chosen = ticks.filter((tick) => tick.checked).length;
      button.disabled = chosen < 2;
      for (const tick of ticks) tick.disabled = !tick.checked && chosen >= most;
    };
    form.addEventListener("change", update);
    update();
  };

  const copying = () => {
    for (const button of document.querySelectorAll("button.copy")) {
      if (!navigator.clipboard) continue;
      button.hidden = false;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(button.previousElementSibling.textContent);
        button.dataset.done = "";
      });
    }
  };

  // Rows of the list that meet the form's choices, sorted by a column; both stand in the address.
  const filtering = () => {
    const form = document.querySelector("form.filters"), table = document.querySelector("table.runs");
    if (!form) return;
    const body = table.tBodies[0], rows = [...body.rows], counted = document.querySelector(".count");
    const heads = [...table.querySelectorAll("thead th[data-key]")];
    const given = new URLSearchParams(location.search);
    let sort = given.get("sort") || "";
    const value = (row, key) => row.querySelector(`[data-key="${key}"]`).dataset.value;

    const show = () => {
      const fields = [...new FormData(form)].filter(([, chosen]) => chosen);
      const words = form.elements.q.value.toLowerCase().match(/\S+/g) || [];
      for (const row of rows) {
        row.hidden = !fields.every(([name, chosen]) => name === "q" || value(row, name) === chosen)
          || !words.every((word) => `${row.textContent} ${value(row, "id")}`.toLowerCase().includes(word));
      }
      const key = sort.replace(/^-/, ""), sign = sort.startsWith("-") ? -1 : 1;
      const head = heads.find((one) => one.dataset.key === key);
      if (head) {
        const number = head.classList.contains("n");
        body.append(...[...rows].sort((a, b) => {
          const [x, y] = [value(a, key), value(b, key)];
          if (x === y) return 0;
          if (!x || !y) return x ? -1 : 1;
          return sign * (number ? x - y : x < y ? -1 : 1);
        }));
      }
      for (const one of heads) {
        if (one !== head) one.removeAttribute("aria-sort");
        else one.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      }
      const numbers = { shown: rows.filter((row) => !row.hidden).length, total: form.dataset.total };
      counted.textContent = form.dataset.counted.replace(/{(\w+)}/g, (_, name) => numbers[name]);
      const address = new URLSearchParams(sort ? [...fields, ["sort", sort]] : fields);
      history.replaceState(null, "", "?" + address);
    };
    for (const select of form.querySelectorAll("select")) {
      const cells = rows.map((row) => row.querySelector(`[data-key="${select.name}"]`));
      const found = new Map(cells.map((x) => [x.dataset.value, (x.querySelector(".badge") || x).textContent]));
      for (const [chosen, text] of [...found].sort()) if (chosen) select.add(new Option(text, chosen));
    }
    form.hidden = false;
    form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
    form.addEventListener("change", show);
    for (const head of heads) {
      const button = document.createElement("button"), key = head.dataset.key;
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        sort = sort === "-" + key || (sort !== key && !head.classList.contains("n")) ? key : "-" + key;
        show();
      });
      head.replaceChildren(button);
    }
    for (const [name, chosen] of given) if (form.elements[name]) form.elements[name].value = chosen;
    if ([...given].length) show();
  };

  // A table that goes on beyond the edge says so; its edge has a shadow without this.
  const cut = () => {
    for (const place of document.querySelectorAll(".scroll"))
      place.classList.toggle("cut", place.scrollWidth > place.clientWidth + 1);
  };
  document.addEventListener("DOMContentLoaded", () => {
    themes(); choosing(); copying(); filtering(); cut();
    addEventListener("resize", cut);
    document.addEventListener("toggle", cut, true);  // of a section that is opened
  });
})();
