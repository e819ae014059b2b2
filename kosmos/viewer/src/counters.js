// Lines under the lanes, on the same axis of time.

import { nice, ticks } from "d3-array";
import { count } from "./time.js";
import { PALETTE } from "./theme.js";

// Of recorded counters; told apart by their dashes too.
const LINES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"];
const DASHES = [[], [5, 3], [1.5, 2.5], [7, 2, 1.5, 2]];
export const CHART = 56;
export const SMALL = 38;

/** An answer to `counters` as charts: [{key, title, unit, lines: [{name, colour, dash, low, mean, high}]}]. */
export function charts(meta, [{ series }, buffers]) {
  const found = new Map();
  const compared = meta.traces.length > 1;
  series.forEach((one, s) => {
    const values = new Float32Array(buffers[s]);
    const width = values.length / 3;
    const occupancy = one.derived && one.unit === "workgroups";
    const key = occupancy ? `workgroups ${one.trace}` : one.derived ? "clock" : `${one.name} ${one.unit}`;
    const title = occupancy ? "workgroups" : one.name;
    if (!found.has(key))
      found.set(key, {
        key,
        title,
        under: occupancy && compared ? meta.traces[one.trace].title : one.unit,
        unit: one.unit,
        trace: one.trace,
        derived: one.derived,
        lines: [],
      });
    const chart = found.get(key);
    const n = chart.lines.length;
    chart.lines.push({
      name: occupancy
        ? one.name
        : [
            compared ? meta.traces[one.trace].title : null,
            one.rank === null || one.rank < 0 ? null : `rank ${one.rank}`,
          ]
            .filter(Boolean)
            .join(" "),
      colour: occupancy ? PALETTE[one.name] : LINES[n % LINES.length],
      dash: occupancy ? (one.name === "wait" ? DASHES[1] : []) : DASHES[Math.floor(n / LINES.length) % DASHES.length],
      step: one.step,
      low: values.subarray(0, width),
      mean: values.subarray(width, 2 * width),
      high: values.subarray(2 * width),
    });
  });
  const rank = (chart) => (chart.unit === "workgroups" ? 0 : chart.derived ? 1 : 2);
  return [...found.values()].sort((a, b) => rank(a) - rank(b));
}

/** As much of a text as is no wider than `width`. */
function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = Math.min(text.length, 60);
  while (length > 0 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return length > 0 ? `${text.slice(0, length)}…` : "";
}

/** Draws one chart into [y, y + h) of a canvas in css pixels; `map` puts the answer's window on the screen. */
export function drawChart(context, theme, chart, { x, width, y, h, map, cursor }) {
  let low = Infinity;
  let high = -Infinity;
  for (const line of chart.lines) {
    for (const value of line.low) if (value < low && Number.isFinite(value)) low = value;
    for (const value of line.high) if (value > high && Number.isFinite(value)) high = value;
  }
  const zero = chart.unit === "workgroups" || chart.unit === "W" || chart.unit === "%";
  if (zero) low = Math.min(0, low);
  if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = [0, 1];
  // what hardly changes is drawn flat, not blown up
  const least = chart.unit === "MHz" ? 0.02 * Math.abs(high) : 0;
  if (high - low <= least) [low, high] = [low - least / 2, high + least / 2];
  if (high === low) high = low + (Math.abs(low) * 0.1 || 1);
  [low, high] = nice(low, high, 3);
  const scale = (value) => y + h - 3 - ((value - low) / (high - low)) * (h - 8);

  context.save();
  context.font = `10px ${theme.font}`;
  context.textBaseline = "middle";
  context.strokeStyle = theme.faint;
  context.lineWidth = 1;
  const marks = ticks(low, high, h > 50 ? 3 : 2);
  context.fillStyle = theme.soft;
  context.textAlign = "right";
  let free = Infinity;
  for (const value of marks) {
    const at = Math.round(scale(value)) + 0.5;
    context.beginPath();
    context.moveTo(x, at);
    context.lineTo(x + width, at);
    context.stroke();
    const text = Math.min(y + h - 6, Math.max(y + 6, at));
    if (text > free - 11) continue;
    context.fillText(count(value), x - 5, text);
    free = text;
  }
  context.textAlign = "left";
  context.fillStyle = theme.ink;
  const title = shortened(context, chart.title, x - 44);
  context.fillText(title, 10, y + 9);
  context.fillStyle = theme.soft;
  if (chart.under !== chart.title) {
    // below the title, or where many charts leave no room for a second line, behind it
    const behind = h < 27 ? context.measureText(`${title} `).width : 0;
    context.fillText(shortened(context, chart.under, x - 44 - behind), 10 + behind, y + (behind ? 9 : 21));
  }

  context.beginPath();
  context.rect(x, y, width, h);
  context.clip();
  for (const line of chart.lines) {
    const n = line.mean.length;
    const [from, step] = map(n);
    context.fillStyle = line.colour;
    context.globalAlpha = 0.22;
    // between the least and the greatest of each pixel
    for (let i = 0; i < n; i++) {
      if (line.high[i] - line.low[i] > 0 && Number.isFinite(line.high[i] - line.low[i])) {
        const top = scale(line.high[i]);
        context.fillRect(from + i * step, top, Math.max(step, 0.5), scale(line.low[i]) - top);
      }
    }
    context.globalAlpha = 1;
    context.strokeStyle = line.colour.slice(0, 7);
    context.lineWidth = 1.4;
    context.lineJoin = "round";
    context.setLineDash(line.dash);
    context.beginPath();
    let pen = false;
    let last = 0;
    for (let i = 0; i < n; i++) {
      const value = line.mean[i];
      if (!Number.isFinite(value)) {
        pen = pen && line.step; // a held value goes on until the next
        continue;
      }
      const px = from + (i + 0.5) * step;
      if (!pen) context.moveTo(px, scale(value));
      else {
        if (line.step) context.lineTo(px, scale(last));
        context.lineTo(px, scale(value));
      }
      last = value;
      pen = true;
    }
    context.stroke();
  }
  context.setLineDash([]);
  if (cursor !== null) {
    context.font = `10px ${theme.font}`;
    const parts = chart.lines.map((line) => {
      const [from, step] = map(line.mean.length);
      const value = line.mean[Math.floor((cursor - from) / step)];
      return [line, value];
    });
    const right = cursor < x + width / 2;
    const texts = parts
      .filter(([, value]) => Number.isFinite(value))
      .map(([line, value]) => [
        line.colour.slice(0, 7),
        `${line.name ? `${line.name} ` : ""}${count(Math.round(value * 10) / 10)}`,
      ]);
    const total = texts.reduce((sum, [, text]) => sum + context.measureText(text).width + 18, 0);
    let at = right ? cursor + 6 : Math.max(x, cursor - 6 - total);
    context.fillStyle = theme.backgroundText;
    context.globalAlpha = 0.86;
    if (texts.length) context.fillRect(at - 3, y + 1, total, 14);
    context.globalAlpha = 1;
    for (const [colour, text] of texts) {
      context.fillStyle = colour;
      context.fillRect(at, y + 5, 7, 7);
      context.fillStyle = theme.ink;
      context.fillText(text, at + 10, y + 9);
      at += context.measureText(text).width + 18;
    }
  }
  context.restore();
}
