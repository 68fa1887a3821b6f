// The plots of a study, each from the data of the page alone.
const kindOf = (data, trial) =>
  (trial.is_baseline ? "base" : trial.number === data.best ? "best" : "") + ` ${trial.state}`;
const nameOf = (trial) => (trial.is_baseline ? "your command" : `trial ${trial.number}`);
const tellOf = (data, trial) => [
  `${nameOf(trial)}: ${words.short(trial.label, 80)}`,
  trial.value === null
    ? trial.state
    : `${words.value(trial.value, data.unit)} (${words.gain(trial.gain)} against your command)`.replace(
        " (– against your command)",
        "",
      ),
  trial.memory_bytes ? words.bytes(trial.memory_bytes) : "",
  trial.cause ? words.short(trial.cause, 140) : "",
];
const KEYS = { ok: ["went well", "var(--accent)"], failed: ["failed", "var(--bad)"] };

function bestSoFar(data, width) {
  const better = data.direction === "minimize" ? (a, b) => a < b : (a, b) => a > b;
  const ended = data.trials.filter((trial) => trial.state !== "running");
  const good = ended.filter((trial) => trial.value !== null);
  if (!good.length) return { empty: "No trial went well so far." };
  const base = data.trials.find((trial) => trial.is_baseline && trial.value !== null);
  const chart = new Chart("progress", { width, height: 290, label: `Best ${data.unit || "value"} so far by trial.` });
  const values = good.map((trial) => trial.value);
  chart.axisX([0, Math.max(ended.length - 1, 1)], "trials in order", { text: (value) => String(Math.round(value)) });
  const [low, high] = extent(values);
  chart.axisY([low - (high - low) * 0.1, high], data.unit || "value");
  if (base)
    chart.add(
      svg("line", {
        class: "rule",
        x1: chart.box.left,
        x2: chart.box.right,
        y1: chart.y(base.value),
        y2: chart.y(base.value),
      }),
    );
  let best = null;
  let path = "";
  ended.forEach((trial, index) => {
    if (trial.value !== null && !trial.is_baseline && (best === null || better(trial.value, best))) {
      path +=
        best === null ? `M${chart.x(index)} ${chart.y(trial.value)}` : `H${chart.x(index)}V${chart.y(trial.value)}`;
      best = trial.value;
    }
  });
  if (path) chart.add(svg("path", { class: "best-line", d: `${path}H${chart.box.right}` }));
  ended.forEach((trial, index) => {
    const y = trial.value === null ? chart.box.bottom - 7 : chart.y(trial.value);
    chart.point(chart.x(index), y, kindOf(data, trial), tellOf(data, trial), trial.number);
  });
  const cancelled = ended.filter((trial) => trial.state === "cancelled").length;
  const failed = ended.length - good.length - cancelled;
  return {
    body: figure("progress", chart, {
      caption: `${words.count(good.length, "run")} went well, ${failed} failed${cancelled ? `, ${cancelled} cancelled` : ""} (on the lower edge)${base ? "; the dashed line is your own command" : ""}.`,
      keys: [["best so far", "var(--accent)"], KEYS.ok, KEYS.failed],
      columns: ["trial", "layout", "state", data.unit || "value", "gain"],
      rows: () =>
        ended.map((trial) => [
          nameOf(trial),
          trial.label,
          trial.state,
          words.value(trial.value),
          words.gain(trial.gain),
        ]),
    }),
  };
}

function memoryPlot(data, width) {
  const placed = data.trials
    .map((trial) => ({
      trial,
      bytes: trial.memory_bytes ?? (trial.state === "oom" ? trial.predicted?.memory_bytes : null),
    }))
    .filter(({ trial, bytes }) => isNumber(bytes) && (trial.value !== null || trial.state === "oom"));
  const good = placed.filter(({ trial }) => trial.value !== null);
  const unplaced =
    data.trials.filter((trial) => trial.state === "oom").length -
    placed.filter(({ trial }) => trial.value === null).length;
  if (!good.length) return { empty: "No log tells how much memory a trial took." };
  const capacity = data.capacity_bytes;
  const chart = new Chart("memory", { width, height: 290, label: `${data.unit || "Value"} against peak memory.` });
  chart.axisX(
    extent([...placed.map(({ bytes }) => bytes / GIB), capacity ? capacity / GIB : null]),
    "peak memory, GiB",
  );
  const [low, high] = extent(good.map(({ trial }) => trial.value));
  chart.axisY([low - (high - low) * 0.12, high], data.unit || "value");
  if (capacity) {
    const x = chart.x(capacity / GIB);
    chart.add(
      svg("rect", {
        class: "band",
        x,
        y: chart.box.top,
        width: Math.max(chart.box.right - x, 0),
        height: chart.box.bottom - chart.box.top,
      }),
      svg("line", { class: "rule bad", x1: x, x2: x, y1: chart.box.top, y2: chart.box.bottom }),
      svg("text", { x: x + 4, y: chart.box.top - 4, "text-anchor": "end" }, `GPU ${words.bytes(capacity)}`),
    );
  }
  for (const { trial, bytes } of placed) {
    const y = trial.value === null ? chart.box.bottom - 9 : chart.y(trial.value);
    const told = tellOf(data, trial);
    if (trial.memory_bytes === null) told.push(`${words.bytes(bytes)} predicted`);
    chart.point(chart.x(bytes / GIB), y, kindOf(data, trial), told, trial.number);
  }
  const lost = unplaced ? `; ${words.count(unplaced, "trial")} out of memory left no figure` : "";
  return {
    body: figure("memory", chart, {
      caption: `Triangles ran out of memory, where they were last seen or are predicted to be${lost}.`,
      keys: [KEYS.ok, ["out of memory", "var(--bad)"]],
      columns: ["trial", "layout", "state", "memory, GiB", data.unit || "value"],
      rows: () =>
        placed.map(({ trial, bytes }) => [
          nameOf(trial),
          trial.label,
          trial.state,
          (bytes / GIB).toFixed(1),
          words.value(trial.value),
        ]),
    }),
  };
}

function predictedPlot(data, width, redraw) {
  const what = state.predicted || "step";
  const fields =
    what === "step"
      ? {
          measured: (t) => t.step_s,
          predicted: (t) => t.predicted?.step_s,
          name: "step time, s",
          text: (v) => words.seconds(v),
        }
      : {
          measured: (t) => t.memory_bytes / GIB || null,
          predicted: (t) => t.predicted?.memory_bytes / GIB,
          name: "peak memory, GiB",
          text: (v) => `${v.toFixed(1)} GiB`,
        };
  if (!data.trials.some((trial) => trial.predicted))
    return {
      empty: `The planner tells nothing of these trials: ${data.why_no_plan || "their layouts are not known"}.`,
    };
  const both = data.trials.filter(
    (t) => t.value !== null && isNumber(fields.measured(t)) && isNumber(fields.predicted(t)),
  );
  const controls = el(
    "div",
    { class: "controls" },
    chooser(
      "predicted",
      "compare",
      [
        ["step", "step time"],
        ["memory", "memory"],
      ],
      what,
      (value) => {
        state.predicted = value;
        redraw();
      },
    ),
  );
  if (!both.length) return { body: el("div", null, controls, el("p", { class: "note" }, "No trial measured it.")) };
  const domain = extent(both.flatMap((t) => [fields.measured(t), fields.predicted(t)]));
  const chart = new Chart("predicted", { width, height: 290, label: `Predicted against measured ${fields.name}.` });
  chart.axisX(domain, `predicted ${fields.name}`);
  chart.axisY(domain, `measured ${fields.name}`);
  chart.add(
    svg("line", {
      class: "rule",
      x1: chart.x(domain[0]),
      y1: chart.y(domain[0]),
      x2: chart.x(domain[1]),
      y2: chart.y(domain[1]),
    }),
  );
  for (const trial of both) {
    const [told, was] = [fields.predicted(trial), fields.measured(trial)];
    const lines = [
      `${nameOf(trial)}: ${words.short(trial.label, 80)}`,
      `predicted ${fields.text(told)}, measured ${fields.text(was)} (${words.gain(was / told - 1)})`,
    ];
    chart.point(chart.x(told), chart.y(was), kindOf(data, trial), lines, trial.number);
  }
  const errors = both.map((t) => Math.abs(fields.measured(t) / fields.predicted(t) - 1)).sort((a, b) => a - b);
  return {
    body: el(
      "div",
      null,
      controls,
      figure("predicted", chart, {
        caption: `Half of ${words.count(both.length, "run")} are within ${words.share(errors[Math.floor((errors.length - 1) / 2)])} of the planner; on the dashed line both agree.`,
        columns: ["trial", "layout", "predicted", "measured", "off"],
        rows: () =>
          both.map((t) => [
            nameOf(t),
            t.label,
            fields.text(fields.predicted(t)),
            fields.text(fields.measured(t)),
            words.gain(fields.measured(t) / fields.predicted(t) - 1),
          ]),
      }),
    ),
  };
}
