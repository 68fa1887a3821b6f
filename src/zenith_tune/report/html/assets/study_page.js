// The page of one study.
const stateWord = (name) => el("span", { class: `state ${name}` }, name);
const gainWord = (gain) => el("span", { class: `gain ${gain > 0 ? "up" : gain < 0 ? "down" : ""}` }, format.gain(gain));
const tile = (value, name, lead) =>
  el("div", { class: `tile${lead ? " lead" : ""}` }, el("b", null, value), el("span", null, name));

function runningNow(data) {
  const running = data.trials.filter((trial) => trial.state === "running");
  if (!running.length) return null;
  return {
    body: el(
      "div",
      null,
      running.map((trial) =>
        el(
          "div",
          null,
          el(
            "p",
            null,
            stateWord("running"),
            ` ${nameOf(trial)}: ${trial.label}`,
            trial.started_s ? " for " : "",
            trial.started_s
              ? el("span", { "data-since": trial.started_s }, format.seconds(data.now_s - trial.started_s))
              : "",
          ),
          trial.why ? el("p", { class: "note" }, trial.why) : null,
          trial.log.length ? logBox(trial.log, `Log of ${nameOf(trial)}`, trial.number, 6) : null,
        ),
      ),
    ),
  };
}

const countedRuns = (data, runs) => {
  const well = runs.filter((trial) => trial.value !== null && !trial.is_baseline).length;
  const cancelled = runs.filter((trial) => trial.state === "cancelled" && !trial.is_baseline).length;
  const failed = runs.filter((trial) => trial.value === null && !trial.is_baseline).length - cancelled;
  const own = ownRun(data)?.value === null ? "; your own command failed" : "";
  return `${format.count(well, "trial")} succeeded, ${failed} failed${cancelled ? `, ${cancelled} cancelled` : ""}${own}`;
};

function findingsList(data) {
  if (!data.findings.length) return null;
  return {
    body: el(
      "div",
      null,
      data.findings.map((table) =>
        el(
          "div",
          null,
          el("h3", null, table.title),
          table.rows.length ? el("div", { class: "scroll" }, plainTable(table.columns, table.rows, table.title)) : null,
          table.notes.map((line) => el("p", { class: "note" }, line)),
        ),
      ),
    ),
  };
}

function doctorList(data) {
  if (!data.doctor.length) return { empty: "The doctor needs a plan of the best run to say anything." };
  const line = (text) => el("p", { class: `doctor${text.startsWith(" ") ? " sub" : ""}` }, text.trim());
  return { body: el("div", null, data.doctor.map(line)) };
}

function nextList(data) {
  if (!data.next.length) return null;
  const one = ({ what, why, command }, index) => [
    el("p", { class: "next" }, el("b", null, what), why ? `: ${why}` : ""),
    command ? commandBox(command, `the command: ${what}`, `copy-next-${index}`) : null,
  ];
  return { body: el("div", null, data.next.map(one)) };
}

function trialDetail(data, trial) {
  const part = (title, node) => [el("h3", null, title), node];
  const predicted = trial.predicted;
  return el(
    "div",
    null,
    trial.why ? part("Why it was picked", el("p", null, trial.why)) : null,
    trial.cause ? part("Why it failed", el("p", { class: "doctor" }, trial.cause)) : null,
    trial.early ? part("Ended early", el("p", null, trial.early)) : null,
    trial.start ? part("Start", el("p", null, trial.start)) : null,
    trial.command
      ? part("Command", commandBox(trial.command, `the command of ${nameOf(trial)}`, `copy-${trial.number}`))
      : null,
    Object.keys(trial.parameters).length ? part("Parameters", pairs(trial.parameters)) : null,
    predicted
      ? part(
          "Predicted",
          pairs({
            by: predicted.by,
            "step time": format.step(predicted.step_s),
            memory: format.bytes(predicted.memory_bytes),
            "out of memory": format.share(predicted.oom_probability),
          }),
        )
      : null,
    isNumber(trial.gpu_utilization)
      ? part(
          "GPUs, by nvidia-smi",
          pairs({
            "median utilisation": format.share(trial.gpu_utilization),
            "median power of one": format.watts(trial.gpu_power_w),
          }),
        )
      : null,
    trial.folder
      ? part(
          "Files",
          el("p", { class: "doctor" }, `${trial.folder}${trial.files.length ? `: ${trial.files.join(", ")}` : ""}`),
        )
      : null,
    trial.started_s
      ? part(
          "When",
          el(
            "p",
            null,
            `${format.time(trial.started_s)}${trial.ended_s ? ` to ${format.time(trial.ended_s)}` : ""}${trial.host ? ` on ${trial.host}` : ""}`,
          ),
        )
      : null,
    trial.log.length ? part("End of its log", logBox(trial.log, `Log of ${nameOf(trial)}`, trial.number)) : null,
  );
}

function trialTable(data) {
  const columns = [
    {
      key: "number",
      name: "trial",
      value: (t) => t.number,
      cell: (t) => t.name,
    },
    { key: "label", name: "layout", text: true, value: (t) => t.label, cell: (t) => format.short(t.label, 90) },
    { key: "state", name: "state", text: true, value: (t) => t.state, cell: (t) => stateWord(t.state) },
    {
      key: "value",
      name: data.unit || "value",
      downFirst: data.direction !== "minimize",
      value: (t) => t.value,
      cell: (t) => format.value(t.value),
    },
    {
      key: "gain",
      name: "gain",
      downFirst: true,
      value: (t) => t.gain,
      cell: (t) => (t.is_baseline ? "–" : gainWord(t.gain)),
      hide: "opt2",
    },
    { key: "step", name: "step", value: (t) => t.step_s, cell: (t) => format.step(t.step_s), hide: "opt" },
    {
      key: "memory",
      name: "memory",
      value: (t) => t.memory_bytes,
      cell: (t) => format.bytes(t.memory_bytes),
      hide: "opt2",
    },
    { key: "time", name: "ran", value: (t) => t.duration_s, cell: (t) => format.seconds(t.duration_s), hide: "opt" },
    {
      key: "why",
      name: "why",
      text: true,
      class: "why",
      value: (t) => t.cause || t.why,
      cell: (t) => format.short(t.cause || t.why || "", 90),
      hide: "opt",
    },
  ];
  const note = data.batch_note ? el("p", { class: "note" }, `On the gains: ${data.batch_note}.`) : null;
  const table = bigTable("trials", {
    columns,
    rows: data.trials,
    id: (t) => String(t.number),
    isBest: (t) => t.number === fastestOf(data),
    groups: (t) => t.state,
    sort: "number",
    label: "trials",
    detail: (t) => trialDetail(data, t),
    search: (t) =>
      [
        t.number,
        t.label,
        t.state,
        t.cause,
        t.why,
        t.command,
        Object.entries(t.parameters)
          .map((pair) => pair.join("="))
          .join(" "),
      ].join(" "),
  });
  return { body: el("div", null, note, table) };
}

function openTrial(number) {
  const kept = state.tables.trials;
  if (!kept || !page) return;
  kept.query = "";
  kept.only = [];
  kept.isWhole = kept.isWhole || page.data.trials.length > MAX_ROWS;
  if (!kept.rows.includes(String(number))) kept.rows.push(String(number));
  page.open("Trials");
  page.redraw("trials");
  const button = document.querySelector(`[data-key="trials-row-${CSS.escape(String(number))}"]`);
  button?.closest("tr").scrollIntoView({ block: "center" });
  button?.focus({ preventScroll: true });
}

const STUDY_SECTIONS = [
  { tab: "Result", id: "headline", wide: true, draw: studyHeadline },
  { tab: "Result", id: "running", title: "Running now", wide: true, draw: runningNow },
  { tab: "Result", id: "gains", title: "Where the gain comes from", draw: gainsPlot },
  { tab: "Result", id: "memory", title: "Speed against memory", draw: memoryPlot },
  { tab: "Result", id: "doctor", title: "Diagnosis", wide: true, draw: doctorList },
  { tab: "Result", id: "next", title: "Next experiments", wide: true, draw: nextList },
  { tab: "Trials", id: "failures", title: "Failures by cause", wide: true, draw: failureList },
  { tab: "Trials", id: "trials", title: "Every trial", wide: true, draw: trialTable },
  { tab: "Plots", id: "progress", title: "Best so far", draw: bestSoFar },
  { tab: "Plots", id: "predicted", title: "Predicted against measured", draw: predictedPlot },
  { tab: "Plots", id: "importance", title: "Option importance (share of variance)", draw: importancePlot },
  { tab: "Plots", id: "heat", title: "Speed by layout", draw: heatMap },
  { tab: "Plots", id: "stages", title: "Memory of the best layout", draw: stagePlot },
  { tab: "Plots", id: "parallel", title: "Parallel coordinates", wide: true, draw: parallelPlot },
  { tab: "Plots", id: "timeline", title: "Pipeline of the best layout", wide: true, draw: timelinePlot },
  { tab: "Plots", id: "unshown", title: "Not shown", wide: true, collects: true },
  { tab: "Search", id: "when", title: "When each trial ran", wide: true, draw: whenPlot },
  { tab: "Search", id: "findings", title: "What the search found", wide: true, draw: findingsList },
];
