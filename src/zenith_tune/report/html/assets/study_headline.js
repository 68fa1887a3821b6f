// The top of a study's page: what it comes to, the command, how sure, how full, what it cost; the causes where all failed.
const ownRun = (data) => data.trials.find((trial) => trial.is_baseline && trial.number === data.baseline);
const times = (ratio) => `${ratio.toFixed(2)}×`;
const hasFailed = (data) => data.failures.length > 0 && !data.trials.some((t) => !t.is_baseline && t.value !== null);

function studyHeadline(data) {
  const own = data.fastest_is_baseline;
  // What counts of a trial that ran again is its last run; its name and why it was picked are its first's.
  const best = data.trials.find((trial) => trial.number === fastestOf(data));
  const first = own ? best : data.trials.find((trial) => trial.number === data.best);
  const again = data.best_reruns.map((number) => called(data, number)).join(" and ");
  return {
    body: el(
      "div",
      null,
      el(
        "p",
        { class: "eyebrow" },
        `study ${format.short(data.name, 120)} · preset ${data.header.preset}${data.strategy ? ` · strategy ${data.strategy}` : ""} · ${data.header.evaluator}`,
      ),
      el("h1", null, data.standing.headline),
      first && !own ? el("p", { class: "winner", id: "winner" }, format.short(first.label, 160)) : null,
      data.verdict
        ? el("p", { class: "verdict" }, `${data.verdict.charAt(0).toUpperCase()}${data.verdict.slice(1)}.`)
        : null,
      data.standing.changes ? el("p", { class: "verdict", id: "changes" }, `Changed: ${data.standing.changes}.`) : null,
      hasFailed(data) ? [el("h2", null, "Why they failed"), failureGroups(data)] : null,
      data.best_command ? commandBox(data.best_command, "the best command", "copy-best") : null,
      data.best_command && data.best_command.includes("***")
        ? el("p", { class: "note" }, "Put your secrets back in place of *** before you run it.")
        : null,
      el("div", { class: "tiles" }, resultTiles(data, best), costTiles(data)),
      otherChoices(data),
      ownNotes(data),
      first && first.why ? el("p", { class: "note" }, `Picked because: ${first.why}`) : null,
      first && !own && again ? el("p", { class: "note" }, `This is trial ${data.best}, confirmed by a second run (${again}).`) : null,
      data.diff.length
        ? fold("diff", "What differs from your own command", () => logBox(data.diff, "What differs from your own command"))
        : null,
      fold("own", "Your own command and what was tuned", () =>
        el("div", null, commandBox(data.header.command, "your own command", "copy-own"), pairs(data.header.args)),
      ),
    ),
  };
}

function resultTiles(data, best) {
  if (!best) return [gainTile(data, best)];
  const spread = isNumber(best.half_width) ? ` ±${(best.half_width * 100).toFixed(1)}% (90%)` : "";
  return [
    gainTile(data, best),
    tile(format.value(best.value), `${format.short(data.unit || "best value", 40)}${spread}`),
    best.step_s ? tile(format.step(best.step_s), "a step") : null,
    best.memory_bytes ? tile(format.bytes(best.memory_bytes), memoryWords(data, best)) : null,
  ];
}

function memoryWords(data, best) {
  if (!data.capacity_bytes) return "peak memory";
  const share = data.standing.memory_share ?? best.memory_bytes / data.capacity_bytes;
  return `${format.share(share)} of the ${format.bytes(data.capacity_bytes)} of a GPU`;
}

// The gain and how sure it is, or how your own command failed; nothing where it was not run.
function gainTile(data, best) {
  const own = ownRun(data);
  if (!own) return null;
  if (own.value === null) return tile(own.state, "your command");
  if (!best || !isNumber(data.gain)) return null;
  if (data.fastest_is_baseline)
    return tile("none", `gain; the best trial is ${format.gain(data.gain)} against your own command`, true);
  if (data.best_is_own) return tile("none", "gain; the best trial has the settings of your own command", true);
  const { low, high, is_confirmed, is_clear } = data.standing;
  const how = is_confirmed ? "confirmed" : is_clear ? "clear" : "not confirmed";
  const sure =
    isNumber(low) && isNumber(high)
      ? `90% within ${times(low)} to ${times(high)}, ${how}`
      : "";
  const notes = [
    "gain over your command",
    data.is_within_noise ? "within the noise" : sure,
    data.batch_note ? "another batch" : "",
  ];
  return tile(format.gain(data.gain), notes.filter(Boolean).join("; "), true);
}

function costTiles(data) {
  const { gpu_hours, cost, pays_after_hours } = data.standing;
  const pays = isNumber(pays_after_hours) ? `repaid after ${format.seconds(pays_after_hours * 3600)} of training` : "";
  const price = isNumber(cost) ? `$${cost.toFixed(2)}` : "";
  const trials = data.trials.filter((trial) => !trial.is_baseline && trial.rerun_of === null).length;
  const counts = [
    `${data.num_failed} failed`,
    data.num_cancelled ? `${data.num_cancelled} cancelled` : null,
    data.num_pruned ? `${data.num_pruned} points pruned` : null,
  ];
  const end = data.num_unfinished ? "so far; unfinished" : data.ended_s ? "from first to last" : "so far";
  return [
    isNumber(gpu_hours)
      ? tile(format.hours(gpu_hours), ["GPU-hours spent", price, pays].filter(Boolean).join(", "))
      : null,
    tile(trials.toLocaleString("en"), `trial${trials === 1 ? "" : "s"}, ${counts.filter(Boolean).join(", ")}`),
    data.started_s ? tile(format.seconds((data.ended_s || data.now_s) - data.started_s), end) : null,
  ];
}

// Trials that are as fast within the noise, and one that is nearly as fast and leaves more memory free.
function otherChoices(data) {
  const { ties, safer } = data.standing;
  const link = (number, key) => {
    const trial = data.trials.find((each) => each.number === number);
    return trial ? el("li", null, trialLink(data, number, key), ` ${format.short(trial.label, 90)}`) : null;
  };
  return [
    ties?.length
      ? el(
          "div",
          { class: "choices", id: "ties" },
          el("p", null, "Tied:"),
          el(
            "ul",
            { class: "plainlist" },
            ties.slice(0, 5).map((number) => link(number, "tie")),
            ties.length > 5 ? el("li", null, `and ${ties.length - 5} more`) : null,
          ),
        )
      : null,
    safer
      ? el(
          "div",
          { class: "choices", id: "safer" },
          el(
            "p",
            null,
            `Memory is nearly full. Safer, at ${times(safer.speedup)} and ${format.bytes(safer.memory_bytes)}:`,
          ),
          el("ul", { class: "plainlist" }, link(safer.number, "safer")),
        )
      : null,
  ];
}

function trialLink(data, number, key) {
  return el(
    "button",
    {
      class: "link",
      type: "button",
      "data-key": `${key}-${number}`,
      onclick: () => openTrial(number),
      "aria-label": `Open ${called(data, number)}`,
    },
    called(data, number).replace("trial ", "#"),
  );
}

function ownNotes(data) {
  const own = ownRun(data);
  const failed = own && own.value === null ? `Your own command failed (${own.failure || own.state})` : "";
  return [
    data.batch_note ? el("p", { class: "note batch-note" }, `Note: ${data.batch_note}.`) : null,
    failed && !hasFailed(data)
      ? el("p", { class: "note own-failure" }, `${failed}${own.cause ? `: ${format.short(own.cause, 300)}` : "."}`)
      : null,
    data.stopped ? el("p", { class: "note stopped" }, `Stopped: ${data.stopped}.`) : null,
  ];
}

const called = (data, number) => {
  const found = data.trials.find((trial) => trial.number === number);
  return found ? nameOf(found) : `trial ${number}`;
};

function failureGroups(data) {
  return data.failures.map((group) =>
    el(
      "div",
      { class: "group" },
      el("p", null, el("b", null, `${group.kind}`), ` · ${group.who}`),
      group.causes.map((cause) =>
        el(
          "p",
          { class: "doctor" },
          `${cause.text} `,
          cause.numbers.slice(0, 12).map((number) => trialLink(data, number, `failed-${group.kind}`)),
        ),
      ),
      group.log.length
        ? fold(`failure-${group.kind}`, `Log of ${called(data, group.numbers[0])}`, () =>
            logBox(group.log, `Log of ${called(data, group.numbers[0])}`),
          )
        : null,
    ),
  );
}

// A page on which all failed begins with them.
const failureList = (data) =>
  data.failures.length && !hasFailed(data) ? { body: el("div", null, failureGroups(data)) } : null;
