// The elements of a view, and what they say about its traces.

import { el, legend, problemsOf, problemsPanel, tool } from "./panels.js";
import style from "./style.css";
import { count, duration } from "./time.js";

const HEIGHT = 460; // px of one trace
const MORE = 140; // ... and of each further one

export function build(view, element, options) {
  const shell = (view.shell = el("div", { class: "kosmos-viewer" }));
  const shadow = shell.attachShadow({ mode: "open" });
  const titles = view.meta.traces.map((trace) => trace.title);
  const first = view.meta.traces[0];
  const [makespan, facts] = factsOf(view);

  view.badge = el("button.badge", { type: "button", "aria-expanded": "false", click: () => view.toggle("problems") });
  judge(view);
  const pressed = (name, label, key, click) => tool(name, label, key, click, { "aria-pressed": "false" });
  const opens = (name, label, key, click) => tool(name, label, key, click, { "aria-expanded": "false" });
  view.buttons = {
    select: pressed("select", "Select a region by dragging", "Shift+drag", () => view.setSelecting(!view.selecting)),
    measure: pressed("measure", "Measure between two clicks", "M", () => view.setMeasuring(!view.measuring)),
    chain: pressed("chain", "Critical chain of the selected span", "C", () => view.toggleChain()),
    find: opens("search", "Search", "/", () => view.toggle("find")),
    menu: opens("lines", "Counters", "L: all", () => view.toggle("menu")),
    help: opens("help", "Keys and mouse", "?", () => view.toggle("help")),
  };
  view.tools = el(
    "div.tools",
    { role: "toolbar", "aria-label": "Trace viewer tools" },
    view.buttons.select,
    view.buttons.measure,
    view.buttons.chain,
    view.buttons.find,
    el("span.bar"),
    tool("out", "Zoom out", "S", () => view.zoom(1.6)),
    tool("in", "Zoom in", "W", () => view.zoom(1 / 1.6)),
    tool("all", "Show the whole run", "0", () => view.all()),
    tool("low", "Lower lanes", "−", () => view.laneZoom(1 / 1.5)),
    tool("tall", "Taller lanes", "+", () => view.laneZoom(1.5)),
    el("span.bar"),
    view.buttons.menu,
    tool("picture", "Download this view as PNG", "", () => view.exportPng()),
    tool("vector", "Download this view as SVG", "", () => view.exportSvg()),
    view.buttons.help,
  );
  const header = el(
    "header",
    {},
    el(
      "div.title",
      { title: titles.join(" · ") },
      titles.length > 1 ? `${titles.length} traces compared` : (titles[0] ?? "no trace"),
    ),
    el("div.makespan", {}, makespan),
    el("div.facts", {}, facts),
    view.badge,
    view.tools,
  );

  const tab = (name, label) =>
    el(
      "button",
      { type: "button", role: "tab", "aria-selected": String(name === view.tab), click: () => view.setTab(name) },
      label,
    );
  view.tabs = { lanes: tab("lanes", "Lanes"), queue: tab("queue", "Queue") };
  view.mini = el("canvas", { "aria-hidden": "true" });
  view.miniPlot = el(
    "div.plot",
    { class: "plot", title: "Overview: drag the window, or drag beside it for a new one" },
    view.mini,
  );
  view.axis = el("canvas", { "aria-hidden": "true" });
  view.axisPlot = el("div.plot", { title: "Drag to select a stretch of time" }, view.axis);
  view.sorter = el(
    "select",
    {
      "aria-label": "Sort the lanes of each rank",
      title: "Sort the lanes of each rank",
      change: () => view.setSort(view.sorter.value),
    },
    ...[
      ["workgroup", "by workgroup"],
      ["unit", `by ${first?.unit_name ?? "unit"}`],
      ["role", "by role at cursor"],
      ["switch", "by first switch"],
      ["idle", "by idle share"],
    ].map(([value, label]) => el("option", { value }, label)),
  );
  view.ranker = el(
    "select",
    { "aria-label": "Queues of which rank", hidden: true, change: () => view.setQueue(view.ranker.value) },
    ...view.meta.traces.flatMap((trace, t) =>
      Array.from({ length: trace.ranks }, (_, rank) =>
        el("option", { value: `${t}/${rank}` }, titles.length > 1 ? `${trace.title}: rank ${rank}` : `rank ${rank}`),
      ),
    ),
  );

  view.base2d = el("canvas.base", { "aria-hidden": "true" });
  view.over2d = el("canvas.over", { "aria-hidden": "true" });
  view.groupsNode = el("div.groups");
  view.heads = el("div.heads");
  view.lanesNode = el(
    "div.lanes",
    { tabindex: "0", role: "application", "aria-roledescription": "trace viewer", "aria-label": described(view) },
    view.base2d,
    view.over2d,
    view.heads,
    view.groupsNode,
  );
  view.charts2d = el("canvas", { "aria-hidden": "true" });
  view.ranges2d = el("canvas", { "aria-hidden": "true" });
  view.rangesNode = el("div.ranges", { hidden: true }, view.ranges2d);
  view.countersNode = el("div.counters", { hidden: true }, view.charts2d);
  view.said = el("div.said", { role: "status", "aria-live": "polite" });
  view.legendNode = el(
    "ul.legend",
    { "aria-label": "Shares of the time of all workgroups" },
    ...legend(first?.summary.shares ?? {}),
  );
  view.details = el(
    "button.details",
    {
      type: "button",
      hidden: true,
      title: "What is known of the selected span (Enter)",
      click: () => view.hide("span") || view.showSpan(),
    },
    "details",
  );
  view.note = el("div.note", { role: "alert", hidden: true });
  view.busyNode = el("div.busy", { role: "progressbar", "aria-label": "Waiting for an answer" });
  view.card = el("div.card", { hidden: true, "aria-hidden": "true" });
  view.root = el(
    "div.kosmos",
    { style: `height:${options.height ?? Math.min(HEIGHT + MORE * (view.meta.traces.length - 1), 760)}px` },
    header,
    el(
      "div.strip.mini",
      {},
      el("div.gutter", {}, el("div.tabs", { role: "tablist", "aria-label": "View" }, view.tabs.lanes, view.tabs.queue)),
      view.miniPlot,
    ),
    el("div.strip.axis", {}, el("div.gutter", {}, view.sorter, view.ranker), view.axisPlot),
    view.rangesNode,
    view.lanesNode,
    view.countersNode,
    el("footer", {}, view.said, view.details, view.legendNode),
    view.note,
    view.busyNode,
    view.card,
  );
  shadow.append(el("style", {}, style), view.root);
  element.append(shell);
}

/** The badge says how good the recording is. */
export function judge(view) {
  const problems = problemsOf(view.meta);
  const says = problems === null ? "checking" : `${problems || "no"} problem${problems === 1 ? "" : "s"}`;
  view.badge.textContent = says;
  view.badge.setAttribute("aria-label", `Quality of the recording: ${says}`);
  view.badge.classList.toggle("amber", problems > 0);
  view.badge.classList.toggle("unknown", problems === null);
  if (view.shown("problems")) problemsPanel(view.panels.problems, view.meta, () => view.hide("problems"));
}

/** The makespan, and what else is said about the run. */
export function factsOf(view) {
  const [first, ...others] = view.meta.traces;
  if (!first) return ["", ""];
  if (others.length) return [view.meta.traces.map((trace) => duration(trace.summary.makespan_ns)).join(" vs "), ""];
  const facts = [`${count(first.ranks)} × ${count(first.workgroups)} workgroups`, `${count(first.spans)} spans`];
  for (const more of [first.machine, first.place]) if (more && !first.title.includes(more)) facts.push(more);
  return [`makespan ${duration(first.summary.makespan_ns)}`, facts.join("  ·  ")];
}

function described(view) {
  const parts = view.meta.traces.map(
    (trace) =>
      `${trace.title}: ${trace.ranks} ranks of ${trace.workgroups} workgroups, ${count(trace.spans)} spans, makespan ${duration(trace.summary.makespan_ns)}`,
  );
  return `Trace viewer. ${parts.join(". ")}. Press question mark for the keys, Escape to leave.`;
}
