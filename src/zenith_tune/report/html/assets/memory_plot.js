// What speed costs in memory. A trial that ran out of it stands at what it would have needed, beyond the GPU's limit.
const MAX_OVER = 1.75; // times the GPU's memory: farther out a mark stands on the edge, as one that needs at least so much
const LANE_PX = 14;
const MAX_LANES = 6;

function memoryPlot(data, width, redraw) {
  const good = data.trials.filter((trial) => trial.value !== null && isNumber(trial.memory_bytes));
  const out = data.trials.filter((trial) => trial.needed);
  if (!good.length) return { empty: "No log says how much memory a trial took." };
  if (good.length + out.length < 2) return { empty: "One run alone says how much memory it took." };
  const placed = out.filter((trial) => isNumber(trial.needed.bytes));
  const took = Math.max(...good.map((trial) => trial.memory_bytes));
  const limit = data.capacity_bytes || (placed.length ? took : null);
  const zoom = new Zoom("memory", redraw, true);
  const label = `${data.unit || "Value"} against peak memory.`;
  const chart = new Chart("memory", { width, height: 290, label, zoom, count: good.length + out.length });
  const most = limit ? Math.max(limit * MAX_OVER, took) : Infinity;
  const needs = placed.map((trial) => Math.min(trial.needed.bytes, most));
  const [left, right] = extent([...good.map((trial) => trial.memory_bytes), ...needs, limit].map((b) => b && b / GIB));
  // Room for a band in which what is known to lie beyond the limit can be seen to.
  chart.axisX(zoom.x([left, limit ? Math.max(right, (limit / GIB) * 1.06) : right]), "memory of a GPU, GiB");
  const [low, high] = extent(good.map((trial) => trial.value));
  chart.axisY(zoom.y([low - (high - low) * 0.14, high]), data.unit || "value");
  if (limit && zoom.holds(limit / GIB))
    drawLimit(chart, limit, data.capacity_bytes ? `GPU ${format.bytes(limit)}` : "");
  const front = frontier(data, good).map((trial) => [trial.memory_bytes / GIB, trial.value]);
  if (front.length > 1) chart.steps(front, "front-line", front.at(-1)[0]);
  const isSeen = (trial) => zoom.holds(trial.memory_bytes / GIB, trial.value);
  for (const trial of good.filter(isSeen))
    chart.point(
      chart.x(trial.memory_bytes / GIB),
      chart.y(trial.value),
      kindOf(data, trial),
      tellOf(data, trial),
      trial.number,
    );
  chart.raiseBest();
  const isLeast = (trial) => trial.needed.is_bound || trial.needed.bytes > most;
  drawOut(
    chart,
    data,
    placed.filter((trial) => zoom.holds(Math.min(trial.needed.bytes, most) / GIB)),
    { limit, most, isLeast },
  );
  const lost = out.length - placed.length;
  const [exact, least] = [placed.filter((trial) => !isLeast(trial)), placed.filter(isLeast)];
  const notes = [
    exact.length ? "Triangles ran out of memory, and stand at what they would have needed" : "",
    least.length ? `${exact.length ? "t" : "T"}hose that point right needed at least as much` : "",
    lost ? `${format.count(lost, "trial")} out of memory left no figure` : "",
    limit && !data.capacity_bytes ? "the GPU's memory is not known: its limit lies in the band" : "",
  ].filter(Boolean);
  return {
    body: figure("memory", chart, {
      caption: notes.length ? `${notes.join("; ")}.` : `${front.length > 1 ? "No trial beats those on the line in both" : "Each mark is a trial"}; ${data.direction === "minimize" ? "down" : "up"} and to the left is better.`,
      keys: [
        ...trialKeys(data, good),
        front.length > 1 ? ["frontier", lineSwatch("front-line")] : null,
        exact.length ? ["out of memory: needed", swatch("oom")] : null,
        least.length ? ["out of memory: needed at least", swatch("oom least")] : null,
      ].filter(Boolean),
      columns: ["trial", "layout", "state", "memory, GiB", data.unit || "value"],
      rows: () => [
        ...good.map((trial) => [
          nameOf(trial),
          trial.label,
          trial.state,
          (trial.memory_bytes / GIB).toFixed(1),
          format.value(trial.value),
        ]),
        ...placed.map((trial) => [nameOf(trial), trial.label, trial.state, neededWords(trial), "–"]),
      ],
    }),
  };
}

// The trials that no other beats in both, those of the least memory first.
function frontier(data, trials) {
  const kept = [];
  for (const trial of [...trials].sort((a, b) => a.memory_bytes - b.memory_bytes || (better(data)(a.value, b.value) ? -1 : 1)))
    if (!kept.length || better(data)(trial.value, kept.at(-1).value)) kept.push(trial);
  return kept;
}

const neededWords = (trial) =>
  `${trial.needed.is_bound ? "at least " : ""}${(trial.needed.bytes / GIB).toFixed(1)} needed`;

function drawLimit(chart, limit, name) {
  const x = chart.x(limit / GIB);
  const { top, bottom, right } = chart.box;
  chart.add(
    svg("rect", { class: "band", x, y: top, width: Math.max(right - x, 0), height: bottom - top }),
    svg("line", { class: "rule bad", x1: x, x2: x, y1: top, y2: bottom }),
    svg("text", { x: Math.min(x, right - 34), y: top - 4, "text-anchor": "middle" }, name),
  );
}

// On the lower edge, one over the other where they need the same.
function drawOut(chart, data, placed, { limit, most, isLeast }) {
  const lanes = [];
  const edge = limit ? chart.x(limit / GIB) : -Infinity;
  const spots = placed.map((trial) => {
    const at = chart.x(Math.min(trial.needed.bytes, most) / GIB);
    return { trial, x: isLeast(trial) ? Math.min(Math.max(at, edge + 9), chart.box.right - 4) : at };
  });
  for (const { trial, x } of spots.sort((a, b) => a.x - b.x)) {
    let lane = lanes.findIndex((last) => x - last >= LANE_PX);
    if (lane < 0) lane = Math.min(lanes.length, MAX_LANES - 1);
    lanes[lane] = x;
    const notes = [...tellOf(data, trial).slice(0, 2), `${neededWords(trial).replace(" needed", " GiB needed")}`];
    const kind = `oom${isLeast(trial) ? " least" : ""}${trial.is_baseline ? " base" : ""}`;
    chart.point(x, chart.box.bottom - 9 - lane * LANE_PX, kind, [...notes, tellOf(data, trial).at(-1)], trial.number);
  }
}
