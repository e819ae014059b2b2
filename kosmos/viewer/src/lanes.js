// The lanes on the screen: the picture below, over it spans, arrows, what is selected and what is measured.

import { drawArrow, drawMeasure, drawSpans, outline } from "./overlay.js";
import { ROLES } from "./page.js";
import { PALETTE } from "./theme.js";
import { GUTTER } from "./view.js";

const colours = ROLES.map((role) => PALETTE[role]);

export function drawLanes(view) {
  const [context] = view.prepare(view.base2d);
  const { ratio, layout, theme } = view;
  const left = Math.round(GUTTER * ratio);
  const right = view.base2d.width;
  context.imageSmoothingEnabled = false;
  context.fillStyle = theme.backgroundText;
  context.fillRect(0, 0, right, view.base2d.height);
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left, view.base2d.height);
  context.clip();
  const picture = view.picture;
  const same = picture && sameRows(picture.rowOf, layout.rowOf);
  const covers = picture && picture.t0 <= view.t0 && picture.t1 >= view.t1;
  if (view.overview && !(same && covers)) {
    // what is known of the whole run, under what is known of this window
    const { rows } = view.overview;
    blit(view, context, view.overview.canvas, 0, view.overview.length, (row) =>
      row.block.kind === "fold" ? rows + row.block.g : view.overview.rowOf(row.first),
    );
  }
  if (picture) {
    blit(
      view,
      context,
      picture.canvas,
      picture.t0,
      picture.t1,
      same ? (_, i) => i : (row) => oldRow(view, picture, row),
    );
  }
  context.restore();
  view.sharp = same && picture.t0 === view.t0 && picture.t1 === view.t1;
  view.base2d.dataset.sharp = String(!!view.sharp);
}

function oldRow(view, picture, row) {
  const old = picture.rowOf[row.first];
  if (row.block.kind !== "fold" && row.lane < 0) return old;
  // a folded rank is the mixture of its lanes: only a row of just these will do
  const shared = (picture.shared ??= sharedRows(picture.rowOf));
  return old >= 0 && shared[old] === row.block.lanes.length
    ? old
    : row.lane >= 0 && old >= 0 && shared[old] === 1
      ? old
      : -1;
}

/** Draws rows of a canvas that shows [t0, t1) to where they are now; neighbours of equal height together. */
function blit(view, context, canvas, t0, t1, sourceOf) {
  const { ratio, layout } = view;
  const left = Math.round(GUTTER * ratio);
  const width = view.base2d.width - left;
  const size = view.t1 - view.t0;
  const exact = t0 === view.t0 && t1 === view.t1;
  const x = exact ? left : left + ((t0 - view.t0) / size) * width;
  const w = exact ? width : ((t1 - t0) / size) * width;
  // Only what is in view: a canvas does not like to be drawn a million pixels wide.
  const from = Math.max(0, Math.floor(((left - x) / w) * canvas.width) - 1);
  const to = Math.min(canvas.width, Math.ceil(((left + width - x) / w) * canvas.width) + 1);
  if (to <= from) return;
  const dx = x + (from / canvas.width) * w;
  const dw = ((to - from) / canvas.width) * w;
  const rows = layout.rows;
  const top = Math.round(layout.pinned * ratio);
  let run = null;
  const flush = () => {
    if (run && run.source >= 0) {
      context.drawImage(
        canvas,
        from,
        run.source,
        to - from,
        run.stretch ? 1 : run.count,
        dx,
        run.y0,
        dw,
        run.y1 - run.y0,
      );
    }
  };
  for (let i = 0; i < rows.length; i++) {
    const row = rows[i];
    const source = sourceOf(row, i);
    const cut = row.block.kind !== "pin" && row.y0 < top;
    if (run && !cut && run.y1 === row.y0) {
      if (source === run.source && run.count === 1) {
        run.y1 = row.y1;
        run.stretch = true;
        continue;
      }
      if (!run.stretch && source === run.source + run.count && row.y1 - row.y0 === run.tall && run.source >= 0) {
        run.y1 = row.y1;
        run.count++;
        continue;
      }
    }
    flush();
    // a row that scrolls under the pinned lanes keeps only its lower part
    run = {
      y0: cut ? Math.min(top, row.y1) : row.y0,
      y1: row.y1,
      source,
      count: 1,
      tall: cut ? -1 : row.y1 - row.y0,
      stretch: false,
    };
  }
  flush();
}

export function rowsOnScreen(view) {
  const { layout, ratio } = view;
  return (lane) => {
    const row = layout.rows[layout.rowOf[lane]];
    return row && row.lane === lane
      ? { y0: Math.max(row.y0 / ratio, row.block.kind === "pin" ? 0 : layout.pinned), y1: row.y1 / ratio }
      : null;
  };
}

export function drawOver(view) {
  const [context, , height] = view.prepare(view.over2d);
  const { ratio, layout, theme, width } = view;
  context.scale(ratio, ratio);
  const xOf = (t) => view.xOf(t);
  context.save();
  context.beginPath();
  context.rect(GUTTER, 0, width, height);
  context.clip();
  drawBounds(view, context, height);
  if (layout.lane >= 6) {
    context.fillStyle = theme.backgroundText;
    for (const row of layout.rows) {
      if (row.block.kind === "group") context.fillRect(GUTTER, row.y1 / ratio - 1, width, 1);
    }
  }
  const exact = view.picture?.exact;
  if (exact) {
    drawSpans(context, theme, { exact, place: rowsOnScreen(view), xOf, width, left: GUTTER, top: 0 });
  }
  drawChain(view, context, height);
  drawMatches(view, context);
  drawSelected(view, context, height);
  drawRegion(view, context, height);
  drawMarks(view, context, height);
  context.restore();
  drawLaneNames(view, context);
}

/** Time before the launch and after the end is no part of the run. */
export function drawBounds(view, context, height) {
  const { theme } = view;
  context.fillStyle = theme.faint;
  const a = view.xOf(0);
  const b = view.xOf(view.length);
  if (a > GUTTER) context.fillRect(GUTTER, 0, a - GUTTER, height);
  if (b < GUTTER + view.width) context.fillRect(b, 0, GUTTER + view.width - b, height);
}

function drawLaneNames(view, context) {
  const { layout, theme, ratio } = view;
  context.font = `10px ${theme.font}`;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const every = layout.lane >= 11 ? 1 : 0;
  for (const row of layout.rows) {
    const pin = row.block.kind === "pin";
    if (!pin && (!every || row.lane < 0)) continue;
    const y = (row.y0 + row.y1) / 2 / ratio;
    if (!pin && y < layout.pinned) continue;
    const trace = view.traceOf(row.lane);
    const lane = row.lane - trace.first_lane;
    const active = row.lane === view.selected?.lane || row.lane === view.cursor?.lane;
    context.fillStyle = active ? theme.ink : theme.soft;
    const text = pin
      ? `rank ${Math.floor(lane / trace.workgroups)} · wg ${lane % trace.workgroups}`
      : String(lane % trace.workgroups);
    context.fillText(text, GUTTER - 6, y + 0.5);
  }
  if (layout.pins.length) {
    context.fillStyle = theme.line;
    context.fillRect(0, layout.pinned - 2, GUTTER + view.width, 1);
  }
}

function drawChain(view, context, height) {
  if (!view.chain) return;
  const { theme } = view;
  context.fillStyle = theme.veil;
  context.fillRect(GUTTER, 0, view.width, height);
  const byIndex = new Map(view.chain.spans.map((span) => [span.index, span]));
  for (const span of view.chain.spans) {
    const rect = view.rectOf(span);
    const { x0, x1, xs } = rect;
    const h = Math.max(5, rect.h); // thin lanes or not, the chain is to be seen
    const y = rect.y + (rect.h - h) / 2;
    if (!view.inView({ y, h }) || x1 < GUTTER || x0 > GUTTER + view.width) continue;
    context.fillStyle = PALETTE.wait;
    context.fillRect(x0, y, xs - x0, h);
    context.fillStyle = colours[span.role];
    context.fillRect(xs, y, Math.max(1, x1 - xs), h);
    context.strokeStyle = theme.ink;
    context.lineWidth = 1;
    if (x1 - x0 > 3) context.strokeRect(x0, y, x1 - x0, h);
  }
  const frame = view.frame2d(height);
  for (const [from, to, kind] of view.chain.edges) {
    const a = byIndex.get(from);
    const b = byIndex.get(to);
    if (!a || !b) continue;
    const ra = view.rectOf(a);
    const rb = view.rectOf(b);
    const ya = ra.y + ra.h / 2;
    const yb = rb.y + rb.h / 2;
    if (kind === "wait") {
      drawArrow(context, theme.ink, { x: view.xOf(a.end), y: ya }, { x: rb.xs, y: yb }, frame);
    } else {
      context.strokeStyle = theme.ink;
      context.lineWidth = 2;
      context.beginPath();
      context.moveTo(view.xOf(a.end), ya);
      context.lineTo(rb.x0, yb);
      context.stroke();
    }
  }
}

function drawMatches(view, context) {
  if (!view.found?.matches.length) return;
  const { theme } = view;
  context.strokeStyle = context.fillStyle = theme.warn;
  view.found.matches.forEach((span, i) => {
    const { x0, x1, y, h } = view.rectOf(span);
    if (!view.inView({ y, h }) || x1 < GUTTER || x0 > GUTTER + view.width) return;
    context.lineWidth = i === view.found.at ? 2.5 : 1;
    if (h >= 5) context.strokeRect(x0, y, Math.max(2, x1 - x0), h);
    else context.fillRect(x0, y - 0.5, 1.5, Math.max(2, h));
  });
}

function drawSelected(view, context, height) {
  const span = view.selected;
  if (!span) return;
  const { theme } = view;
  const rect = view.rectOf(span);
  if (!view.chain && span.waits_for) {
    const frame = view.frame2d(height);
    const me = rect.y + rect.h / 2;
    const middle = (one) => {
      const { y, h } = view.layout.place(one.lane);
      return y + h / 2;
    };
    for (const one of span.signals.slice(0, 300)) {
      drawArrow(
        context,
        theme.soft,
        { x: view.xOf(span.end), y: me },
        { x: view.xOf(one.start), y: middle(one) },
        frame,
      );
    }
    for (const one of span.waits_for.slice(0, 300)) {
      const last = one.index === span.released?.index;
      if (!last) drawArrow(context, theme.soft, { x: view.xOf(one.end), y: middle(one) }, { x: rect.xs, y: me }, frame);
    }
    if (span.released) {
      drawArrow(
        context,
        theme.warn,
        { x: view.xOf(span.released.end), y: middle(span.released) },
        { x: rect.xs, y: me },
        frame,
      );
    }
  }
  if (view.inView(rect))
    outline(
      context,
      theme,
      rect.x0,
      rect.x1,
      Math.max(rect.y, view.layout.pins.includes(span.lane) ? 0 : view.layout.pinned),
      rect.h,
    );
}

function drawRegion(view, context, height) {
  const region = view.dragged ?? view.region;
  if (!region) return;
  const { theme, layout } = view;
  const x0 = view.xOf(region.t0);
  const x1 = view.xOf(region.t1);
  context.fillStyle = theme.accent;
  context.strokeStyle = theme.accent;
  context.lineWidth = 1;
  const strips = [];
  if (!region.lanes) {
    strips.push([0, height]);
  } else {
    const set = (region.set ??= new Set(region.lanes));
    for (const row of layout.rows) {
      const chosen = row.block.kind === "fold" ? row.block.lanes.some((lane) => set.has(lane)) : set.has(row.first);
      if (!chosen) continue;
      const last = strips.at(-1);
      const y0 = row.y0 / view.ratio;
      if (last && y0 - last[1] <= 4) last[1] = row.y1 / view.ratio;
      else strips.push([y0, row.y1 / view.ratio]);
    }
  }
  for (const [a, b] of strips) {
    context.globalAlpha = 0.14;
    context.fillRect(x0, a, x1 - x0, b - a);
    context.globalAlpha = 1;
    context.strokeRect(
      Math.round(x0) + 0.5,
      Math.round(a) + 0.5,
      Math.max(1, Math.round(x1 - x0) - 1),
      Math.max(1, Math.round(b - a) - 1),
    );
  }
}

export function drawMarks(view, context, height) {
  const { theme } = view;
  if (view.sort === "role" && view.sortTime !== undefined) {
    context.setLineDash([2, 3]);
    view.line(context, view.xOf(view.sortTime), height, theme.soft);
    context.setLineDash([]);
  }
  const cursor = view.cursor;
  if (cursor && cursor.x >= GUTTER) {
    context.globalAlpha = 0.55;
    view.line(context, cursor.x, height, theme.ink);
    context.globalAlpha = 1;
  }
  const measure = view.measure;
  if (measure) {
    const b = measure.b ?? cursor?.t ?? measure.a;
    drawMeasure(
      context,
      theme,
      view.xOf(measure.a),
      view.xOf(b),
      measure.a,
      b,
      Math.min(height - 14, Math.max(14, measure.y ?? 30)),
      height,
    );
  }
}

function sameRows(a, b) {
  if (!a || a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** How many lanes each row of a picture has. */
function sharedRows(rowOf) {
  const shared = [];
  for (const row of rowOf) if (row >= 0) shared[row] = (shared[row] ?? 0) + 1;
  return shared;
}
