// The parts of the page that are no picture: toolbar, cards, panels.

import { ROLES } from "./page.js";
import { count, duration, moment, percent } from "./time.js";
import { PALETTE } from "./theme.js";

/** An element: tag.class, attributes (functions are listeners), children. */
export function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (key === "style") node.style.cssText = value;
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const ICONS = {
  pan: "M8 2v12M2 8h12M8 2 6 4M8 2l2 2M8 14l-2-2M8 14l2-2M2 8l2-2M2 8l2 2M14 8l-2-2M14 8l-2 2",
  select: "M3 3h2M7 3h2M11 3h2v2M13 7v2M13 11v2h-2M9 13H7M5 13H3v-2M3 9V7M3 5V3",
  measure: "M2 5v6M14 5v6M2 8h12M4 6 2 8l2 2M12 6l2 2-2 2",
  chain:
    "M3.5 4.5a1.5 1.5 0 1 0 0-.01M8 8.5a1.5 1.5 0 1 0 0-.01M12.5 12.5a1.5 1.5 0 1 0 0-.01M4.6 5.5 6.9 7.5M9.1 9.5l2.3 2",
  search: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5 14 14",
  in: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5 14 14M5 7h4M7 5v4",
  out: "M7 11.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM10.5 10.5 14 14M5 7h4",
  all: "M2 3v10M14 3v10M4.5 8h7M6 6 4.5 8 6 10M10 6l1.5 2L10 10",
  tall: "M3 3h10M3 13h10M8 5.2v5.6M6.6 6.4 8 5l1.4 1.4M6.6 9.6 8 11l1.4-1.4",
  low: "M3 2.5h10M3 13.5h10M8 2.5v4M6.6 5.4 8 6.8l1.4-1.4M8 13.5v-4M6.6 10.6 8 9.2l1.4 1.4",
  lines: "M2 13V3M2 13h12M4 10l3-4 3 2 3.5-5",
  picture: "M2.5 3h11v10h-11zM2.5 11l3.5-4 3 3 1.5-1.5 3 3M10.5 6.2a.7.7 0 1 0 0-.01",
  vector: "M3 12C6 12 5 4 8 4s2 8 5 8M8 2.5v3M1.5 12h3M11.5 12h3",
  help: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM6.2 6.3a1.8 1.8 0 1 1 2.6 1.6c-.6.3-.8.6-.8 1.3M8 11.3v.1",
  left: "M10 3 5 8l5 5",
  right: "M6 3l5 5-5 5",
  close: "M4 4l8 8M12 4l-8 8",
};

export const icon = (name) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
};

export const tool = (name, label, key, click, attributes = {}) =>
  el(
    "button.tool",
    { type: "button", "aria-label": label, title: key ? `${label} (${key})` : label, click, ...attributes },
    icon(name),
  );

export const swatch = (kind) =>
  el("i", {
    style:
      kind === "idle"
        ? "background:transparent;border:1px solid currentColor;opacity:.5"
        : `background:${PALETTE[kind]}`,
    "aria-hidden": "true",
  });

const table = (rows, head) =>
  el(
    "table",
    {},
    head ? el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))) : null,
    el(
      "tbody",
      {},
      ...rows.map(([name, ...cells]) =>
        el("tr", {}, el("th", { scope: "row" }, name), ...cells.map((cell) => el("td", {}, cell))),
      ),
    ),
  );

export function closable(panel, title, close) {
  panel.replaceChildren(
    el("button.close", { type: "button", "aria-label": `Close: ${title}`, click: close }, "×"),
    el("h4", {}, title),
  );
  return panel;
}

/** "builder item 12" */
export const nameOfSpan = (span) => `${ROLES[span.role]} item ${count(span.item)}`;

export const briefSpan = (meta, span) => {
  const trace = meta.traces.findLast((one) => span.lane >= one.first_lane) ?? meta.traces[0];
  const lane = span.lane - trace.first_lane;
  return `${nameOfSpan(span)} · rank ${Math.floor(lane / trace.workgroups)} wg ${lane % trace.workgroups}`;
};

const tileOf = (queue) => {
  if (!queue) return null;
  const parts = [];
  if (queue.band >= 0 && queue.column >= 0) parts.push(`${queue.band}, ${queue.column}`);
  if (queue.chunk >= 0) parts.push(`chunk ${queue.chunk}`);
  return parts.join(" · ");
};

const shapeOf = (queue) =>
  queue && queue.rows > 0 && queue.cols > 0
    ? `rows ${count(queue.row)}–${count(queue.row + queue.rows - 1)}, columns ${count(queue.col)}–${count(queue.col + queue.cols - 1)}`
    : null;

/** What is known of a span as rows of a table. */
function factsOf(meta, span) {
  const rows = [];
  const trace = meta.traces[span.trace ?? 0];
  if (span.queue && tileOf(span.queue)) rows.push(["tile", tileOf(span.queue)]);
  rows.push(
    ["waited", duration(span.start - span.claim)],
    ["worked", duration(span.end - span.start)],
    ["claim", moment(span.claim)],
    ["start", moment(span.start)],
    ["end", moment(span.end)],
  );
  if (span.mhz) rows.push(["clock", `${count(Math.round(span.mhz))} MHz`]);
  if (span.unit !== null && span.unit !== undefined && span.unit >= 0)
    rows.push([trace?.unit_name ?? "unit", String(span.unit)]);
  return rows;
}

export function hoverCard(card, meta, span, lane, t) {
  const trace = meta.traces.findLast((one) => lane >= one.first_lane) ?? meta.traces[0];
  const local = lane - trace.first_lane;
  const where = `rank ${Math.floor(local / trace.workgroups)} · workgroup ${local % trace.workgroups}`;
  if (!span) {
    card.replaceChildren(el("h4", {}, swatch("idle"), "idle"), el("div", {}, where), el("div.wide", {}, moment(t)));
    return;
  }
  const waiting = t < span.start;
  card.replaceChildren(
    el(
      "h4",
      {},
      swatch(ROLES[span.role]),
      nameOfSpan(span),
      waiting ? el("span", { style: "font-weight:400" }, "waiting") : null,
    ),
    el("div", {}, where),
    table(factsOf(meta, span)),
  );
  if (span.released) {
    const total = span.waits_for_total ?? span.waits_for.length;
    const more = total > 1 ? `, last of ${count(total)}` : "";
    card.append(
      el("div.wide", {}, `waited for ${briefSpan(meta, span.released)}${more}, done at ${moment(span.released.end)}`),
    );
  } else if (span.queue && span.queue.wait >= 0) {
    card.append(el("div.wide", {}, `waited for counter ${span.queue.wait}: signalled by the launch or a copy`));
  }
  if (span.bad) card.append(el("div.wide.bad", {}, typeof span.bad === "string" ? span.bad : "bad span"));
}

export function spanPanel(panel, meta, span, { go, close, chain }) {
  closable(panel, nameOfSpan(span), close);
  const link = (one) => el("li", {}, el("button", { type: "button", click: () => go(one) }, briefSpan(meta, one)));
  panel.querySelector("h4").prepend(swatch(ROLES[span.role]));
  const trace = meta.traces[span.trace];
  const line = (...parts) => panel.append(el("div.line", {}, ...parts));
  const bold = (text) => el("b", {}, text);
  const unit = span.unit !== null && span.unit >= 0 ? ` · ${trace.unit_name ?? "unit"} ${span.unit}` : "";
  line(`${meta.traces.length > 1 ? `${trace.title} · ` : ""}rank ${span.rank} · workgroup ${span.workgroup}${unit}`);
  if (span.queue && tileOf(span.queue))
    line("tile ", bold(tileOf(span.queue)), shapeOf(span.queue) ? `: ${shapeOf(span.queue)}` : "");
  line("waited ", bold(duration(span.start - span.claim)), ` from ${moment(span.claim)}`);
  line("worked ", bold(duration(span.end - span.start)), ` from ${moment(span.start)} to ${moment(span.end)}`);
  if (span.mhz) line("clock ", bold(`${count(Math.round(span.mhz))} MHz`));
  if (span.bad) panel.append(el("div.bad", {}, span.bad));
  const lists = [
    ["waited for", span.waits_for, span.released, span.waits_for_total],
    ["signalled", span.signals, null, span.signals_total],
  ];
  for (const [title, spans, first, total] of lists) {
    if (!spans.length) continue;
    const sorted = first ? [first, ...spans.filter((one) => one.index !== first.index)] : spans;
    panel.append(
      el("h5", {}, `${title} (${count(total ?? spans.length)}${first && spans.length > 1 ? ", the last first" : ""})`),
    );
    panel.append(
      el(
        "ul.links",
        {},
        ...sorted.slice(0, 4).map(link),
        spans.length > 4 ? el("li", {}, `and ${count((total ?? spans.length) - 4)} more`) : null,
      ),
    );
  }
  panel.append(
    el(
      "div.links",
      { style: "margin-top:6px" },
      el("button", { type: "button", click: chain }, "show its critical chain (C)"),
    ),
  );
}

export function sumsPanel(panel, region, sums, close, zoom) {
  closable(
    panel,
    `${duration(region.t1 - region.t0)} × ${count(sums.lanes)} lane${sums.lanes === 1 ? "" : "s"}`,
    close,
  );
  const total = Math.max(1, sums.lanes * (region.t1 - region.t0));
  const rows = Object.entries(sums.ns).map(([kind, ns]) => {
    const name = el("span", {}, swatch(kind), ` ${kind}`);
    return [name, duration(ns), percent(ns / total), duration(ns / Math.max(1, sums.lanes))];
  });
  panel.append(
    table(rows, ["", "lane time", "share", "a lane"]),
    el(
      "div",
      { style: "color:var(--soft);margin-top:4px" },
      `${count(sums.spans)} spans, ${moment(region.t0)} to ${moment(region.t1)}`,
    ),
    el("div.links", { style: "margin-top:4px" }, el("button", { type: "button", click: zoom }, "zoom to it (F)")),
  );
}

/** How many problems there are; null while they are still being looked for. */
export const problemsOf = (meta) =>
  meta.traces.some((trace) => !trace.problems)
    ? null
    : meta.traces.reduce((sum, trace) => sum + trace.problems.length, 0);

export function problemsPanel(panel, meta, close) {
  const total = problemsOf(meta);
  closable(
    panel,
    total === null
      ? "The recording is still being checked"
      : total
        ? `${total} problem${total > 1 ? "s" : ""} in this recording`
        : "No problems found in this recording",
    close,
  );
  for (const trace of meta.traces) {
    if (meta.traces.length > 1) panel.append(el("h5", {}, trace.title));
    if (trace.problems === null)
      panel.append(
        el(
          "div",
          {},
          "Looking for dropped records, spans that overlap or run backwards, unfinished items and waits that ended too early …",
        ),
      );
    else if (trace.problems.length) panel.append(el("ul", {}, ...trace.problems.map((text) => el("li", {}, text))));
    else {
      panel.append(
        el(
          "div",
          {},
          "Every record is there, waits and spans run forwards, no two of a workgroup overlap, and what the queue holds was done once and after what it waits for.",
        ),
      );
    }
    const clock = trace.clock ?? {};
    if (clock.source)
      panel.append(
        el("div", { style: "color:var(--soft);margin-top:4px" }, `clock: ${clock.source}, tick ${trace.tick_ns} ns`),
      );
  }
}

export const KEYS = [
  ["W  S", "zoom in, out at the cursor"],
  ["A  D  ← →", "move in time"],
  ["↑  ↓", "the lane above, below"],
  ["+  −", "lanes taller, lower"],
  ["F", "fit the selection"],
  ["0", "the whole run"],
  [",  .", "previous, next span in the lane"],
  ["C", "critical chain of the selected span"],
  ["M", "measure between two clicks"],
  ["/", "search: builder item 12, tile 3,4, wait"],
  ["N  ⇧N", "next, previous match"],
  ["P", "pin the lane on top"],
  ["G  ⇧G", "fold the rank, all ranks"],
  ["O", "sort by role at the cursor"],
  ["V", "lanes or queue"],
  ["L", "counters on, off"],
  ["Enter", "details of the selected span"],
  ["?", "this help"],
  ["Esc", "close; then give the keyboard back"],
  ["drag", "move"],
  ["⇧ drag", "select a region; on the axis a time"],
  ["click", "select a span; again: details; double: fit"],
  ["wheel", "scroll lanes, ⇧ move in time"],
  ["Ctrl wheel", "zoom, Alt: lane height; or pinch"],
];

export function helpPanel(panel, close) {
  closable(panel, "Keys and mouse", close);
  panel.append(
    el(
      "dl",
      {},
      ...KEYS.map(([keys, text]) =>
        el(
          "div.pair",
          {},
          el("dt", {}, ...keys.split("  ").flatMap((key) => [el("kbd", {}, key), " "])),
          el("dd", {}, text),
        ),
      ),
    ),
  );
}

/** Shares of roles, wait and idle as a list with their colours. */
export function legend(shares) {
  return Object.entries(shares).map(([kind, share]) => el("li", {}, swatch(kind), `${kind} ${percent(share)}`));
}
