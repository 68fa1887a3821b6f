// The planner: what is asked is in the address, and each answer is what `zenithtune plan --json` prints.
const ASK = {
  model: ["Model", "llama3-70b"],
  gpu: ["GPU", "h100"],
  gpus: ["GPUs", "64"],
  gbs: ["Global batch", "256"],
  seq: ["Sequence", "8192"],
  emit: ["Write it for", "megatron"],
  tokens: ["Tokens", "1T"],
  price: ["$ per GPU-hour", ""],
};
const COSTS = ["tokens", "price"]; // computed here: no plan depends on them
const PAUSE_MS = 300; // whoever types is waited for
let pausing = 0;
let pending = new AbortController();
let unpacked = null;

function askPlanner(data) {
  const given = new URLSearchParams(location.search);
  data.ask = Object.fromEntries(
    Object.entries(ASK).map(([name, [, usual]]) => {
      const known = data.choices[name] || [];
      const value = given.get(name) ?? usual;
      return [name, !known.length || known.includes(value) ? value : known.includes(usual) ? usual : known[0]];
    }),
  );
  page.update(data);
  answerPlanner(data);
}

function changePlanner(data, name, value) {
  data.ask[name] = value;
  history.replaceState(null, "", `?${new URLSearchParams(data.ask)}${location.hash}`);
  if (COSTS.includes(name)) return page.update(data);
  clearTimeout(pausing);
  pausing = setTimeout(() => answerPlanner(data), PAUSE_MS);
}

async function answerPlanner(data) {
  pending.abort();
  const { signal } = (pending = new AbortController());
  byId("planner-state")?.replaceChildren("Planning …");
  let found;
  try {
    const plan = data.points ? await pointOf(data) : await planFrom(data.ask, signal);
    const emitted = plan.emit && { format: data.ask.emit, ...plan.emit };
    found = { problem: "", plan: { ...plan, capacity_bytes: plan.memory_bytes_per_gpu, emitted } };
  } catch (error) {
    found = { problem: error.message, plan: null };
  }
  if (!signal.aborted) page.update(Object.assign(data, found));
}

const planOptions = ({ model, gpu, gpus, gbs, seq, emit }) => ({ model, cluster: `${gpu}x${gpus}`, gbs, seq, emit });

async function planFrom(ask, signal) {
  const answer = await fetch(`plan?${new URLSearchParams(planOptions(ask))}`, { signal });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// The answers that a page without a server has, by the values of its choices.
async function pointOf(data) {
  if (!unpacked) {
    const packed = new Blob([Uint8Array.from(atob(data.points), (each) => each.charCodeAt(0))]);
    unpacked = await new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).json();
  }
  return unpacked[Object.values(planOptions(data.ask)).join(" ")];
}

function plannerForm(data) {
  if (!data.ask) return null;
  const change = (name) => (value) => changePlanner(data, name, value);
  const field = ([name, [label]]) => {
    const known = data.choices[name] || [];
    if (known.length) {
      const options = known.map((value) => [value, value]);
      return chooser(name, label, options, data.ask[name], change(name));
    }
    const price = data.prices[data.ask.gpu];
    const input = el("input", {
      type: "text",
      size: 9,
      "data-key": name,
      placeholder: name === "price" && isNumber(price) ? `${price} (public)` : null,
      oninput: (event) => change(name)(event.target.value.trim()),
    });
    input.value = data.ask[name];
    return el("label", null, label, input);
  };
  const { tokens, price } = data.ask;
  const asked = { ...planOptions(data.ask), ...(tokens ? { tokens } : {}), ...(tokens && price ? { price } : {}) };
  const options = Object.entries(asked).map(([name, value]) => `--${name} ${value}`);
  return {
    body: el(
      "div",
      null,
      el("div", { class: "controls" }, Object.entries(ASK).map(field)),
      el("p", { class: "note", id: "planner-state", role: "status" }),
      data.problem ? el("p", { role: "alert" }, data.problem) : null,
      el("p", { class: "note" }, "The same on the command line; the address of this page holds what is chosen:"),
      commandBox(`zenithtune plan ${options.join(" ")}`, "the command that plans it", "copy-plan"),
      data.points
        ? el(
            "p",
            { class: "note" },
            "This page has the best five layouts of these choices, computed ahead. For any other: zenithtune serve --planner",
          )
        : null,
    ),
  };
}

function plannerCost(data) {
  const best = data.plan?.best[0];
  if (!best) return null;
  const [, number, scale] = /^([\d.]+) ?([kmbt]?)$/i.exec(data.ask.tokens) || [];
  const tokens = number * { "": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12 }[scale?.toLowerCase()];
  const seconds = tokens / best.tokens_per_s;
  if (!(seconds > 0)) return { body: el("p", null, "Give the tokens to train on as a number such as 300B or 1T.") };
  const hours = (seconds / 3600) * data.plan.num_gpus;
  const price = data.ask.price ? Number(data.ask.price) : data.prices[data.ask.gpu];
  const three = (value) => Number(value.toPrecision(3)).toLocaleString("en");
  return {
    body: el(
      "div",
      { class: "tiles" },
      tile(`${three(seconds / 86400)} days`, `for ${data.ask.tokens} tokens`, true),
      tile(three(hours), "GPU-hours"),
      isNumber(price)
        ? tile(`$${three(hours * price)}`, `at $${price} per GPU-hour${data.ask.price ? "" : ", a public price"}`)
        : tile("–", "no public price: give yours"),
    ),
  };
}

function memoryBars({ best, capacity_bytes }, width) {
  if (!best.length) return null;
  const inGib = (parts) => Object.fromEntries(Object.entries(parts).map(([name, bytes]) => [name, bytes / GIB]));
  const rows = best.map((layout, index) => ({
    name: `${index + 1}. ${layout.name}`,
    parts: inGib(layout.memory_parts_bytes),
  }));
  return {
    body: stackedBars("memory", {
      rows,
      width,
      order: MEMORY_ORDER,
      left: Math.min(width * 0.45, 16 + 6.9 * Math.max(...rows.map((row) => row.name.length))),
      label: "Predicted memory of each layout.",
      rowsName: "layout",
      unit: "GiB",
      text: (value, bare) => (bare ? format.value(value) : `${value.toFixed(1)} GiB`),
      limit: capacity_bytes / GIB,
      limitName: `GPU ${format.bytes(capacity_bytes)}`,
      caption: "Predicted peak on the fullest GPU by cause, the fastest layouts first.",
    }),
  };
}

const ofPlan = (section) => ({
  ...section,
  draw: (data, ...rest) => (data.plan ? section.draw(data.plan, ...rest) : null),
});
const PLANNER_SECTIONS = [
  { id: "ask", title: "What is trained, and on what", wide: true, draw: plannerForm },
  ...PLAN_SECTIONS.slice(0, 1).map(ofPlan),
  { id: "cost", title: "What the training takes", wide: true, draw: plannerCost },
  ...PLAN_SECTIONS.slice(1)
    .map((section) => (section.id === "stages" ? { ...section, title: "Memory", draw: memoryBars } : section))
    .filter((section) => section.id !== "timeline")
    .map((section) => (section.collects ? section : ofPlan(section))),
];
