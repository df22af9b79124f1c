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

    const values = new Map(rows.map((row) => [row, JSON.parse(row.dataset.values)]));
    const units = JSON.parse(form.dataset.units);
    const fill = (text, given) => text.replace(/{(\w+)}/g, (_, name) => given[name] ?? "");
    const shortest = (number) => number.toLocaleString("en", { maximumSignificantDigits: 4 });

    // A moment in UTC. Numbers beyond their unit go on to the next one: month 13 is January.
    const moment = (year, month = 1, day = 1, hour = 0, minute = 0, second = 0) => {
      const date = new Date(0);
      date.setUTCFullYear(year, month - 1, day);
      date.setUTCHours(hour, minute, second);
      return date;
    };

    // The begin of the time that a date stands for, such as a day or a minute, and the end, which does
    // not belong to it, in milliseconds; null if the text is not a date. As `trainmark results` reads it.
    const period = (text) => {
      const offset = /(?:Z|[-+](?:[01]\d|2[0-3]):[0-5]\d)$/.exec(text.slice("YYYY-MM-DDTHH".length))?.[0] ?? "";
      const local = offset ? text.slice(0, -offset.length) : text;
      if (!/^\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d)?)?)?)?)?$/.test(local)) return null;
      const numbers = local.split(/\D/).map(Number);
      const begin = moment(...numbers), end = moment(...numbers.slice(0, -1), numbers.at(-1) + 1);
      if (!begin.toISOString().startsWith(local)) return null;  // there is no such day or hour
      const shift = Date.parse("1970-01-01T00:00" + (offset || "Z"));  // of a clock with this offset
      return [begin.getTime() + shift, end.getTime() + shift];
    };

    // Why a condition is met by no row; empty where a row meets it.
    const why = ([condition, key, sign, wanted], meets) => {
      const known = [...values.values()].filter((of) => key in of).map((of) => of[key]);
      if (!known.length) {
        const keys = [...new Set([...values.values()].flatMap(Object.keys))].sort().join(", ");
        return fill(form.dataset.unknown, { key, keys });
      }
      const given = { condition, key, unit: units[key] ?? "" };
      const numbers = known.every((one) => typeof one === "number");
      if (numbers && Number.isNaN(Number(wanted))) return fill(form.dataset.notANumber, given);
      if (key === "started_utc" && sign !== "~" && !period(wanted)) return fill(form.dataset.notADate, given);
      if (rows.some(meets)) return "";
      if (numbers) {
        const [low, high] = [Math.min(...known), Math.max(...known)].map(shortest);
        return fill(form.dataset.between, { ...given, low, high });
      }
      return fill(form.dataset.oneOf, { ...given, values: [...new Set(known)].sort().slice(0, 12).join(", ") });
    };

    // A test of a row for KEY OPERATOR VALUE, which compares numbers as such; missing values never match.
    const test = ([, key, sign, wanted]) => (row) => {
      const here = values.get(row)[key];
      if (here === undefined) return false;
      if (sign === "~") return String(here).toLowerCase().includes(wanted.toLowerCase());
      if (key === "started_utc") {
        const bounds = period(wanted);
        if (!bounds) return false;
        const [begin, end] = bounds, time = Date.parse(here);
        const hasBegun = time >= begin, hasEnded = time >= end;  // the period, by this time
        return {
          "=": hasBegun && !hasEnded, "!=": !hasBegun || hasEnded, ">": hasEnded, "<": !hasBegun, ">=": hasBegun,
          "<=": !hasEnded,
        }[sign];
      }
      const [a, b] = typeof here === "number" ? [here, Number(wanted)] : [String(here), wanted];
      return { "=": a === b, "!=": a !== b, ">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b }[sign];
    };

    const show = () => {
      const fields = [...new FormData(form)].filter(([, chosen]) => chosen);
      const words = form.elements.q.value.match(/\S+/g) || [], reasons = [], tests = [];
      for (const word of words) {
        const condition = /^([^=!~<>]+)(!=|>=|<=|=|~|>|<)(.+)$/.exec(word);
        if (condition) {
          tests.push(test(condition));
          reasons.push(why(condition, tests.at(-1)));
        } else {
          tests.push((row) => `${row.textContent} ${value(row, "id")}`.toLowerCase().includes(word.toLowerCase()));
        }
      }
      for (const row of rows) {
        row.hidden = !fields.every(([name, chosen]) => name === "q" || value(row, name) === chosen)
          || !tests.every((meets) => meets(row));
      }
      const told = document.querySelector(".why");
      told.textContent = reasons.filter(Boolean).join(" ");
      told.hidden = !told.textContent;
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
      counted.textContent = fill(form.dataset.counted, numbers);
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
