// What a study says beside its trials: your own command and how fair the gain is, the strategy, what it found.
const ownRun = (data) => data.trials.find((trial) => trial.is_baseline && trial.number === data.baseline);

// The gain, or how your own command failed; nothing where it was not run.
function ownTile(data, best) {
  const own = ownRun(data);
  if (!own) return null;
  if (own.value === null) return tile(own.state, "your command");
  if (!best || !isNumber(data.gain)) return null;
  if (data.fastest_is_baseline)
    return tile("none", `gain; the best trial is ${format.gain(data.gain)} against your own command`, true);
  if (data.best_is_own) return tile("none", "gain; the best trial has the settings of your own command", true);
  const noise = data.is_within_noise ? " (within the noise)" : "";
  return tile(format.gain(data.gain), `gain over your command${noise}${data.batch_note ? ", another batch" : ""}`, true);
}

function ownNotes(data) {
  const own = ownRun(data);
  const failed = own && own.value === null ? `Your own command failed (${own.failure || own.state})` : "";
  return [
    data.verdict ? el("p", { class: "verdict" }, `${data.verdict.charAt(0).toUpperCase()}${data.verdict.slice(1)}.`) : null,
    data.batch_note ? el("p", { class: "note batch-note" }, `Note: ${data.batch_note}.`) : null,
    failed ? el("p", { class: "note own-failure" }, `${failed}${own.cause ? `: ${format.short(own.cause, 300)}` : "."}`) : null,
    data.stopped ? el("p", { class: "note stopped" }, `Stopped: ${data.stopped}.`) : null,
  ];
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
