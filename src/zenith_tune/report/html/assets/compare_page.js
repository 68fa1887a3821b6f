// The page of two studies side by side.
function compareHeadline(data) {
  const [first, second] = data.studies.map((study) => ({ ...study, name: format.short(study.name, 80) }));
  const verdict = data.verdict ? `${second.name} is ${data.verdict} ${first.name} at its best` : data.why_no_gain;
  return {
    body: el(
      "div",
      null,
      el("p", { class: "eyebrow" }, "two studies compared"),
      el("h1", null, verdict),
      data.caution ? el("p", { class: "caution" }, data.caution) : null,
      el("div", { class: "versus" }, plainTable(["what", first.name, second.name], data.summary, "Both studies")),
      data.studies.map((study) =>
        study.best_command
          ? [
              el("p", { class: "note" }, `Best of ${study.name}:`),
              commandBox(study.best_command, `the best command of ${study.name}`, `copy-${study.name}`),
            ]
          : null,
      ),
    ),
  };
}

function compareProgress(data, width) {
  const series = data.studies.map((study) => study.progress);
  if (!series.flat().length) return { empty: "No trial succeeded in either." };
  if (!data.is_comparable) return { empty: data.why_no_gain };
  const chart = new Chart("progress", { width, height: 290, label: "Best value so far of both studies." });
  chart.axisX([-0.5, Math.max(...data.studies.map((study) => study.last)) + 0.5], "trial", { whole: true });
  chart.axisY(extent(series.flat().map((point) => point[1])), data.unit || "value");
  series.forEach((points, index) => {
    chart.steps(points, index ? "other-line" : "best-line", data.studies[index].last);
    for (const [place, value, label] of points)
      chart.point(chart.x(place), chart.y(value), index ? "other" : "ok", [
        `${data.studies[index].name}: ${format.short(label, 80)}`,
        format.value(value, data.unit),
      ]);
  });
  return {
    body: figure("progress", chart, {
      caption: `Best ${data.unit || "value"} so far.`,
      keys: data.studies.map((study, index) => [study.name, lineSwatch(index ? "other-line" : "best-line")]),
      columns: ["study", "trial", "layout", data.unit || "value"],
      rows: () =>
        series.flatMap((points, index) =>
          points.map(([place, value, label]) => [data.studies[index].name, String(place), label, format.value(value)]),
        ),
    }),
  };
}

function commonTable(data) {
  if (!data.common.length) return { empty: "No layout succeeded in both." };
  const [first, second] = data.studies;
  const columns = [
    { key: "label", name: "layout", text: true, value: (r) => r.label, cell: (r) => format.short(r.label, 90) },
    { key: "first", name: first.name, value: (r) => r.values[0], cell: (r) => format.value(r.values[0]) },
    { key: "second", name: second.name, value: (r) => r.values[1], cell: (r) => format.value(r.values[1]) },
    { key: "gain", name: "gain", downFirst: true, value: (r) => r.gain, cell: (r) => gainWord(r.gain) },
  ];
  return {
    body: bigTable("common", {
      columns,
      rows: data.common,
      id: (r) => String(r.key),
      isBest: () => false,
      sort: "gain",
      down: true,
      label: "common layouts",
      search: (r) => r.label,
      detail: (r) => pairs(r.parameters),
    }),
  };
}

function differenceList(data) {
  if (!data.differences.length)
    return { empty: "Both were made with the same preset, arguments, strategy, command and evaluator." };
  return {
    body: el(
      "div",
      { class: "versus" },
      plainTable(["what", data.studies[0].name, data.studies[1].name], data.differences, "What differs"),
    ),
  };
}

const COMPARE_SECTIONS = [
  { id: "headline", wide: true, draw: compareHeadline },
  { id: "differences", title: "What differs", wide: true, draw: differenceList },
  { id: "progress", title: "Best so far", wide: true, draw: compareProgress },
  { id: "unshown", title: "Not shown", wide: true, collects: true },
  { id: "common", title: "Layouts that ran in both", wide: true, draw: commonTable },
];
