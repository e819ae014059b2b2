// Coverage as colours: a pixel has the mixture that its stretch of time and its lanes were made of.

import { PALETTE, nameOf, rgba } from "./theme.js";

/** planes: uint8[kinds][rows][width]; a canvas of rows × width pixels. */
export function paint(kinds, planes, rows, width, background) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, width);
  canvas.height = Math.max(1, rows);
  if (!rows || !width) return canvas;
  const image = new ImageData(width, rows);
  const out = new Uint32Array(image.data.buffer); // bytes r, g, b, alpha, as on every machine with a browser
  const pixels = rows * width;
  // what a kind adds to the background's colour at each coverage, in 1/256 of a level
  const tables = kinds.map((kind) => {
    const [r, g, b, alpha] = rgba(PALETTE[nameOf(kind)]);
    const table = new Int32Array(768);
    for (let cover = 0; cover < 256; cover++) {
      [r, g, b].forEach(
        (value, c) => (table[3 * cover + c] = Math.round((cover / 255) * alpha * (value - background[c]) * 256)),
      );
    }
    return table;
  });
  const shown = kinds.map((_, k) => planes.subarray(k * pixels, (k + 1) * pixels));
  const used = shown.map((_, k) => k).filter((k) => anything(shown[k]));
  const [r0, g0, b0] = background.map((value) => 256 * value + 128);
  const none = new Uint8Array(pixels);
  const nothing = new Int32Array(768);
  const plane = (u) => (u < used.length ? shown[used[u]] : none);
  const table = (u) => (u < used.length ? tables[used[u]] : nothing);
  const [p0, p1, p2, p3] = [plane(0), plane(1), plane(2), plane(3)];
  const [t0, t1, t2, t3] = [table(0), table(1), table(2), table(3)];
  let before = -1;
  let colour = 0;
  for (let i = 0; i < pixels; i++) {
    const a = p0[i];
    const b = p1[i];
    const c = p2[i];
    const d = p3[i];
    const key = a | (b << 8) | (c << 16) | (d << 24);
    // neighbours are mostly alike
    if (key !== before || used.length > 4 || i === 0) {
      before = key;
      let red = r0 + t0[3 * a] + t1[3 * b] + t2[3 * c] + t3[3 * d];
      let green = g0 + t0[3 * a + 1] + t1[3 * b + 1] + t2[3 * c + 1] + t3[3 * d + 1];
      let blue = b0 + t0[3 * a + 2] + t1[3 * b + 2] + t2[3 * c + 2] + t3[3 * d + 2];
      for (let u = 4; u < used.length; u++) {
        const at = 3 * plane(u)[i];
        red += table(u)[at];
        green += table(u)[at + 1];
        blue += table(u)[at + 2];
      }
      // where spans overlap there can be too much of all
      red = red < 0 ? 0 : red > 65535 ? 65535 : red;
      green = green < 0 ? 0 : green > 65535 ? 65535 : green;
      blue = blue < 0 ? 0 : blue > 65535 ? 65535 : blue;
      colour = ((255 << 24) | ((blue >> 8) << 16) | ((green >> 8) << 8) | (red >> 8)) >>> 0;
    }
    out[i] = colour;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function anything(plane) {
  for (let i = 0; i < plane.length; i++) if (plane[i]) return true;
  return false;
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
    const types = [
      Int32Array,
      Int32Array,
      Int32Array,
      Uint8Array,
      Uint8Array,
      Float64Array,
      Float64Array,
      Float64Array,
    ];
    ["index", "lane", "item", "role", "bad", "claim", "start", "end"].forEach(
      (name, i) => (this[name] = new types[i](buffers[i])),
    );
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
