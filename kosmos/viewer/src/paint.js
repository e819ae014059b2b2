// Coverage as colours: a pixel has the mixture that its stretch of time and its lanes were made of.

import { PALETTE, nameOf, rgba } from "./theme.js";

/** planes: uint8[kinds][rows][width]; a canvas of rows × width pixels. */
export function paint(kinds, planes, rows, width, background) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, width);
  canvas.height = Math.max(1, rows);
  if (!rows || !width) return canvas;
  const image = new ImageData(width, rows);
  const out = image.data;
  const pixels = rows * width;
  const tables = kinds.map((kind) => {
    const [r, g, b, alpha] = rgba(PALETTE[nameOf(kind)]);
    const table = new Float32Array(768);
    for (let cover = 0; cover < 256; cover++) {
      [r, g, b].forEach((value, c) => (table[3 * cover + c] = (cover / 255) * alpha * (value - background[c])));
    }
    return table;
  });
  const [r0, g0, b0] = background;
  for (let i = 0; i < pixels; i++) {
    let r = r0;
    let g = g0;
    let b = b0;
    for (let k = 0; k < tables.length; k++) {
      const cover = planes[k * pixels + i];
      if (cover) {
        const table = tables[k];
        r += table[3 * cover];
        g += table[3 * cover + 1];
        b += table[3 * cover + 2];
      }
    }
    out[4 * i] = r;
    out[4 * i + 1] = g;
    out[4 * i + 2] = b;
    out[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** An answer to `picture` as what is drawn: its canvas, and its spans one by one if they came along. */
export class Picture {
  constructor(request, rowOf, [answer, buffers], background) {
    Object.assign(this, { t0: request.t0, t1: request.t1, rowOf, rows: answer.rows, width: answer.width });
    this.kinds = answer.kinds;
    this.planes = new Uint8Array(buffers[0]);
    this.exact = answer.spans === null || buffers.length < 9 ? null : new ExactSpans(buffers.slice(1));
    this.repaint(background);
  }

  repaint(background) {
    this.canvas = paint(this.kinds, this.planes, this.rows, this.width, background);
  }
}

export class ExactSpans {
  constructor(buffers) {
    const types = [Int32Array, Int32Array, Int32Array, Uint8Array, Uint8Array, Float64Array, Float64Array, Float64Array];
    ["index", "lane", "item", "role", "bad", "claim", "start", "end"].forEach((name, i) => (this[name] = new types[i](buffers[i])));
    this.length = this.index.length;
  }

  get(i) {
    const span = {};
    for (const name of ["index", "lane", "item", "role", "bad", "claim", "start", "end"]) span[name] = this[name][i];
    return span;
  }

  low(i) {
    return Math.min(this.claim[i], this.start[i], this.end[i]);
  }

  high(i) {
    return Math.max(this.claim[i], this.start[i], this.end[i]);
  }

  byLane() {
    if (!this.lanes) {
      this.lanes = new Map();
      for (let i = 0; i < this.length; i++) {
        const list = this.lanes.get(this.lane[i]);
        if (list) list.push(i);
        else this.lanes.set(this.lane[i], [i]);
      }
    }
    return this.lanes;
  }

  /** The span of a lane at `t`, else the nearest within `near`; null if there is none. */
  at(lane, t, near) {
    let best = -1;
    let distance = near;
    for (const i of this.byLane().get(lane) ?? []) {
      const low = this.low(i);
      const high = this.high(i);
      const off = t < low ? low - t : t >= high ? t - high : 0;
      if (off <= distance) {
        best = i;
        distance = off;
      }
    }
    return best < 0 ? null : this.get(best);
  }
}

/** The small picture of the whole run that the notebook keeps. */
export class Overview {
  constructor(rows, width, planes, meta) {
    Object.assign(this, { rows, width, planes });
    this.lanes = meta.lanes;
    this.length = Math.max(1, ...meta.traces.map((trace) => trace.length_ns));
    this.kinds = [0, 1, 2, 3, 4, 5, 6];
    this.groups = meta.traces.flatMap((trace) =>
      Array.from({ length: trace.ranks }, (_, rank) => [trace.first_lane + rank * trace.workgroups, trace.workgroups]),
    );
  }

  /** Its rows, and below them the mean of each rank for when it is folded. */
  repaint(background) {
    const { rows, width, planes } = this;
    const all = rows + this.groups.length;
    const more = new Uint8Array(7 * all * width);
    for (let k = 0; k < 7; k++) {
      more.set(planes.subarray(k * rows * width, (k + 1) * rows * width), k * all * width);
      this.groups.forEach(([lane, lanes], g) => {
        const first = this.rowOf(lane);
        const last = this.rowOf(lane + lanes - 1);
        for (let x = 0; x < width; x++) {
          let sum = 0;
          for (let row = first; row <= last; row++) sum += planes[(k * rows + row) * width + x];
          more[(k * all + rows + g) * width + x] = sum / (last - first + 1);
        }
      });
    }
    this.canvas = paint(this.kinds, more, all, width, background);
  }

  rowOf(lane) {
    return Math.min(this.rows - 1, Math.floor((lane * this.rows) / this.lanes));
  }
}
