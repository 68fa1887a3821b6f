// The top of a study's page: the verdict, what changed, the command, before and after; the causes where all failed.
const ownRun = (data) => data.trials.find((trial) => trial.is_baseline && trial.number === data.baseline);
const times = (ratio) => `${ratio.toFixed(2)}×`;
const hasFailed = (data) => data.failures.length > 0 && !data.trials.some((t) => !t.is_baseline && t.value !== null);

function studyHeadline(data, width) {
  const own = data.fastest_is_baseline;
  // What counts of a trial that ran again is its last run; its name and why it was picked are its first's.
  const best = data.trials.find((trial) => trial.number === fastestOf(data));
  const first = own ? best : data.trials.find((trial) => trial.number === data.best);
  const again = data.best_reruns.map((number) => called(data, number)).join(" and ");
  const sentence = verdictSentence(data);
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
      sentence ? el("p", { class: "verdict", id: "verdict" }, sentence) : null,
      data.standing.changes ? el("p", { class: "verdict", id: "changes" }, `Changed: ${data.standing.changes}.`) : null,
      hasFailed(data) ? [el("h2", null, "Why they failed"), failureGroups(data)] : null,
      data.best_command ? commandBox(data.best_command, "the best command", "copy-best") : null,
      el("div", { class: "tiles" }, best ? resultTiles(data, best) : null, costTile(data)),
      beforeAndAfter(data, width),
      otherChoices(data),
      ownNotes(data),
      first && !own && again ? el("p", { class: "note" }, `This is trial ${data.best}, confirmed by repeated runs (${again}).`) : null,
      data.verdict || first?.why
        ? fold("verdict", "The verdict in full", () =>
            el("div", null, el("p", null, sentenceOf(data.verdict)), first?.why ? el("p", null, `Picked because: ${first.why}`) : null),
          )
        : null,
      fold("own", "Your own command and what was tuned", () =>
        el("div", null, commandBox(data.header.command, "your own command", "copy-own"), pairs(data.header.args)),
      ),
    ),
  };
}

const sentenceOf = (text) => (text ? `${text.charAt(0).toUpperCase()}${text.slice(1)}.` : "");

// How sure the gain is and when it has paid; where there is none, what the study comes to.
function verdictSentence(data) {
  const { low, high, is_confirmed, is_clear, pays_after_hours, summary } = data.standing;
  if (!isNumber(low) || !isNumber(high) || data.is_within_noise) return sentenceOf(summary);
  const sure = is_confirmed ? "confirmed by repeated runs" : is_clear ? "clear of the noise" : "not confirmed by repeated runs";
  const pays = isNumber(pays_after_hours) ? `; pays for itself after ${format.seconds(pays_after_hours * 3600)} of training` : "";
  return `90% range ${times(low)} to ${times(high)}, ${sure}${pays}.`;
}

const SHORT_DIFF = 12; // lines

// What differs from your own command, and the two steps by their parts.
function beforeAndAfter(data, width) {
  const name = "What differs from your own command";
  const isShort = data.diff.length > 0 && data.diff.length <= SHORT_DIFF;
  const isBeside = isShort && data.steps.length > 0 && window.innerWidth >= 1000;
  const diff = () =>
    el(
      "pre",
      { class: "diff", id: "diff" },
      data.diff.map((line) => el({ "-": "del", "+": "ins" }[line[0]] || "span", null, `${line}\n`)),
    );
  const steps = () =>
    stackedBars("steps", {
      rows: data.steps.map(({ name: row, number, parts_s }) => ({ name: row, trial: number, parts: parts_s })),
      order: TIME_ORDER,
      names: TIME_NAMES,
      width: isBeside ? (width - 24) * 0.6 : width,
      left: 52,
      label: "The step of your own command and of the best by its parts.",
      rowsName: "command",
      unit: "seconds a step",
      text: (value, bare) => (bare ? format.value(value) : format.seconds(value)),
      caption: data.steps[0].is_measured
        ? "The phases of each step, by its own log."
        : "Each measured step, divided as the planner predicts.",
    });
  const part = (title, node) => el("div", null, el("h2", null, title), node);
  const parts = [isShort ? part(name, diff()) : null, data.steps.length ? part("A step before and after", steps()) : null];
  return [
    parts.some(Boolean) ? el("div", { class: `versus-own${isBeside ? " both" : ""}` }, parts) : null,
    data.diff.length > SHORT_DIFF ? fold("diff", name, diff) : null,
  ];
}

// Speed, step and memory, each with what it was before.
function resultTiles(data, best) {
  const own = ownRun(data);
  const before = own && own !== best ? own : null;
  const was = (text) => (text ? `was ${text}` : "");
  const words = (...notes) => notes.filter(Boolean).join("; ");
  return [
    speedTile(data, best, own),
    best.step_s ? tile(format.step(best.step_s), words("a step", was(before?.step_s && format.step(before.step_s)))) : null,
    best.memory_bytes
      ? tile(format.bytes(best.memory_bytes), words(memoryWords(data, best), was(before?.memory_bytes && format.bytes(before.memory_bytes))))
      : null,
  ];
}

function speedTile(data, best, own) {
  const spread = isNumber(best.half_width) ? ` ±${(best.half_width * 100).toFixed(1)}% (90%)` : "";
  const unit = `${format.short(data.unit || "best value", 40)}${spread}`;
  if (!own || own.value === null || !isNumber(data.gain)) return tile(format.value(best.value), unit);
  const gain = format.gain(data.gain);
  const noise = data.is_within_noise ? ", within the noise" : "";
  if (data.fastest_is_baseline) return tile("none", `gain; the best trial is ${gain} against your own command${noise}`, true);
  if (data.best_is_own) return tile("none", "gain; the best trial has the settings of your own command", true);
  const note = data.batch_note ? "; another batch" : "";
  return tile(gain, `${format.value(own.value)} to ${format.value(best.value)} ${unit}${note}`, true);
}

function memoryWords(data, best) {
  if (!data.capacity_bytes) return "peak memory";
  const share = data.standing.memory_share ?? best.memory_bytes / data.capacity_bytes;
  return `${format.share(share)} of the ${format.bytes(data.capacity_bytes)} of a GPU`;
}

function costTile(data) {
  const { gpu_hours, cost } = data.standing;
  const trials = data.trials.filter((trial) => !trial.is_baseline && trial.rerun_of === null).length;
  const seconds = data.started_s ? format.seconds((data.ended_s || data.now_s) - data.started_s) : "";
  const again = data.trials.filter((trial) => trial.rerun_of !== null).length;
  const counts = [
    format.count(trials, "trial") + (again ? ` and ${format.count(again, "repeated run")}` : ""),
    data.num_failed ? `${data.num_failed} failed` : "",
    data.num_cancelled ? `${data.num_cancelled} cancelled` : "",
    data.num_pruned ? `${data.num_pruned} points pruned` : "",
    data.num_unfinished ? "so far; unfinished" : data.is_running ? "so far" : "",
  ];
  const done = counts.filter(Boolean).join(", ");
  if (!isNumber(gpu_hours)) return tile(seconds || String(trials), done);
  const price = isNumber(cost) ? ` ($${cost.toFixed(2)})` : "";
  return tile(format.hours(gpu_hours), `GPU-hours${price}${seconds ? ` in ${seconds}` : ""}: ${done}`);
}

// Trials that are as fast within the noise, and one that is nearly as fast and leaves more memory free.
function otherChoices(data) {
  const { ties, safer } = data.standing;
  const link = (number, key) => {
    const trial = data.trials.find((each) => each.number === number);
    return trial ? el("li", null, trialLink(data, number, key), ` ${format.short(trial.label, 90)}`) : null;
  };
  return [
    ties?.length && !data.is_within_noise
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
