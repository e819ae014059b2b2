// What is around the lanes: axis, overview, names of the groups, ranges, counters.

import { CHART, drawChart, SMALL } from "./counters.js";
import { el, icon, swatch } from "./panels.js";
import { drawRanges, heightOf } from "./ranges.js";
import { count, duration, moment, percent, timeTicks } from "./time.js";
import { GUTTER } from "./view.js";

export function drawAxis(view) {
  const [context, width, height] = view.prepare(view.axis);
  const { ratio, theme } = view;
  context.scale(ratio, ratio);
  context.font = `10.5px ${theme.font}`;
  context.textBaseline = "middle";
  const xOf = (t) => ((t - view.t0) / (view.t1 - view.t0)) * width;
  const region = view.dragged ?? view.region;
  if (region) {
    context.fillStyle = theme.accent;
    context.globalAlpha = 0.25;
    context.fillRect(xOf(region.t0), 0, xOf(region.t1) - xOf(region.t0), height);
    context.globalAlpha = 1;
  }
  const { offset, ticks, minor } = timeTicks(view.t0, view.t1, width / 95);
  context.strokeStyle = theme.line;
  context.beginPath();
  for (const t of minor) {
    context.moveTo(Math.round(xOf(t)) + 0.5, height);
    context.lineTo(Math.round(xOf(t)) + 0.5, height - 3);
  }
  for (const { t } of ticks) {
    context.moveTo(Math.round(xOf(t)) + 0.5, height);
    context.lineTo(Math.round(xOf(t)) + 0.5, height - 7);
  }
  context.stroke();
  context.fillStyle = theme.soft;
  context.textAlign = "left";
  let free = 0;
  if (offset) {
    context.fillStyle = theme.ink;
    context.fillText(offset, 4, height / 2 - 1);
    free = context.measureText(offset).width + 12;
    context.fillStyle = theme.soft;
  }
  for (const { t, label } of ticks) {
    const x = xOf(t) + 4;
    const w = context.measureText(label).width;
    if (x < free || x + w > width) continue;
    context.fillText(label, x, height / 2 - 1);
    free = x + w + 8;
  }
  if (view.cursor && view.cursor.x >= GUTTER) {
    const text = moment(Math.round(view.tOf(view.cursor.x)));
    const w = context.measureText(text).width + 8;
    const x = Math.max(0, Math.min(width - w, view.cursor.x - GUTTER - w / 2));
    context.fillStyle = theme.ink;
    context.fillRect(x, 2, w, height - 5);
    context.fillStyle = theme.backgroundText;
    context.textAlign = "left";
    context.fillText(text, x + 4, height / 2 - 0.5);
  }
}

export function drawMini(view) {
  const [context, width, height] = view.prepare(view.mini);
  const { ratio, theme, overview } = view;
  context.scale(ratio, ratio);
  if (overview) {
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(overview.canvas, 0, 0, overview.width, overview.rows, 0, 0, width, height);
  }
  const x0 = Math.max(0, (view.t0 / view.length) * width);
  const x1 = Math.min(width, (view.t1 / view.length) * width);
  context.fillStyle = theme.veil;
  context.fillRect(0, 0, x0, height);
  context.fillRect(x1, 0, width - x1, height);
  if (view.region) {
    context.fillStyle = theme.accent;
    context.fillRect(
      (view.region.t0 / view.length) * width,
      height - 3,
      Math.max(2, ((view.region.t1 - view.region.t0) / view.length) * width),
      3,
    );
  }
  context.strokeStyle = theme.ink;
  context.lineWidth = 1;
  const w = Math.max(3, x1 - x0);
  context.strokeRect(Math.round(x0) + 0.5, 0.5, Math.round(w) - 1, height - 1);
  if (x1 - x0 > 12 && x1 - x0 < width - 1) {
    context.fillStyle = theme.ink;
    context.fillRect(x0 - 1, height / 2 - 6, 3, 12);
    context.fillRect(x1 - 2, height / 2 - 6, 3, 12);
  }
}

export function drawGroups(view) {
  const shown = [];
  const heads = [];
  const { layout } = view;
  if (view.tab === "lanes") {
    for (const block of layout.blocks) {
      if (block.kind === "head") heads.push([block.trace, block.y]);
      if (block.g === undefined) continue;
      const top = Math.max(block.y, layout.pinned);
      const bottom = Math.min(block.y + block.h, view.height);
      if (bottom - top >= Math.min(12, block.h)) shown.push([block, top, Math.min(bottom - top, block.h)]);
    }
  }
  view.groupNodes ??= view.layout.groups.map((group, g) => {
    const small = el("small");
    const node = el(
      "button.group",
      { type: "button", "aria-expanded": "true", click: () => view.fold(g) },
      icon("right"),
      `rank ${group.rank}`,
      small,
    );
    node.querySelector("svg").style.cssText = "fill:none;stroke:currentColor;stroke-width:2";
    view.groupsNode.append(node);
    return node;
  });
  view.headNodes ??= view.meta.traces.length > 1 ? view.meta.traces.map((trace, t) => headOf(view, trace, t)) : [];
  const seen = new Set();
  for (const [block, top, room] of shown) {
    seen.add(block.g);
    const node = view.groupNodes[block.g];
    const group = layout.groups[block.g];
    node.hidden = false;
    node.style.top = `${top + Math.min(1, Math.max(0, (room - 18) / 2))}px`;
    node.setAttribute("aria-expanded", String(!group.folded));
    node.title = `${group.folded ? "Unfold" : "Fold"} rank ${group.rank}: ${count(group.lanes.length)} workgroups (G)`;
    const wide = layout.lane < 11 || group.folded;
    node.querySelector("small").textContent = wide ? `${count(group.lanes.length)}` : "";
  }
  view.groupNodes.forEach((node, g) => seen.has(g) || (node.hidden = true));
  view.headNodes.forEach((node) => (node.hidden = true));
  for (const [t, y] of heads) {
    view.headNodes[t].hidden = y + 26 < layout.pinned || y > view.height;
    view.headNodes[t].style.top = `${y}px`;
  }
}

function headOf(view, trace, t) {
  const shares = Object.entries(trace.summary.shares);
  const first = view.meta.traces[0].summary;
  const delta = trace.summary.makespan_ns - first.makespan_ns;
  const change = first.makespan_ns ? delta / first.makespan_ns : 0;
  const sign = (value, text) => (value > 0 ? `+${text}` : text);
  const node = el(
    "div.head",
    {},
    el("b", {}, trace.title),
    el("span", {}, `makespan ${duration(trace.summary.makespan_ns)}`),
    t
      ? el("span.delta", {}, `${sign(delta, duration(delta))} (${sign(change, percent(change))})`)
      : el("span", {}, "compared with:"),
    ...shares.map(([kind, share]) => {
      const points = share - (first.shares[kind] ?? 0);
      return el(
        "span",
        {},
        swatch(kind),
        ` ${kind} ${percent(share)}${t ? ` (${sign(points, (100 * points).toFixed(1).replace("-", "−"))})` : ""}`,
      );
    }),
  );
  for (const one of node.querySelectorAll("i"))
    one.style.cssText += ";display:inline-block;width:9px;height:9px;border-radius:2px";
  view.heads.append(node);
  return node;
}

export function drawRangeStrip(view) {
  const rows = view.ranges?.rows ?? [];
  const height = heightOf(rows);
  view.rangesNode.hidden = !height;
  if (!height) return;
  view.rangesNode.style.height = `${height}px`;
  const [context] = view.prepare(view.ranges2d);
  context.scale(view.ratio, view.ratio);
  drawRanges(context, view.theme, rows, { xOf: (t) => view.xOf(t), left: GUTTER, width: view.width });
  if (view.cursor && view.cursor.x >= GUTTER) {
    context.globalAlpha = 0.55;
    view.line(context, view.cursor.x, height, view.theme.ink);
  }
}

/** The height that the lines will have, before they are there: what is around them stays in its place. */
function countersToCome(view) {
  const recorded = new Set(
    view.meta.traces.flatMap((trace) => trace.counters.map(({ name, unit }) => `${name} ${unit}`)),
  );
  return view.meta.traces.length * CHART + SMALL * (1 + recorded.size);
}

export function drawCounters(view) {
  const shown = view.chartsShown;
  const height = shown.reduce((sum, chart) => sum + (chart.unit === "workgroups" ? CHART : SMALL), 0);
  const most = Math.round(0.45 * view.root.clientHeight);
  const wanted = Math.min(view.countersShown && !view.counters ? countersToCome(view) : height, most);
  view.countersNode.hidden = !wanted;
  if (view.countersNode.dataset.h !== String(wanted)) {
    view.countersNode.dataset.h = wanted;
    view.countersNode.style.height = `${wanted}px`;
    view.redraw();
  }
  if (!wanted) return;
  const [context, width] = view.prepare(view.charts2d);
  const { ratio, theme } = view;
  context.scale(ratio, ratio);
  let y = 0;
  for (const chart of shown) {
    const full = chart.unit === "workgroups" ? CHART : SMALL;
    const h = (full * wanted) / height;
    drawChart(context, theme, chart, {
      x: GUTTER,
      width: width - GUTTER,
      y,
      h,
      map: (n) => {
        const step = ((view.counters.t1 - view.counters.t0) / n / (view.t1 - view.t0)) * (width - GUTTER);
        return [view.xOf(view.counters.t0), step];
      },
      cursor: view.cursor && view.cursor.x >= GUTTER ? view.cursor.x : null,
    });
    y += h;
    if (y < wanted - 1) {
      context.fillStyle = theme.line;
      context.fillRect(0, Math.round(y) - 1, width, 1);
    }
  }
  if (view.cursor && view.cursor.x >= GUTTER) {
    context.globalAlpha = 0.55;
    view.line(context, view.cursor.x, wanted, theme.ink);
    context.globalAlpha = 1;
  }
}
