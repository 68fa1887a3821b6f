// Elements, texts for numbers, the tooltip. Text only ever enters the page as text: nothing here parses HTML.
const SVG = "http://www.w3.org/2000/svg";
const GIB = 2 ** 30;

function make(space, tag, attributes, children) {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(shown(child)));
  }
  return node;
}
const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
const svg = (tag, attributes, ...children) => make(SVG, tag, attributes, children);

// What turns the direction of text, or hides in it, is shown as what it is: a stranger.
function shown(text) {
  return String(text).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    "\ufffd",
  );
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const format = {
  value(value, unit) {
    if (!isNumber(value)) return "–";
    const size = Math.abs(value);
    const text =
      size >= 1e4 && size < 1e12 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(4)).toString();
    return unit ? `${text} ${unit}` : text;
  },
  gain: (value) => (isNumber(value) ? `${value >= 0 ? "+" : "−"}${Math.abs(value * 100).toFixed(1)}%` : "–"),
  share: (value) => (isNumber(value) ? `${(value * 100).toFixed(value < 0.1 ? 1 : 0)}%` : "–"),
  bytes: (value) => (isNumber(value) ? `${(value / GIB).toFixed(1)} GiB` : "–"),
  seconds(value) {
    if (!isNumber(value)) return "–";
    if (value < 1) return `${Math.round(value * 1000)} ms`;
    if (value < 100) return `${value.toFixed(1)} s`;
    const minutes = Math.floor(Math.round(value) / 60);
    if (minutes < 100) return `${minutes}m${String(Math.round(value) % 60).padStart(2, "0")}s`;
    return `${Math.floor(minutes / 60)}h${String(minutes % 60).padStart(2, "0")}m`;
  },
  // Of a step three digits count, as in a terminal.
  step: (value) => (isNumber(value) && value >= 1 && value < 10 ? `${value.toFixed(2)} s` : format.seconds(value)),
  // A time on an axis, without what is zero at its end.
  clock(value) {
    if (value < 60) return `${Number(value.toPrecision(3))} s`;
    const whole = Math.round(value);
    const [hours, minutes, seconds] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    if (hours) return `${hours}h${String(minutes).padStart(2, "0")}m`;
    return `${minutes}m${seconds ? `${String(seconds).padStart(2, "0")}s` : ""}`;
  },
  hours: (value) =>
    value < 0.005
      ? "<0.01"
      : value < 100
        ? Number(value.toPrecision(value < 1 ? 2 : 3)).toString()
        : Math.round(value).toLocaleString("en"),
  watts: (value) => (isNumber(value) ? `${Math.round(value)} W` : "–"),
  whole: (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : "–"),
  time: (seconds) => (isNumber(seconds) ? new Date(seconds * 1000).toLocaleString() : "–"),
  count: (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`,
  short: (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text),
};

const byId = (id) => document.getElementById(id);

function showTip(lines, x, y) {
  const tip = byId("tip");
  tip.textContent = lines.filter(Boolean).map(shown).join("\n");
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 12, window.innerWidth - width - 6))}px`;
  tip.style.top = `${y + 16 + height > window.innerHeight ? Math.max(6, y - height - 10) : y + 16}px`;
}
function hideTip() {
  byId("tip").hidden = true;
}
function announce(text) {
  byId("live").textContent = text;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// An option is not broken behind its dashes.
function wholeWords(text) {
  return text.split(/(\s+)/).map((word) => (word.trim() ? el("span", { class: "word" }, word) : word));
}

function commandBox(text, label, key) {
  const button = el("button", { type: "button", "aria-label": `Copy ${label}`, "data-key": key }, "Copy");
  button.addEventListener("click", async () => {
    const done = await copyText(text);
    button.textContent = done ? "Copied" : "Select it";
    button.classList.toggle("done", done);
    announce(done ? `${label} copied` : "The browser does not allow copying: select the text");
    setTimeout(() => {
      button.textContent = "Copy";
      button.classList.remove("done");
    }, 1800);
  });
  const box = el("div", { class: "command" }, el("pre", { tabindex: "0", "aria-label": label }, wholeWords(text)), button);
  return text.includes("***")
    ? [box, el("p", { class: "note" }, "Put your secrets back in place of *** before you run it.")]
    : box;
}

function plainTable(columns, rows, label) {
  // A column of numbers may have a word among them, or nothing.
  const isText = columns.map((_, index) => {
    const words = rows.map((row) => String(row[index] ?? "")).filter(Boolean);
    return (
      2 * words.filter((word) => !/^[<+−–-]?[\d.,]*[%×]?(\s\S{1,12})?$/.test(word)).length >= Math.max(words.length, 1)
    );
  });
  const kind = (index) => (isText[index] ? "text" : "num");
  const head = columns.map((name, index) => el("th", { scope: "col", class: kind(index) }, name));
  const line = (row) => row.map((cell, index) => el("td", { class: kind(index) }, cell));
  return el(
    "table",
    { "aria-label": label },
    el("thead", null, el("tr", null, head)),
    el(
      "tbody",
      null,
      rows.map((row) => el("tr", null, line(row))),
    ),
  );
}

// What is folded open stays open when the page is drawn again.
function fold(key, title, content) {
  const node = el("details", { open: Boolean(state.open[key]) }, el("summary", { "data-key": `fold-${key}` }, title));
  const fill = () => {
    if (node.open && node.childElementCount === 1) node.append(content());
  };
  node.addEventListener("toggle", () => {
    state.open[key] = node.open;
    fill();
  });
  fill();
  return node;
}

function legend(entries) {
  return el(
    "ul",
    { class: "legend", "aria-hidden": "true" },
    entries.map(([name, key]) =>
      el("li", null, key instanceof Node ? key : el("i", { style: { background: key } }), name),
    ),
  );
}

function chooser(key, label, options, chosen, onChange) {
  const list = el(
    "select",
    { "data-key": key, onchange: (event) => onChange(event.target.value) },
    options.map(([value, name]) => el("option", { value, selected: value === chosen }, name)),
  );
  return el("label", null, label, list);
}
