// What a layout is planned to do with a GPU's memory and with the time of a step.
const MEMORY_ORDER = [
  "weights",
  "gradients",
  "optimizer",
  "activations",
  "working",
  "logits",
  "step",
  "buffers",
  "reserve",
  "context",
];
const TIME_ORDER = ["compute", "recompute", "tp", "cp", "ep", "bubble", "p2p", "dp", "optimizer", "overhead", "memory"];
const TIME_NAMES = {
  compute: "compute",
  recompute: "recompute",
  tp: "TP",
  cp: "CP",
  ep: "EP",
  bubble: "bubble",
  p2p: "PP messages",
  dp: "DP",
  optimizer: "optimizer",
  overhead: "host",
  memory: "full memory",
};

const VISIBLE_PX = 1; // a thinner part is shown by the table, and not by the legend
const BLOCK_PX = 5; // the least width of a block of a pipeline

function partNames(order, rows) {
  const known = [...new Set([...order, ...rows.flatMap((row) => Object.keys(row.parts))])];
  return known.filter((name) => rows.some((row) => row.parts[name] > 0));
}

// Rows of stacked bars; a limit is drawn as a line.
function stackedBars(
  key,
  {
    rows,
    order,
    width,
    label,
    unit,
    text,
    limit = null,
    limitName = "",
    caption,
    names = {},
    left = 70,
    rowsName = "stage",
  },
) {
  const parts = partNames(order, rows);
  const tall = Math.max(16, Math.min(34, 320 / rows.length));
  const chart = new Chart(key, { width, height: rows.length * (tall + 6) + 14 + 42, left, bottom: 42, label });
  const total = (row) => parts.reduce((sum, name) => sum + Math.max(row.parts[name] || 0, 0), 0);
  chart.axisX([0, Math.max(...rows.map(total), limit || 0) * 1.04], unit, { text: (value) => text(value, true) });
  rows.forEach((row, index) => {
    const y = chart.box.top + index * (tall + 6) + 3;
    chart.nameRow([format.short(row.name, Math.floor(left / 6.9))], y + tall / 2);
    let from = 0;
    for (const name of parts) {
      const part = Math.max(row.parts[name] || 0, 0);
      if (!part) continue;
      const node = svg("rect", {
        class: "part",
        x: chart.x(from),
        y,
        width: Math.max(chart.x(from + part) - chart.x(from), 0.5),
        height: tall,
        style: { fill: colour(parts.indexOf(name)) },
      });
      chart.mark(
        node,
        [`${row.name}: ${names[name] || name} ${text(part)}`, `${text(total(row))} in all`],
        row.trial ?? null,
      );
      from += part;
    }
  });
  if (limit) {
    const x = chart.x(limit);
    chart.add(
      svg("line", { class: "rule bad", x1: x, x2: x, y1: chart.box.top - 6, y2: chart.box.bottom }),
      svg("text", { x: x - 5, y: chart.box.top - 3, "text-anchor": "end" }, limitName),
    );
  }
  return figure(key, chart, {
    caption,
    keys: parts
      .map((name, index) => [names[name] || name, colour(index), name])
      .filter(([, , name]) => rows.some((row) => chart.x(row.parts[name] || 0) - chart.x(0) >= VISIBLE_PX)),
    columns: [rowsName, ...parts.map((name) => names[name] || name), "all"],
    rows: () => rows.map((row) => [row.name, ...parts.map((name) => text(row.parts[name] || 0)), text(total(row))]),
  });
}

function stagePlot(data, width) {
  const found = data.best_layout;
  if (!found) return { empty: noPlan(data) };
  const inGib = (parts) => Object.fromEntries(Object.entries(parts).map(([name, bytes]) => [name, bytes / GIB]));
  const rows = found.stages.map((stage) => ({
    name: found.stages.length > 1 ? `stage ${stage.stage}` : "each GPU",
    parts: inGib(stage.parts),
  }));
  return {
    body: stackedBars("stages", {
      rows,
      width,
      order: MEMORY_ORDER,
      label: "Predicted memory of each pipeline stage.",
      unit: "GiB",
      text: (value, bare) => (bare ? format.value(value) : `${value.toFixed(1)} GiB`),
      limit: data.capacity_bytes / GIB,
      limitName: `GPU ${format.bytes(data.capacity_bytes)}`,
      caption: `Predicted peak of ${found.name} by cause.`,
    }),
  };
}

const timesHeight = (num) => Math.min(num, 10) * (Math.max(16, Math.min(34, 320 / Math.min(num, 10))) + 6) + 56;

function timePlot(layouts, width) {
  const rows = layouts
    .slice(0, 10)
    .map((layout, index) => ({ name: `${index + 1}. ${layout.name}`, parts: layout.time_parts_s }));
  return {
    body: stackedBars("times", {
      rows,
      width,
      order: TIME_ORDER,
      names: TIME_NAMES,
      left: Math.min(width * 0.45, 16 + 6.9 * Math.max(...rows.map((row) => row.name.length))),
      label: "Where the predicted time of a step goes.",
      rowsName: "layout",
      unit: "seconds a step",
      text: (value, bare) => (bare ? format.value(value) : format.seconds(value)),
      caption: "Where the predicted time of a step goes, the fastest layouts first.",
    }),
  };
}

function timelinePlot(data, width) {
  const line = data.best_layout?.timeline;
  if (!line) return null;
  const tall = Math.max(14, Math.min(30, 420 / line.num_stages));
  const end = Math.max(...line.bars.map((bar) => bar[5])) + line.tail_s;
  const lasting = line.bars.map((bar) => bar[5] - bar[4]).sort((a, b) => a - b);
  const block = lasting[Math.floor(lasting.length / 2)];
  const chart = new Chart("timeline", {
    width,
    height: line.num_stages * tall + 14 + 42,
    left: 58,
    bottom: 42,
    least: Math.min((end / block) * BLOCK_PX + 74, 2600),
    label: `Pipeline of ${line.num_stages} stages and ${line.shown_micro_batches} micro-batches.`,
  });
  chart.axisX([0, end], "seconds");
  const named = Math.max(1, Math.ceil(line.num_stages / 24));
  for (let stage = 0; stage < line.num_stages; stage += named)
    chart.nameRow([`stage ${stage}`], chart.box.top + (stage + 0.5) * tall);
  for (const [stage, chunk, micro, isForward, start, stop] of line.bars) {
    const node = svg("rect", {
      class: `${isForward ? "forward" : "backward"}${chunk % 2 ? " odd" : ""}`,
      x: chart.x(start),
      y: chart.box.top + stage * tall + 1,
      width: Math.max(chart.x(stop) - chart.x(start), 0.6),
      height: tall - 2,
      rx: 1.5,
    });
    const where = line.num_chunks > 1 ? `stage ${stage}, chunk ${chunk}` : `stage ${stage}`;
    chart.mark(node, [
      `${where}: ${isForward ? "forward" : "backward"} of micro-batch ${micro + 1}`,
      `${format.seconds(start)} to ${format.seconds(stop)}`,
    ]);
  }
  if (line.tail_s > 0) {
    chart.mark(
      svg("rect", {
        class: "tail",
        x: chart.x(end - line.tail_s),
        y: chart.box.top,
        width: Math.max(chart.x(end) - chart.x(end - line.tail_s), 0.6),
        height: line.num_stages * tall,
      }),
      ["gradients and optimizer", format.seconds(line.tail_s)],
    );
  }
  const bubble = data.best_layout.time_parts_s.bubble / data.best_layout.step_s;
  const part =
    line.shown_micro_batches < line.num_micro_batches
      ? `; drawn are ${line.shown_micro_batches} of ${line.num_micro_batches} micro-batches`
      : "";
  const how = line.num_chunks > 1 ? `interleaved, ${line.num_chunks} chunks per stage` : "1F1B";
  return {
    body: figure("timeline", chart, {
      caption: `Predicted step of ${data.best_layout.name} (${how}): stages wait ${format.share(bubble)} of it${part}.${chart.room < chart.width ? " It continues to the right." : ""}`,
      keys: [
        ["forward", "var(--accent)"],
        ["backward", "var(--p1)"],
        line.tail_s > 0 ? ["gradients and optimizer", "var(--p8)"] : null,
      ].filter(Boolean),
      columns: ["stage", "passes", "first begins", "last ends"],
      rows: () =>
        Array.from({ length: line.num_stages }, (_, stage) => {
          const own = line.bars.filter((bar) => bar[0] === stage);
          return [
            String(stage),
            String(own.length),
            format.seconds(own[0][4]),
            format.seconds(Math.max(...own.map((bar) => bar[5]))),
          ];
        }),
    }),
  };
}
