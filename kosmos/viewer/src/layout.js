// Where lanes are: pinned lanes on top, then a block for every rank, folded or a row for every lane.

export const HEAD = 26; // of a trace, when several are compared
const PIN = 20;
const FOLD = 22;
const GAP = 3;
const LEAST_BLOCK = 18;
export const MOST_LANE = 40;

export class Layout {
  constructor(meta) {
    this.meta = meta;
    this.lanes = meta.lanes;
    this.groups = [];
    meta.traces.forEach((trace, t) => {
      for (let rank = 0; rank < trace.ranks; rank++) {
        this.groups.push({
          trace: t,
          rank,
          first: trace.first_lane + rank * trace.workgroups,
          count: trace.workgroups,
          folded: false,
        });
      }
    });
    this.pins = [];
    this.laneHeight = null; // null: as high as fits
    this.scroll = 0;
    this.reorder(Int32Array.from({ length: this.lanes }, (_, lane) => lane));
  }

  /** Lanes in the order of an answer to `order`. */
  reorder(order) {
    this.order = order;
    this.groupOf = new Int32Array(this.lanes);
    this.placeOf = new Int32Array(this.lanes).fill(-1);
    let at = 0;
    this.groups.forEach((group, g) => {
      group.lanes = [...order.subarray(at, at + group.count)];
      at += group.count;
      for (const lane of group.lanes) this.groupOf[lane] = g;
      group.lanes = group.lanes.filter((lane) => !this.pins.includes(lane));
      group.lanes.forEach((lane, i) => (this.placeOf[lane] = i));
    });
    this.signature = Symbol();
  }

  pin(lane) {
    if (this.pins.includes(lane)) this.pins = this.pins.filter((one) => one !== lane);
    else this.pins.push(lane);
    this.reorder(this.order);
  }

  fold(g, folded = !this.groups[g].folded) {
    this.groups[g].folded = folded;
    this.signature = Symbol();
  }

  /** Blocks and rows for a viewport of `height` css pixels with `ratio` device pixels each. */
  arrange(height, ratio) {
    const compared = this.meta.traces.length > 1;
    let fixed = this.pins.length * PIN + (this.pins.length ? GAP : 0);
    const counts = []; // lanes of each rank
    this.groups.forEach((group, g) => {
      if (compared && (!g || this.groups[g - 1].trace !== group.trace)) fixed += HEAD;
      fixed += GAP;
      if (group.folded) {
        fixed += FOLD;
      } else {
        counts.push(group.lanes.length);
      }
    });
    // a rank of few lanes is as high as its name all the same, the others share the rest
    counts.sort((a, b) => a - b);
    const most = counts.at(-1) || 1;
    let shared = counts.reduce((sum, n) => sum + n, 0);
    for (const n of counts) {
      if ((n * (height - fixed)) / Math.max(1, shared) >= LEAST_BLOCK) break;
      shared -= n;
      if (n) fixed += LEAST_BLOCK;
    }
    this.fit = Math.min(MOST_LANE, Math.max((height - fixed) / Math.max(1, shared), LEAST_BLOCK / most));
    const lane = Math.max(this.fit, Math.min(MOST_LANE, this.laneHeight ?? 0));
    if (this.laneHeight !== null && this.laneHeight <= this.fit) this.laneHeight = null;
    this.lane = lane;
    this.height = height;
    this.ratio = ratio;

    this.blocks = [];
    let y = 0;
    for (const pinned of this.pins) {
      this.blocks.push({ kind: "pin", y, h: PIN, lanes: [pinned] });
      y += PIN;
    }
    if (this.pins.length) y += GAP;
    this.pinned = y; // what does not scroll
    this.groups.forEach((group, g) => {
      if (compared && (!g || this.groups[g - 1].trace !== group.trace)) {
        this.blocks.push({ kind: "head", y, h: HEAD, trace: group.trace, lanes: [] });
        y += HEAD;
      }
      const n = group.lanes.length;
      const h = group.folded ? FOLD : n && Math.max(n * lane, LEAST_BLOCK);
      this.blocks.push({ kind: group.folded ? "fold" : "group", y, h, g, lanes: group.lanes, lane: h / n });
      y += h + GAP;
    });
    this.content = y - GAP;
    this.scroll = Math.max(0, Math.min(this.scroll, this.content - height));
    if (this.content - height < 1) this.scroll = 0;
    for (const block of this.blocks) if (block.kind !== "pin") block.y -= this.scroll;
    this.makeRows();
  }

  makeRows() {
    const { ratio } = this;
    const top = Math.round(this.pinned * ratio);
    const bottom = Math.round(this.height * ratio);
    this.rows = []; // {y0, y1} in device pixels, from the top
    this.rowOf = new Int32Array(this.lanes).fill(-1);
    const clip = (block) => (block.kind === "pin" ? 0 : top);
    for (const block of this.blocks) {
      const y0 = Math.round(block.y * ratio);
      const y1 = Math.round((block.y + block.h) * ratio);
      const least = clip(block);
      if (y1 <= least || y0 >= bottom || !block.lanes.length) continue;
      if (block.kind === "pin" || block.kind === "fold") {
        for (const one of block.lanes) this.rowOf[one] = this.rows.length;
        this.rows.push({ y0, y1, block, lane: block.kind === "pin" ? block.lanes[0] : -1, first: block.lanes[0] });
      } else if (block.lane * ratio >= 1) {
        const { lane } = block;
        const from = Math.max(0, Math.floor((least - y0) / (lane * ratio)));
        for (let i = from; i < block.lanes.length; i++) {
          const a = Math.round((block.y + i * lane) * ratio);
          if (a >= bottom) break;
          this.rowOf[block.lanes[i]] = this.rows.length;
          const b = Math.round((block.y + (i + 1) * lane) * ratio);
          this.rows.push({ y0: a, y1: b, block, lane: block.lanes[i], first: block.lanes[i] });
        }
      } else {
        // several lanes share a row of pixels
        const tall = Math.max(1, y1 - y0);
        let row = null;
        block.lanes.forEach((one, i) => {
          const at = y0 + Math.floor((i * tall) / block.lanes.length);
          if (at < least || at >= bottom) return;
          if (!row || row.y0 !== at) this.rows.push((row = { y0: at, y1: at + 1, block, lane: -1, first: one }));
          this.rowOf[one] = this.rows.length - 1;
        });
      }
    }
  }

  /** {block, lane} at a height of the viewport; lane is -1 on a folded group, null between. */
  at(y) {
    for (const block of this.blocks) {
      if (y < block.y || y >= block.y + block.h || (block.kind !== "pin" && y < this.pinned)) continue;
      if (block.kind === "head") return null;
      if (block.kind === "fold") return { block, lane: -1 };
      const i = Math.floor(((y - block.y) / block.h) * block.lanes.length);
      return { block, lane: block.lanes[Math.min(block.lanes.length - 1, i)] };
    }
    return null;
  }

  /** Top and height of a lane in the viewport, which it may be outside of; `drawn`: it has a row of its own. */
  place(lane) {
    const pin = this.pins.indexOf(lane);
    if (pin >= 0) return { y: pin * PIN, h: PIN, drawn: true };
    const block = this.blocks.find((one) => one.g === this.groupOf[lane]);
    if (!block) return { y: 0, h: 0, drawn: false };
    if (block.kind === "fold") return { y: block.y, h: block.h, drawn: false };
    return { y: block.y + this.placeOf[lane] * block.lane, h: block.lane, drawn: true };
  }

  /** Every lane between two heights, from top to bottom; null if those are all. */
  between(y0, y1) {
    const lanes = [];
    for (const block of this.blocks) {
      const a = Math.max(y0, block.kind === "pin" ? 0 : this.pinned);
      if (block.y + block.h <= a || block.y >= y1 || !block.lanes.length) continue;
      if (block.kind === "group") {
        const first = Math.max(0, Math.floor((a - block.y) / block.lane));
        const last = Math.min(block.lanes.length - 1, Math.ceil((y1 - block.y) / block.lane) - 1);
        for (let i = first; i <= last; i++) lanes.push(block.lanes[i]);
      } else {
        lanes.push(...block.lanes);
      }
    }
    return lanes.length === this.lanes ? null : lanes;
  }

  /** Scrolls so that a lane is in view. */
  reveal(lane) {
    const g = this.groupOf[lane];
    if (this.pins.includes(lane)) return;
    if (this.groups[g].folded) this.fold(g, false);
    this.arrange(this.height, this.ratio);
    const { y, h } = this.place(lane);
    if (y < this.pinned) this.scroll -= this.pinned - y + 2 * h;
    else if (y + h > this.height) this.scroll += y + h - this.height + 2 * h;
  }

  /** Makes lanes `height` high, keeping what is at `y` there. */
  zoom(height, y) {
    const found = this.at(y);
    this.laneHeight = Math.max(this.fit, Math.min(MOST_LANE, height));
    const before = found && found.lane >= 0 ? this.place(found.lane) : null;
    const part = before === null ? 0 : (y - before.y) / Math.max(1e-9, before.h);
    this.arrange(this.height, this.ratio);
    if (before !== null) {
      const now = this.place(found.lane);
      this.scroll += now.y + part * now.h - y;
      this.arrange(this.height, this.ratio);
    }
  }
}
