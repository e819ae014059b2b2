"""The results as text."""

import itertools
import statistics
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kosmos.benchmark.results import Measured, Run, geometric_mean, quartiles, ratio, sustained_ratio

if TYPE_CHECKING:
    from kosmos.benchmark.results import Results

NOTES = """\
burst: one call of a few in a CUDA graph, on a device at rest; median and quartiles. × BASE: how many times as fast as
it, from pairs of the same round. sustained: back to back, so that the power limit counts; the median of the turns,
each the mean of its last half, and the ratio from pairs of the same turn."""


def table(results: "Results") -> str:
    """Everything that a person wants to know of them."""
    parts = [_header(results.header), NOTES]
    parts += [_case(measured) for measured in results.cases]
    summary = _summary(results.cases)
    return "\n\n".join(parts + ([summary] if summary else [])) + "\n"


def _header(header: dict) -> str:
    def told(text: str, name: str) -> list[str]:
        value = header.get(name)
        return [] if value is None else [text.format(value)]

    machine = [
        *told("{}", "machine"),
        *told("{} compute units", "units"),
        *told("{} GiB", "memory_gib"),
        *told("driver {}", "driver"),
        *told("{}", "runtime"),
        *told("at most {} MHz", "max_clock_mhz"),
        *told("at most {:g} W", "power_limit_w"),
    ]
    versions = [f"{name} {version}" for name, version in (header.get("versions") or {}).items()]
    run = [
        *told("{}", "started"),
        *told("seed {}", "seed"),
        *told("{} rounds", "rounds"),
        *told("{:g} s sustained", "sustained_s"),
        *told("{} turns of it", "turns"),
        *([] if header.get("ended") else ["ended early: what was measured until then"]),
    ]
    lines = [", ".join(machine), ", ".join(versions), ", ".join(run), *told("{}", "command")]
    missing = str(header.get("sensors") or "")
    # a sentence where there is none; else what is read, through which library
    told = missing if " " in missing and " through " not in missing else ""
    return "\n".join(filter(None, [*lines, told]))


def _case(measured: Measured) -> str:
    case = measured.case
    links = f", links paced to {case.link_gbps:g} GB/s" if case.link_gbps else ""
    title = (
        f"{case.name}: {case.op}, m={case.m} n={case.n} k={case.k} a rank, {case.dtype}, {case.ranks} "
        f"rank{'s'[: case.ranks > 1]} of {measured.workgroups} workgroups{links}"
    )
    lines = [title]
    rows = [_row(measured, run) for run in measured.timed]
    if rows:
        base = f"× {case.base}"
        above = ["", "burst", "", "", "", "", "× best", "× worst", "sustained", "", "", "", ""]
        below = ["", "ms", "", "TFLOP/s", base, "", "fixed", "fixed", "ms", base, "", "MHz", "W"]
        lines += aligned([above, below, *rows], heads=2)
    lines += _remarks(measured)
    return "\n  ".join(lines)


def _row(measured: Measured, run: Run) -> list[str]:
    base, flops = measured.base, measured.case.flops
    low, middle, high = quartiles(run.burst_ms)
    row = [_called(measured, run), f"{middle:#.4g}", f"{low:#.4g}–{high:#.4g}", f"{flops / middle / 1e9:.0f}"]
    row += _times(base, run) if base else ["", ""]
    for fixed in measured.fixed[:1] + measured.fixed[-1:] if len(measured.fixed) > 1 else [None, None]:
        row.append(_times(fixed, run)[0] if fixed and run.kind in ("one_way", "two_way") else "")
    if run.sustained is None:
        return row + [""] * 5
    row.append(f"{run.sustained:#.4g}")
    times = sustained_ratio(base, run) if base else None
    row += [f"{times[1]:.3f}", f"{times[0]:.3f}–{times[2]:.3f}" * (len(run.turns) > 1)] if times else ["", ""]
    row += ["" if value is None else f"{value:.0f}" for value in (run.clock_mhz, run.power_w)]
    return row


def _called(measured: Measured, run: Run) -> str:
    """The variant's name, the policy that it stands for, and whether it is an end of the sweep."""
    name = run.name if run.policy == run.ran else f"{run.name} = {run.ran}"
    fixed = measured.fixed
    if len(fixed) > 1 and run in (fixed[0], fixed[-1]):
        name += "  best fixed" if run is fixed[0] else "  worst fixed"
    return name


def _times(base: Run, run: Run) -> list[str]:
    low, middle, high = ratio(base, run)
    return [f"{middle:.3f}", f"{low:.3f}–{high:.3f}"]


def _remarks(measured: Measured) -> Iterable[str]:
    """What the rows do not say, a line each."""
    default, again, base = (measured.run(name) for name in ("default", "default again", measured.case.base))
    if default and default.error is not None:
        others = f"; {base.name} {base.error:.1e}" if base and base.error is not None else ""
        yield f"error against float64: {default.error:.1e}, the same bits in every fused variant{others}"
    if measured.case.link_ms:
        yield f"the links alone: {measured.case.link_ms:.4f} ms at {measured.case.link_gbps:g} GB/s"
    if default and again:
        yield f"the same twice: {_percent(*(value - 1 for value in ratio(default, again)))}"
    clocks = [mhz for mhz in measured.burst_mhz if mhz]
    if clocks:
        yield f"the SM clock after bursts: {statistics.median(clocks):.0f} MHz, at least {min(clocks):.0f}"
    cost = measured.trace_cost
    if cost:
        rounds = [(statistics.mean(a), statistics.mean(b)) for a, b in zip(measured.traced_ms, measured.untraced_ms)]
        traced, untraced = sorted(rounds, key=lambda pair: pair[0] / pair[1])[len(rounds) // 2]
        yield (
            f"a trace costs {_percent(*cost)}: in the middle round launches of {traced:.4f} ms with and "
            f"{untraced:.4f} ms without"
        )
    elif default and not (measured.failed or measured.skipped):
        yield "what a trace costs was not measured"
    if default and default.host_us and base:
        others = f"; {base.name} {statistics.median(base.host_us):.0f} µs" if base.host_us else ""
        yield f"the host spends {statistics.median(default.host_us):.0f} µs in an eager call{others}"
    yield from _switching(measured)
    yield from _orders(measured)
    for run in measured.runs:
        if run.left_out:
            yield f"left out: {run.name}, {run.left_out}"
    if measured.failed:
        yield f"FAILED: {measured.failed}"
    if measured.skipped:
        yield f"skipped: {measured.skipped}"


def _switching(measured: Measured) -> Iterable[str]:
    """How much the starting crew matters with and without a switch, over the crews that both have."""
    if not measured.fixed:
        return
    best = measured.fixed[0]
    for kind in ("one_way", "two_way"):
        runs = [run for run in measured.in_order if run.kind == kind]
        fixed = [run for run in measured.fixed if run.crew in {run.crew for run in runs}]
        if len(runs) < 2 or not fixed:
            continue
        slowest = max(runs, key=lambda run: run.median)
        crews, ratios = [run.crew for run in runs], [ratio(best, run)[1] for run in runs]
        yield (
            f"{kind} from crews of {min(crews)} to {max(crews)}: {min(ratios):.3f} to {max(ratios):.3f} × {best.name}; "
            f"the slowest, {slowest.name}, is {ratio(fixed[-1], slowest)[1]:.3f} × {fixed[-1].name}, the slowest fixed "
            "one of these crews"
        )


def _orders(measured: Measured) -> Iterable[str]:
    """The default order against each other one, under the same policy."""
    usual = measured.case.default_order
    for run in measured.timed:
        if run.order not in (None, usual):
            name = run.policy or "default"
            twin = measured.run(name)
            if twin:
                of_one, spread = _times(run, twin)
                yield f"{usual} order is {of_one} ({spread}) × {run.order} order under {name}"


def _percent(low: float, middle: float, high: float) -> str:
    return f"{100 * middle:+.2f} % ({100 * low:+.2f} to {100 * high:+.2f})"


def _summary(cases: list[Measured]) -> str:
    """Over the cases of a kind: how the default policy does against the base."""
    lines = []
    for name, chosen in _groups(cases):
        found = [(ratio(measured.base, measured.run("default"))[1], measured) for measured in chosen]
        lowest = min(found, key=lambda pair: pair[0])
        mean = geometric_mean([times for times, _ in found])
        lines.append(
            f"{name}: default × {chosen[0].case.base}, geometric mean of {len(found)} cases {mean:.3f}, lowest "
            f"{lowest[0]:.3f} ({lowest[1].case.name})"
        )
    for verb, chosen in (("failed", [m for m in cases if m.failed]), ("skipped", [m for m in cases if m.skipped])):
        if chosen:
            lines.append(f"{verb}: {', '.join(measured.case.name for measured in chosen)}")
    return "\n".join(lines)


def _groups(cases: list[Measured]) -> Iterable[tuple[str, list[Measured]]]:
    """The cases of a set with one base that were measured, for every set that has several."""
    whole = [measured for measured in cases if measured.base and measured.run("default")]
    key: Callable[[Measured], tuple[str, str]] = lambda measured: (measured.case.set, measured.case.base)  # noqa: E731
    for (name, _), found in itertools.groupby(sorted(whole, key=key), key):
        group = list(found)
        if len(group) > 1:
            yield name or "all", group


def aligned(rows: list[list[str]], left: int = 1, heads: int = 1) -> list[str]:
    """The columns under each other, the first ones to the left; a column that has only heads is dropped."""
    columns = [column for column in zip(*rows) if any(column[heads:])]
    padded = [
        [f"{cell:<{width}}" if at < left else f"{cell:>{width}}" for cell in column]
        for at, (column, width) in enumerate((column, max(map(len, column))) for column in columns)
    ]
    return ["  ".join(line).rstrip() for line in zip(*padded)]


def compared(old: "Results", new: "Results") -> str:
    """What has changed between two results: the ratios, for absolute times drift between machines and days."""
    before = {(m.case.set, m.case.name): m for m in old.cases}
    rows = [["case", "variant", "base", "old", "", "new", "", "change", ""]]
    for measured in new.cases:
        earlier = before.get((measured.case.set, measured.case.name))
        if not earlier or not earlier.base or not measured.base or earlier.case.base != measured.case.base:
            continue
        for run in measured.timed:
            other = earlier.run(run.name)
            if other is None or run is measured.base:
                continue
            was, now = ratio(earlier.base, other), ratio(measured.base, run)
            apart = "" if was[0] <= now[2] and now[0] <= was[2] else "faster" if now[1] > was[1] else "slower"
            rows.append([measured.case.name, run.name, measured.case.base, *_times(earlier.base, other)])
            rows[-1] += [*_times(measured.base, run), f"{100 * (now[1] / was[1] - 1):+.1f} %", apart]
    if len(rows) == 1:
        return "no case and variant is in both\n"
    note = "× base, burst; faster and slower: where the quartiles do not overlap"
    return "\n".join([note, *aligned(rows, 3)]) + "\n"
