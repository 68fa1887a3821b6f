// When each trial ran, and how much of the difference between trials goes with each option.
const MOST_OPTIONS = 14;
const MOST_LANES = 24;

// Trials side by side stand in lanes: each in the first that is free when it starts.
function lanesOf(trials) {
  const ends = [];
  return trials.map((trial) => {
    let lane = ends.findIndex((end) => end <= trial.from);
    if (lane < 0) lane = ends.length < MOST_LANES ? ends.length : ends.indexOf(Math.min(...ends));
    ends[lane] = trial.to;
    return lane;
  });
}

function whenPlot(data, width, redraw) {
  const ran = data.trials
    .filter((trial) => isNumber(trial.started_s))
    .map((trial) => ({
      trial,
      from: trial.started_s - data.started_s,
      to: (trial.ended_s ?? data.now_s) - data.started_s,
    }))
    .sort((a, b) => a.from - b.from);
  if (!ran.length) return { empty: "The record does not say when trials ran." };
  if (ran.length < 2) return { empty: ONE_RUN };
  const lanes = lanesOf(ran);
  const count = Math.max(...lanes) + 1;
  const tall = Math.max(10, Math.min(26, 220 / count));
  const zoom = new Zoom("when", redraw);
  const chart = new Chart("when", {
    width,
    height: count * (tall + 3) + 14 + 42,
    left: 30,
    bottom: 42,
    label: "When each trial ran.",
    zoom,
    count: ran.length,
  });
  const across = zoom.x([0, Math.max(...ran.map(({ to }) => to)) || 1]);
  chart.axisX(across, "time since the study began", { ticks: clockTicks, text: format.clock });
  ran.forEach(({ trial, from, to }, index) => {
    if (to < across[0] || from > across[1]) return;
    const [x, end] = [chart.x(Math.max(from, across[0])), chart.x(Math.min(to, across[1]))];
    const y = chart.box.top + lanes[index] * (tall + 3);
    const bar = svg("rect", {
      class: `bar ${kindOf(data, trial)}`,
      x,
      y,
      width: Math.max(end - x - 1, 1),
      height: tall,
      rx: 2,
    });
    chart.mark(
      bar,
      [...tellOf(data, trial), `ran ${format.seconds(to - from)}${trial.host ? ` on ${trial.host}` : ""}`],
      trial.number,
    );
    const name = trial.name;
    if (end - x > 7 * name.length + 8 && tall >= 14)
      chart.add(
        svg(
          "text",
          {
            class: `bar-text${(trial.value !== null && !trial.is_baseline) || trial.state === "error" ? " on" : ""}`,
            x: (x + end) / 2,
            y: y + tall / 2 + 4,
            "text-anchor": "middle",
          },
          name,
        ),
      );
  });
  const busy = ran.reduce((sum, { from, to }) => sum + to - from, 0);
  const beside = count > 1 ? `; up to ${count} at once` : "";
  return {
    body: figure("when", chart, {
      caption: `${format.count(ran.length, "run")} took ${format.seconds(busy)} in all${beside}. Each bar is one; gaps are tuner overhead.`,
      keys: barKeys(
        data,
        ran.map(({ trial }) => trial),
      ),
      columns: ["trial", "layout", "state", "began after", "ran for"],
      rows: () =>
        ran.map(({ trial, from, to }) => [
          nameOf(trial),
          trial.label,
          trial.state,
          format.clock(from),
          format.seconds(to - from),
        ]),
    }),
  };
}

function barKeys(data, trials) {
  const box = (kind) =>
    svg(
      "svg",
      { class: "swatch", width: 18, height: 16, viewBox: "0 0 18 16" },
      svg("rect", { class: `mark bar ${kind}`, x: 2, y: 3, width: 14, height: 10, rx: 2 }),
    );
  const has = (kind) => trials.some((trial) => kindOf(data, trial).split(" ").includes(kind));
  return Object.entries({ best: "fastest", base: "your command", ...KINDS, running: "running" })
    .filter(([kind]) => has(kind))
    .map(([kind, name]) => [name, box(kind)]);
}

// From the speed of your own command over the layout to each group of levers.
function gainsPlot(data, width) {
  const { gains } = data.standing;
  const own = ownRun(data);
  const best = data.trials.find((trial) => trial.number === fastestOf(data));
  if (gains.length < 2 || !own?.value || !best?.value) return null;
  const factor = (speedup) => (data.direction === "minimize" ? 1 / speedup : speedup);
  const rows = [{ name: "your command", from: 0, to: own.value, trial: own.number, kind: "whole", text: format.value(own.value) }];
  for (const { name, speedup } of gains) {
    const from = rows.at(-1).to;
    rows.push({ name, from, to: from * factor(speedup), kind: speedup < 1 ? "loss" : "", text: times(speedup) });
  }
  rows.push({ name: "best", from: 0, to: best.value, trial: best.number, kind: "whole", text: format.value(best.value) });
  const tall = Math.min(46, 250 / rows.length - 8);
  const left = Math.min(width * 0.42, 208);
  const label = "From the speed of your own command to the best, step by step.";
  const chart = new Chart("gains", { width, height: rows.length * (tall + 8) + 22, left, right: 64, bottom: 8, label });
  chart.x = scale([0, Math.max(...rows.map((row) => Math.max(row.from, row.to)))], [left, chart.box.right]);
  rows.forEach((row, index) => {
    const y = chart.box.top + index * (tall + 8) + 4;
    const [from, to] = [row.from, row.to].map(chart.x).sort((a, b) => a - b);
    chart.nameRow(nameLines(row.name, Math.floor((left - 14) / LETTER_PX), /(?= )/), y + tall / 2);
    const bar = svg("rect", { class: `gain-part ${row.kind}`, x: from, y, width: Math.max(to - from, 1), height: tall, rx: 2 });
    chart.mark(bar, [row.name, row.text, `${format.value(row.to, data.unit)} in all`], row.trial ?? null);
    chart.add(svg("text", { x: to + 6, y: y + tall / 2 + 4 }, row.text));
  });
  return {
    body: figure("gains", chart, {
      caption: `${data.unit || "Value"}: what the layout brought, then each group of performance settings that was kept.`,
      columns: ["step", "factor or value", data.unit || "value"],
      rows: () => rows.map((row) => [row.name, row.text, format.value(row.to)]),
    }),
  };
}

function importancePlot(data, width) {
  const trials = ended(data);
  const good = trials.filter((trial) => trial.value !== null);
  const varied = data.parameters.filter((name) => orderedValues(good, name).length > 1);
  const found = varied
    .map((name) => ({
      name,
      share: Math.max(0, Math.min(1, importance(good, name))),
      best: bestValueOf(data, good, name),
    }))
    .sort((a, b) => b.share - a.share)
    .slice(0, MOST_OPTIONS);
  if (found.length < 2 || !found.some(({ share }) => share > 0)) return { empty: TOO_FEW };
  const tall = Math.max(20, Math.min(40, 200 / found.length - 6));
  const left = Math.min(width * 0.4, 16 + 6.9 * Math.max(...found.map(({ name }) => name.length)));
  const chart = new Chart("importance", {
    width,
    height: found.length * (tall + 6) + 14 + 42,
    left,
    right: 52,
    bottom: 42,
    label: "How much of the difference between trials goes with each option.",
  });
  chart.axisX([0, 1], "share of the difference between trials", { text: (value) => `${Math.round(value * 100)}%` });
  found.forEach(({ name, share, best }, index) => {
    const y = chart.box.top + index * (tall + 6) + 3;
    chart.nameRow([format.short(name, Math.floor(left / 6.9))], y + tall / 2, "axis-name");
    const bar = svg("rect", {
      class: "importance",
      x: left,
      y,
      width: Math.max(chart.x(share) - left, 1),
      height: tall,
      rx: 2,
    });
    chart.mark(
      bar,
      [
        `${name}: ${format.share(share)} of the difference`,
        `best with ${best.value}: ${format.value(best.trial.value, data.unit)}`,
      ],
      best.trial.number,
    );
    chart.add(svg("text", { x: chart.x(share) + 6, y: y + tall / 2 + 4 }, format.share(share)));
  });
  return {
    body: figure("importance", chart, {
      caption: `Share of the variance between the ${format.count(good.length, "trial")} that succeeded, by option, adjusted for chance. Options that changed together share it.`,
      columns: ["option", "share", "best with"],
      rows: () => found.map(({ name, share, best }) => [name, format.share(share), String(best.value)]),
    }),
  };
}

function bestValueOf(data, trials, name) {
  const known = trials.filter((trial) => trial.parameters[name] !== undefined);
  const trial = known.reduce((best, each) => (better(data)(each.value, best.value) ? each : best));
  return { trial, value: trial.parameters[name] };
}
