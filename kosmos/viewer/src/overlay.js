// What is drawn over the picture of the lanes: borders and labels of spans, marks, arrows, the selection.

import { ROLES } from "./page.js";
import { duration } from "./time.js";
import { PALETTE, inkOn } from "./theme.js";

const LABEL = 10; // px of text

const INK = ROLES.map((_, role) => inkOn(role));

/** What a span is called in so much room; null if there is too little. */
export function labelOf(exact, i, room) {
  const item = String(exact.item[i]);
  const long = `${ROLES[exact.role[i]]} ${item}`;
  return room > 6.2 * long.length ? long : room > 14 && room > 6.4 * item.length ? item : null;
}

/** Borders between spans, labels, hatched waits, bad marks: from spans that are known one by one. */
export function drawSpans(context, theme, { exact, place, xOf, width, left, top }) {
  context.font = `${LABEL}px ${theme.font}`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (let i = 0; i < exact.length; i++) {
    const low = exact.low(i);
    const high = exact.high(i);
    const x0 = xOf(low);
    const x1 = xOf(high);
    if (x1 < left - 2 || x0 > left + width + 2) continue;
    const row = place(exact.lane[i]);
    if (!row || row.y1 <= top) continue;
    const h = row.y1 - row.y0;
    const start = xOf(exact.start[i]);
    const end = xOf(exact.end[i]);
    if (exact.bad[i]) {
      drawBad(context, theme, Math.max(x0, left - 2), Math.min(Math.max(x1, x0 + 3), left + width + 2), row.y0, h);
    }
    if (h < 4) continue;
    // a hairline of background between neighbours
    if (end - start > 5) {
      context.fillStyle = theme.backgroundText;
      context.globalAlpha = 0.8;
      context.fillRect(end - 0.75, row.y0, 0.75, h);
      context.globalAlpha = 1;
    }
    if (h >= 7 && start - x0 > 5) hatch(context, theme, Math.max(x0, left), Math.min(start, left + width), row.y0, h);
    if (h >= 11) {
      const from = Math.max(start, left) + 3;
      const room = Math.min(end, left + width) - from - 2;
      const text = labelOf(exact, i, room);
      if (text) {
        context.fillStyle = INK[exact.role[i]];
        context.fillText(text, from, row.y0 + h / 2 + 0.5);
      }
    }
  }
}

function hatch(context, theme, x0, x1, y, h) {
  context.save();
  context.beginPath();
  context.rect(x0, y, x1 - x0, h);
  context.clip();
  context.strokeStyle = theme.dark ? "rgba(255,255,255,0.28)" : "rgba(0,0,0,0.25)";
  context.lineWidth = 1;
  context.beginPath();
  const step = 5;
  for (let x = Math.floor((x0 - h) / step) * step; x < x1; x += step) {
    context.moveTo(x, y + h);
    context.lineTo(x + h, y);
  }
  context.stroke();
  context.restore();
}

function drawBad(context, theme, x0, x1, y, h) {
  context.save();
  context.strokeStyle = theme.warn;
  context.lineWidth = 1.5;
  context.setLineDash([3, 2]);
  context.strokeRect(x0 + 0.5, y + 0.75, Math.max(2, x1 - x0 - 1), Math.max(1, h - 1.5));
  context.restore();
}

/** A curve with a head from the end of one span to the start of another; ends outside stay at the edge, marked. */
export function drawArrow(context, colour, from, to, frame) {
  const a = clamp(from, frame);
  const b = clamp(to, frame);
  // both ends beyond the same edge: nothing of it is in view
  if (a.side && a.side === b.side) return;
  const bend = Math.max(14, Math.min(70, Math.abs(b.x - a.x) / 2));
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(a.x, a.y);
  context.bezierCurveTo(a.x + bend, a.y, b.x - bend, b.y, b.x, b.y);
  context.stroke();
  if (b.side) edge(context, b);
  else {
    context.beginPath();
    context.moveTo(b.x + 1, b.y);
    context.lineTo(b.x - 6, b.y - 3.5);
    context.lineTo(b.x - 6, b.y + 3.5);
    context.fill();
  }
  if (a.side) edge(context, a);
  else {
    context.beginPath();
    context.arc(a.x, a.y, 2.2, 0, 7);
    context.fill();
  }
}

function clamp({ x, y }, { left, right, top, bottom }) {
  const side = x < left ? "left" : x > right ? "right" : y < top ? "top" : y > bottom ? "bottom" : null;
  return { x: Math.max(left + 4, Math.min(right - 4, x)), y: Math.max(top + 4, Math.min(bottom - 4, y)), side };
}

function edge(context, { x, y, side }) {
  const [dx, dy] = { left: [-1, 0], right: [1, 0], top: [0, -1], bottom: [0, 1] }[side];
  context.beginPath();
  context.moveTo(x + 4 * dx, y + 4 * dy);
  context.lineTo(x - 3 * dx + 4 * dy, y - 3 * dy + 4 * dx);
  context.lineTo(x - 3 * dx - 4 * dy, y - 3 * dy - 4 * dx);
  context.fill();
}

/** The rectangle of a span with a border that stands out on any colour. */
export function outline(context, theme, x0, x1, y, h, colour = theme.ink) {
  const w = Math.max(3, x1 - x0);
  context.strokeStyle = theme.backgroundText;
  context.lineWidth = 4;
  context.strokeRect(x0 - 0.5, y - 0.5, w + 1, h + 1);
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.strokeRect(x0 - 0.5, y - 0.5, w + 1, h + 1);
}

/** The lines of a measurement and its length. */
export function drawMeasure(context, theme, x0, x1, t0, t1, y, height) {
  context.strokeStyle = theme.accent;
  context.fillStyle = theme.accent;
  context.lineWidth = 1;
  for (const x of [x0, x1]) {
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, 0);
    context.lineTo(Math.round(x) + 0.5, height);
    context.stroke();
  }
  context.globalAlpha = 0.08;
  context.fillRect(Math.min(x0, x1), 0, Math.abs(x1 - x0), height);
  context.globalAlpha = 1;
  context.beginPath();
  context.moveTo(x0, y);
  context.lineTo(x1, y);
  context.stroke();
  const text = duration(Math.abs(t1 - t0));
  context.font = `600 12px ${theme.font}`;
  const w = context.measureText(text).width + 12;
  const x = (x0 + x1) / 2 - w / 2;
  context.fillStyle = theme.backgroundText;
  context.fillRect(x, y - 10, w, 20);
  context.strokeRect(x + 0.5, y - 9.5, w - 1, 19);
  context.fillStyle = theme.ink;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, x + 6, y + 1);
}

export const colourOf = (role) => PALETTE[ROLES[role]];
