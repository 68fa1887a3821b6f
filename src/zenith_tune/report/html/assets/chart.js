// Axes and marks. A chart is one stop of the Tab key; the arrow keys go through its marks, Enter opens a mark's trial.
const MANY = 150; // marks; more of them are drawn smaller
const MARGIN = { top: 14, right: 16, bottom: 40, left: 76 };

function niceTicks(low, high, count, whole = false) {
  if (!(high > low)) return [low];
  const rough = Math.max((high - low) / Math.max(count, 1), whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((n) => n * power).find((n) => n >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-6; tick += step)
    ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}

// Whole seconds, minutes and hours.
function clockTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const step = [5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].find(
    (each) => each >= rough,
  );
  if (rough < 5 || !step) return niceTicks(low, high, count);
  return Array.from(
    { length: Math.floor(high / step) - Math.ceil(low / step) + 1 },
    (_, index) => (Math.ceil(low / step) + index) * step,
  );
}

function extent(values, { zero = false, room = 0.06 } = {}) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!isNumber(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  if (zero) low = Math.min(low, 0);
  const more = (high - low || Math.abs(high) || 1) * room;
  return [zero && low === 0 ? 0 : low - more, high + more];
}

function scale([from, to], [start, end]) {
  const place = (value) => start + ((value - from) / (to - from || 1)) * (end - start);
  place.inverse = (at) => from + ((at - start) / (end - start || 1)) * (to - from);
  return place;
}

class Chart {
  constructor(
    key,
    {
      width,
      height,
      label,
      left = MARGIN.left,
      bottom = MARGIN.bottom,
      right = MARGIN.right,
      least = 0,
      count = 0,
      zoom = null,
    },
  ) {
    this.room = Math.max(width, 240);
    this.width = Math.max(this.room, least);
    this.height = height;
    this.box = { left, right: this.width - right, top: MARGIN.top, bottom: height - bottom };
    this.marks = [];
    this.index = -1;
    this.zoom = zoom;
    this.size = count > MANY ? 3 : 5;
    this.svg = svg("svg", {
      class: `plot${count > MANY ? " many" : ""}${zoom ? " zooms" : ""}`,
      viewBox: `0 0 ${this.width} ${height}`,
      height,
      role: "group",
      tabindex: "0",
      "data-key": `plot-${key}`,
      "aria-roledescription": "chart",
      "aria-label": `${label} Arrow keys go through the marks${zoom ? ", + - and 0 zoom" : ""}.`,
      id: `plot-${key}`,
    });
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    this.svg.addEventListener("blur", () => this.select(-1));
    this.svg.addEventListener("mousemove", (event) => this.onMouse(event));
    this.svg.addEventListener("mouseleave", () => hideTip());
    this.svg.addEventListener("click", (event) => this.onClick(event));
    if (!zoom) return;
    zoom.attach(this);
    const { left: x, top: y } = this.box;
    this.add(
      svg(
        "clipPath",
        { id: `clip-${key}` },
        svg("rect", { x, y: y - 8, width: this.box.right - x, height: this.box.bottom - y + 8 }),
      ),
    );
    this.clip = `url(#clip-${key})`;
  }

  axisX(domain, name, { whole = false, ticks = null, text = (value) => format.value(value) } = {}) {
    this.x = scale(domain, [this.box.left, this.box.right]);
    const count = Math.max(3, Math.floor((this.box.right - this.box.left) / 90));
    const shown = (ticks || niceTicks)(domain[0], domain[1], count, whole);
    const { bottom, top } = this.box;
    for (const tick of shown) {
      this.add(
        svg("line", { class: "grid-line", x1: this.x(tick), x2: this.x(tick), y1: top, y2: bottom }),
        svg("text", { x: this.x(tick), y: bottom + 16, "text-anchor": "middle" }, text(tick)),
      );
    }
    this.nameX(name, bottom + 34);
  }

  nameX(name, y) {
    const x = (this.box.left + Math.min(this.box.right, this.room)) / 2;
    this.add(svg("text", { class: "axis-name", x, y, "text-anchor": "middle" }, name));
  }

  nameY(name) {
    const y = (this.box.top + this.box.bottom) / 2;
    const turned = { transform: `rotate(-90 13 ${y})`, "text-anchor": "middle" };
    this.add(svg("text", { class: "axis-name", x: 13, y, ...turned }, name));
  }

  // What stands left of a row, in one line or several.
  nameRow(lines, middle, kind = null) {
    const x = this.box.left - 8;
    const y = middle + 4 - 7 * (lines.length - 1);
    const line = (text, index) => svg("tspan", { x, dy: index ? 14 : 0 }, text);
    this.add(svg("text", { class: kind, x, y, "text-anchor": "end" }, lines.map(line)));
  }

  axisY(domain, name, { text = (value) => format.value(value) } = {}) {
    this.y = scale(domain, [this.box.bottom, this.box.top]);
    for (const tick of niceTicks(domain[0], domain[1], Math.max(2, Math.floor(this.height / 55)))) {
      this.add(
        svg("line", { class: "grid-line", x1: this.box.left, x2: this.box.right, y1: this.y(tick), y2: this.y(tick) }),
        svg("text", { x: this.box.left - 8, y: this.y(tick) + 4, "text-anchor": "end" }, text(tick)),
      );
    }
    this.nameY(name);
  }

  add(...nodes) {
    this.svg.append(...nodes);
  }

  // A line that keeps its height until the next point.
  steps(points, kind, last = null) {
    if (!points.length) return;
    const path = points.map(([x, y], index) => `${index ? `H${this.x(x)}V` : `M${this.x(x)} `}${this.y(y)}`).join("");
    this.add(
      svg("path", {
        class: kind,
        "clip-path": this.clip,
        d: `${path}H${last === null ? this.box.right : this.x(last)}`,
      }),
    );
  }

  // A mark is a node with what to say of it, and the trial that it stands for, if any.
  mark(node, lines, trial = null) {
    node.classList.add("mark");
    node.dataset.index = this.marks.length;
    this.marks.push({ node, lines, trial });
    this.svg.append(node);
  }

  point(x, y, kind, lines, trial) {
    this.mark(shape(kind, x, y, this.size), lines, trial);
  }

  // Among many the best would lie under others.
  raiseBest() {
    const best = this.size < 5 && this.svg.querySelector(".mark.best");
    if (best) this.svg.append(best);
  }

  onMouse(event) {
    const found = event.target.closest?.(".mark");
    if (found) showTip(this.marks[found.dataset.index].lines, event.clientX, event.clientY);
    else hideTip();
  }

  onClick(event) {
    if (this.isDragged) return;
    const found = event.target.closest?.(".mark");
    const trial = found && this.marks[found.dataset.index].trial;
    if (trial !== null && trial !== undefined && found) openTrial(trial);
  }

  onKey(event) {
    const last = this.marks.length - 1;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step && last >= 0)
      this.select(Math.max(0, Math.min(last, this.index < 0 ? (step > 0 ? 0 : last) : this.index + step)));
    else if (event.key === "Home" || event.key === "End") this.select(event.key === "Home" ? 0 : last);
    else if (event.key === "Escape") this.select(-1);
    else if (this.zoom?.onKey(event, this)) event.preventDefault();
    else if (event.key === "Enter" && this.marks[this.index]?.trial != null) openTrial(this.marks[this.index].trial);
    else return;
    event.preventDefault();
  }

  select(index) {
    this.marks[this.index]?.node.classList.remove("at");
    this.index = index;
    const mark = this.marks[index];
    if (!mark) return hideTip();
    mark.node.classList.add("at");
    if (this.room < this.width) mark.node.scrollIntoView({ block: "nearest", inline: "nearest" });
    const { left, top, width } = mark.node.getBoundingClientRect();
    showTip(mark.lines, left + width / 2, top);
    announce(mark.lines.filter(Boolean).join(", "));
  }
}

function shape(kind, x, y, half = 5) {
  const wide = half + 1;
  if (kind.includes("least"))
    return svg("path", { class: kind, d: `M${x + wide} ${y}L${x - half} ${y + wide}L${x - half} ${y - wide}Z` });
  if (kind.includes("oom"))
    return svg("path", { class: kind, d: `M${x} ${y - wide}L${x + wide} ${y + half}L${x - wide} ${y + half}Z` });
  if (kind.includes("cancelled")) return svg("path", { class: kind, d: `M${x - wide} ${y}L${x + wide} ${y}` });
  if (/error|timeout/.test(kind)) {
    const [left, right, top, bottom] = [x - half, x + half, y - half, y + half];
    return svg("path", { class: kind, d: `M${left} ${top}L${right} ${bottom}M${left} ${bottom}L${right} ${top}` });
  }
  const size = kind.includes("best") ? 6.5 : kind.includes("base") ? 5 : half;
  if (kind.includes("base"))
    return svg("rect", { class: kind, x: x - size, y: y - size, width: 2 * size, height: 2 * size });
  return svg("circle", { class: kind, cx: x, cy: y, r: size });
}

// What a mark or a line looks like, for a legend.
function swatch(kind) {
  const node = shape(kind, 9, 8);
  node.classList.add("mark");
  return svg("svg", { class: "swatch", width: 18, height: 16, viewBox: "0 0 18 16" }, node);
}
function lineSwatch(kind) {
  const node = svg("path", { class: kind.includes("thread") ? `mark ${kind}` : kind, d: "M1 8H23" });
  return svg("svg", { class: "swatch", width: 24, height: 16, viewBox: "0 0 24 16" }, node);
}

// What needs more room than there is scrolls inside its card, and the page does not.
function sideways(chart) {
  chart.svg.style.width = `${chart.width}px`;
  return el("div", { class: "scroll sideways" }, chart.svg);
}

// A plot with its caption, its legend and the same as a table.
function figure(key, chart, { caption, keys = [], columns = [], rows = () => [] }) {
  return el(
    "figure",
    null,
    chart.room < chart.width ? sideways(chart) : chart.svg,
    el("div", { class: "under" }, keys.length ? legend(keys) : null, chart.zoom ? chart.zoom.controls(chart) : null),
    el("figcaption", null, caption),
    columns.length
      ? fold(`table-${key}`, "Show as a table", () =>
          el(
            "div",
            { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "Data of the plot" },
            plainTable(columns, rows(), caption),
          ),
        )
      : null,
  );
}

const colour = (index) => `var(--p${index % 10})`;
