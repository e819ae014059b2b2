// The in-page source against sums over small pieces of time, on traces with everything that may be wrong with one.

import assert from "node:assert/strict";
import { test } from "node:test";

import { PageSource, ROLES, WAIT, words } from "./page.js";

/** Numbers that are the same in every run. */
function random(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 4294967296) * below);
  };
}

/** A trace of small whole times, its rows in no order; `ugly`: spans overlap and run backwards. */
function trace({ seed = 1, ranks = 2, workgroups = 3, each = 8, ugly = false, firstLane = 0, firstSpan = 0 } = {}) {
  const next = random(seed);
  const rows = [];
  const taken = {};
  for (let lane = 0; lane < ranks * workgroups; lane++) {
    let now = next(10);
    for (let i = 0; i < each; i++) {
      const rank = Math.floor(lane / workgroups);
      const role = i < each / 2 && lane % workgroups === 0 ? 0 : 1;
      const claim = now;
      const start = claim + next(6);
      const end = start + next(12);
      const item = (taken[`${rank} ${role}`] = (taken[`${rank} ${role}`] ?? -1) + 1);
      rows.push({ lane, role, item, claim, start, end, cycles: 2 * (end - start) });
      now = end + next(4);
    }
  }
  if (ugly) {
    for (let i = 3; i < rows.length; i += 7) rows[i].end = rows[i].start - 3; // ends before it starts
    for (let i = 5; i < rows.length; i += 11) rows[i].claim = rows[i].start + 4; // waits backwards
    for (let i = 2; i < rows.length; i += 9) rows[i].end += 15; // overlaps the next
  }
  for (let i = rows.length - 1; i > 0; i--) {
    const j = next(i + 1);
    [rows[i], rows[j]] = [rows[j], rows[i]];
  }
  const length = Math.max(...rows.map((row) => Math.max(row.end, row.start)));
  const columns = {};
  const types = {
    lane: Int32Array,
    role: Uint8Array,
    item: Int32Array,
    claim: Float64Array,
    start: Float64Array,
    end: Float64Array,
    cycles: Float64Array,
  };
  for (const [name, type] of Object.entries(types)) columns[name] = type.from(rows.map((row) => row[name]));
  columns.units = Int32Array.from({ length: ranks * workgroups }, (_, lane) => (lane * 5) % 7);
  // movers signal counter 0 of their rank, builders wait for two of them
  const items = [0, 1].flatMap((role) =>
    Array.from({ length: ranks }, (_, rank) => [rank, role, (taken[`${rank} ${role}`] ?? -1) + 1]),
  );
  const queue = items.flatMap(([rank, role, n]) =>
    Array.from({ length: n }, (_, item) => ({
      rank,
      role,
      item,
      chunk: item % 3,
      band: item >> 1,
      column: item & 1,
      row: 0,
      rows: 1,
      col: 0,
      cols: 1,
      wait: role ? 0 : -1,
      wait_count: role ? 2 : 0,
      signal_rank: role ? -1 : rank,
      signal: role ? -1 : 0,
    })),
  );
  columns.queue = Object.fromEntries(
    Object.keys(queue[0]).map((name) => [name, Int32Array.from(queue.map((one) => one[name]))]),
  );
  const meta = {
    title: "t",
    base: "9007199254740993000",
    length_ns: length,
    ranks,
    workgroups,
    first_lane: firstLane,
    first_span: firstSpan,
    spans: rows.length,
    roles: [0, 1],
    queues: items.map(([rank, role, n]) => ({ rank, role, items: n })),
    summary: {},
    problems: [],
  };
  return { rows, columns, meta, length, queue };
}

function source(...traces) {
  const meta = {
    traces: traces.map((one) => one.meta),
    lanes: traces.reduce((sum, one) => sum + one.meta.ranks * one.meta.workgroups, 0),
  };
  return new PageSource({ meta, traces: traces.map((one) => one.columns) });
}

/** Coverage by counting tenths of a nanosecond. */
function counted(rows, { t0, t1, width, rows: shown }, rowOf) {
  const fine = 10;
  const lanes = Array(shown).fill(0);
  for (const row of rowOf) if (row >= 0) lanes[row]++;
  const planes = new Map(
    [
      [0, []],
      [1, []],
      [WAIT, []],
    ].map(([kind]) => [kind, new Float64Array(shown * width)]),
  );
  const step = (t1 - t0) / (width * fine);
  for (const span of rows) {
    const row = rowOf[span.lane];
    if (row < 0) continue;
    for (let i = 0; i < width * fine; i++) {
      const t = t0 + (i + 0.5) * step;
      const at = row * width + Math.floor(i / fine);
      if (span.start <= t && t < span.end) planes.get(span.role)[at] += 1 / fine / lanes[row];
      if (span.claim <= t && t < span.start) planes.get(WAIT)[at] += 1 / fine / lanes[row];
    }
  }
  return planes;
}

for (const ugly of [false, true]) {
  test(`picture covers what the spans cover${ugly ? ", bad spans and all" : ""}`, () => {
    const one = trace({ ugly });
    const page = source(one);
    for (const [t0, t1, width] of [
      [0, one.length, 20],
      [7, 47, 40],
      [-10, one.length + 10, 13],
      [20, 25, 10],
    ]) {
      for (const rowOf of [
        [0, 1, 2, 3, 4, 5],
        [2, 2, 0, 0, -1, 1],
        [0, 0, 0, 0, 0, 0],
      ]) {
        const request = { ask: "picture", axis: "lanes", t0, t1, width, rows: Math.max(...rowOf) + 1 };
        const [answer, buffers] = page.answer(request, [Int32Array.from(rowOf).buffer]);
        const planes = new Uint8Array(buffers[0]);
        const wanted = counted(one.rows, request, rowOf);
        assert.deepEqual(answer.kinds, [0, 1, WAIT]);
        answer.kinds.forEach((kind, k) => {
          const size = request.rows * width;
          for (let i = 0; i < size; i++) {
            const expected = Math.min(255, 255 * wanted.get(kind)[i]);
            // the oracle counts tenths of a pixel, at each border of a span
            assert.ok(
              Math.abs(planes[k * size + i] - expected) <= 255 / 10 + 1,
              `${kind} ${i}: ${planes[k * size + i]} ${expected}`,
            );
          }
        });
        const total = planes.reduce((sum, value) => sum + value, 0);
        const sum = [...wanted.values()]
          .flatMap((plane) => [...plane])
          .reduce((all, value) => all + Math.min(255, 255 * value), 0);
        assert.ok(Math.abs(total - sum) <= 0.02 * sum + 40, `${total} ${sum}`);
      }
    }
  });

  test(`picture has the visible spans${ugly ? ", bad ones marked" : ""}`, () => {
    const one = trace({ ugly, seed: 4 });
    const page = source(one);
    const t0 = 15;
    const t1 = 40;
    const [answer, buffers] = page.answer({ ask: "picture", axis: "lanes", t0, t1, width: 5, rows: 1 }, [
      Int32Array.from([0, 0, -1, 0, 0, 0]).buffer,
    ]);
    const visible = one.rows.flatMap((row, i) => {
      const low = Math.min(row.claim, row.start, row.end);
      const high = Math.max(row.claim, row.start, row.end);
      return row.lane !== 2 && low < t1 && (high > t0 || low >= t0) ? [i] : [];
    });
    assert.equal(answer.spans, visible.length);
    const index = [...new Int32Array(buffers[1])];
    assert.deepEqual(
      [...index].sort((a, b) => a - b),
      visible,
    );
    const end = new Float64Array(buffers[8]);
    const bad = new Uint8Array(buffers[5]);
    index.forEach((row, i) => {
      const span = one.rows[row];
      assert.equal(end[i], span.end);
      const before = one.rows.filter(
        (other) =>
          other.lane === span.lane &&
          (other.claim < span.claim || (other.claim === span.claim && other.end < span.end)),
      );
      const wrong = span.start < span.claim || span.end < span.start || before.some((other) => other.end > span.claim);
      assert.equal(!!bad[i], wrong, JSON.stringify(span));
    });
    if (ugly) assert.ok(bad.some(Boolean));
    else assert.ok(!bad.some(Boolean));
  });
}

test("items over time", () => {
  const one = trace();
  const page = source(one);
  const items = one.meta.queues.find((queue) => queue.rank === 1 && queue.role === 1).items;
  const request = {
    ask: "picture",
    axis: "items",
    t0: 0,
    t1: one.length,
    width: 30,
    rows: items,
    group: { trace: 0, rank: 1, role: 1 },
  };
  const [answer, buffers] = page.answer(request);
  assert.deepEqual(answer.kinds, [1, WAIT]);
  const planes = new Uint8Array(buffers[0]);
  const scale = one.length / 30;
  for (const span of one.rows.filter((row) => row.role === 1 && row.lane >= 3)) {
    let worked = 0;
    for (let x = 0; x < 30; x++) worked += planes[span.item * 30 + x];
    assert.ok(Math.abs((worked / 255) * scale - (span.end - span.start)) < 0.2, JSON.stringify(span));
  }
  assert.equal(answer.spans, one.rows.filter((row) => row.role === 1 && row.lane >= 3).length);
});

test("sums and idle add up to the region", () => {
  const one = trace();
  const page = source(one);
  for (const [t0, t1, lanes] of [
    [0, one.length, null],
    [11, 33, [0, 4]],
    [5, 6, [2, 2]],
    [-5, 0, null],
  ]) {
    const [{ ns, spans, lanes: n }] = page.answer({ ask: "sums", t0, t1, lanes });
    const wanted = { mover: 0, builder: 0, wait: 0 };
    const inside = one.rows.filter((row) => !lanes || lanes.includes(row.lane));
    const part = (a, b) => Math.max(0, Math.min(b, t1) - Math.max(a, t0));
    for (const row of inside) {
      wanted[ROLES[row.role]] += part(row.start, row.end);
      wanted.wait += part(row.claim, row.start);
    }
    const count = lanes ? new Set(lanes).size : 6;
    assert.equal(n, count);
    wanted.idle = count * (t1 - t0) - wanted.mover - wanted.builder - wanted.wait;
    assert.deepEqual(ns, wanted);
    assert.equal(spans, inside.filter((row) => row.claim < t1 && (row.end > t0 || row.claim >= t0)).length);
  }
});

test("a span tells its clock, its moments to the nanosecond and what it waited for", () => {
  const one = trace();
  const page = source(one);
  for (const index of [0, 7, 21]) {
    const row = one.rows[index];
    const [{ span }] = page.answer({ ask: "span", index });
    assert.equal(span.end_ns, String(9007199254740993000n + BigInt(row.end)));
    assert.equal(span.mhz, row.end > row.start ? 2000 : null);
    assert.equal(span.workgroup, row.lane % 3);
    assert.equal(span.unit, (row.lane * 5) % 7);
    const rank = Math.floor(row.lane / 3);
    const movers = one.rows.filter((other) => other.role === 0 && Math.floor(other.lane / 3) === rank);
    if (row.role === 1) {
      assert.equal(span.waits_for.length, movers.length);
      const ends = movers.map((other) => other.end).sort((a, b) => a - b);
      assert.equal(span.released.end, ends[1]); // the second of two signals
      assert.equal(span.signals.length, 0);
    } else {
      assert.equal(span.released, null);
      assert.equal(
        span.signals.length,
        one.rows.filter((other) => other.role === 1 && Math.floor(other.lane / 3) === rank).length,
      );
    }
  }
  const row = one.rows.find((other) => other.end - other.claim > 4);
  const [{ span }] = page.answer({ ask: "span", lane: row.lane, t: row.end - 1 });
  assert.equal(span.end, row.end);
  assert.equal(page.answer({ ask: "span", lane: 0, t: one.length + 5 })[0].span, null);
});

test("steps walk a lane from end to end", () => {
  const one = trace();
  const page = source(one);
  const lane = one.rows.map((row, index) => ({ ...row, index })).filter((row) => row.lane === 4);
  lane.sort((a, b) => a.claim - b.claim || a.end - b.end);
  let [{ span }] = page.answer({ ask: "step", lane: 4, t: -1, by: 1 });
  const seen = [];
  while (span) {
    seen.push(span.index);
    [{ span }] = page.answer({ ask: "step", index: span.index, by: 1 });
  }
  assert.deepEqual(
    seen,
    lane.map((row) => row.index),
  );
  assert.equal(page.answer({ ask: "step", index: seen[0], by: -1 })[0].span, null);
  assert.equal(page.answer({ ask: "step", lane: 4, t: lane[2].claim, by: -1 })[0].span.claim < lane[2].claim, true);
});

test("a chain goes back to the launch", () => {
  const one = trace({ each: 12 });
  const page = source(one);
  const index = one.rows.findIndex(
    (row) => row.lane === 2 && row.claim === Math.max(...one.rows.filter((r) => r.lane === 2).map((r) => r.claim)),
  );
  const [{ spans, edges }] = page.answer({ ask: "chain", index });
  assert.equal(spans.at(-1).index, index);
  assert.equal(edges.length, spans.length - 1);
  edges.forEach(([from, to, kind], i) => {
    assert.deepEqual([from, to], [spans[i].index, spans[i + 1].index]);
    const [{ span }] = page.answer({ ask: "span", index: to });
    if (kind === "wait") assert.equal(span.released.index, from);
    else {
      assert.equal(spans[i].lane, spans[i + 1].lane);
      assert.ok(!span.released || span.released.end <= span.claim);
    }
  });
  const [{ span: first }] = page.answer({ ask: "step", index: spans[0].index, by: -1 });
  assert.equal(first, null);
});

test("orders", () => {
  const one = trace({ workgroups: 5 });
  const page = source(one);
  const order = (by, t = 0) => [...new Int32Array(page.answer({ ask: "order", by, t })[1][0])];
  assert.deepEqual(order("workgroup"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  const units = Array.from({ length: 10 }, (_, lane) => (lane * 5) % 7);
  const sorted = (key) =>
    [0, 1].flatMap((rank) => [0, 1, 2, 3, 4].map((w) => rank * 5 + w).sort((a, b) => key(a) - key(b) || a - b));
  assert.deepEqual(
    order("unit"),
    sorted((lane) => units[lane]),
  );
  const t = 22;
  const kind = (lane) => {
    const span = one.rows.find((row) => row.lane === lane && row.claim <= t && t < row.end);
    return span ? (t < span.start ? WAIT : span.role) : 7;
  };
  assert.deepEqual(order("role", t), sorted(kind));
  const spent = (lane) =>
    one.rows.filter((row) => row.lane === lane).reduce((sum, row) => sum + row.end - row.claim, 0);
  assert.deepEqual(order("idle"), sorted(spent));
  const turn = (lane) => {
    const mine = one.rows.filter((row) => row.lane === lane).sort((a, b) => a.claim - b.claim || a.end - b.end);
    return mine.find((row, i) => i && row.role !== mine[i - 1].role)?.claim ?? 1e18;
  };
  assert.deepEqual(order("switch"), sorted(turn));
});

test("searches", () => {
  const one = trace({ each: 20 });
  const page = source(one);
  const found = (text) => page.answer({ ask: "search", text })[0];
  const wanted = (test) => one.rows.map((row, index) => ({ ...row, index })).filter(test);
  const queue = (row) =>
    one.queue.find((q) => q.rank === Math.floor(row.lane / 3) && q.role === row.role && q.item === row.item);
  for (const [text, test] of [
    ["builder", (row) => row.role === 1],
    ["b item 12", (row) => row.role === 1 && row.item === 12],
    ["12", (row) => row.item === 12],
    ["tile 3, 1", (row) => queue(row).band === 3 && queue(row).column === 1],
    ["Rank 1 WG 2", (row) => row.lane === 5],
    ["wait mover", (row) => row.role === 0 && row.start > row.claim],
    ["chunk 2", (row) => queue(row).chunk === 2],
    ["unit 5", (row) => (row.lane * 5) % 7 === 5],
    ["nonsense", () => false],
    ["", () => false],
    ["tile 3", () => false],
  ]) {
    const { matches, total } = found(text);
    assert.deepEqual(
      matches.map((m) => m.index).sort((a, b) => a - b),
      wanted(test).map((row) => row.index),
      text,
    );
    assert.equal(total, matches.length);
    for (let i = 1; i < matches.length; i++) assert.ok(matches[i - 1].start <= matches[i].start);
  }
  assert.deepEqual(words("reducer item 3"), [
    ["role", 2],
    ["item", 3],
  ]);
});

test("counters: occupancy adds up, a recorded value holds until the next", () => {
  const one = trace();
  one.columns.counters = {
    series: [{ name: "power", unit: "W", rank: 0 }],
    of: Int32Array.from([0, 0, 0]),
    time: Float64Array.from([0, 20, 30]),
    value: Float64Array.from([100, 300, 200]),
  };
  const page = source(one);
  const [{ series }, buffers] = page.answer({ ask: "counters", t0: 0, t1: 40, width: 8 });
  assert.deepEqual(
    series.map((s) => s.name),
    ["mover", "builder", "wait", "clock", "power"],
  );
  const mean = (s) => [...new Float32Array(buffers[s])].slice(8, 16);
  const lanes = one.rows.reduce(
    (sum, row) => sum + (row.role === 1 ? Math.max(0, Math.min(row.end, 40) - row.start) : 0),
    0,
  );
  assert.ok(Math.abs(mean(1).reduce((a, b) => a + b) * 5 - lanes) < 1e-3);
  assert.ok(mean(3).every((value) => Number.isNaN(value) || Math.abs(value - 2000) < 1e-2));
  assert.deepEqual(mean(4).slice(0, 6), [100, 100, 100, 100, 300, 300]);
});

test("two traces share lanes and spans", () => {
  const a = trace({ seed: 2 });
  const b = trace({ seed: 3, ranks: 1, firstLane: 6, firstSpan: a.rows.length });
  const page = source(a, b);
  const index = a.rows.length + 4;
  const [{ span }] = page.answer({ ask: "span", index });
  assert.equal(span.trace, 1);
  assert.equal(span.lane, 6 + b.rows[4].lane);
  assert.equal(span.end, b.rows[4].end);
  const [, [order]] = page.answer({ ask: "order", by: "idle", t: 0 });
  assert.deepEqual(
    [...new Int32Array(order)].sort((x, y) => x - y),
    [0, 1, 2, 3, 4, 5, 6, 7, 8],
  );
});
