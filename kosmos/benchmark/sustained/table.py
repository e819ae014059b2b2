"""A sweep as text."""

from typing import TYPE_CHECKING, Any

from kosmos.benchmark.table import aligned

if TYPE_CHECKING:
    from kosmos.benchmark.sustained.results import Results

COLUMNS = {
    "workgroups": ("workgroups", "{:d}"),
    "data": ("data", "{}"),
    "policy": ("policy", "{}"),
    "hz": ("readings/s", "{:g}"),
    "call_ms": ("ms", "{:.4f}"),
    "tflops": ("TFLOP/s", "{:.1f}"),
    "kept": ("kept", "{:.3f}"),
    "clock_mhz": ("MHz", "{:.0f}"),
    "kernel_mhz": ("MHz in kernel", "{:.0f}"),
    "power_w": ("W", "{:.1f}"),
    "joule": ("J", "{:.3f}"),
    "pj_per_flop": ("pJ/FLOP", "{:.3f}"),
    "joule_seconds": ("mJ·s", "{:.3f}"),
    "temperature": ("°C", "{:.0f}"),
    "throttled": ("capped", "{:.0%}"),
}
"""Heads and formats, in order. A column that says the same of every point, or nothing, is left out."""

ALWAYS = {"call_ms", "tflops", "kept", "clock_mhz", "power_w"}


def table(results: "Results") -> str:
    """What was measured, a row a point, and what follows from it."""
    rows = results.rows()
    lines = [*_head(results), ""]
    if not rows:
        return "\n".join([*lines, "nothing was measured", ""])
    shown = [name for name in COLUMNS if _says(rows, name)]
    cells = [[COLUMNS[name][0] for name in shown]]
    cells += [[_cell(row, name) for name in shown] for row in rows]
    return "\n".join([*lines, *aligned(cells), "", *_notes(results, rows), ""])


def _says(rows: list[dict[str, Any]], name: str) -> bool:
    values = {row[name] for row in rows}
    return values != {None} and (name in ALWAYS or name not in ("data", "policy", "hz") or len(values) > 1)


def _cell(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if value is None:
        return "default" if name == "policy" else "-"
    return COLUMNS[name][1].format(value * 1e3 if name == "joule_seconds" else value)


def _head(results: "Results"):
    header, sweep = results.header, results.sweep
    if results.note:
        yield results.note
    facts = [header.get("machine"), header.get("power_limit_w") and f"cap {header['power_limit_w']:g} W"]
    facts += [f"{name} {version}" for name, version in (header.get("versions") or {}).items()]
    yield "  ·  ".join(str(fact) for fact in [*facts, header.get("started")] if fact)
    if sweep:
        point = sweep.points[sweep.full]
        shape = f"m={point.m}, n={point.n}, k={point.k}, {point.dtype}, {point.ranks} rank{'s'[: point.ranks > 1]}"
        yield f"{point.op}, {shape}; sustained, {header.get('seconds', 0):g} s a run, over {sweep.over}"
    yield f"sensor: {header.get('sensors')}"


def _notes(results: "Results", rows: list[dict[str, Any]]):
    if len(results.of(results.sweep.full)) > 1:
        drift = results.drift()
        yield f"drift: the full point kept {min(drift):.3f} to {max(drift):.3f} of its first run's throughput"
    check = results.energy_check()
    if check:
        counted, integral, seconds = check
        yield (
            f"energy over {seconds:.1f} s: {counted:.0f} J by the counter, {integral:.0f} J as the integral of the "
            f"momentary power: {100 * (counted / integral - 1):+.2f} %"
        )
    both = [(row["clock_mhz"], row["kernel_mhz"]) for row in rows if row["clock_mhz"] and row["kernel_mhz"]]
    if both:
        off = [100 * (kernel / sensor - 1) for sensor, kernel in both]
        yield f"clock in the kernel against the sensor's mean: {min(off):+.2f} to {max(off):+.2f} %"
    if results.sweep.over == "sampling":
        for what, found in (
            ("a call on the device", results.overhead()),
            ("an eager call on the host", _host_overhead(results)),
        ):
            if found:
                low, middle, high = (100 * one for one in found)
                yield f"{what} takes {middle:+.3f} % ({low:+.3f} to {high:+.3f}) longer while the sensor is read"
    if results.copy and results.copy.power_w:
        yield f"copies in device memory: {results.copy.gbps:.0f} GB/s read and written, {results.copy.power_w:.1f} W"
    if results.idle and results.idle.mean("power"):
        yield f"at rest: {results.idle.mean('power'):.1f} W at {results.idle.mean('sm_clock') or 0:.0f} MHz"
    updates = next((run.samples.updates for run in results.runs if run.samples), {})
    told = [f"{name} {period:.0f} ms" for name, period in updates.items() if period]
    if told:
        yield f"the sensor has a new value every: {', '.join(told)}"
    gaps = [gap for run in results.runs if run.samples for gap in run.samples.gaps]
    if gaps:
        seconds = sum(gap.end_ns - gap.begin_ns for gap in gaps) * 1e-9
        names = ", ".join(sorted({f"{gap.name} ({gap.why})" for gap in gaps}))
        yield f"gaps: {len(gaps)}, {seconds:.1f} s in all: {names}"


def _host_overhead(results: "Results"):
    if not all(run.host_us for run in results.runs):
        return None
    return results.overhead(lambda run: sorted(run.host_us)[len(run.host_us) // 2])
