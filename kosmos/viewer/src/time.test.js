import assert from "node:assert/strict";
import { test } from "node:test";

import { duration, moment, timeTicks } from "./time.js";

test("lengths read well", () => {
  assert.deepEqual([872, 0, 12345, 2229600, 12.5e6, 3e9, -1500].map(duration), [
    "872 ns",
    "0 ns",
    "12.35 µs",
    "2,229.6 µs",
    "12.50 ms",
    "3,000.0 ms",
    "−1.500 µs",
  ]);
  assert.equal(moment(1203456), "1,203.456 µs");
});

test("ticks are round, in view and told apart", () => {
  for (const [t0, t1, far] of [
    [0, 2.2e6],
    [1.2034e6, 1.2038e6, true],
    [5e12, 5e12 + 40, true],
    [0, 30],
    [-2e5, 3e7],
    [0, 9e9],
  ]) {
    const { ticks, minor, offset } = timeTicks(t0, t1, 9);
    assert.ok(ticks.length >= 3 && ticks.length <= 16, `${t0} ${t1}: ${ticks.length}`);
    assert.equal(new Set(ticks.map(({ label }) => label)).size, ticks.length);
    assert.ok(ticks.every(({ t }) => t >= t0 && t <= t1));
    assert.ok(minor.every((t) => t >= t0 && t <= t1));
    assert.ok(
      ticks.every(({ label }) => label.length < 14),
      ticks[0].label,
    );
    assert.equal(Boolean(offset), Boolean(far));
  }
});
