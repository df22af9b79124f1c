// The site works without this, but for the filters of plain files. It remembers the theme and
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

  // The list of plain files: rows of an index stand in for those that are on the page.
  const filtering = () => {
    const form = document.querySelector("form[data-index]");
    const body = document.querySelector("table.runs tbody");
    if (!form || !body || location.protocol === "file:") return;  // which may read no other file
    const heads = [...document.querySelectorAll("table.runs thead th")];
    const model = body.rows[0].cloneNode(true);
    const counted = document.querySelector(".count");
    const given = new URLSearchParams(location.search);
    let found, sort = given.get("sort") || "-started_utc";

    const set = (cell, key, row) => {
      if (!key) {  // the box that chooses it
        const tick = cell.querySelector("input");
        tick.value = row.run_id;
        tick.checked = tick.disabled = false;
        return;
      }
      const link = cell.querySelector("a"), badge = cell.querySelector("span");
      if (key === "status" || key === "trust") {
        badge.textContent = row[key + "_text"];
        badge.className = key === "status" ? "badge " + row.tone : row.trust_tone;
      } else if (key === "quality_value") {
        const metric = document.createElement("span");
        metric.className = "muted";
        metric.textContent = row[key] === "/" ? "" : row.quality_metric;
        cell.replaceChildren(row[key] + " ", metric);
      } else if (link) {
        link.textContent = row[key];
        link.href = row[key === "case" ? "case_address" : "run_address"];
      } else cell.textContent = row[key];
    };
    const show = () => {
      const fields = [...new FormData(form)].filter(([, value]) => value);
      const words = (form.elements.q.value.toLowerCase().match(/\S+/g) || []);
      const key = sort.replace(/^-/, ""), sign = sort.startsWith("-") ? -1 : 1;
      const value = (at) => found.values[at][key];
      const order = found.rows.map((row, at) => at).filter((at) =>
        fields.every(([name, chosen]) => name === "q" || found.values[at][name] === chosen)
        && words.every((word) => found.texts[at].includes(word)));
      order.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === y) return a - b;
        if (x === null || y === null) return x === null ? 1 : -1;
        return x < y ? -sign : sign;
      });
      const shown = order.slice(0, Number(form.dataset.most));
      body.replaceChildren(...shown.map((at) => {
        const made = model.cloneNode(true), row = found.rows[at];
        made.className = row.status === "passed" ? "" : "void";
        heads.forEach((head, place) => {
          set(made.cells[place], head.dataset.key, row);
          if (head.dataset.key) made.cells[place].dataset.head = found.heads[head.dataset.key];
        });
        return made;
      }));
      const numbers = { first: Math.min(1, shown.length), last: shown.length, total: order.length };
      counted.textContent = form.dataset.counted.replace(/{(\w+)}/g, (_, name) => numbers[name]);
      document.querySelector("nav.pages")?.remove();
      for (const head of heads.filter((one) => one.dataset.key)) {
        head.querySelector("button").textContent = found.heads[head.dataset.key];  // has the unit
        if (head.dataset.key !== key) head.removeAttribute("aria-sort");
        else head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      }
      const address = new URLSearchParams([...fields, ["sort", sort]]);
      history.replaceState(null, "", "?" + address);
    };
    const load = async () => {
      if (!found) {
        try {
          found = await (await fetch(form.dataset.index)).json();
        } catch {
          form.hidden = true;  // without the index there is nothing to filter
          return;
        }
        found.texts = found.values.map((row) =>
          [row.run_id, row.case, row.device, row.precision, row.status].join(" ").toLowerCase());
      }
      show();
    };
    form.hidden = false;
    form.addEventListener("submit", (event) => { event.preventDefault(); load(); });
    form.addEventListener("change", load);
    for (const head of heads.filter((one) => one.dataset.key)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => {
        const key = head.dataset.key;
        sort = sort === "-" + key || (sort !== key && !head.classList.contains("n")) ? key : "-" + key;
        load();
      });
      head.replaceChildren(button);
    }
    for (const [name, value] of given) if (form.elements[name]) form.elements[name].value = value;
    if ([...given].length) load();
  };

  document.addEventListener("DOMContentLoaded", () => { themes(); choosing(); copying(); filtering(); });
})();
