// Every trial as a line through its parameters to its value, coloured by it.
const AXIS_PX = 56; // the least between two axes
const LETTER_PX = 6.4;

// How much of the values' variance goes with a parameter, as if chance had been taken off: 1 is all, 0 or less is none.
function importance(trials, name) {
  const groups = new Map();
  const good = trials.filter((trial) => trial.value !== null && trial.parameters[name] !== undefined);
  for (const trial of good) {
    const key = String(trial.parameters[name]);
    groups.set(key, [...(groups.get(key) || []), trial.value]);
  }
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const off = (values, from) => values.reduce((sum, value) => sum + (value - from) ** 2, 0);
  const all = good.map((trial) => trial.value);
  if (groups.size < 2 || all.length <= groups.size) return 0;
  const within = [...groups.values()].reduce((sum, values) => sum + off(values, mean(values)), 0);
  return 1 - within / (all.length - groups.size) / (off(all, mean(all)) / (all.length - 1) || 1);
}

function mostImportant(trials, names, most) {
  if (names.length <= most) return names;
  const weights = new Map(names.map((name) => [name, importance(trials, name)]));
  const kept = [...names].sort((a, b) => weights.get(b) - weights.get(a)).slice(0, most);
  return names.filter((name) => kept.includes(name));
}

// A name in lines of so many letters, broken where its words meet.
function nameLines(name, letters, at = /(?=[/_ ])/) {
  const lines = [];
  for (const part of name.split(at)) {
    if (lines.length && (lines.at(-1) + part).length <= letters) lines[lines.length - 1] += part;
    else lines.push(part);
  }
  return lines.slice(0, 3).map((line) => format.short(line.replace(/^[_ ]/, ""), Math.max(letters, 4)));
}

function valueColour(share) {
  const [from, to, part] = share < 0.5 ? ["slow", "middling", 2 * share] : ["middling", "fast", 2 * share - 1];
  return `color-mix(in oklab, var(--${from}) ${Math.round((1 - part) * 100)}%, var(--${to}))`;
}

function parallelPlot(data, width) {
  const trials = ended(data);
  const axes = data.parameters.filter((name) => orderedValues(trials, name).length > 1);
  if (axes.length < 2) return { empty: TOO_FEW };
  if (!trials.some((trial) => trial.value !== null)) return { empty: NONE_SUCCEEDED };
  const [left, right] = [30, 64];
  const shown = mostImportant(trials, axes, Math.max(2, Math.floor((width - left - right) / AXIS_PX)));
  const gap = (width - left - right) / shown.length;
  const names = [...shown, data.unit || "value"].map((name) => nameLines(name, Math.floor((gap - 6) / LETTER_PX)));
  const chart = new Chart("parallel", {
    width,
    height: 300 + 14 * Math.max(...names.map((lines) => lines.length)),
    left,
    bottom: 14 + 14 * Math.max(...names.map((lines) => lines.length)),
    right,
    count: trials.length,
    label: "Every trial as a line through its parameters and its value.",
  });
  const x = scale([0, shown.length], [chart.box.left, chart.box.right]);
  names.forEach((lines, index) => drawAxis(chart, x(index), lines));
  const domain = extent(
    trials.map((trial) => trial.value),
    { room: 0.02 },
  );
  const height = scale(domain, [chart.box.bottom - 22, chart.box.top + 6]);
  drawThreads(chart, data, trials, { shown, x, height });
  shown.forEach((name, index) => {
    const values = orderedValues(trials, name);
    const up = heightsOf(chart, values).at;
    values.forEach((value, place) => {
      const text = format.short(String(value), Math.max(4, Math.floor((gap - 12) / LETTER_PX)));
      chart.add(svg("text", { x: x(index) + 6, y: up(place) + 4 }, text));
    });
  });
  for (const tick of niceTicks(domain[0], domain[1], 4))
    chart.add(svg("text", { x: x(shown.length) + 6, y: height(tick) + 4 }, format.value(tick)));
  const hidden = axes.length - shown.length;
  const failed = trials.filter((trial) => trial.value === null).length;
  const notes = [
    "Each line is a trial",
    failed ? "those without a value end at the foot" : "",
    data.fastest_is_baseline ? "your own command, the fastest, has none" : "",
    hidden ? `drawn are the ${shown.length} parameters of ${axes.length} that the value depends on most` : "",
  ];
  return {
    body: figure("parallel", chart, {
      caption: `${notes.filter(Boolean).join("; ")}.`,
      keys: [
        data.fastest_is_baseline ? null : ["fastest", lineSwatch("thread best")],
        ["slow to fast", el("span", { class: "ramp" })],
        failed ? ["no value", lineSwatch("thread failed")] : null,
      ].filter(Boolean),
      columns: ["trial", ...axes, data.unit || "value"],
      rows: () =>
        trials.map((trial) => [
          nameOf(trial),
          ...axes.map((name) => String(trial.parameters[name] ?? "–")),
          trial.value === null ? trial.state : format.value(trial.value),
        ]),
    }),
  };
}

// Where the values of a parameter stand, and how far lines through one of them lie apart, the faster above the slower.
function heightsOf(chart, values) {
  const [bottom, top] = [chart.box.bottom - 10, chart.box.top + 10];
  const spread = Math.min(16, (0.4 * (bottom - top)) / Math.max(values.length - 1, 1));
  return { at: scale([0, Math.max(values.length - 1, 1)], [bottom, top]), spread };
}

function drawAxis(chart, x, lines) {
  chart.add(
    svg("line", { class: "axis-line", x1: x, x2: x, y1: chart.box.top, y2: chart.box.bottom }),
    svg(
      "text",
      { class: "axis-name", x, y: chart.box.bottom + 18, "text-anchor": "middle" },
      lines.map((line, index) => svg("tspan", { x, dy: index ? 14 : 0 }, line)),
    ),
  );
}

function drawThreads(chart, data, trials, { shown, x, height }) {
  const values = new Map(shown.map((name) => [name, orderedValues(trials, name)]));
  const heights = new Map(shown.map((name) => [name, heightsOf(chart, values.get(name))]));
  const measured = trials.filter((trial) => trial.value !== null).map((trial) => trial.value);
  const [low, high] = [Math.min(...measured), Math.max(...measured)];
  const share = (value) => {
    const above = high > low ? (value - low) / (high - low) : 1;
    return data.direction === "minimize" ? 1 - above : above;
  };
  const rank = (trial) => (trial.value === null ? -1 : share(trial.value));
  for (const trial of [...trials].sort((a, b) => rank(a) - rank(b))) {
    const points = shown.map((name, index) => {
      const { at, spread } = heights.get(name);
      const place = Math.max(values.get(name).indexOf(trial.parameters[name]), 0);
      return [x(index), at(place) + (0.5 - Math.max(rank(trial), 0)) * spread];
    });
    points.push([x(shown.length), trial.value === null ? chart.box.bottom : height(trial.value)]);
    const kind = trial.value === null ? " failed" : trial.number === fastestOf(data) ? " best" : "";
    const node = svg("path", { class: `thread${kind}`, d: `M${points.map((point) => point.join(" ")).join("L")}` });
    if (!kind) node.style.stroke = valueColour(share(trial.value));
    chart.mark(node, tellOf(data, trial), trial.number);
  }
}
