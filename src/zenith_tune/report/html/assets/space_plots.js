// Where in the space of parameters the good trials are, by two of them.
function orderedValues(trials, name) {
  const values = [...new Set(trials.map((trial) => trial.parameters[name]).filter((value) => value !== undefined))];
  return values.sort((a, b) => (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b))));
}
const NONE_SUCCEEDED = "No trial has succeeded so far.";
const TOO_FEW = "Fewer than two options differ between the trials.";
const ONE_RUN = "There is one run so far.";
const better = (data) => (data.direction === "minimize" ? (a, b) => a < b : (a, b) => a > b);
const ended = (data) =>
  data.trials.filter(
    (trial) => !trial.is_baseline && trial.state !== "running" && Object.keys(trial.parameters).length,
  );

function heatMap(data, width, redraw) {
  const trials = ended(data);
  const names = data.parameters.filter((name) => orderedValues(trials, name).length > 0);
  const varied = names.filter((name) => orderedValues(trials, name).length > 1);
  if (varied.length < 2) return { empty: TOO_FEW };
  if (!trials.some((trial) => trial.value !== null)) return { empty: NONE_SUCCEEDED };
  const liked = ["tp", "pp", "ep", "mbs", "cp", "zero_stage", "zero", ...varied, ...names];
  const choose = (given, other) =>
    names.includes(given)
      ? given
      : liked.find((name) => varied.includes(name) && name !== other);
  const x = choose(state.heatX, state.heatY);
  const y = choose(state.heatY === x ? null : state.heatY, x);
  const options = names.map((name) => [name, name]);
  // What the other axis has changes places with this one.
  const choice = (key, label, chosen) =>
    chooser(key, label, options, chosen, (value) => {
      const now = key === "heat-x" ? [value, value === y ? x : y] : [value === x ? y : x, value];
      [state.heatX, state.heatY] = now;
      redraw();
    });
  const controls = el("div", { class: "controls" }, choice("heat-x", "across", x), choice("heat-y", "down", y));
  const [columns, rows] = [orderedValues(trials, x), orderedValues(trials, y)];
  const cells = new Map();
  for (const trial of trials) {
    const key = `${columns.indexOf(trial.parameters[x])},${rows.indexOf(trial.parameters[y])}`;
    const cell = cells.get(key) || { best: null, count: 0, failed: 0, states: {} };
    cell.count += 1;
    cell.states[trial.state] = (cell.states[trial.state] || 0) + 1;
    if (trial.value === null) cell.failed += 1;
    else if (!cell.best || better(data)(trial.value, cell.best.value)) cell.best = trial;
    cells.set(key, cell);
  }
  const longest = Math.max(...rows.map((value) => String(value).length));
  const left = Math.min(width * 0.4, 190, 34 + 7 * longest);
  const size = Math.min(112, Math.max(30, 232 / rows.length));
  const chart = new Chart("heat", {
    width,
    height: rows.length * size + 14 + 44,
    left,
    bottom: 44,
    label: `Best ${data.unit || "value"} by ${x} and ${y}.`,
  });
  drawCells(chart, data, { columns, rows, cells, x, y });
  const text = (cell) =>
    !cell ? "–" : cell.best ? format.value(cell.best.value) : Object.keys(cell.states).join(", ");
  return {
    body: el(
      "div",
      null,
      controls,
      figure("heat", chart, {
        caption: `${[`The best ${data.unit || "value"} of the trials of each cell`, ...emptyCells(cells, columns.length * rows.length)].join("; ")}.`,
        columns: [`${y} \\ ${x}`, ...columns.map(String)],
        rows: () =>
          rows.map((value, row) => [String(value), ...columns.map((_, column) => text(cells.get(`${column},${row}`)))]),
      }),
    ),
  };
}

const cellKind = (cell) =>
  !cell
    ? "none"
    : cell.best
      ? ""
      : Object.keys(cell.states).every((name) => name === "cancelled")
        ? "stopped"
        : "failed";

// What the cells without a value are, of those that are there.
function emptyCells(cells, num) {
  const kinds = new Set([...cells.values()].map(cellKind));
  return [
    kinds.has("failed") ? "red ones only failed" : "",
    kinds.has("stopped") ? "those of a dashed edge were cancelled" : "",
    cells.size < num ? "grey ones were not tried" : "",
  ].filter(Boolean);
}

function drawCells(chart, data, { columns, rows, cells, x, y }) {
  const values = [...cells.values()].filter((cell) => cell.best).map((cell) => cell.best.value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const strength = (value) => {
    const share = high > low ? (value - low) / (high - low) : 1;
    return 0.15 + 0.8 * (data.direction === "minimize" ? 1 - share : share);
  };
  const [wide, tall] = [
    (chart.box.right - chart.box.left) / columns.length,
    (chart.box.bottom - chart.box.top) / rows.length,
  ];
  columns.forEach((value, column) =>
    chart.add(
      svg(
        "text",
        { x: chart.box.left + (column + 0.5) * wide, y: chart.box.bottom + 15, "text-anchor": "middle" },
        format.short(String(value), Math.max(4, Math.floor(wide / 6.6))),
      ),
    ),
  );
  const most = Math.max(4, Math.floor((chart.box.left - 30) / 6.6));
  rows.forEach((value, row) =>
    chart.nameRow([format.short(String(value), most)], chart.box.top + (row + 0.5) * tall),
  );
  chart.nameX(format.short(x, 60), chart.box.bottom + 36);
  chart.nameY(format.short(y, 30));
  rows.forEach((rowValue, row) =>
    columns.forEach((columnValue, column) => {
      const cell = cells.get(`${column},${row}`);
      const place = {
        x: chart.box.left + column * wide,
        y: chart.box.top + row * tall,
        width: wide,
        height: tall,
        rx: 5,
      };
      const opacity = cell?.best ? strength(cell.best.value) : null;
      const node = svg("rect", { class: `cell ${cellKind(cell)}`.trim(), ...place, "fill-opacity": opacity });
      const where = `${x} ${columnValue}, ${y} ${rowValue}`;
      if (!cell) return chart.add(node);
      const counts = Object.entries(cell.states)
        .map(([name, count]) => `${count} ${name}`)
        .join(", ");
      chart.mark(
        node,
        [
          where,
          cell.best ? `${format.value(cell.best.value, data.unit)}: ${format.short(cell.best.label, 70)}` : "",
          counts,
        ],
        cell.best ? cell.best.number : null,
      );
      const text = cell.best ? format.value(cell.best.value) : Object.keys(cell.states)[0];
      if (wide > 7 * text.length) {
        chart.add(
          svg(
            "text",
            {
              class: `cell-text${opacity > 0.7 ? " on" : ""}`,
              x: place.x + wide / 2,
              y: place.y + tall / 2 + 4,
              "text-anchor": "middle",
            },
            text,
          ),
        );
      }
    }),
  );
}
