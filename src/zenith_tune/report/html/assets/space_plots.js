// Where in the space of parameters the good trials are: a heat map of two of them, and all of them side by side.
function orderedValues(trials, name) {
  const values = [...new Set(trials.map((trial) => trial.parameters[name]).filter((value) => value !== undefined))];
  return values.sort((a, b) => (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b))));
}
const better = (data) => (data.direction === "minimize" ? (a, b) => a < b : (a, b) => a > b);
const ended = (data) =>
  data.trials.filter(
    (trial) => !trial.is_baseline && trial.state !== "running" && Object.keys(trial.parameters).length,
  );

function heatMap(data, width, redraw) {
  const trials = ended(data);
  const names = data.parameters.filter((name) => orderedValues(trials, name).length > 0);
  if (names.length < 2) return { empty: "There are no two parameters to lay out." };
  const varied = names.filter((name) => orderedValues(trials, name).length > 1);
  const liked = ["tp", "pp", "ep", "mbs", "cp", "zero_stage", "zero", ...varied, ...names];
  const choose = (given, other) =>
    names.includes(given)
      ? given
      : liked.find((name) => (varied.includes(name) || varied.length < 2) && names.includes(name) && name !== other);
  const x = choose(state.heatX, state.heatY);
  const y = choose(state.heatY === x ? null : state.heatY, x);
  const controls = el(
    "div",
    { class: "controls" },
    chooser(
      "heat-x",
      "across",
      names.map((name) => [name, name]),
      x,
      (value) => {
        if (value === y) state.heatY = x;
        state.heatX = value;
        redraw();
      },
    ),
    chooser(
      "heat-y",
      "down",
      names.map((name) => [name, name]),
      y,
      (value) => {
        if (value === x) state.heatX = y;
        state.heatY = value;
        redraw();
      },
    ),
  );
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
  const left = Math.min(120, 34 + 7 * Math.max(...rows.map((value) => words.short(String(value), 12).length)));
  const size = Math.min(46, Math.max(30, 300 / rows.length));
  const chart = new Chart("heat", {
    width,
    height: rows.length * size + 14 + 44,
    left,
    bottom: 44,
    label: `Best ${data.unit || "value"} by ${x} and ${y}.`,
  });
  drawCells(chart, data, { columns, rows, cells, x, y });
  const text = (cell) => (!cell ? "–" : cell.best ? words.value(cell.best.value) : Object.keys(cell.states).join(", "));
  return {
    body: el(
      "div",
      null,
      controls,
      figure("heat", chart, {
        caption: `The best ${data.unit || "value"} of the trials of each cell; red cells only failed, grey ones were not tried.`,
        columns: [`${y} \\ ${x}`, ...columns.map(String)],
        rows: () =>
          rows.map((value, row) => [String(value), ...columns.map((_, column) => text(cells.get(`${column},${row}`)))]),
      }),
    ),
  };
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
        words.short(String(value), 14),
      ),
    ),
  );
  rows.forEach((value, row) =>
    chart.add(
      svg(
        "text",
        { x: chart.box.left - 8, y: chart.box.top + (row + 0.5) * tall + 4, "text-anchor": "end" },
        words.short(String(value), 12),
      ),
    ),
  );
  chart.add(
    svg(
      "text",
      {
        class: "axis-name",
        x: (chart.box.left + chart.box.right) / 2,
        y: chart.box.bottom + 36,
        "text-anchor": "middle",
      },
      words.short(x, 60),
    ),
  );
  chart.add(
    svg(
      "text",
      {
        class: "axis-name",
        x: 12,
        y: (chart.box.top + chart.box.bottom) / 2,
        "text-anchor": "middle",
        transform: `rotate(-90 12 ${(chart.box.top + chart.box.bottom) / 2})`,
      },
      words.short(y, 30),
    ),
  );
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
      const kind = cell ? (cell.best ? "" : " failed") : " none";
      const opacity = cell?.best ? strength(cell.best.value) : null;
      const node = svg("rect", { class: `cell${kind}`, ...place, "fill-opacity": opacity });
      const where = `${x} ${columnValue}, ${y} ${rowValue}`;
      if (!cell) return chart.add(node);
      const counts = Object.entries(cell.states)
        .map(([name, count]) => `${count} ${name}`)
        .join(", ");
      chart.mark(
        node,
        [
          where,
          cell.best ? `${words.value(cell.best.value, data.unit)}: ${words.short(cell.best.label, 70)}` : "",
          counts,
        ],
        cell.best ? cell.best.number : null,
      );
      const text = cell.best ? words.value(cell.best.value) : Object.keys(cell.states)[0];
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

function parallelPlot(data, width) {
  const trials = ended(data);
  const axes = data.parameters.filter((name) => orderedValues(trials, name).length > 1);
  if (!axes.length || trials.length < 2) return { empty: "Too few trials differ to lay them side by side." };
  const shown = axes.slice(0, Math.max(2, Math.floor(width / 64) - 1));
  const chart = new Chart("parallel", {
    width,
    height: 322,
    left: 26,
    bottom: 46,
    right: 62,
    label: "Every trial as a line through its parameters and its value.",
  });
  const x = scale([0, shown.length], [chart.box.left, chart.box.right]);
  const values = new Map(shown.map((name) => [name, orderedValues(trials, name)]));
  const heights = new Map(
    shown.map((name) => [
      name,
      scale([0, Math.max(values.get(name).length - 1, 1)], [chart.box.bottom, chart.box.top + 6]),
    ]),
  );
  const domain = extent(
    trials.map((trial) => trial.value),
    { room: 0.02 },
  );
  const height = scale(domain, [chart.box.bottom - 22, chart.box.top + 6]);
  const sorted = [...trials].sort((a, b) =>
    a.value === null ? -1 : b.value === null ? 1 : better(data)(a.value, b.value) ? 1 : -1,
  );
  for (const trial of sorted) {
    const points = shown.map((name, index) => [
      x(index),
      heights.get(name)(Math.max(values.get(name).indexOf(trial.parameters[name]), 0)),
    ]);
    points.push([x(shown.length), trial.value === null ? chart.box.bottom : height(trial.value)]);
    const kind = trial.value === null ? " failed" : trial.number === data.best ? " best" : "";
    chart.mark(
      svg("path", { class: `thread${kind}`, d: `M${points.map((point) => point.join(" ")).join("L")}` }),
      tellOf(data, trial),
      trial.number,
    );
  }
  // Names in two rows: in one, neighbours would run into each other.
  const axis = (index, name, anchor) =>
    chart.add(
      svg("line", { class: "grid-line", x1: x(index), x2: x(index), y1: chart.box.top, y2: chart.box.bottom }),
      svg(
        "text",
        { class: "axis-name", x: x(index), y: chart.box.bottom + 22 + (index % 2) * 15, "text-anchor": anchor },
        words.short(name, Math.max(6, Math.floor(((x(1) - x(0)) * 1.25) / 7))),
      ),
    );
  shown.forEach((name, index) => {
    axis(index, name, index ? "middle" : "start");
    values
      .get(name)
      .forEach((value, place) =>
        chart.add(svg("text", { x: x(index) + 5, y: heights.get(name)(place) + 4 }, words.short(String(value), 9))),
      );
  });
  axis(shown.length, data.unit || "value", "end");
  niceTicks(domain[0], domain[1], 4).forEach((tick) =>
    chart.add(svg("text", { x: x(shown.length) + 6, y: height(tick) + 4 }, words.value(tick))),
  );
  const hidden = axes.length - shown.length;
  return {
    body: figure("parallel", chart, {
      caption: `Each line is a trial; those that failed end at the foot${hidden ? `; ${words.count(hidden, "more parameter")} on a wider screen` : ""}.`,
      keys: [
        ["went well", "var(--accent)"],
        ["failed", "var(--bad)"],
      ],
      columns: ["trial", ...axes, data.unit || "value"],
      rows: () =>
        trials.map((trial) => [
          nameOf(trial),
          ...axes.map((name) => String(trial.parameters[name] ?? "–")),
          trial.value === null ? trial.state : words.value(trial.value),
        ]),
    }),
  };
}
