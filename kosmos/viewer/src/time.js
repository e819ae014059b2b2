// Times as people read them: ns, µs, ms, s.

import { tickStep } from "d3-array";

const UNITS = [
  [1, "ns"],
  [1e3, "µs"],
  [1e6, "ms"],
  [1e9, "s"],
];

const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");

/** A length of time with four or five digits that count: 872 ns, 12.35 µs, 1,596.3 µs. */
export function duration(ns) {
  const size = Math.abs(ns);
  if (size < 1000) return `${grouped(ns, Number.isInteger(ns) ? 0 : size < 10 ? 2 : 1)} ns`;
  if (size < 1e7) return `${grouped(ns / 1e3, size < 1e4 ? 3 : size < 1e5 ? 2 : 1)} µs`;
  if (size < 1e10) return `${grouped(ns / 1e6, size < 1e8 ? 2 : 1)} ms`;
  return `${grouped(ns / 1e9, 2)} s`;
}

/** A moment to the nanosecond. */
export const moment = (ns) => `${grouped(ns / 1e3, 3)} µs`;

export const percent = (share, digits = 1) => `${grouped(100 * share, digits)} %`;

export const count = (value) => value.toLocaleString("en-US");

/** Ticks of an axis from t0 to t1: {offset, ticks: [{t, label}], minor: [t]}. Times with many equal digits share an offset. */
export function timeTicks(t0, t1, most) {
  const step = Math.max(1, tickStep(t0, t1, Math.max(2, most)));
  const [unit, name] = UNITS.findLast(([size]) => step >= (size === 1e3 ? 100 : size));
  const far = Math.max(Math.abs(t0), Math.abs(t1)) / unit >= 1e5;
  const offset = far ? Math.floor(t0 / (1000 * unit)) * 1000 * unit : 0;
  const digits = step < unit ? 1 : 0;
  const ticks = [];
  for (let n = Math.ceil(t0 / step); n * step <= t1; n++) {
    const value = (n * step - offset) / unit + 0; // no minus zero
    ticks.push({ t: n * step + 0, label: `${grouped(value, digits)} ${name}` });
  }
  const fine = step / 5;
  const minor = [];
  if (fine >= 1) for (let n = Math.ceil(t0 / fine); n * fine <= t1; n++) if (n % 5) minor.push(n * fine);
  return { offset: far ? `${duration(offset)} +` : "", ticks, minor };
}
