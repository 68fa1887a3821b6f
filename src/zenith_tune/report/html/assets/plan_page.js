// The page of a plan.
function planHeadline(data) {
  const best = data.best[0];
  const tiles = best
    ? [
        tile(
          format.step(best.step_s),
          `a step, 90% within ${format.step(best.step_interval_90_s[0])} to ${format.step(best.step_interval_90_s[1])}`,
          true,
        ),
        tile(format.whole(best.tokens_per_s_per_gpu), "tokens/s per GPU"),
        tile(format.share(best.mfu), "of the GPUs' peak (MFU)"),
        tile(format.bytes(best.memory_bytes), `of ${format.bytes(data.capacity_bytes)} a GPU`),
        tile(format.share(best.oom_probability), "likely to run out of memory"),
      ]
    : [];
  const enough = data.enough_gpus ? `: it takes ${data.enough_gpus} GPUs of this kind` : "";
  return {
    body: el(
      "div",
      null,
      el(
        "p",
        { class: "eyebrow" },
        `plan · ${data.model} (${(data.num_params / 1e9).toFixed(1)}B parameters) on ${data.cluster} · batch ${data.global_batch}, sequence ${data.seq_len}, ${data.precision}, ${data.framework}`,
      ),
      el("h1", null, best ? best.name : `Nothing fits${enough}`),
      best ? el("p", { class: "note" }, `A step is ${best.bound}.`) : null,
      el("div", { class: "tiles" }, tiles),
      best ? whatToRun(data, best) : null,
    ),
  };
}

// The file of the best layout, and how to tune from there; where no format can say it, its sizes.
function whatToRun(data, best) {
  if (!data.emitted)
    return [
      el("h2", null, "What to run"),
      el("p", null, `No file can be written for ${data.framework}: give your own command these sizes.`),
      pairs(best.layout),
    ];
  const { format: form, file_name, text, notes } = data.emitted;
  return [
    el("h2", null, "What to run"),
    el("p", { class: "note" }, `Save it as ${file_name} (${form}), or plan with --emit ${form} --output FOLDER:`),
    commandBox(text, `${file_name} for ${form}`, "copy-emitted"),
    notes.length
      ? fold("emit-notes", "What to know about it", () =>
          el(
            "ul",
            { class: "plainlist" },
            notes.map((note) => el("li", null, note)),
          ),
        )
      : null,
    file_name.endsWith(".sh")
      ? [
          el("p", { class: "note" }, "Then measure it, and what else comes close, in short trials:"),
          commandBox(`zenithtune optimize -- bash ${file_name}`, "the command that tunes it", "copy-tune"),
        ]
      : null,
  ];
}

function layoutScatter(data, width) {
  const rows = [
    ...data.best.map((layout) => [layout, layout === data.best[0] ? "best ok" : "ok"]),
    ...data.near_misses.map((layout) => [layout, layout.obstacle === "memory" ? "oom" : "other"]),
  ];
  if (!rows.length) return { empty: "There is nothing to show." };
  const chart = new Chart("front", {
    width,
    height: width > 500 ? Math.max(300, timesHeight(data.best.length)) : 300,
    label: "Predicted speed against memory.",
  });
  chart.axisX(
    extent([...rows.map(([layout]) => layout.memory_bytes / GIB), data.capacity_bytes / GIB]),
    "predicted peak memory, GiB",
  );
  chart.axisY(extent(rows.map(([layout]) => layout.tokens_per_s_per_gpu)), "tokens/s per GPU", {
    text: (value) => value.toLocaleString("en"),
  });
  drawLimit(chart, data.capacity_bytes, `GPU ${format.bytes(data.capacity_bytes)}`);
  for (const [layout, kind] of rows) {
    chart.point(chart.x(layout.memory_bytes / GIB), chart.y(layout.tokens_per_s_per_gpu), kind, [
      layout.name,
      `${format.whole(layout.tokens_per_s_per_gpu)} tokens/s per GPU, ${format.bytes(layout.memory_bytes)}`,
      `${format.share(layout.oom_probability)} likely to run out of memory`,
    ]);
  }
  return {
    body: figure("front", chart, {
      caption: "Each mark is a layout; up and to the left is better.",
      keys: [
        ["best ok", "the best"],
        ["ok", "fits"],
        ["oom", "does not fit in memory"],
        ["other", "needs another batch"],
      ]
        .filter(([kind]) => rows.some((row) => row[1] === kind))
        .map(([kind, name]) => [name, swatch(kind)]),
      columns: ["layout", "tokens/s per GPU", "GiB", "out of memory"],
      rows: () =>
        rows.map(([layout]) => [
          layout.name,
          format.whole(layout.tokens_per_s_per_gpu),
          (layout.memory_bytes / GIB).toFixed(1),
          format.share(layout.oom_probability),
        ]),
    }),
  };
}

function planTable(data) {
  if (!data.best.length) return { empty: `None of ${format.count(data.num_considered, "layout")} fits in memory.` };
  const rows = data.best.map((layout, index) => ({ ...layout, rank: index + 1 }));
  const columns = [
    { key: "rank", name: "rank", value: (r) => r.rank, cell: (r) => String(r.rank) },
    { key: "name", name: "layout", text: true, value: (r) => r.name, cell: (r) => r.name },
    { key: "step", name: "step", value: (r) => r.step_s, cell: (r) => format.step(r.step_s) },
    {
      key: "expected",
      name: "step, risk counted",
      value: (r) => r.expected_step_s,
      cell: (r) => format.step(r.expected_step_s),
      hide: "opt",
    },
    {
      key: "speed",
      name: "tok/s/GPU",
      downFirst: true,
      value: (r) => r.tokens_per_s_per_gpu,
      cell: (r) => format.whole(r.tokens_per_s_per_gpu),
      hide: "opt2",
    },
    {
      key: "mfu",
      name: "MFU",
      downFirst: true,
      value: (r) => r.mfu,
      cell: (r) => `${(r.mfu * 100).toFixed(1)}%`,
      hide: "opt",
    },
    {
      key: "memory",
      name: "memory",
      value: (r) => r.memory_bytes,
      cell: (r) => format.bytes(r.memory_bytes),
      hide: "opt2",
    },
    { key: "oom", name: "OOM", value: (r) => r.oom_probability, cell: (r) => format.share(r.oom_probability) },
    { key: "bound", name: "bound by", text: true, value: (r) => r.bound, cell: (r) => r.bound, hide: "opt" },
  ];
  const shares = (parts, total, text) =>
    pairs(
      Object.fromEntries(
        Object.entries(parts)
          .filter(([, part]) => part > 0)
          .sort((a, b) => b[1] - a[1])
          .map(([name, part]) => [TIME_NAMES[name] || name, `${text(part)} (${format.share(part / total)})`]),
      ),
    );
  return {
    body: bigTable("layouts", {
      columns,
      rows,
      id: (r) => String(r.rank),
      isBest: (r) => r.rank === 1,
      sort: "rank",
      label: "layouts",
      search: (r) => `${r.name} ${r.bound}`,
      detail: (r) =>
        el(
          "div",
          null,
          el("h3", null, "Step time"),
          shares(r.time_parts_s, r.step_s, format.seconds),
          el("h3", null, "Memory"),
          shares(r.memory_parts_bytes, r.memory_bytes, format.bytes),
          el("h3", null, "Sizes"),
          pairs(r.layout),
        ),
    }),
  };
}

function nearMisses(data) {
  if (!data.near_misses.length) return { empty: "No faster layout was left out." };
  return {
    body: el(
      "div",
      null,
      data.near_misses.map((miss) =>
        el(
          "div",
          { class: "group" },
          el("p", null, el("b", null, miss.name), `: ${miss.reason}`),
          el(
            "p",
            { class: "note" },
            `${isNumber(miss.gain) ? `${format.gain(miss.gain)} ${miss.obstacle === "batch" ? "tokens/s" : "speed"}; ` : ""}${miss.hint}`,
          ),
        ),
      ),
    ),
  };
}

function droppedList(data) {
  return {
    body: el(
      "div",
      null,
      el(
        "p",
        null,
        `${format.count(data.num_considered, "layout")} considered, ${data.num_fitting.toLocaleString("en")} fit (less than ${format.share(data.risk)} likely to run out of memory).`,
      ),
      el(
        "ul",
        { class: "plainlist" },
        data.dropped.map((cut) => el("li", null, `dropped ${format.count(cut.count, cut.of)}: ${cut.example}`)),
        data.left_out.map((reason) => el("li", null, `not tried: ${reason}`)),
      ),
    ),
  };
}

const PLAN_SECTIONS = [
  { id: "headline", wide: true, draw: planHeadline },
  { id: "layouts", title: "Ranked layouts", wide: true, draw: planTable },
  {
    id: "times",
    title: "Where a step goes",
    draw: (data, width) => (data.best.length ? timePlot(data.best, width) : null),
  },
  { id: "front", title: "Speed against memory", draw: layoutScatter },
  {
    id: "stages",
    title: "Memory of the best layout",
    draw: (data, width) => (data.best_layout ? stagePlot(data, width) : null),
  },
  { id: "misses", title: "Faster, but ruled out", draw: nearMisses },
  { id: "timeline", title: "Pipeline of the best layout", wide: true, draw: timelinePlot },
  { id: "unshown", title: "Not shown", wide: true, collects: true },
  { id: "dropped", title: "What was considered", wide: true, draw: droppedList },
];
