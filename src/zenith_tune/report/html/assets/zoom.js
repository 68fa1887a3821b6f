// A part of a plot, chosen by dragging across it, by its buttons or by the keys + - 0; kept while the page is drawn anew.
const LEAST_DRAG_PX = 8;
const ZOOM_STEP = 0.5;

class Zoom {
  // `isPlane` chooses by both axes; else by the one across, and the plot's height follows what is in sight.
  constructor(key, redraw, isPlane = false) {
    Object.assign(this, { key, redraw, isPlane });
    this.chosen = (state.zoom ||= {})[key] || null;
  }

  x(domain) {
    this.wholeX = domain;
    return this.chosen?.x || domain;
  }

  y(domain) {
    this.wholeY = domain;
    return (this.isPlane && this.chosen?.y) || domain;
  }

  // Whether a point lies in what is shown; what is not chosen holds everything.
  holds(x, y = null) {
    const within = (value, range) => !range || value === null || (value >= range[0] && value <= range[1]);
    return !this.chosen || (within(x, this.chosen.x) && (!this.isPlane || within(y, this.chosen.y)));
  }

  set(chosen) {
    if (chosen) state.zoom[this.key] = chosen;
    else delete state.zoom[this.key];
    hideTip();
    this.redraw();
  }

  // Narrower or wider about the middle, or about a mark that is chosen by its keys.
  by(factor, chart) {
    const mark = chart.marks[chart.index]?.node.getBBox();
    const about = (range, whole, at) => {
      const half = ((range[1] - range[0]) * factor) / 2;
      if (2 * half >= whole[1] - whole[0]) return whole;
      const middle = Math.min(Math.max(at ?? (range[0] + range[1]) / 2, whole[0] + half), whole[1] - half);
      return [middle - half, middle + half];
    };
    const x = about(this.x(this.wholeX), this.wholeX, mark && chart.x.inverse(mark.x + mark.width / 2));
    const y = this.isPlane
      ? about(this.y(this.wholeY), this.wholeY, mark && chart.y.inverse(mark.y + mark.height / 2))
      : null;
    this.set(x === this.wholeX ? null : { x, y });
  }

  onKey(event, chart) {
    if (event.key === "+" || event.key === "=") this.by(ZOOM_STEP, chart);
    else if (event.key === "-") this.by(1 / ZOOM_STEP, chart);
    else if (event.key === "0") this.set(null);
    else return false;
    return true;
  }

  // A finger scrolls the page: it has the buttons.
  attach(chart) {
    const { svg: node, box } = chart;
    let from = null;
    let frame = null;
    const place = (event) => {
      const { left, top, width } = node.getBoundingClientRect();
      const ratio = chart.width / width;
      const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
      return [
        clamp((event.clientX - left) * ratio, box.left, box.right),
        clamp((event.clientY - top) * ratio, box.top, box.bottom),
      ];
    };
    const stop = () => {
      frame?.remove();
      from = frame = null;
    };
    node.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch" && event.button === 0) from = place(event);
    });
    node.addEventListener("pointermove", (event) => {
      if (!from) return;
      const to = place(event);
      if (!frame && Math.abs(to[0] - from[0]) < LEAST_DRAG_PX) return;
      if (!frame) {
        frame = svg("rect", { class: "brush" });
        node.append(frame);
        node.setPointerCapture(event.pointerId);
      }
      const [top, bottom] = this.isPlane ? [Math.min(from[1], to[1]), Math.max(from[1], to[1])] : [box.top, box.bottom];
      const sizes = { x: Math.min(from[0], to[0]), y: top, width: Math.abs(to[0] - from[0]), height: bottom - top };
      for (const [name, value] of Object.entries(sizes)) frame.setAttribute(name, value);
      hideTip();
    });
    node.addEventListener("pointerup", (event) => {
      const [start, to, isDrawn] = [from, place(event), Boolean(frame)];
      stop();
      if (!isDrawn) return;
      chart.isDragged = true; // the click that follows opens nothing
      const range = (scaled, one, other) => [scaled.inverse(one), scaled.inverse(other)].sort((a, b) => a - b);
      const y =
        this.isPlane && Math.abs(to[1] - start[1]) >= LEAST_DRAG_PX
          ? range(chart.y, start[1], to[1])
          : this.y(this.wholeY);
      this.set({ x: range(chart.x, start[0], to[0]), y: this.isPlane ? y : null });
    });
    node.addEventListener("pointercancel", stop);
    node.addEventListener("dblclick", () => this.chosen && this.set(null));
  }

  controls(chart) {
    const button = (name, text, act) =>
      el(
        "button",
        { type: "button", "aria-label": text, title: text, "data-key": `zoom-${name}-${this.key}`, onclick: act },
        name,
      );
    return el(
      "div",
      { class: "zoom", role: "group", "aria-label": "Zoom" },
      button("+", "Zoom in", () => this.by(ZOOM_STEP, chart)),
      button("−", "Zoom out", () => this.by(1 / ZOOM_STEP, chart)),
      this.chosen ? button("Show all", "Show all", () => this.set(null)) : el("span", { class: "note" }, "or drag to zoom"),
    );
  }
}
