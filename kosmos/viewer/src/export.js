// The current view as a file: PNG of what is on the screen, SVG with spans as shapes where they are known one by one.

import { rowsOnScreen } from "./lanes.js";
import { labelOf } from "./overlay.js";
import { ROLES } from "./page.js";
import { factsOf } from "./shell.js";
import { inkOn, PALETTE } from "./theme.js";
import { duration, percent, timeTicks } from "./time.js";
import { GUTTER } from "./view.js";

const HEAD = 48; // px for title and facts
const FOOT = 30; // ... and for the legend

export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const titleOf = (view) => view.meta.traces.map((trace) => trace.title).join("  vs  ");

const sharesOf = (view) => Object.entries(view.meta.traces[0]?.summary.shares ?? {});

export async function pngOf(view) {
  const ratio = Math.max(2, view.ratio);
  const width = view.root.clientWidth;
  const axis = view.axisPlot.clientHeight;
  const lanes = view.height;
  const ranges = view.rangesNode.hidden ? 0 : view.rangesNode.clientHeight;
  const counters = view.countersNode.hidden ? 0 : view.countersNode.clientHeight;
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round((HEAD + axis + ranges + lanes + counters + FOOT) * ratio);
  const context = canvas.getContext("2d");
  const { theme } = view;
  context.scale(ratio, ratio);
  context.fillStyle = theme.backgroundText;
  context.fillRect(0, 0, width, canvas.height);
  context.fillStyle = theme.ink;
  context.font = `600 15px ${theme.font}`;
  context.textBaseline = "alphabetic";
  context.fillText(titleOf(view), 10, 21);
  context.font = `12px ${theme.font}`;
  context.fillStyle = theme.soft;
  context.fillText(factsOf(view).join("  ·  "), 10, 39);
  const put = (source, x, y, w, h) => source.width && source.height && context.drawImage(source, x, y, w, h);
  const cursor = view.cursor;
  view.cursor = null; // no part of the picture
  view.draw();
  put(view.axis, GUTTER, HEAD, view.axisPlot.clientWidth, axis);
  if (ranges) put(view.ranges2d, 0, HEAD + axis, view.rangesNode.clientWidth, ranges);
  const top = HEAD + axis + ranges;
  put(view.base2d, 0, top, view.lanesNode.clientWidth, lanes);
  put(view.over2d, 0, top, view.lanesNode.clientWidth, lanes);
  if (counters) put(view.charts2d, 0, top + lanes, view.countersNode.clientWidth, counters);
  context.font = `12px ${theme.font}`;
  context.textBaseline = "middle";
  if (view.tab === "lanes") {
    for (const [text, y] of groupNames(view)) {
      context.fillStyle = theme.ink;
      context.textAlign = "left";
      context.fillText(text, 10, top + y);
    }
  }
  let x = GUTTER;
  const y = top + lanes + counters + FOOT / 2;
  for (const [kind, share] of sharesOf(view)) {
    context.fillStyle = kind === "idle" ? theme.backgroundText : PALETTE[kind];
    context.fillRect(x, y - 6, 11, 11);
    context.strokeStyle = theme.line;
    if (kind === "idle") context.strokeRect(x + 0.5, y - 5.5, 10, 10);
    const text = `${kind} ${percent(share)}`;
    context.fillStyle = theme.ink;
    context.fillText(text, x + 16, y);
    x += context.measureText(text).width + 36;
  }
  view.cursor = cursor;
  view.redraw();
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Names at the left of what is in view, as [text, y]; headings of compared traces among them. */
function groupNames(view) {
  const names = [];
  for (const block of view.layout.blocks) {
    const top = Math.max(block.y, view.layout.pinned);
    if (block.kind === "head") names.push([view.headNodes[block.trace].innerText.replace(/\s+/g, " "), block.y + 13]);
    else if (block.g !== undefined && block.y + block.h > top && top < view.height) {
      const group = view.layout.groups[block.g];
      names.push([`rank ${group.rank}`, top + Math.min(10, block.h / 2)]);
    }
  }
  return names.filter(([, y]) => y > 0 && y < view.height);
}

// XML has no word for most control characters
const escaped = (text) =>
  String(text)
    .replace(/[\0-\x08\v\f\x0e-\x1f]/g, "�")
    .replace(/[&<>"]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[letter]);

export function svgOf(view) {
  const { theme, layout, ratio } = view;
  const cursor = view.cursor;
  view.cursor = null;
  view.draw();
  const width = view.root.clientWidth;
  const plot = view.width;
  const axis = 26;
  const counters = view.countersNode.hidden ? 0 : view.countersNode.clientHeight;
  const ranges = view.rangesNode.hidden ? 0 : view.rangesNode.clientHeight;
  const top = HEAD + axis + ranges;
  const height = top + view.height + counters + FOOT;
  const parts = [];
  const n = (value) => Number(value.toFixed(2));
  const text = (x, y, string, more = "") =>
    parts.push(`<text x="${n(x)}" y="${n(y)}" ${more}>${escaped(string)}</text>`);
  const rect = (x, y, w, h, fill, more = "") =>
    parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="${fill}" ${more}/>`);
  const ink = `fill="${theme.ink}"`;
  const soft = `fill="${theme.soft}"`;
  rect(0, 0, width, height, theme.backgroundText);
  text(10, 21, titleOf(view), `${ink} font-size="15" font-weight="600"`);
  text(10, 39, factsOf(view).join("  ·  "), soft);

  if (ranges)
    parts.push(
      `<image x="0" y="${HEAD + axis}" width="${width}" height="${ranges}" href="${view.ranges2d.toDataURL()}"/>`,
    );
  const { offset, ticks } = timeTicks(view.t0, view.t1, plot / 95);
  for (const { t, label } of ticks) {
    const x = view.xOf(t);
    parts.push(
      `<line x1="${n(x)}" x2="${n(x)}" y1="${HEAD + axis - 6}" y2="${n(top + view.height)}" stroke="${theme.line}" stroke-width="0.6"/>`,
    );
    if (x < width - 40) text(x + 3, HEAD + axis - 9, label, soft);
  }
  text(10, HEAD + axis - 9, offset ? `time, ${offset}` : "time", soft);

  const exact = view.tab === "lanes" && view.sharp ? view.picture?.exact : null;
  const own = exact && layout.rows.every((row) => row.lane >= 0);
  if (own) {
    const place = rowsOnScreen(view);
    const clip = (x) => Math.max(GUTTER, Math.min(GUTTER + plot, x));
    parts.push(
      `<clipPath id="lanes"><rect x="0" y="${top}" width="${width}" height="${view.height}"/></clipPath><g clip-path="url(#lanes)">`,
    );
    const gap = layout.lane >= 6 ? 1 : 0;
    for (let i = 0; i < exact.length; i++) {
      const row = place(exact.lane[i]);
      if (!row || row.y1 <= row.y0) continue;
      const bar = (from, to, colour, more) => {
        const x0 = clip(view.xOf(from));
        const x1 = clip(view.xOf(to));
        if (x1 > x0) rect(x0, top + row.y0, x1 - x0, row.y1 - row.y0 - gap, colour.slice(0, 7), more);
      };
      bar(exact.claim[i], exact.start[i], PALETTE.wait, 'fill-opacity="0.6"');
      bar(exact.start[i], exact.end[i], PALETTE[ROLES[exact.role[i]]], "");
      const from = clip(view.xOf(exact.start[i])) + 3;
      const label = labelOf(exact, i, clip(view.xOf(exact.end[i])) - from - 2);
      if (row.y1 - row.y0 >= 11 && label) {
        text(from, top + (row.y0 + row.y1) / 2 + 3.5, label, `fill="${inkOn(exact.role[i])}" font-size="10"`);
      }
      if (exact.bad[i]) {
        const x0 = clip(view.xOf(exact.low(i)));
        rect(
          x0,
          top + row.y0,
          Math.max(2, clip(view.xOf(exact.high(i))) - x0),
          row.y1 - row.y0,
          "none",
          `stroke="${theme.warn}" stroke-dasharray="3 2"`,
        );
      }
    }
    parts.push("</g>");
  } else {
    parts.push(
      `<image x="0" y="${top}" width="${view.lanesNode.clientWidth}" height="${view.height}" preserveAspectRatio="none" href="${view.base2d.toDataURL()}"/>`,
    );
  }
  if (view.tab === "lanes") {
    for (const [name, y] of groupNames(view)) text(10, top + y + 4, name, ink);
    if (layout.lane >= 11) {
      for (const row of layout.rows) {
        if (row.lane < 0 || row.y1 > (view.height + 2) * ratio) continue;
        const trace = view.traceOf(row.lane);
        text(
          GUTTER - 5,
          top + (row.y0 + row.y1) / 2 / ratio + 3.5,
          (row.lane - trace.first_lane) % trace.workgroups,
          `${soft} font-size="10" text-anchor="end"`,
        );
      }
    }
  } else {
    for (const queue of view.queues) {
      text(10, top + queue.y + 12, ROLES[queue.role], ink);
      text(GUTTER - 5, top + queue.y + 10, `item ${queue.first}`, `${soft} font-size="10" text-anchor="end"`);
      text(GUTTER - 5, top + queue.y + queue.h - 2, String(queue.last), `${soft} font-size="10" text-anchor="end"`);
    }
  }
  if (view.region)
    rect(
      view.xOf(view.region.t0),
      top,
      view.xOf(view.region.t1) - view.xOf(view.region.t0),
      view.height,
      theme.accent,
      'fill-opacity="0.12"',
    );
  let y = top + view.height;
  const shown = view.chartsShown;
  const total = shown.reduce((sum, chart) => sum + (chart.unit === "workgroups" ? 56 : 38), 0);
  for (const chart of shown) {
    const h = ((chart.unit === "workgroups" ? 56 : 38) / total) * counters;
    let high = -Infinity;
    let low = chart.unit === "workgroups" ? 0 : Infinity;
    for (const line of chart.lines) {
      for (const value of line.mean) {
        if (!Number.isFinite(value)) continue;
        high = Math.max(high, value);
        low = Math.min(low, value);
      }
    }
    if (!Number.isFinite(low)) low = 0;
    if (!(high > low)) high = low + 1;
    const small = h < 25; // no room for a second line
    text(10, y + 13, small && chart.under !== chart.title ? `${chart.title} ${chart.under}` : chart.title, small ? `${ink} font-size="10"` : ink);
    if (!small && chart.under !== chart.title) text(10, y + 26, chart.under, `${soft} font-size="10"`);
    text(
      GUTTER - 5,
      y + 11,
      high.toLocaleString("en-US", { maximumFractionDigits: 1 }),
      `${soft} font-size="10" text-anchor="end"`,
    );
    if (h >= 22) {
      text(
        GUTTER - 5,
        y + h - 3,
        low.toLocaleString("en-US", { maximumFractionDigits: 1 }),
        `${soft} font-size="10" text-anchor="end"`,
      );
    }
    for (const line of chart.lines) {
      const size = line.mean.length;
      const step = (view.counters.t1 - view.counters.t0) / size;
      const points = [];
      for (let i = 0; i < size; i++) {
        const x = view.xOf(view.counters.t0 + (i + 0.5) * step);
        if (Number.isFinite(line.mean[i]) && x >= GUTTER && x <= GUTTER + plot)
          points.push(`${n(x)},${n(y + h - 3 - ((line.mean[i] - low) / (high - low)) * (h - 8))}`);
      }
      parts.push(
        `<polyline points="${points.join(" ")}" fill="none" stroke="${line.colour.slice(0, 7)}" stroke-width="1.2" stroke-dasharray="${line.dash.join(" ")}"/>`,
      );
    }
    parts.push(`<line x1="0" x2="${width}" y1="${n(y)}" y2="${n(y)}" stroke="${theme.line}"/>`);
    y += h;
  }
  let x = GUTTER;
  for (const [kind, share] of sharesOf(view)) {
    const colour = kind === "idle" ? theme.backgroundText : PALETTE[kind].slice(0, 7);
    rect(
      x,
      height - FOOT / 2 - 6,
      11,
      11,
      colour,
      kind === "wait" ? 'fill-opacity="0.6"' : kind === "idle" ? `stroke="${theme.line}"` : "",
    );
    const label = `${kind} ${percent(share)}`;
    text(x + 16, height - FOOT / 2 + 4, label, ink);
    x += 7 * label.length + 40;
  }
  view.cursor = cursor;
  view.redraw();
  const title = `${titleOf(view)}, ${duration(view.t1 - view.t0)} from ${duration(view.t0)}`;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${n(height)}" viewBox="0 0 ${width} ${n(height)}" font-family="system-ui, sans-serif" font-size="12"><title>${escaped(title)}</title>${parts.join("")}</svg>`;
}
