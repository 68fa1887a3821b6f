// The page: sections drawn from the data, drawn anew by `zenithtune.update(data)` without losing what was chosen.
const SECTIONS = { study: STUDY_SECTIONS, plan: PLAN_SECTIONS, compare: COMPARE_SECTIONS, studies: LIST_SECTIONS };
SECTIONS.planner = PLANNER_SECTIONS;
const THEME = "zenithtune-theme";
const HEADER_PX = 72; // what the head of the page lies over
const state = { open: {}, tables: {} };
let page = null;

class Page {
  constructor(data) {
    this.data = data;
    this.sections = SECTIONS[data.kind];
    this.nodes = new Map();
    this.spread = new Map(); // which sections take a whole row by themselves
    this.tabs = [...new Set(this.sections.map((section) => section.tab))];
    this.tab = this.tabs[0];
    this.top();
    this.panels = this.tabs.map((name) => el("div", { class: "grid", id: `panel-${name}` }));
    for (const section of this.sections) {
      const node = el("section", {
        class: `card${section.wide ? " wide" : ""}`,
        id: section.id,
        "aria-labelledby": section.title ? `${section.id}-title` : null,
        "aria-label": section.title ? null : "Result",
      });
      this.nodes.set(section.id, node);
      this.panels[this.tabs.indexOf(section.tab)].append(node);
    }
    byId("main").replaceChildren(...(this.tabs.length > 1 ? [this.tabList()] : []), ...this.panels);
    this.drawAll();
    this.follow();
  }

  tabList() {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    this.buttons = this.tabs.map((name, index) => {
      this.panels[index].setAttribute("role", "tabpanel");
      this.panels[index].setAttribute("aria-labelledby", `tab-${name}`);
      return el(
        "button",
        {
          type: "button",
          role: "tab",
          id: `tab-${name}`,
          "data-key": `tab-${name}`,
          "aria-controls": `panel-${name}`,
          onclick: () => {
            this.open(name);
            history.replaceState(null, "", `#${name.toLowerCase()}`);
          },
          onkeydown: (event) => {
            if (!steps[event.key]) return;
            event.preventDefault();
            const shown = this.buttons.filter((button) => !button.hidden);
            const at = shown.indexOf(event.currentTarget) + steps[event.key];
            const next = shown[Math.max(0, Math.min(shown.length - 1, at))];
            next.click();
            next.focus();
          },
        },
        name,
      );
    });
    return el("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the page" }, this.buttons);
  }

  open(name) {
    if (!this.buttons) return;
    const isEmpty = this.panels.map((panel) => [...panel.children].every((node) => node.hidden));
    this.tab = isEmpty[this.tabs.indexOf(name)] ? this.tabs[0] : name;
    this.tabs.forEach((each, index) => {
      const isOpen = each === this.tab;
      this.panels[index].hidden = !isOpen;
      this.buttons[index].hidden = isEmpty[index];
      this.buttons[index].setAttribute("aria-selected", String(isOpen));
      this.buttons[index].tabIndex = isOpen ? 0 : -1;
    });
  }

  // A link names a tab or a section.
  follow() {
    const name = location.hash.slice(1);
    const tab = this.tabs.find((each) => each?.toLowerCase() === name);
    const section = this.sections.find((each) => each.id === name);
    if (tab || section) this.open(tab || section.tab);
    if (section && !tab) this.nodes.get(name).scrollIntoView();
  }

  update(data) {
    // What is read stays where it is, though sections above it may grow or go.
    const read = [...this.nodes.values()].find(
      (node) => !node.hidden && node.getBoundingClientRect().bottom > HEADER_PX,
    );
    const top = read?.getBoundingClientRect().top ?? 0;
    const focused = document.activeElement;
    const key = focused?.dataset?.key;
    const caret = focused instanceof HTMLInputElement ? [focused.selectionStart, focused.selectionEnd] : null;
    this.data = data;
    this.drawAll();
    const again = key && document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (again && again !== document.activeElement) {
      again.focus({ preventScroll: true });
      if (caret && again instanceof HTMLInputElement) again.setSelectionRange(...caret);
    }
    if (read && !read.hidden) window.scrollBy({ top: read.getBoundingClientRect().top - top, behavior: "instant" });
  }

  drawAll() {
    // All widths first, of the hidden too: to ask for one between two sections would lay out the whole page each time.
    for (const panel of this.panels) panel.hidden = false;
    const widths = this.sections.map((section) => this.width(section));
    this.unshown = new Map();
    this.sections.forEach((section, index) => this.draw(section, widths[index]));
    for (const section of this.fill()) this.draw(section);
    this.open(this.tab);
    document.title = tabTitle(this.data);
    byId("foot").replaceChildren(
      el(
        "p",
        null,
        `${this.data.made_by} · ${format.time(this.data.now_s)}${this.data.place ? ` · ${this.data.place}` : ""}`,
      ),
    );
  }

  redraw(id) {
    this.draw(this.sections.find((section) => section.id === id));
  }

  width(section) {
    const node = this.nodes.get(section.id);
    node.hidden = false;
    const style = getComputedStyle(node);
    return node.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  }

  draw(section, width = this.width(section)) {
    const node = this.nodes.get(section.id);
    const redraw = () => {
      const key = document.activeElement?.dataset?.key;
      this.draw(section);
      if (key) node.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
    };
    const drawn = section.collects ? this.collected() : section.draw(this.data, width, redraw);
    if (drawn?.empty) this.unshown.set(section.title, drawn.empty);
    node.hidden = !drawn || Boolean(drawn.empty);
    this.spread.set(section.id, Boolean(section.wide || drawn?.wide));
    if (node.hidden) return node.replaceChildren();
    const title = section.title
      ? el("div", { class: "head" }, el("h2", { id: `${section.id}-title` }, section.title))
      : null;
    return node.replaceChildren(...[title, drawn.body].filter(Boolean));
  }

  // What has nothing to draw says so in a line among the others of its kind: an empty card each would leave holes.
  collected() {
    const reasons = new Map();
    for (const [title, reason] of this.unshown) reasons.set(reason, [...(reasons.get(reason) || []), title]);
    if (!reasons.size) return null;
    const line = ([reason, titles]) => el("div", null, el("dt", null, titles.join(", ")), el("dd", null, reason));
    return { body: el("dl", { class: "reasons" }, [...reasons].map(line)) };
  }

  // A card that no other stands beside takes the whole row. Returns those whose width has changed by it.
  fill() {
    const shown = this.sections.filter((section) => !this.nodes.get(section.id).hidden);
    const changed = [];
    let isBeside = false;
    shown.forEach((section, index) => {
      const isLone = (each) => !each || each.tab !== section.tab || this.spread.get(each.id);
      const [own, next] = [section, shown[index + 1]].map(isLone);
      if (shown[index - 1]?.tab !== section.tab) isBeside = false;
      const isWide = own || (!isBeside && next);
      isBeside = !isWide && !isBeside;
      const { classList } = this.nodes.get(section.id);
      if (classList.contains("wide") === isWide) return;
      classList.toggle("wide", isWide);
      changed.push(section);
    });
    return changed;
  }

  top() {
    const toggle = el("button", {
      type: "button",
      id: "theme",
      "data-key": "theme",
      onclick: () => setTheme(isDark() ? "light" : "dark"),
    });
    byId("top").replaceChildren(
      el(
        "div",
        { class: "top-row" },
        el("div", { class: "brand" }, "Zenith", el("span", null, "Tune")),
        el("div", { class: "where" }, this.data.title),
        toggle,
      ),
    );
    setTheme(remembered());
  }
}

// Of a study that runs, how far it is and what it has found, for a tab that nobody looks at.
function tabTitle(data) {
  const isGoing = data.live ? ["running", "pausing", "paused"].includes(data.live.state) : data.is_running;
  if (data.kind !== "study" || !isGoing) return data.title;
  const done = isNumber(data.max_trials) ? `${data.num_budgeted}/${data.max_trials}` : String(data.num_budgeted);
  const gain =
    isNumber(data.gain) && !data.fastest_is_baseline
      ? `${data.gain >= 0 ? "+" : "−"}${Math.abs(data.gain * 100).toFixed(0)}%`
      : "";
  return [done, gain, data.title].filter(Boolean).join(" · ");
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
function remembered() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null; // a browser may keep nothing for a file
  }
}
function setTheme(theme) {
  if (theme === "light" || theme === "dark") {
    document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(THEME, theme);
    } catch {
      /* then it is asked again */
    }
  }
  const toggle = byId("theme");
  toggle.textContent = isDark() ? "Light" : "Dark";
  toggle.setAttribute("aria-label", `Use the ${isDark() ? "light" : "dark"} theme`);
}

let waiting = 0;
let lastWidth = window.innerWidth;
window.addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    if (window.innerWidth !== lastWidth) page.update(page.data);
    lastWidth = window.innerWidth;
  }, 120);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
});
window.addEventListener("hashchange", () => page.follow());
page = new Page(JSON.parse(byId("data").textContent));
window.zenithtune = { update: (data) => page.update(data) };
if (page.data.kind === "planner") askPlanner(page.data);
