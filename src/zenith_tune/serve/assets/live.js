// Keeps the page of a study up to date: connects to the events, draws what changed, and sends what the reader asks for.
(() => {
"use strict";
const REDRAW_MS = 5000; // how often plots are drawn for trials that run; logs and clocks continue, and an end is drawn at once
const SILENCE_MS = 30000; // the server is heard every ten seconds
const AGAIN_MS = 2000;

const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
};
// What turns the direction of text, or hides in it, is shown as what it is: a stranger.
const shown = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
const setText = (node, text) => { if (node.textContent !== shown(text)) node.textContent = shown(text); };
const byNumber = (trials) => new Map(trials.map((trial) => [trial.number, trial]));
const nameOf = (trial) => (trial.is_baseline ? "your command" : `trial ${trial.name}`);
const plain = (value) => (Math.abs(value) >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4))));
const clock = (seconds) => {
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}h${String(minutes).padStart(2, "0")}m` : minutes ? `${minutes}m${String(whole % 60).padStart(2, "0")}s` : `${whole}s`;
};

let data = JSON.parse(document.getElementById("data").textContent);
const server = data.server;
const here = `study=${encodeURIComponent(data.name)}`;
let trials = byNumber(data.trials);
let marker = server.marker;
let aheadS = Date.now() / 1000 - data.now_s;
let source = null;
let heardAt = Date.now();
let isLost = false;
let drawnAt = Date.now();
let redraw = 0;

// The bar: what the study does, what may be asked of it, which other studies there are.
const stateWord = make("span", { class: "live-state", id: "live-state" });
const paceWord = make("span", { class: "live-pace", id: "live-pace" });
const said = make("span", { class: "unseen", id: "live-news", role: "status", "aria-live": "polite" });
const pauseButton = make("button", { type: "button", id: "live-pause", onclick: () => askPause() });
const chooser = server.studies.length > 1 ? make("label", null, "Study", make("select", { id: "live-studies", onchange: (event) => { location.search = `?study=${encodeURIComponent(event.target.value)}`; } },
  ...server.studies.map((name) => { const option = make("option", { value: name }, name); option.selected = name === data.name; return option; }))) : null;
const running = make("ul", { id: "live-running", "aria-label": "Trials that run" });
document.head.append(make("style", null, LIVE_STYLE));
document.getElementById("top").after(make("section", { class: "live", id: "live-bar", "aria-label": "Live" },
  make("div", { class: "live-row" }, stateWord, paceWord, make("span", { class: "fill" }), chooser, chooser && make("a", { href: "/studies", id: "live-all" }, "All studies"), pauseButton), running, said));

const WORDS = {
  running: () => "live", pausing: () => "pausing: what runs finishes", paused: () => "paused", ended: () => "ended: the study is over",
  failed: () => "failed: no run of it went well",
  stopped: () => "stopped: its tuner is gone; zenithtune optimize --resume continues it", unreadable: (live) => `cannot be read: ${live.problem}`,
};
function drawBar() {
  const state = isLost ? "lost" : data.live.state;
  stateWord.dataset.state = state;
  setText(stateWord, isLost ? "connection lost, trying again" : WORDS[state](data.live));
  const isPaused = state === "paused" || state === "pausing";
  setText(paceWord, state === "running" || isPaused ? paceWords() : "");
  setText(pauseButton, isPaused ? "Continue" : "Pause");
  pauseButton.hidden = isLost || !data.live.can_ask;
  drawRunning();
}

function paceWords() {
  if (typeof data.max_trials !== "number") return "";
  const left = data.time_left_s ? ` · at most ${clock(data.time_left_s)} left` : "";
  return `${data.num_budgeted} of at most ${data.max_trials} runs${left}`;
}

// A row stays the same element for as long as its trial runs, so that its button keeps the focus.
const rows = new Map();
function rowOf(number) {
  if (!rows.has(number)) {
    const parts = { name: make("b"), facts: make("span"), button: make("button", { type: "button", id: `live-cancel-${number}`, onclick: () => askCancel(number) }, "Cancel") };
    parts.node = make("li", { id: `live-trial-${number}` }, parts.name, parts.facts, make("span", { class: "fill" }), parts.button);
    rows.set(number, parts);
    running.append(parts.node);
  }
  return rows.get(number);
}
function drawRunning() {
  const live = data.live.state === "stopped" ? [] : [...trials.values()].filter((trial) => trial.state === "running");
  for (const [number, row] of rows) {
    if (!live.some((trial) => trial.number === number)) {
      if (row.node.contains(document.activeElement)) (pauseButton.hidden ? document.getElementById("main") : pauseButton).focus({ preventScroll: true });
      row.node.remove();
      rows.delete(number);
    }
  }
  for (const trial of live) {
    const row = rowOf(trial.number);
    const progress = trial.progress || {};
    const isAsked = data.live.cancelled.includes(trial.number);
    const facts = [isAsked ? "is being cancelled" : "runs", progress.iteration ? `iteration ${progress.iteration}` : null,
      typeof progress.value === "number" ? `${plain(progress.value)} ${progress.unit || data.unit} so far` : progress.step_s ? `${plain(progress.step_s)} s a step` : null,
      trial.started_s ? clock(Date.now() / 1000 - aheadS - trial.started_s) : null];
    setText(row.name, trial.is_baseline ? "Your command" : `Trial ${trial.number}: ${trial.label}`);
    setText(row.facts, facts.filter(Boolean).join(" · "));
    row.button.setAttribute("aria-label", `Cancel ${nameOf(trial)}`);
    row.button.hidden = isLost || !data.live.can_ask || isAsked;
  }
  for (const node of document.querySelectorAll("[data-since]")) setText(node, clock(Date.now() / 1000 - aheadS - Number(node.dataset.since)));
}
// What is new of a log goes into the boxes that show it, wherever on the page; a box that is at its end stays there.
function drawLogs(changed) {
  for (const trial of changed) {
    for (const box of document.querySelectorAll(`[data-log="${trial.number}"]`)) {
      const text = trial.log.slice(-(Number(box.dataset.lines) || Infinity)).map(shown).join("\n");
      if (box.textContent === text) continue;
      const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
      box.textContent = text;
      if (isAtEnd) box.scrollTop = box.scrollHeight;
    }
  }
}

// What comes in.
function take(news) {
  const before = { trials, best: data.best, state: data.live.state };
  marker = news.marker;
  trials = news.is_all ? byNumber(news.trials) : new Map([...trials, ...byNumber(news.trials)]);
  aheadS = Date.now() / 1000 - news.now_s;
  data = { ...data, ...news.fields, now_s: news.now_s, trials: [...trials.values()].sort((one, other) => one.number - other.number) };
  drawBar();
  drawLogs(news.trials.filter((trial) => trial.state === "running"));
  announce(before, news);
  const isKnown = (trial) => trial.state === "running" && before.trials.has(trial.number) && !(trial.log.length && !before.trials.get(trial.number).log.length);
  const isOnlyProgress = !news.is_all && Object.keys(news.fields).every((name) => name === "live") && news.trials.every(isKnown);
  clearTimeout(redraw);
  redraw = setTimeout(drawPage, isOnlyProgress ? Math.max(0, drawnAt + REDRAW_MS - Date.now()) : 0);
}
function drawPage() {
  drawnAt = Date.now();
  window.zenithtune.update(data);
  drawRunning();
}
function announce(before, news) {
  const ended = news.trials.filter((trial) => trial.state !== "running" && before.trials.get(trial.number)?.state === "running");
  const lines = ended.slice(-3).map((trial) => `${nameOf(trial)} ended: ${trial.state}${typeof trial.value === "number" ? `, ${plain(trial.value)} ${data.unit}` : ""}`);
  if (data.best !== before.best && data.best !== null) lines.push(`trial ${data.best} is the best so far`);
  if (data.live.state !== before.state) lines.push(`the study is ${data.live.state}`);
  if (lines.length) setText(said, lines.join(". "));
}

// The connection.
function connect() {
  source?.close();
  heardAt = Date.now();
  source = new EventSource(`/events?${here}&since=${encodeURIComponent(marker)}`);
  source.addEventListener("open", () => heard());
  source.addEventListener("beat", () => heard());
  source.addEventListener("change", (event) => { heard(); take(JSON.parse(event.data)); });
  source.addEventListener("error", () => lose());
}
function heard() {
  heardAt = Date.now();
  if (isLost) { isLost = false; drawBar(); }
}
function lose() {
  source?.close();
  source = null;
  if (!isLost) { isLost = true; drawBar(); setText(said, "connection lost, trying again"); }
  setTimeout(() => { if (!source && !document.hidden) connect(); }, AGAIN_MS);
}
// A browser has few connections for one server: a page that nobody sees gives its own back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { source?.close(); source = null; } else if (!source) connect();
});
setInterval(() => {
  drawRunning();
  if (source && Date.now() - heardAt > SILENCE_MS) lose();
}, 1000);

// What the reader asks for, once confirmed.
function ask(title, text, yes, path) {
  const problem = make("p", { class: "problem", role: "alert" });
  const close = () => { dialog.close(); dialog.remove(); };
  const go = make("button", { type: "button", class: "done", id: "ask-yes", onclick: async () => {
    go.disabled = true;
    const refusal = await request(path);
    if (refusal === null) return close();
    setText(problem, refusal);
    go.disabled = false;
    return null;
  } }, yes);
  const dialog = make("dialog", { class: "ask", id: "ask", "aria-labelledby": "ask-title", "aria-describedby": "ask-text", onclose: () => dialog.remove() },
    make("h2", { id: "ask-title" }, shown(title)), make("p", { id: "ask-text" }, shown(text)), problem,
    make("div", { class: "live-row" }, make("button", { type: "button", id: "ask-no", onclick: close }, "Leave it as it is"), go));
  document.body.append(dialog);
  dialog.showModal();
}
async function request(path) {
  try {
    const answer = await fetch(`${path}?${here}`, { method: "POST", headers: { "Content-Type": "application/json", "X-Zenithtune-Csrf": server.csrf }, body: "{}" });
    return answer.ok ? null : (await answer.json()).problem;
  } catch {
    return "the server does not answer";
  }
}
function askPause() {
  if (data.live.state === "running") ask("Pause the study?", "No further trial starts until you continue it; what runs finishes.", "Pause", "/pause");
  else ask("Continue the study?", "Trials start again.", "Continue", "/resume");
}
function askCancel(number) {
  const trial = trials.get(number);
  ask(`Cancel ${nameOf(trial)}?`, `${trial.is_baseline ? "Your own command" : trial.label} is ended within a second as cancelled by hand: it counts as a trial, is never the best, and runs again on --resume. The study continues with the next one.`, "Cancel it", `/trial/${number}/cancel`);
}

drawBar();
connect();
})();
