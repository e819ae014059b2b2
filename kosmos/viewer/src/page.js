// Answers from data that is in the page itself: the same requests as kosmos/viewer/detail.py answers, on typed arrays.
// Times are float64 ns from the base of their trace: whole numbers below 2^53, so exact.

export const ROLES = ["mover", "builder", "reducer", "router", "pusher", "folder"];
export const WAIT = 6; // kinds 0 to 5 are work in a role
export const MOST_SPANS = 20000; // more than these are never sent one by one
const MOST_MATCHES = 1000;
const MOST_RANGES = 5000;
const MOST_FLOWS = 1000;
const MOST_CHAIN = 20000;

const TYPES = { uint8: Uint8Array, int8: Int8Array, int32: Int32Array, float64: Float64Array };

export async function inflate(buffer) {
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
}

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64);
  const out = new Uint8Array(text.length);
  for (let i = 0; i < out.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

async function columns(packed) {
  const names = Object.keys(packed);
  const stored = await Promise.all(names.map((name) => inflate(bytes(packed[name].data))));
  const out = {};
  names.forEach((name, n) => {
    const { type, delta, plus } = packed[name];
    let values = new TYPES[type](stored[n]);
    if (delta || plus) {
      const base = plus ? out[plus] : null;
      const sums = new Float64Array(values.length);
      for (let i = 0, sum = 0; i < values.length; i++) {
        sum = delta ? sum + values[i] : values[i];
        sums[i] = base ? sum + base[i] : sum;
      }
      values = sums;
    }
    out[name] = values;
  });
  return out;
}

/** What an exported page holds as JSON, as typed arrays. */
export async function unpack(json) {
  const traces = [];
  for (const packed of json.traces) {
    const trace = { ...(await columns(packed.columns)) };
    trace.units = packed.units ? (await columns({ units: packed.units })).units : null;
    trace.queue = packed.queue ? await columns(packed.queue) : null;
    trace.counters = packed.counters
      ? await columns(packed.counters.columns).then(({ series, ...rest }) => ({
          ...rest,
          of: series,
          series: packed.counters.series,
        }))
      : null;
    trace.ranges = packed.ranges
      ? { tracks: packed.ranges.tracks, names: packed.ranges.names, ...(await columns(packed.ranges.columns)) }
      : null;
    traces.push(trace);
  }
  return { meta: json.meta, overview: new DataView(bytes(json.overview).buffer), traces };
}

export class PageSource {
  constructor({ meta, traces }) {
    this.meta = meta;
    this.traces = traces.map((columns, i) => new Spans(columns, meta.traces[i]));
  }

  /** The answer, as [answer, buffers]: what Python sends, inflated. */
  async ask(request, buffers = []) {
    return this.answer(request, buffers);
  }

  answer(request, buffers = []) {
    switch (request.ask) {
      case "picture":
        return request.axis === "items" ? this.items(request) : this.picture(request, new Int32Array(buffers[0]));
      case "span":
        return [{ span: this.describe(this.find(request)) }, []];
      case "step":
        return [{ span: this.describe(this.step(request)) }, []];
      case "chain":
        return [this.chain(request.index), []];
      case "sums":
        return [this.sums(request), []];
      case "order":
        return [{}, [this.order(request).buffer]];
      case "search":
        return [this.search(request.text), []];
      case "counters":
        return this.counters(request);
      case "ranges":
        return [this.ranges(request), []];
      default:
        throw new Error(`nobody answers ${request.ask}`);
    }
  }

  picture({ t0, t1, width, rows }, rowOf) {
    const kinds = [...new Set(this.meta.traces.flatMap((trace) => trace.roles))].sort((a, b) => a - b);
    kinds.push(WAIT);
    const planes = new Uint8Array(kinds.length * rows * width);
    const lanesOf = lanesByRow(rowOf, rows);
    const paint = new RowPaint(kinds, width, t0, t1);
    let visible = 0;
    for (let row = 0; row < rows; row++) {
      const first = lanesOf.first[row];
      const last = lanesOf.first[row + 1];
      if (first === last) continue;
      for (let at = first; at < last; at++) {
        const lane = lanesOf.lanes[at];
        const spans = this.of(lane);
        visible += spans.cover(lane - spans.firstLane, paint);
      }
      paint.finish(last - first, planes, row, rows);
    }
    const answer = { rows, width, kinds, spans: visible };
    if (visible > MOST_SPANS) return [{ ...answer, spans: null }, [planes.buffer]];
    const exact = new Exact(visible);
    for (const spans of this.traces) {
      for (let lane = 0; lane < spans.lanes; lane++) {
        if (rowOf[spans.firstLane + lane] >= 0) spans.between(lane, t0, t1, (i) => exact.add(spans, i));
      }
    }
    return [answer, [planes.buffer, ...exact.buffers()]];
  }

  items({ t0, t1, width, rows, group }) {
    const spans = this.traces[group.trace];
    const kinds = [group.role, WAIT];
    const total = spans.items(group.rank, group.role);
    const cover = kinds.map(() => new Float32Array(rows * (width + 1)));
    const shared = new Float64Array(rows);
    const before = (row) => Math.ceil((row * total) / rows); // how many items earlier rows have
    for (let row = 0; row < rows; row++) shared[row] = before(row + 1) - before(row);
    const scale = width / (t1 - t0);
    const found = [];
    let visible = 0;
    const add = (plane, row, from, to) => {
      const a = Math.max(from, t0);
      const b = Math.min(to, t1);
      if (!(b > a)) return;
      const x0 = (a - t0) * scale;
      const x1 = (b - t0) * scale;
      const base = row * (width + 1);
      for (let x = Math.floor(x0); x < x1; x++) plane[base + x] += Math.min(x + 1, x1) - Math.max(x, x0);
    };
    for (let lane = group.rank * spans.workgroups; lane < (group.rank + 1) * spans.workgroups; lane++) {
      spans.between(lane, t0, t1, (i) => {
        if (spans.role[i] !== group.role) return;
        if (++visible <= MOST_SPANS) found.push(i);
        const row = Math.floor((spans.item[i] * rows) / total);
        if (row < 0 || row >= rows) return;
        add(cover[0], row, spans.start[i], spans.end[i]);
        add(cover[1], row, spans.claim[i], spans.start[i]);
      });
    }
    const planes = new Uint8Array(2 * rows * width);
    cover.forEach((plane, k) => {
      for (let row = 0; row < rows; row++) {
        const scaled = 255 / (shared[row] || 1);
        for (let x = 0; x < width; x++) {
          planes[(k * rows + row) * width + x] = Math.min(255, Math.round(plane[row * (width + 1) + x] * scaled));
        }
      }
    });
    const answer = { rows, width, kinds, spans: visible };
    if (visible > MOST_SPANS) return [{ ...answer, spans: null }, [planes.buffer]];
    const exact = new Exact(visible);
    for (const i of found) exact.add(spans, i);
    return [answer, [planes.buffer, ...exact.buffers()]];
  }

  /** The trace that a global lane belongs to. */
  of(lane) {
    let i = this.traces.length - 1;
    while (i > 0 && lane < this.traces[i].firstLane) i--;
    return this.traces[i];
  }

  /** [spans, sorted place] of a global span index, null if there is none. */
  at(index) {
    for (const spans of this.traces) {
      const row = index - spans.firstSpan;
      if (row >= 0 && row < spans.count) return [spans, spans.place ? spans.place[row] : row];
    }
    return null;
  }

  find({ index, lane, t }) {
    if (index !== undefined && index !== null) return this.at(index);
    const spans = this.of(lane);
    let best = -1;
    spans.between(lane - spans.firstLane, t, t, (i) => {
      if (spans.low(i) <= t && t < spans.high(i)) best = i;
    });
    return best < 0 ? null : [spans, best];
  }

  step({ index, lane, t, by }) {
    let spans;
    let i;
    if (index !== undefined && index !== null) {
      const found = this.at(index);
      if (!found) return null;
      [spans, i] = found;
      lane = spans.lane[i];
      i += by;
    } else {
      spans = this.of(lane);
      lane -= spans.firstLane;
      i = spans.search(lane, t, by > 0);
      if (by < 0) i--;
    }
    return i >= spans.firstOf[lane] && i < spans.firstOf[lane + 1] ? [spans, i] : null;
  }

  describe(found) {
    if (!found) return null;
    const [spans, i] = found;
    const lane = spans.lane[i];
    const row = spans.flows().rowOfSpan(i);
    const producers = spans.producers(row);
    const consumers = spans.consumers(row);
    const span = {
      ...spans.brief(i),
      trace: this.traces.indexOf(spans),
      rank: Math.floor(lane / spans.workgroups),
      workgroup: lane % spans.workgroups,
      unit: spans.units ? spans.units[lane] : null,
      claim_ns: String(spans.base + BigInt(spans.claim[i])),
      start_ns: String(spans.base + BigInt(spans.start[i])),
      end_ns: String(spans.base + BigInt(spans.end[i])),
      mhz: spans.mhz(i),
      bad: spans.complaint(i),
      queue: null,
      waits_for: producers.slice(0, MOST_FLOWS).map((p) => spans.brief(p)),
      waits_for_total: producers.length,
      released: null,
      signals: consumers.slice(0, MOST_FLOWS).map((c) => spans.brief(c)),
      signals_total: consumers.length,
    };
    const released = spans.released(row, producers);
    if (released >= 0) span.released = spans.brief(released);
    if (row >= 0) {
      span.queue = {};
      for (const name of QUEUE_COLUMNS) span.queue[name] = spans.queue[name][row];
    }
    return span;
  }

  chain(index) {
    const found = this.at(index);
    if (!found) return { spans: [], edges: [], cut: false };
    const [spans] = found;
    let i = found[1];
    const chain = [i];
    const edges = [];
    let cut = false;
    const seen = new Set(chain);
    for (;;) {
      const row = spans.flows().rowOfSpan(i);
      const released = spans.released(row, spans.producers(row));
      const before = i - 1 >= spans.firstOf[spans.lane[i]] ? i - 1 : -1;
      const waited = released >= 0 && (spans.end[released] > spans.claim[i] || before < 0);
      const next = waited ? released : before;
      if (next < 0 || seen.has(next)) break;
      if (chain.length === MOST_CHAIN) {
        cut = true;
        break;
      }
      edges.push([spans.index(next), spans.index(i), waited ? "wait" : "lane"]);
      seen.add(next);
      chain.push(next);
      i = next;
    }
    return { spans: chain.reverse().map((c) => spans.brief(c)), edges: edges.reverse(), cut };
  }

  sums({ t0, t1, lanes }) {
    const ns = {};
    let count = 0;
    let spent = 0;
    let total = 0;
    const shown = lanes ? [...new Set(lanes)] : null;
    const add = (name, from, to) => {
      const time = Math.min(to, t1) - Math.max(from, t0);
      if (time > 0) {
        ns[name] = (ns[name] ?? 0) + time;
        spent += time;
      }
    };
    for (const spans of this.traces) for (const role of spans.meta.roles) ns[ROLES[role]] ??= 0;
    ns.wait = 0;
    for (const spans of this.traces) {
      const local = shown
        ? shown.map((lane) => lane - spans.firstLane).filter((lane) => lane >= 0 && lane < spans.lanes)
        : Array.from({ length: spans.lanes }, (_, lane) => lane);
      for (const lane of local) {
        total++;
        spans.between(lane, t0, t1, (i) => {
          count++;
          add(ROLES[spans.role[i]], spans.start[i], spans.end[i]);
          add("wait", spans.claim[i], spans.start[i]);
        });
      }
    }
    ns.idle = total * (t1 - t0) - spent;
    return { ns, spans: count, lanes: total };
  }

  order({ by, t }) {
    const all = new Int32Array(this.meta.lanes);
    let at = 0;
    for (const spans of this.traces) {
      const keys = spans.keys(by, t);
      for (let rank = 0; rank < spans.meta.ranks; rank++) {
        const first = rank * spans.workgroups;
        const lanes = Array.from({ length: spans.workgroups }, (_, workgroup) => first + workgroup);
        if (keys) lanes.sort((a, b) => keys[a] - keys[b] || a - b);
        for (const lane of lanes) all[at++] = spans.firstLane + lane;
      }
    }
    return all;
  }

  search(text) {
    const terms = words(text);
    if (!terms || !terms.length) return { matches: [], total: 0 };
    const found = [];
    const starts = [];
    for (const spans of this.traces) {
      const tests = terms.map((term) => spans.test(term));
      if (tests.includes(null)) continue;
      for (let i = 0; i < spans.count; i++) {
        if (tests.every((test) => test(i))) {
          found.push([spans, i]);
          starts.push(spans.start[i]);
        }
      }
    }
    let first = found;
    if (found.length > MOST_MATCHES) {
      const limit = Float64Array.from(starts).sort()[MOST_MATCHES - 1];
      first = found.filter(([spans, i]) => spans.start[i] <= limit);
    }
    const matches = first.map(([spans, i]) => spans.brief(i));
    matches.sort((a, b) => a.start - b.start || a.index - b.index);
    return { matches: matches.slice(0, MOST_MATCHES), total: found.length };
  }

  counters({ t0, t1, width }) {
    const series = [];
    const buffers = [];
    this.traces.forEach((spans, trace) => {
      const kinds = [...spans.meta.roles, WAIT];
      const paint = new RowPaint(kinds, width, t0, t1);
      const cycles = new Float64Array(width);
      const worked = new Float64Array(width);
      for (let lane = 0; lane < spans.lanes; lane++) {
        spans.cover(lane, paint);
        spans.clock(lane, t0, t1, cycles, worked);
      }
      const flat = (values) => {
        const out = new Float32Array(3 * width);
        for (let part = 0; part < 3; part++) out.set(values, part * width);
        return out.buffer;
      };
      kinds.forEach((kind, k) => {
        series.push({
          name: kind === WAIT ? "wait" : ROLES[kind],
          unit: "workgroups",
          rank: null,
          trace,
          step: false,
          derived: true,
        });
        buffers.push(flat(paint.sums(k)));
      });
      if (cycles.some((value) => value > 0)) {
        series.push({ name: "clock", unit: "MHz", rank: null, trace, step: false, derived: true });
        buffers.push(flat(Float32Array.from(cycles, (value, x) => (worked[x] > 0 ? (1000 * value) / worked[x] : NaN))));
      }
      for (const [one, buffer] of spans.recorded(t0, t1, width)) {
        series.push({ ...one, trace, step: true, derived: false });
        buffers.push(buffer);
      }
    });
    return [{ series }, buffers];
  }

  ranges({ t0, t1 }) {
    const ranges = [];
    let total = 0;
    this.traces.forEach((spans, trace) => {
      const table = spans.table;
      if (!table) return;
      for (let i = 0; i < table.start.length; i++) {
        if (table.start[i] < t1 && table.end[i] > t0 && ++total <= MOST_RANGES) {
          ranges.push({
            track: table.tracks[table.track[i]],
            name: table.names[table.name[i]],
            start: table.start[i],
            end: table.end[i],
            trace,
          });
        }
      }
    });
    return { ranges, total };
  }
}

const QUEUE_COLUMNS = [
  "chunk",
  "band",
  "column",
  "row",
  "rows",
  "col",
  "cols",
  "wait",
  "wait_count",
  "signal_rank",
  "signal",
];

/** What a search asks for, as [word, numbers]; null if it cannot be read. */
export function words(text) {
  const tokens = text
    .toLowerCase()
    .replace(/\s*,\s*/g, ",")
    .split(/\s+/)
    .filter(Boolean);
  const keys = {
    item: "item",
    tile: "tile",
    chunk: "chunk",
    wg: "workgroup",
    workgroup: "workgroup",
    rank: "rank",
    unit: "unit",
    sm: "unit",
    xcd: "unit",
  };
  const terms = [];
  for (let i = 0; i < tokens.length; i++) {
    const token = tokens[i];
    if (keys[token]) {
      const numbers = (tokens[++i] ?? "").split(",").map((text) => (/^-?\d{1,15}$/.test(text) ? Number(text) : NaN));
      const wanted = token === "tile" ? 2 : 1;
      if (numbers.length !== wanted || !numbers.every(Number.isInteger) || tokens[i] === undefined) return null;
      terms.push([keys[token], ...numbers]);
    } else if (/^\d+$/.test(token)) {
      terms.push(["item", Number(token)]);
    } else if (token === "wait" || token === "bad") {
      terms.push([token]);
    } else {
      const role = ROLES.findIndex((name) => name.startsWith(token));
      if (role < 0) return null;
      terms.push(["role", ...ROLES.flatMap((name, code) => (name.startsWith(token) ? [code] : []))]);
    }
  }
  return terms;
}

/** The span table of one trace, sorted by lane, claim and end. */
class Spans {
  constructor(columns, meta) {
    this.meta = meta;
    this.base = BigInt(meta.base);
    this.workgroups = meta.workgroups;
    this.lanes = meta.ranks * meta.workgroups;
    this.firstLane = meta.first_lane;
    this.firstSpan = meta.first_span;
    this.count = columns.lane.length;
    this.units = columns.units ?? null;
    this.queue = columns.queue ?? null;
    this.samples = columns.counters ?? null;
    this.table = columns.ranges ?? null;
    const names = ["lane", "role", "item", "claim", "start", "end", "cycles"];
    for (const name of names) this[name] = columns[name];
    this.place = null; // of a row of the table among the sorted; null: it is sorted
    this.rows = null; // the other way round
    this.sort(names);
    this.measure();
  }

  sort(names) {
    const { lane, claim, end, count } = this;
    // with equal claims, a span without length comes before a long one and does not overlap it
    const before = (a, b) => claim[a] - claim[b] || end[a] - end[b] || a - b;
    let sorted = true;
    for (let i = 1; i < count && sorted; i++) {
      sorted = lane[i - 1] < lane[i] || (lane[i - 1] === lane[i] && before(i - 1, i) < 0);
    }
    this.firstOf = new Int32Array(this.lanes + 1);
    for (let i = 0; i < count; i++) this.firstOf[lane[i] + 1]++;
    for (let l = 0; l < this.lanes; l++) this.firstOf[l + 1] += this.firstOf[l];
    if (sorted) return;
    const next = this.firstOf.slice();
    const rows = new Int32Array(count);
    for (let i = 0; i < count; i++) rows[next[lane[i]]++] = i;
    for (let l = 0; l < this.lanes; l++) {
      const part = rows.subarray(this.firstOf[l], this.firstOf[l + 1]);
      let inOrder = true;
      for (let i = 1; i < part.length && inOrder; i++) inOrder = before(part[i - 1], part[i]) < 0;
      if (!inOrder) part.sort(before);
    }
    this.rows = rows;
    this.place = new Int32Array(count);
    for (let i = 0; i < count; i++) this.place[rows[i]] = i;
    for (const name of names) {
      const column = this[name];
      if (!column) continue;
      this[name] = new column.constructor(count);
      for (let i = 0; i < count; i++) this[name][i] = column[rows[i]];
    }
  }

  /** How far earlier spans of a lane reach, and which spans are bad. */
  measure() {
    const { lane, claim, start, end, count } = this;
    this.bad = new Uint8Array(count);
    this.reach = new Float64Array(count); // the latest time of this and the earlier spans of its lane
    this.slack = 0; // how far a span may begin before its claim
    let reach = -Infinity;
    let done = -Infinity;
    for (let i = 0; i < count; i++) {
      if (i && lane[i] !== lane[i - 1]) reach = done = -Infinity;
      const backwards = start[i] < claim[i] || end[i] < start[i];
      if (backwards) {
        this.bad[i] = 1;
        this.slack = Math.max(this.slack, 1, claim[i] - start[i], claim[i] - end[i]);
      }
      if (claim[i] < done) this.bad[i] |= 2;
      done = Math.max(done, end[i]);
      reach = Math.max(reach, claim[i], start[i], end[i]);
      this.reach[i] = reach;
    }
    if (this.queue && this.queue.item.length) {
      const flows = this.flows();
      for (let i = 0; i < count; i++) if (flows.rowOfSpan(i) < 0) this.bad[i] |= 4;
    }
  }

  low(i) {
    return Math.min(this.claim[i], this.start[i], this.end[i]);
  }

  high(i) {
    return Math.max(this.claim[i], this.start[i], this.end[i]);
  }

  index(i) {
    return this.firstSpan + (this.rows ? this.rows[i] : i);
  }

  brief(i) {
    return {
      index: this.index(i),
      lane: this.firstLane + this.lane[i],
      role: this.role[i],
      item: this.item[i],
      claim: this.claim[i],
      start: this.start[i],
      end: this.end[i],
    };
  }

  mhz(i) {
    const time = this.end[i] - this.start[i];
    return time > 0 && this.cycles && this.cycles[i] > 0 ? (1000 * this.cycles[i]) / time : null;
  }

  complaint(i) {
    const says = [];
    if (this.start[i] < this.claim[i]) says.push("its wait ended before it began");
    if (this.end[i] < this.start[i]) says.push("it ended before it began");
    if (this.bad[i] & 2) says.push("it began before its workgroup was done with the span before");
    if (this.bad[i] & 4) says.push("its item is not in the queue");
    return says.length ? says.join("; ") : null;
  }

  /** The first span of a lane whose claim is at `t` or later (after it, if `after`). */
  search(lane, t, after = false) {
    let low = this.firstOf[lane];
    let high = this.firstOf[lane + 1];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.claim[middle] < t || (after && this.claim[middle] === t)) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The first span of a lane that may reach beyond `t`. */
  reaching(lane, t) {
    let low = this.firstOf[lane];
    let high = this.firstOf[lane + 1];
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.reach[middle] < t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** Calls `use` with each span of a lane that is visible in [t0, t1); with t0 = t1, with those that touch it. */
  between(lane, t0, t1, use) {
    const last = this.firstOf[lane + 1];
    const point = t0 === t1;
    for (let i = this.reaching(lane, t0); i < last && this.claim[i] <= t1 + this.slack; i++) {
      const low = this.low(i);
      if (point ? low <= t1 : low < t1 && (this.high(i) > t0 || low >= t0)) use(i);
    }
  }

  /** Adds a lane to `paint`; how many of its spans are visible. This is the loop that everything waits for. */
  cover(lane, paint) {
    const { claim, start, end, role } = this;
    const { t0, t1, width, plane } = paint;
    const cell = paint.cell;
    const step = paint.step;
    const scale = width / (t1 - t0);
    const wait = plane[WAIT];
    const limit = t1 + this.slack;
    const ordered = this.slack === 0; // no span of the trace runs backwards
    const last = this.firstOf[lane + 1];
    let visible = 0;
    for (let i = this.reaching(lane, t0); i < last; i++) {
      const claimed = claim[i];
      if (claimed >= limit && claimed >= t1) break;
      const started = start[i];
      const ended = end[i];
      if (ordered) {
        if (ended > t0 || claimed >= t0) visible++;
      } else {
        const low = Math.min(claimed, started, ended);
        if (low < t1 && (Math.max(claimed, started, ended) > t0 || low >= t0)) visible++;
      }
      let from = claimed > t0 ? claimed : t0;
      let to = started < t1 ? started : t1;
      for (let base = wait; ;) {
        if (to > from) {
          const x0 = (from - t0) * scale;
          const x1 = (to - t0) * scale;
          const c0 = x0 | 0;
          const c1 = x1 | 0;
          if (c0 === c1) {
            cell[base + c0] += x1 - x0;
          } else {
            cell[base + c0] += c0 + 1 - x0;
            cell[base + c1] += x1 - c1;
            step[base + c0 + 1]++;
            step[base + c1]--;
          }
        }
        if (base !== wait) break;
        base = plane[role[i]];
        from = started > t0 ? started : t0;
        to = ended < t1 ? ended : t1;
      }
    }
    return visible;
  }

  /** Adds the cycles and the time of work in each pixel. */
  clock(lane, t0, t1, cycles, worked) {
    if (!this.cycles) return;
    const scale = cycles.length / (t1 - t0);
    const { claim, start, end } = this;
    const limit = t1 + this.slack;
    const last = this.firstOf[lane + 1];
    for (let i = this.reaching(lane, t0); i < last && claim[i] <= limit; i++) {
      const time = end[i] - start[i];
      if (!(time > 0 && this.cycles[i] > 0)) continue;
      const x0 = ((start[i] > t0 ? start[i] : t0) - t0) * scale;
      const x1 = ((end[i] < t1 ? end[i] : t1) - t0) * scale;
      const rate = this.cycles[i] / time;
      for (let x = x0 | 0; x < x1; x++) {
        const part = (x + 1 < x1 ? x + 1 : x1) - (x > x0 ? x : x0);
        cycles[x] += part * rate;
        worked[x] += part;
      }
    }
  }

  items(rank, role) {
    const queue = this.meta.queues.find((one) => one.rank === rank && one.role === role);
    return queue ? queue.items : 0;
  }

  flows() {
    this.bound ??= new Flows(this);
    return this.bound;
  }

  producers(row) {
    if (row < 0 || !(this.queue.wait[row] >= 0 && this.queue.wait_count[row] > 0)) return [];
    return this.flows().signalling(this.queue.rank[row], this.queue.wait[row]);
  }

  consumers(row) {
    if (row < 0 || !(this.queue.signal_rank[row] >= 0 && this.queue.signal[row] >= 0)) return [];
    return this.flows().waiting(this.queue.signal_rank[row], this.queue.signal[row]);
  }

  released(row, producers) {
    if (!producers.length) return -1;
    const byEnd = [...producers].sort((a, b) => this.end[a] - this.end[b] || this.index(a) - this.index(b));
    return byEnd[Math.min(this.queue.wait_count[row], byEnd.length) - 1];
  }

  keys(by, t) {
    const { lanes, firstOf } = this;
    if (by === "workgroup") return null;
    if (by === "unit") return this.units && Float64Array.from(this.units, (unit) => (unit < 0 ? Infinity : unit));
    const keys = new Float64Array(lanes);
    for (let lane = 0; lane < lanes; lane++) {
      if (by === "role") {
        keys[lane] = 7;
        this.between(lane, t, t, (i) => {
          if (this.start[i] <= t && t < this.end[i]) keys[lane] = this.role[i];
          else if (this.claim[i] <= t && t < this.start[i]) keys[lane] = WAIT;
        });
      } else if (by === "switch") {
        keys[lane] = Infinity;
        for (let i = firstOf[lane] + 1; i < firstOf[lane + 1]; i++) {
          if (this.role[i] !== this.role[i - 1]) {
            keys[lane] = this.claim[i];
            break;
          }
        }
      } else {
        // most idle first: least of the time between claim and end
        for (let i = firstOf[lane]; i < firstOf[lane + 1]; i++) {
          keys[lane] += Math.max(0, this.start[i] - this.claim[i]) + Math.max(0, this.end[i] - this.start[i]);
        }
      }
    }
    return keys.map((key) => (key === Infinity ? Number.MAX_VALUE : key));
  }

  /** Whether a span is what a term of a search asks for; null: none can be. */
  test([word, ...numbers]) {
    const [a, b] = numbers;
    const { role, item, lane, workgroups, queue } = this;
    const rowOf = (i) => this.flows().rowOfSpan(i);
    switch (word) {
      case "item":
        return (i) => item[i] === a;
      case "workgroup":
        return (i) => lane[i] % workgroups === a;
      case "rank":
        return (i) => Math.floor(lane[i] / workgroups) === a;
      case "unit":
        return this.units && ((i) => this.units[lane[i]] === a);
      case "wait":
        return (i) => this.start[i] > this.claim[i];
      case "bad":
        return (i) => this.bad[i] > 0;
      case "tile":
        return queue && ((i) => rowOf(i) >= 0 && queue.band[rowOf(i)] === a && queue.column[rowOf(i)] === b);
      case "chunk":
        return queue && ((i) => rowOf(i) >= 0 && queue.chunk[rowOf(i)] === a);
      default:
        return (i) => numbers.includes(role[i]);
    }
  }

  /** Each recorded counter as [what it is, Float32[3][width]: least, mean, greatest in each pixel]. */
  *recorded(t0, t1, width) {
    if (!this.samples) return;
    const { series, time, value } = this.samples;
    const scale = width / (t1 - t0);
    for (let s = 0; s < series.length; s++) {
      const mine = [];
      for (let i = 0; i < time.length; i++) if (this.samples.of[i] === s) mine.push(i);
      mine.sort((a, b) => time[a] - time[b] || a - b);
      const out = new Float32Array(3 * width).fill(NaN);
      const held = new Float64Array(width);
      const share = new Float64Array(width);
      mine.forEach((i, n) => {
        if (!Number.isFinite(value[i])) return; // it ends the one before and says nothing itself
        // a value holds until the next sample; the last one has no length
        const until = n + 1 < mine.length ? time[mine[n + 1]] : time[i];
        const x0 = (Math.max(time[i], t0) - t0) * scale;
        const x1 = (Math.min(until, t1) - t0) * scale;
        const lone = time[i] >= t0 && time[i] < t1;
        for (let x = Math.floor(x0); x < width && (x < x1 || (lone && x === Math.floor(x0))); x++) {
          if (x < 0) continue;
          const part = Math.max(0, Math.min(x + 1, x1) - Math.max(x, x0));
          held[x] += part * value[i];
          share[x] += part;
          if (!(value[i] >= out[x])) out[x] = value[i];
          if (!(value[i] <= out[2 * width + x])) out[2 * width + x] = value[i];
          if (share[x] === 0) out[width + x] = value[i];
        }
      });
      for (let x = 0; x < width; x++) if (share[x] > 0) out[width + x] = held[x] / share[x];
      yield [{ name: series[s].name, unit: series[s].unit, rank: series[s].rank }, out.buffer];
    }
  }
}

const pair = (high, low) => high * 4294967296 + low;

/** Rows by two numbers, a group and a member of it; rows whose group is negative are in no bucket. */
class Buckets {
  constructor(groups, members) {
    const rows = groups.length;
    const most = []; // members of each group
    let dense = true;
    for (let row = 0; row < rows; row++) {
      if (groups[row] < 0) continue;
      if (members[row] < 0) dense = false;
      if (!(members[row] < most[groups[row]])) most[groups[row]] = members[row] + 1;
    }
    let size = 0;
    this.offset = Array.from(most, (count = 0) => (size += count) - count);
    this.most = Array.from(most, (count = 0) => count);
    this.ids = null; // of sparse members
    if (!dense || size > 8 * rows + 4096) {
      this.ids = new Map();
      for (let row = 0; row < rows; row++) {
        const key = pair(groups[row], members[row]);
        if (groups[row] >= 0 && !this.ids.has(key)) this.ids.set(key, this.ids.size);
      }
      size = this.ids.size;
    }
    this.begin = new Int32Array(size + 1);
    const id = new Int32Array(rows);
    let used = 0;
    for (let row = 0; row < rows; row++) {
      id[row] = groups[row] < 0 ? -1 : this.id(groups[row], members[row]);
      if (id[row] >= 0) {
        this.begin[id[row] + 1]++;
        used++;
      }
    }
    for (let i = 0; i < size; i++) this.begin[i + 1] += this.begin[i];
    const next = this.begin.slice();
    this.rows = new Int32Array(used);
    for (let row = 0; row < rows; row++) if (id[row] >= 0) this.rows[next[id[row]]++] = row;
  }

  id(group, member) {
    if (this.ids) return this.ids.get(pair(group, member)) ?? -1;
    return member >= 0 && member < this.most[group] ? this.offset[group] + member : -1;
  }

  /** Its rows in their order. */
  get(group, member) {
    const id = this.id(group, member);
    return id < 0 ? [] : this.rows.subarray(this.begin[id], this.begin[id + 1]);
  }

  /** The first of them, -1 if there is none. */
  first(group, member) {
    const id = this.id(group, member);
    return id < 0 || this.begin[id] === this.begin[id + 1] ? -1 : this.rows[this.begin[id]];
  }
}

/** Which span did which item, and which items signal and wait for which counter. */
class Flows {
  constructor(spans) {
    this.spans = spans;
    const queue = spans.queue;
    this.rows = queue ? queue.item.length : 0;
    this.items = queue
      ? new Buckets(
          Int32Array.from(queue.rank, (rank, row) => rank * 6 + queue.role[row]),
          queue.item,
        )
      : null;
  }

  /** The row of the queue that a span did, -1 if there is none. */
  rowOfSpan(i) {
    if (!this.items) return -1;
    const { lane, role, item, workgroups } = this.spans;
    return this.items.first(Math.floor(lane[i] / workgroups) * 6 + role[i], item[i]);
  }

  signalling(rank, counter) {
    const { signal_rank: ranks, signal } = this.spans.queue;
    this.signals ??= new Buckets(
      Int32Array.from(ranks, (one, row) => (signal[row] >= 0 ? one : -1)),
      signal,
    );
    return this.spansOf(this.signals.get(rank, counter));
  }

  waiting(rank, counter) {
    const { rank: ranks, wait, wait_count: counts } = this.spans.queue;
    this.waits ??= new Buckets(
      Int32Array.from(ranks, (one, row) => (wait[row] >= 0 && counts[row] > 0 ? one : -1)),
      wait,
    );
    return this.spansOf(this.waits.get(rank, counter));
  }

  spansOf(rows) {
    if (!this.done) {
      const row = new Int32Array(this.spans.count);
      for (let i = 0; i < row.length; i++) row[i] = this.rowOfSpan(i);
      this.done = new Buckets(
        row.map((one) => (one < 0 ? -1 : 0)),
        row,
      );
    }
    const found = [];
    for (const row of rows) for (const i of this.done.get(0, row)) found.push(i);
    return found;
  }
}

/** The lanes of each row: `lanes` from first[row] to first[row + 1]. */
function lanesByRow(rowOf, rows) {
  const first = new Int32Array(rows + 1);
  for (const row of rowOf) if (row >= 0 && row < rows) first[row + 1]++;
  for (let row = 0; row < rows; row++) first[row + 1] += first[row];
  const next = first.slice();
  const lanes = new Int32Array(first[rows]);
  for (let lane = 0; lane < rowOf.length; lane++) {
    if (rowOf[lane] >= 0 && rowOf[lane] < rows) lanes[next[rowOf[lane]]++] = lane;
  }
  return { first, lanes };
}

/** The pixels of one row while its spans are added: parts of pixels in `cell`, whole ones as steps up and down. */
class RowPaint {
  constructor(kinds, width, t0, t1) {
    Object.assign(this, { kinds, width, t0, t1 });
    this.stride = width + 2;
    this.cell = new Float64Array(kinds.length * this.stride);
    this.step = new Float64Array(kinds.length * this.stride);
    this.plane = new Int32Array(WAIT + 1); // of each kind
    kinds.forEach((kind, k) => (this.plane[kind] = k * this.stride));
  }

  /** Writes the row's coverage into `planes` and is empty again. */
  finish(lanes, planes, row, rows) {
    const { cell, step, stride, width } = this;
    const scale = 255 / lanes;
    for (let k = 0; k < this.kinds.length; k++) {
      const out = (k * rows + row) * width;
      const base = k * stride;
      let whole = 0;
      for (let x = 0; x < width; x++) {
        whole += step[base + x];
        const value = (whole + cell[base + x]) * scale;
        planes[out + x] = value >= 255 ? 255 : (value + 0.5) | 0;
      }
    }
    cell.fill(0);
    step.fill(0);
  }

  /** How many lanes were of the kind, in each pixel. */
  sums(k) {
    const out = new Float32Array(this.width);
    let whole = 0;
    for (let x = 0; x < this.width; x++) {
      whole += this.step[k * this.stride + x];
      out[x] = whole + this.cell[k * this.stride + x];
    }
    return out;
  }
}

/** Spans one by one, as the columns that an answer has. */
class Exact {
  constructor(count) {
    this.n = 0;
    this.index = new Int32Array(count);
    this.lane = new Int32Array(count);
    this.item = new Int32Array(count);
    this.role = new Uint8Array(count);
    this.bad = new Uint8Array(count);
    this.claim = new Float64Array(count);
    this.start = new Float64Array(count);
    this.end = new Float64Array(count);
  }

  add(spans, i) {
    const n = this.n++;
    this.index[n] = spans.index(i);
    this.lane[n] = spans.firstLane + spans.lane[i];
    this.item[n] = spans.item[i];
    this.role[n] = spans.role[i];
    this.bad[n] = spans.bad[i] ? 1 : 0;
    this.claim[n] = spans.claim[i];
    this.start[n] = spans.start[i];
    this.end[n] = spans.end[i];
  }

  buffers() {
    return ["index", "lane", "item", "role", "bad", "claim", "start", "end"].map((name) => this[name].buffer);
  }
}
