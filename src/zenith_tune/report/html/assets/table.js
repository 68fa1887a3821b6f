const MAX_ROWS = 200; // more are drawn when they are asked for: a long table slows every page down

// A table that sorts, filters and opens its rows; what was chosen is kept, so that a redraw changes nothing.
function tableState(key, sort, down) {
  state.tables[key] = state.tables[key] || { sort, down, query: "", only: [], rows: [], isWhole: false };
  return state.tables[key];
}

function bigTable(key, { columns, rows, id, detail, isBest, groups = null, search, sort, down = false, label }) {
  const kept = tableState(key, sort, down);
  const body = el("tbody");
  const count = el("span", { class: "note", role: "status" });
  const more = el("button", {
    type: "button",
    "data-key": `${key}-more`,
    onclick: () => {
      kept.isWhole = true;
      draw();
    },
  });
  const heads = columns.map((column) =>
    el(
      "th",
      { scope: "col", class: `${column.text ? "text" : "num"} ${column.hide || ""}` },
      el(
        "button",
        {
          type: "button",
          "data-key": `${key}-sort-${column.key}`,
          onclick: () => {
            kept.down = kept.sort === column.key ? !kept.down : Boolean(column.downFirst);
            kept.sort = column.key;
            draw();
          },
        },
        column.name,
      ),
    ),
  );

  function chosen() {
    const query = kept.query.trim().toLowerCase();
    const column = columns.find((each) => each.key === kept.sort) || columns[0];
    return rows
      .filter(
        (row) =>
          (!kept.only.length || kept.only.includes(groups(row))) &&
          (!query || search(row).toLowerCase().includes(query)),
      )
      .map((row) => [column.value(row), row])
      .sort(([a], [b]) => {
        if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
        if (b === null || b === undefined) return -1;
        return (
          (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })) *
          (kept.down ? -1 : 1)
        );
      })
      .map(([, row]) => row);
  }

  function draw() {
    heads.forEach((head, index) => {
      const isSorted = columns[index].key === kept.sort;
      head.setAttribute("aria-sort", isSorted ? (kept.down ? "descending" : "ascending") : "none");
      head.firstChild.textContent = columns[index].name + (isSorted ? (kept.down ? " ↓" : " ↑") : "");
    });
    const shown = chosen();
    count.textContent =
      shown.length === rows.length
        ? format.count(rows.length, "row")
        : `${shown.length} of ${format.count(rows.length, "row")}`;
    const again = document.activeElement?.dataset?.key;
    const drawn = kept.isWhole ? shown : shown.slice(0, MAX_ROWS);
    more.hidden = drawn.length === shown.length;
    more.textContent = `Show all ${format.count(shown.length, "row")}`;
    body.replaceChildren(...drawn.flatMap((row) => drawRow(row)));
    if (again && !document.body.contains(document.activeElement))
      body.querySelector(`[data-key="${CSS.escape(again)}"]`)?.focus();
  }

  function drawRow(row) {
    const name = id(row);
    const isOpen = kept.rows.includes(name);
    const button = !detail
      ? columns[0].cell(row)
      : el(
          "button",
          {
            type: "button",
            class: "open",
            "aria-expanded": String(isOpen),
            "data-key": `${key}-row-${name}`,
            "aria-controls": isOpen ? `${key}-detail-${name}` : null,
            onclick: () => {
              kept.rows = isOpen ? kept.rows.filter((each) => each !== name) : [...kept.rows, name];
              draw();
              body.querySelector(`[data-key="${CSS.escape(`${key}-row-${name}`)}"]`)?.focus();
            },
          },
          `${isOpen ? "▾" : "▸"} `,
          columns[0].cell(row),
        );
    const cells = columns.map((column, index) =>
      el(
        "td",
        { class: `${column.text ? "text" : "num"} ${column.hide || ""} ${column.class || ""}` },
        index ? column.cell(row) : button,
      ),
    );
    const line = el("tr", { class: `row${isBest(row) ? " best" : ""}`, id: `${key}-row-${name}` }, cells);
    return isOpen
      ? [
          line,
          el(
            "tr",
            { class: "detail", id: `${key}-detail-${name}` },
            el("td", { colspan: columns.length }, detail(row)),
          ),
        ]
      : [line];
  }

  const box = el("input", {
    type: "search",
    placeholder: "Filter",
    "aria-label": `Filter ${label}`,
    "data-key": `${key}-filter`,
    value: kept.query,
    oninput: (event) => {
      kept.query = event.target.value;
      draw();
    },
  });
  const chips = groups
    ? [...new Set(rows.map(groups))].sort().map((name) => {
        const chip = el(
          "button",
          {
            type: "button",
            "aria-pressed": String(kept.only.includes(name)),
            "data-key": `${key}-only-${name}`,
            onclick: () => {
              kept.only = kept.only.includes(name) ? kept.only.filter((each) => each !== name) : [...kept.only, name];
              chip.setAttribute("aria-pressed", String(kept.only.includes(name)));
              draw();
            },
          },
          `${name} ${rows.filter((row) => groups(row) === name).length}`,
        );
        return chip;
      })
    : [];
  draw();
  return el(
    "div",
    null,
    el(
      "div",
      { class: "controls" },
      box,
      el("div", { role: "group", "aria-label": "Show only", class: "controls" }, chips),
      count,
    ),
    el(
      "div",
      { class: "scroll" },
      el("table", { id: `table-${key}`, "aria-label": label }, el("thead", null, el("tr", null, heads)), body),
    ),
    more,
  );
}

function pairs(content) {
  return el(
    "dl",
    { class: "pairs" },
    Object.entries(content).map(([name, value]) =>
      el("div", null, el("dt", null, name), el("dd", null, String(value))),
    ),
  );
}
// The end of a log; of a trial that runs, a live page writes what is new into the box that is there.
function logBox(lines, label, number = null, most = Infinity) {
  const about = { "data-log": number, "data-lines": most === Infinity ? null : most };
  return el("pre", { class: "log", tabindex: "0", "aria-label": label, ...about }, lines.slice(-most).join("\n"));
}
