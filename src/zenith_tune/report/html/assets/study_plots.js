// The plots of a study's values, each from the data of the page alone.
const fastestOf = (data) => (data.fastest_is_baseline ? data.baseline : data.best_run);
const kindOf = (data, trial) =>
  [
    trial.is_baseline ? "base" : "",
    trial.number === fastestOf(data) ? "best" : "",
    trial.value === null ? trial.state : "ok",
  ]
    .filter(Boolean)
    .join(" ");
const nameOf = (trial) => (trial.is_baseline ? "your command" : `trial ${trial.name}`);
const tellOf = (data, trial) => [
  `${nameOf(trial)}: ${format.short(trial.label, 80)}`,
  trial.value === null
    ? trial.state
    : `${format.value(trial.value, data.unit)} (${format.gain(trial.gain)} against your command)`.replace(
        " (– against your command)",
        "",
      ),
  trial.memory_bytes ? format.bytes(trial.memory_bytes) : "",
  isNumber(trial.gpu_utilization)
    ? `GPUs ${format.share(trial.gpu_utilization)} busy, ${format.watts(trial.gpu_power_w)}`
    : "",
  trial.cause ? format.short(trial.cause, 140) : "",
];
const KINDS = { ok: "succeeded", oom: "out of memory", error: "failed", timeout: "timed out", cancelled: "cancelled" };

// The keys of the marks that are there, and of no others.
function trialKeys(data, trials) {
  const kinds = new Set(trials.map((trial) => kindOf(data, trial)));
  const fastest = [...kinds].find((kind) => kind.includes("best"));
  const has = (name) => [...kinds].some((kind) => kind === name || kind === `base ${name}`);
  return [
    fastest ? ["fastest", swatch(fastest)] : null,
    kinds.has("base ok") ? ["your command", swatch("base ok")] : null,
    ...Object.entries(KINDS).map(([kind, name]) =>
      (kind === "ok" ? kinds.has("ok") : has(kind)) ? [name, swatch(kind)] : null,
    ),
  ].filter(Boolean);
}

function bestSoFar(data, width, redraw) {
  const ended = data.trials.filter((trial) => trial.state !== "running");
  const good = ended.filter((trial) => trial.value !== null);
  if (!good.length) return { empty: NONE_SUCCEEDED };
  if (ended.length < 2) return { empty: ONE_RUN };
  const base = data.trials.find((trial) => trial.is_baseline && trial.value !== null);
  const zoom = new Zoom("progress", redraw);
  const label = `Best ${data.unit || "value"} so far by trial.`;
  const chart = new Chart("progress", { width, height: 290, label, zoom, count: ended.length });
  const numbers = ended.map((trial) => trial.number);
  const across = zoom.x([Math.min(...numbers) - 0.5, Math.max(...numbers) + 0.5]);
  chart.axisX(across, "trial", { whole: true });
  const seen = ended.filter((trial) => zoom.holds(trial.number));
  const best = data.progress
    .filter(([number]) => number <= across[1])
    .map(([, value]) => value)
    .slice(-1);
  const [low, high] = extent([...seen.map((trial) => trial.value), ...best]);
  chart.axisY([low - (high - low) * 0.1, high], data.unit || "value");
  if (base && base.value >= low && base.value <= high) {
    const { left: x1, right: x2 } = chart.box;
    chart.add(svg("line", { class: "rule", x1, x2, y1: chart.y(base.value), y2: chart.y(base.value) }));
  }
  for (const trial of seen) {
    const y = trial.value === null ? chart.box.bottom - 8 : chart.y(trial.value);
    chart.point(chart.x(trial.number), y, kindOf(data, trial), tellOf(data, trial), trial.number);
  }
  chart.steps(data.progress, "best-line");
  chart.raiseBest();
  return {
    body: figure("progress", chart, {
      caption: `${countedRuns(data, ended)}${ended.length > good.length ? " (on the lower edge)" : ""}${base ? "; the dashed line is your own command" : ""}.`,
      keys: [["best so far", lineSwatch("best-line")], ...trialKeys(data, ended)],
      columns: ["trial", "layout", "state", data.unit || "value", "gain"],
      rows: () =>
        ended.map((trial) => [
          nameOf(trial),
          trial.label,
          trial.state,
          format.value(trial.value),
          format.gain(trial.gain),
        ]),
    }),
  };
}

const PREDICTED = {
  step: {
    measured: (t) => t.step_s,
    predicted: (t) => t.predicted?.step_s,
    range: (t) => t.predicted.step_interval_90_s,
    by: (t) => t.predicted.by,
    name: "step time, s",
    noun: "time",
    text: (v) => format.step(v),
  },
  memory: {
    measured: (t) => t.memory_bytes / GIB || null,
    predicted: (t) => t.predicted?.memory_bytes / GIB || null,
    range: (t) => t.predicted.memory_interval_90_bytes?.map((bytes) => bytes / GIB),
    by: (t) => t.predicted.memory_by,
    name: "peak memory, GiB",
    noun: "memory",
    text: (v) => `${v.toFixed(1)} GiB`,
  },
};
const noPlan = (data) => `The planner says nothing here: ${data.why_no_plan || "the layouts are not known"}.`;

function predictedPlot(data, width, redraw) {
  const what = state.predicted || "step";
  const fields = PREDICTED[what];
  if (!data.trials.some((trial) => trial.predicted)) return { empty: noPlan(data) };
  if (!data.trials.some((trial) => trial.value !== null)) return { empty: NONE_SUCCEEDED };
  const known = data.trials.filter(
    (t) => t.value !== null && isNumber(fields.measured(t)) && isNumber(fields.predicted(t)),
  );
  // What a strategy expected is judged where it says so: the planner knows no levers, and nothing of earlier trials.
  const expected = known.filter((t) => fields.by(t) !== "the planner");
  const both = expected.length ? expected : known;
  const options = Object.keys(PREDICTED).map((key) => [key, { step: "step time" }[key] || key]);
  const choose = (value) => {
    state.predicted = value;
    redraw();
  };
  const controls = el("div", { class: "controls" }, chooser("predicted", "compare", options, what, choose));
  if (both.length < 2)
    return { body: el("div", null, controls, el("p", { class: "note" }, "Fewer than two trials measured it.")) };
  return {
    body: el(
      "div",
      null,
      controls,
      predictedFigure(data, both, fields, width, new Zoom(`predicted-${what}`, redraw, true)),
    ),
  };
}

function predictedFigure(data, both, fields, width, zoom) {
  const label = `Predicted against measured ${fields.name}.`;
  const chart = new Chart("predicted", { width, height: 290, label, zoom, count: both.length });
  // Each axis as far as its own figures go: a plan that is off by half would else leave them all in a corner.
  const [across, up] = [
    zoom.x(extent(both.flatMap((t) => [fields.predicted(t), ...(fields.range(t) || [])]))),
    zoom.y(extent(both.map(fields.measured))),
  ];
  chart.axisX(across, `predicted ${fields.name}`);
  chart.axisY(up, `measured ${fields.name}`);
  const ratios = both.map((t) => fields.measured(t) / fields.predicted(t)).sort((a, b) => a - b);
  const at = (share) => ratios[Math.floor((ratios.length - 1) * share)];
  const median = at(0.5);
  const ray = (ratio, kind) => {
    const [from, to] = [Math.max(across[0], up[0] / ratio), Math.min(across[1], up[1] / ratio)];
    if (!(from < to)) return false;
    const ends = { x1: chart.x(from), y1: chart.y(from * ratio), x2: chart.x(to), y2: chart.y(to * ratio) };
    chart.add(svg("line", { class: kind, ...ends }));
    return true;
  };
  const isAgreementSeen = ray(1, "rule");
  const isMedianSeen = ray(median, "median-line");
  for (const trial of both.filter((each) => zoom.holds(fields.predicted(each), fields.measured(each)))) {
    const [predicted, measured] = [fields.predicted(trial), fields.measured(trial)];
    const lines = [
      `${nameOf(trial)}: ${format.short(trial.label, 80)}`,
      `predicted ${fields.text(predicted)}, measured ${fields.text(measured)} (${times(measured / predicted)})`,
    ];
    const range = fields.range(trial);
    if (range) {
      const [x1, x2] = range.map(chart.x);
      lines.push(`90% range ${range.map(fields.text).join(" to ")}`);
      chart.add(svg("line", { class: "range", "clip-path": chart.clip, x1, x2, y1: chart.y(measured), y2: chart.y(measured) }));
    }
    chart.point(chart.x(predicted), chart.y(measured), kindOf(data, trial), lines, trial.number);
  }
  const error = ratios.reduce((sum, ratio) => sum + Math.abs(ratio - 1), 0) / ratios.length;
  const ranged = both.filter((t) => fields.range(t));
  const inside = ranged.filter((t) => fields.range(t)[0] <= fields.measured(t) && fields.measured(t) <= fields.range(t)[1]);
  const within = ranged.length ? ` ${inside.length} of ${ranged.length} lie in their 90% range.` : "";
  const off = `Predictions of ${fields.noun} were off by ${format.share(error)} on average: the median run took`;
  const middle = both.length > 3 ? `, interquartile range ${times(at(0.25))} to ${times(at(0.75))}` : "";
  return figure("predicted", chart, {
    caption: `${off} ${times(median)} what was predicted${middle}.${within} Predicted by ${[...new Set(both.map(fields.by))].join("; ")}.`,
    keys: [
      isAgreementSeen ? ["as predicted", lineSwatch("rule")] : null,
      ranged.length ? ["90% range of the prediction", lineSwatch("range")] : null,
      isMedianSeen ? [`${times(median)} the prediction`, lineSwatch("median-line")] : null,
      ...trialKeys(data, both),
    ].filter(Boolean),
    columns: ["trial", "layout", "predicted", "90% range", "measured", "measured / predicted"],
    rows: () =>
      both.map((t) => [
        nameOf(t),
        t.label,
        fields.text(fields.predicted(t)),
        fields.range(t)?.map(fields.text).join(" to ") ?? "",
        fields.text(fields.measured(t)),
        times(fields.measured(t) / fields.predicted(t)),
      ]),
  });
}
