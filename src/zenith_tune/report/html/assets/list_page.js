// The page of all studies of a folder or a database.
const LIST_STATES = {
  running: "running",
  pausing: "running",
  paused: "timeout",
  ended: "",
  failed: "error",
  stopped: "error",
  unreadable: "error",
};

function listHeadline(data) {
  const going = data.studies.filter((study) => ["running", "pausing"].includes(study.state)).length;
  return {
    body: el(
      "div",
      null,
      el("p", { class: "eyebrow" }, data.place),
      el(
        "h1",
        null,
        `${format.count(data.studies.length, "study").replace("studys", "studies")}${going ? `, ${going} running` : ""}`,
      ),
    ),
  };
}

function studyList(data) {
  const columns = [
    {
      key: "name",
      name: "study",
      text: true,
      value: (s) => s.name,
      cell: (s) => (s.href ? el("a", { href: s.href }, format.short(s.name, 90)) : format.short(s.name, 90)),
    },
    {
      key: "state",
      name: "state",
      text: true,
      value: (s) => s.state,
      cell: (s) => el("span", { class: `state ${LIST_STATES[s.state] ?? ""}` }, s.state),
    },
    {
      key: "trials",
      name: "trials",
      downFirst: true,
      value: (s) => s.num_trials,
      cell: (s) => s.num_trials.toLocaleString("en"),
      hide: "opt2",
    },
    { key: "best", name: "best", downFirst: true, value: (s) => s.best, cell: (s) => format.value(s.best, s.unit) },
    {
      key: "gain",
      name: "gain",
      downFirst: true,
      value: (s) => s.gain,
      cell: (s) => (s.gain === 0 ? "none" : gainWord(s.gain)),
    },
    { key: "preset", name: "preset", text: true, value: (s) => s.preset, cell: (s) => s.preset, hide: "opt" },
    {
      key: "started",
      name: "started",
      downFirst: true,
      value: (s) => s.started_s,
      cell: (s) => format.time(s.started_s),
      hide: "opt2",
    },
  ];
  const table = bigTable("studies", {
    columns,
    rows: data.studies,
    id: (s) => s.name,
    isBest: () => false,
    groups: (s) => s.state,
    sort: "started",
    down: true,
    label: "studies",
    search: (s) => `${s.name} ${s.preset} ${s.state}`,
  });
  const isBare = data.studies.some((study) => !study.href);
  const hint = isBare
    ? el("p", { class: "note" }, "Those without a link have no page yet: zenithtune report NAME writes it.")
    : null;
  return { body: el("div", null, table, hint) };
}

const LIST_SECTIONS = [
  { id: "headline", wide: true, draw: listHeadline },
  { id: "studies", title: "Every study", wide: true, draw: studyList },
];
