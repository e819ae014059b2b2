"""Exported files, parsed back by others' means: every span, flow, counter and range is there, to the ns."""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from test_trace import one, scheduled
from test_trace_metrics import change

from kosmos.cli import main
from kosmos.errors import KosmosEnvironmentError, KosmosTraceError
from kosmos.trace import ROLES, Trace

proto = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")

ROOT = Path(__file__).parent.parent
RECORDED = sorted((ROOT / "traces" / "h200").glob("*.parquet"))

COUNTERS = {
    "name": ["power", "power", "clock", "power", "room", "power"],
    "rank": [0, 0, 1, 1, -4, 0],
    "time_ns": [70, 5, 3, 2**20, 9, 20],
    "value": [650.25, -0.0, 1980.0, 1e-310, 21.5, float("nan")],
    "unit": ["W", "W", "MHz", "W", "°C", "W"],
}
RANGES = {  # nested, touching, overlapping, empty, backwards
    "rank": [-1, -1, -1, 0, 0, 0, 1, 1, -3, 1],
    "track": [*3 * ["thread 7"], *5 * ["queue 0"], "elsewhere", "queue 0"],
    "name": ["step", "step", "mark", "gemm<8>", 'a "b"\n', "copy", "gemm<8>", "gone", "x", "gemm<8>"],
    "start_ns": [-100, -100, 50, 10, 15, 20, 10, 9, 1, 30],
    "end_ns": [400, 60, 50, 30, 40, 30, 30, 8, 2, 45],
}


def full(seed=0, shift=0):
    """A run with counters and ranges, all of it `shift` ns later."""
    trace = scheduled(seed, meta={"op": "made", "policy": "one_way:2", "clock": {"source": "loops", "tick_ns": 1}})
    spans = trace.spans.to_pydict()
    spans |= {name: [time + shift for time in spans[name]] for name in ("claim_ns", "start_ns", "end_ns")}
    counters = COUNTERS | {"time_ns": [time + shift for time in COUNTERS["time_ns"]]}
    ranges = RANGES | {name: [time + shift for time in RANGES[name]] for name in ("start_ns", "end_ns")}
    return Trace(spans, trace.queue, counters, trace.meta, ranges)


def lanes_of(trace):
    lanes = defaultdict(list)
    for index, span in enumerate(trace.spans.to_pylist()):
        lanes[span["rank"], span["workgroup"]].append((index, span))
    return lanes


def bad_spans(trace):
    """Rows that cannot be drawn as slices: backwards, or beyond the most that follow one another, by plain loops."""
    bad = set()
    for lane in lanes_of(trace).values():
        free = None
        for index, span in sorted(lane, key=lambda pair: (pair[1]["end_ns"], pair[1]["claim_ns"])):
            if not span["claim_ns"] <= span["start_ns"] <= span["end_ns"] or (free and span["claim_ns"] < free):
                bad.add(index)
            else:
                free = span["end_ns"]
    return bad


def smallest(trace):
    times = [trace.spans[name] for name in ("claim_ns", "start_ns", "end_ns")]
    times += [trace.counters["time_ns"], trace.ranges["start_ns"], trace.ranges["end_ns"]]
    return min(min(column.to_pylist(), default=2**63) for column in times)


# Perfetto


class Read:
    """A Perfetto file as a reader of the format sees it: packets in the order of time, interned text looked up."""

    def __init__(self, path):
        file = proto.Trace()
        file.ParseFromString(path.read_bytes())
        self.tracks, self.metadata, events = {}, {}, []
        interned = {"event_names": {}, "debug_annotation_names": {}}
        for place, packet in enumerate(file.packet):
            assert packet.trusted_packet_sequence_id == 1
            # only the first packet may start anew: what was interned before it would be forgotten
            assert packet.sequence_flags == (packet.SEQ_NEEDS_INCREMENTAL_STATE if place else 1)
            for table, texts in interned.items():
                for entry in getattr(packet.interned_data, table):
                    assert entry.iid and entry.iid not in texts
                    texts[entry.iid] = entry.name
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid and track.uuid not in self.tracks
                self.tracks[track.uuid] = track
            elif packet.HasField("chrome_events"):
                for entry in packet.chrome_events.metadata:
                    self.metadata[entry.name] = entry.string_value or entry.int_value
            else:
                event = packet.track_event
                name = interned["event_names"][event.name_iid] if event.name_iid else None
                facts = {
                    interned["debug_annotation_names"][each.name_iid]: getattr(each, each.WhichOneof("value"))
                    for each in event.debug_annotations
                }
                events.append((packet.timestamp, event, name, facts))
        self.base = self.metadata["kosmos.base_ns"]
        events.sort(key=lambda event: event[0])  # stable, as Perfetto sorts
        self.slices, self.instants, self.samples, self.flows = [], [], defaultdict(list), defaultdict(list)
        opened = defaultdict(list)
        kinds = proto.TrackEvent
        for time, event, name, facts in events:
            assert event.track_uuid in self.tracks
            time += self.base
            if event.type == kinds.TYPE_SLICE_BEGIN:
                one = {"track": event.track_uuid, "name": name, "begin": time, "facts": facts}
                one["depth"] = len(opened[event.track_uuid])
                opened[event.track_uuid].append(one)
                self.slices.append(one)
            elif event.type == kinds.TYPE_SLICE_END:
                one = opened[event.track_uuid].pop()  # it closes the latest one, whatever was meant
                one["end"] = time
            elif event.type == kinds.TYPE_INSTANT:
                one = {"track": event.track_uuid, "name": name, "begin": time, "facts": facts}
                self.instants.append(one)
            else:
                assert event.type == kinds.TYPE_COUNTER
                self.samples[event.track_uuid].append((time, event.double_counter_value))
                continue
            for flow in event.flow_ids:
                self.flows[flow].append(("begins", one))
            for flow in event.terminating_flow_ids:
                self.flows[flow].append(("ends", one))
        assert not any(opened.values())

    def path(self, uuid):
        """Names from the run's track down."""
        track = self.tracks[uuid]
        return (*(self.path(track.parent_uuid) if track.parent_uuid else ()), track.name)

    def children(self, *path):
        """Names of the tracks below, as Perfetto orders them."""
        (parent,) = [track for uuid, track in self.tracks.items() if self.path(uuid) == path]
        assert parent.child_ordering == parent.EXPLICIT
        below = [track for track in self.tracks.values() if track.parent_uuid == parent.uuid]
        places = [track.sibling_order_rank for track in below]
        assert len({*places}) == len(places)
        assert all(track.sibling_merge_behavior == track.SIBLING_MERGE_BEHAVIOR_NONE for track in below)
        return [track.name for track in sorted(below, key=lambda track: track.sibling_order_rank)]


def perfetto(trace, tmp_path):
    trace.to_perfetto(tmp_path / "t.pftrace")
    assert os.listdir(tmp_path) == ["t.pftrace"]
    return Read(tmp_path / "t.pftrace")


def check_spans(trace, read, run):
    """Every span is there once: one that nests as slices, any other as an instant with its times."""
    bad = bad_spans(trace)
    queue = {(row["rank"], row["role"], row["item"]): row for row in reversed(trace.queue.to_pylist())}
    slices, instants = defaultdict(list), defaultdict(list)
    for events, by_path in ((read.slices, slices), (read.instants, instants)):
        for event in events:
            by_path[read.path(event["track"])].append(event)
    for (rank, workgroup), lane in lanes_of(trace).items():
        here = (run, f"rank {rank}", f"workgroup {workgroup}")
        expected = []
        for index, span in lane:
            row = queue.get((rank, span["role"], span["item"]))
            span["facts"] = {"item": span["item"], "cycles": span["cycles"], "unit": span["unit"]}
            if row:
                span["facts"]["tile"] = f"{row['band']},{row['column']}"
            if span["end_ns"] > span["start_ns"]:
                span["facts"]["MHz"] = round(1000 * span["cycles"] / (span["end_ns"] - span["start_ns"]), 1)
            if index in bad:
                continue
            if span["start_ns"] > span["claim_ns"]:
                waited = {"role": span["role"], "item": span["item"]}
                expected.append((span["claim_ns"], span["start_ns"], "wait", waited, None))
            expected.append((span["start_ns"], span["end_ns"], span["role"], span["facts"], index))
        given = [(one["begin"], one["end"], one["name"], one["facts"]) for one in slices.pop(here, [])]
        key = lambda one: (*one[:3], sorted(one[3].items(), key=str))  # noqa: E731
        assert sorted(given, key=key) == [one[:4] for one in sorted(expected, key=key)]
        apart = [(index, span) for index, span in lane if index in bad]
        beside = (*here[:2], f"{here[2]}: {len(apart)} that do not nest")
        expected = [
            (span["claim_ns"], span["role"], span["facts"] | {"claim": span["claim_ns"] - read.base})
            for _, span in apart
        ]
        given = [(one["begin"], one["name"].split()[0], one["facts"]) for one in instants.pop(beside, [])]
        assert len(given) == len(expected)
        for begin, role, facts in expected:
            (same,) = [event for event in given if event[:2] == (begin, role) and event[2].items() >= facts.items()][:1]
            given.remove(same)
    return slices, instants


def check_flows(trace, read):
    """One id an edge, its ends at the two spans' working slices (or instants)."""
    src, dst, unbound = trace.edges()
    spans = trace.spans.to_pylist()

    def end_of(one):
        workgroup = read.path(one["track"])[2].partition(":")[0]
        return read.path(one["track"])[1], workgroup, one["name"].split()[0], one["facts"]["item"], one["begin"]

    bad = bad_spans(trace)
    given = Counter()
    for ends in read.flows.values():
        assert sorted(what for what, _ in ends) == ["begins", "ends"]
        by_kind = dict(ends)
        given[end_of(by_kind["begins"]), end_of(by_kind["ends"])] += 1

    def named(index):
        span = spans[index]
        at = span["claim_ns"] if index in bad else span["start_ns"]
        return f"rank {span['rank']}", f"workgroup {span['workgroup']}", span["role"], span["item"], at

    expected = Counter((named(a), named(b)) for a, b in zip(src.tolist(), dst.tolist()))
    assert given == expected and sum(given.values()) == len(src)
    assert read.metadata["kosmos.flows"] == len(src)
    assert read.metadata["kosmos.flows_without_an_end"] == unbound


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_trace_is_all_there_in_perfetto(path, tmp_path):
    trace = Trace.load(path)
    read = perfetto(trace, tmp_path)
    run = ", ".join(trace.meta[key] for key in ("op", "policy", "order"))
    slices, instants = check_spans(trace, read, run)
    assert not slices and not instants and all(one["depth"] == 0 for one in read.slices)
    check_flows(trace, read)
    assert read.children(run) == [f"rank {rank}" for rank in range(trace.ranks)]
    assert read.children(run, "rank 3") == [f"workgroup {number}" for number in range(trace.workgroups)]
    assert read.metadata["kosmos.op"] == trace.meta["op"]
    assert json.loads(read.metadata["kosmos.clock"]) == trace.meta["clock"]
    assert read.metadata["kosmos.epoch"] == trace.meta["epoch"] > 2**53


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shift", [0, 2**62 - 2**24 + 1, -(2**62)])
def test_every_span_flow_counter_and_range_is_in_perfetto(seed, shift, tmp_path):
    trace = full(seed, shift)
    read = perfetto(trace, tmp_path)
    slices, instants = check_spans(trace, read, "made, one_way:2")
    check_flows(trace, read)
    assert read.base == smallest(trace) == shift - 100

    drawn = [
        (*path[1:], one["name"], one["begin"] - shift, one["end"] - shift) for path in slices for one in slices[path]
    ]
    assert sorted(drawn) == sorted(
        [
            ("thread 7", "step", -100, 400),
            ("thread 7", "step", -100, 60),
            ("thread 7", "mark", 50, 50),
            ("elsewhere", "x", 1, 2),
            ("rank 0", "queue 0", "gemm<8>", 10, 30),
            ("rank 0", "queue 0 (2)", 'a "b"\n', 15, 40),
            ("rank 0", "queue 0", "copy", 20, 30),
            ("rank 1", "queue 0", "gemm<8>", 10, 30),
            ("rank 1", "queue 0", "gemm<8>", 30, 45),
        ]
    )
    ((path, (lost,)),) = instants.items()
    assert path[1:] == ("rank 1", "queue 0: 1 that do not nest") and lost["name"] == "gone"
    assert (lost["begin"], lost["facts"]) == (9 + shift, {"start": 109, "end": 108})

    samples = {
        read.path(track)[1:]: [(time - shift, value) for time, value in values]
        for track, values in read.samples.items()
    }
    assert samples == {
        ("rank 0", "power"): [(5, -0.0), (70, 650.25)],
        ("rank 1", "clock"): [(3, 1980.0)],
        ("rank 1", "power"): [(2**20, 1e-310)],
        ("room",): [(9, 21.5)],
    }
    units = {track.name: track.counter.unit_name for track in read.tracks.values() if track.HasField("counter")}
    assert units == {"power": "W", "clock": "MHz", "room": "°C"}
    assert read.metadata["kosmos.samples_without_a_value"] == 1
    assert read.children("made, one_way:2") == ["room", "thread 7", "elsewhere", "rank 0", "rank 1", "rank 2"]
    assert read.children("made, one_way:2", "rank 1")[:4] == [
        "clock",
        "power",
        "queue 0",
        "queue 0: 1 that do not nest",
    ]


@pytest.mark.parametrize("seed", range(12))
def test_bad_spans_are_apart_and_counted(seed, tmp_path):
    trace = change(scheduled(seed), seed)
    read = perfetto(trace, tmp_path)
    slices, instants = check_spans(trace, read, "run")
    assert not slices and not instants
    check_flows(trace, read)
    bad, spans = bad_spans(trace), trace.spans.to_pylist()
    assert bad and len(read.instants) == len(bad) == read.metadata["kosmos.spans_that_do_not_nest"]
    backwards = [i for i in bad if not spans[i]["claim_ns"] <= spans[i]["start_ns"] <= spans[i]["end_ns"]]
    assert sum(event["name"].endswith("ends before it begins") for event in read.instants) == len(backwards) > 0
    assert sum(event["name"].endswith("overlaps") for event in read.instants) == len(bad) - len(backwards)
    src, dst, _ = trace.edges()
    early = sum(spans[b]["start_ns"] < spans[a]["start_ns"] for a, b in zip(src.tolist(), dst.tolist()))
    assert read.metadata["kosmos.flows_back_in_time"] == early


def test_one_long_bad_span_does_not_displace_the_others(tmp_path):
    spans = {name: column * 4 for name, column in one().items()}
    spans |= {"item": [0, 1, 2, 3], "claim_ns": [0, 0, 10, 20], "start_ns": [0, 1, 11, 20], "end_ns": [99, 9, 20, 30]}
    read = perfetto(Trace(spans), tmp_path)
    assert [(one["name"], one["facts"]["item"]) for one in read.instants] == [("builder overlaps", 0)]
    assert [one["facts"]["item"] for one in read.slices if one["name"] == "builder"] == [1, 2, 3]


@pytest.mark.parametrize(
    "trace", [Trace(None), Trace(None, meta={"ranks": 2, "workgroups": 3}), Trace(one(end_ns=[1]))]
)
def test_small_traces_are_exported(trace, tmp_path):
    read = perfetto(trace, tmp_path)
    assert len(read.slices) == 2 * len(trace.spans) and read.metadata["kosmos.spans"] == len(trace.spans)
    os.unlink(tmp_path / "t.pftrace")
    chrome(trace, tmp_path)


@pytest.mark.parametrize("write", [Trace.to_perfetto, Trace.to_chrome])
def test_times_that_no_viewer_can_count_are_refused(write, tmp_path):
    far = Trace(one(claim_ns=[-(2**62)], start_ns=[0], end_ns=[2**62]))
    with pytest.raises(KosmosTraceError, match=f"times from {-(2**62)} to {2**62} ns are too far apart"):
        write(far, tmp_path / "t")
    with pytest.raises(KosmosTraceError, match="cannot be written, there is no folder"):
        write(Trace(one()), tmp_path / "no" / "t")
    assert not os.listdir(tmp_path)


def test_without_the_package_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "perfetto"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "perfetto", None)
    with pytest.raises(KosmosEnvironmentError, match='is missing here: pip install "perfetto>=0.59"$'):
        Trace(one()).to_perfetto(tmp_path / "t")
    assert not os.listdir(tmp_path)


def test_exports_are_loaded_when_they_are_used():
    code = "import sys, kosmos.trace; print([name for name in sys.modules if 'perfetto' in name or 'sqlite' in name])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "[]\n"


def grown(times):
    """The run `times` times, one after the other in every lane, its items counted on."""
    trace = scheduled(0, ranks=4, workgroups=64, tiles=400)
    parts = {table: [] for table in ("spans", "queue")}
    for turn in range(times):
        for table, found in parts.items():
            columns = {name: np.asarray(getattr(trace, table)[name]) for name in getattr(trace, table).column_names}
            for name in ("claim_ns", "start_ns", "end_ns"):
                if name in columns:
                    columns[name] = columns[name] + turn * 100_000
            columns["item"] = columns["item"] + turn * 1000
            for name in ("wait", "signal"):
                if name in columns:
                    columns[name] = np.where(columns[name] >= 0, columns[name] + 1000 * turn, -1)
            found.append(columns)
    return Trace(
        *({name: np.concatenate([part[name] for part in found]) for name in found[0]} for found in parts.values())
    )


@pytest.mark.slow
@pytest.mark.parametrize("write", ["to_perfetto", "to_chrome"])
def test_files_are_not_held_in_memory(write, tmp_path):
    code = (
        "import resource, sys\n"
        "from test_exports import grown\n"
        "small, large = grown(1), grown(32)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"small.{write}(sys.argv[1])\n"
        "before = peak()\n"
        f"large.{write}(sys.argv[1])\n"
        "print(len(large.spans), 1024 * (peak() - before))"
    )
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-c", code, str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    spans, grew = map(int, done.stdout.split())
    assert spans > 50_000
    assert grew < 250 * spans, f"{grew / spans:.0f} bytes a span were held"


# Chrome


def chrome(trace, tmp_path):
    """The file's events, its times as exact decimals, and its other data."""
    trace.to_chrome(tmp_path / "t.json")
    assert os.listdir(tmp_path) == ["t.json"]
    text = (tmp_path / "t.json").read_text(encoding="utf-8")

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    file = json.loads(text, parse_float=Decimal, parse_constant=refuse)
    assert {*file} == {"displayTimeUnit", "traceEvents", "otherData"}
    return file["traceEvents"], file["otherData"]


def ns(us):
    assert isinstance(us, Decimal) and -us.as_tuple().exponent == 3
    return int(us.scaleb(3))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shift", [0, 2**62 - 2**24 + 1])
def test_every_span_flow_counter_and_range_is_in_chrome(seed, shift, tmp_path):
    trace = full(seed, shift)
    events, other = chrome(trace, tmp_path)
    base = other["kosmos.base_ns"]
    assert base == shift - 100
    named = defaultdict(dict)
    for event in events:
        if event["ph"] == "M":
            named[event["name"]][event["pid"], event["tid"]] = next(iter(event["args"].values()))
    process = {pid: name for (pid, _), name in named["process_name"].items()}
    order = sorted(named["process_sort_index"], key=named["process_sort_index"].get)
    assert [process[pid] for pid, _ in order] == ["made, one_way:2", "rank 0", "rank 1", "rank 2"]
    order = sorted(named["thread_sort_index"], key=named["thread_sort_index"].get)
    lanes = [(process[key[0]], named["thread_name"][key]) for key in order]
    assert [lane for lane in lanes if lane[1].startswith("workgroup")] == [
        (f"rank {rank}", f"workgroup {number}") for rank in range(3) for number in range(5)
    ]

    def where(event):
        return process[event["pid"]], named["thread_name"][event["pid"], event["tid"]]

    given = Counter()
    for event in events:
        if event["ph"] == "X":
            begin = base + ns(event["ts"])
            given[*where(event), event["name"], event.get("args", {}).get("item"), begin, begin + ns(event["dur"])] += 1
    expected = Counter()
    for span in trace.spans.to_pylist():
        lane = f"rank {span['rank']}", f"workgroup {span['workgroup']}"
        if span["start_ns"] > span["claim_ns"]:
            expected[*lane, "wait", span["item"], span["claim_ns"], span["start_ns"]] += 1
        expected[*lane, span["role"], span["item"], span["start_ns"], span["end_ns"]] += 1
    ranges = trace.ranges.to_pylist()
    for number, one_range in enumerate(ranges):
        track = one_range["track"] + (" (2)" if number == 4 else "")
        lane = f"rank {one_range['rank']}" if one_range["rank"] >= 0 else "made, one_way:2"
        if one_range["name"] != "gone":
            expected[lane, track, one_range["name"], None, one_range["start_ns"], one_range["end_ns"]] += 1
    assert given == expected
    (lost,) = [event for event in events if event["ph"] == "i"]
    assert where(lost) == ("rank 1", "queue 0: 1 that do not nest") and lost["name"] == "gone"

    src, dst, _ = trace.edges()
    ends = {kind: {event["id"]: event for event in events if event["ph"] == kind} for kind in "sf"}
    assert ends["s"].keys() == ends["f"].keys() and len(ends["s"]) == len(src)
    assert sum(event["ph"] in "sf" for event in events) == 2 * len(src)
    spans = trace.spans.to_pylist()
    lane_and_start = lambda span: (f"rank {span['rank']}", f"workgroup {span['workgroup']}", span["start_ns"])  # noqa: E731
    assert Counter(
        ((*where(event), base + ns(event["ts"])), (*where(ends["f"][number]), base + ns(ends["f"][number]["ts"])))
        for number, event in ends["s"].items()
    ) == Counter((lane_and_start(spans[a]), lane_and_start(spans[b])) for a, b in zip(src.tolist(), dst.tolist()))
    assert all(event["bp"] == "e" for event in ends["f"].values())

    samples = Counter(
        (process[e["pid"]], e["name"], base + ns(e["ts"]), float(e["args"]["value"])) for e in events if e["ph"] == "C"
    )
    assert samples == Counter(
        {
            ("rank 0", "power (W)", shift + 5, 0.0): 1,
            ("rank 0", "power (W)", shift + 70, 650.25): 1,
            ("rank 1", "clock (MHz)", shift + 3, 1980.0): 1,
            ("rank 1", "power (W)", shift + 2**20, 1e-310): 1,
            ("made, one_way:2", "room (°C)", shift + 9, 21.5): 1,
        }
    )
    assert other["kosmos.samples_without_a_value"] == 1 and other["kosmos.clock"]["source"] == "loops"


@pytest.mark.parametrize("seed", range(4))
def test_bad_spans_are_instants_in_chrome(seed, tmp_path):
    trace = change(scheduled(seed), seed)
    events, other = chrome(trace, tmp_path)
    bad = bad_spans(trace)
    spans = trace.spans.to_pylist()
    instants = Counter(
        tuple(event["args"][name] + other["kosmos.base_ns"] for name in ("claim_ns", "start_ns", "end_ns"))
        for event in events
        if event["ph"] == "i"
    )
    assert instants == Counter((spans[i]["claim_ns"], spans[i]["start_ns"], spans[i]["end_ns"]) for i in bad)
    assert other["kosmos.spans_that_do_not_nest"] == len(bad)
    assert sum(event["ph"] == "X" and event["name"] in ROLES for event in events) == len(spans) - len(bad)


def test_long_runs_keep_their_ns_in_chrome(tmp_path):
    long = Trace(one(claim_ns=[1], start_ns=[2], end_ns=[2**62 + 1]))
    events, other = chrome(long, tmp_path)
    (work,) = [event for event in events if event["ph"] == "X" and event["name"] == "builder"]
    assert (ns(work["ts"]), ns(work["dur"]), other["kosmos.base_ns"]) == (1, 2**62 - 1, 1)


# the command


def command(*arguments):
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("kind", ["perfetto", "chrome", "html"])
def test_the_command_writes_what_the_method_does(kind, tmp_path, capsys):
    getattr(Trace.load(RECORDED[0]), f"to_{kind}")(tmp_path / "method")
    assert command("export", RECORDED[0], "--to", kind, "-o", tmp_path / "command") == 0
    size = (tmp_path / "command").stat().st_size
    assert capsys.readouterr() == (f"exported   {tmp_path / 'command'}, {size:,} bytes\n", "")
    assert (tmp_path / "command").read_bytes() == (tmp_path / "method").read_bytes()


def test_the_command_tells_of_problems(tmp_path, capsys):
    change(scheduled(1), 1).save(tmp_path / "t.parquet")
    assert command("export", tmp_path / "t.parquet", "--to", "chrome", "-o", tmp_path / "t.json") == 0
    count = len(Trace.load(tmp_path / "t.parquet").problems())
    assert f"problems   {count}, which `kosmos show " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.parquet", "--to", "chrome", "-o", "x"], "none.parquet: cannot be read (No such file or directory)"),
        (["t.parquet", "--to", "chrome", "-o", "no/x"], "no/x: cannot be written, there is no folder no"),
        (["t.parquet", "--to", "plain", "-o", "x"], "argument --to: invalid choice: 'plain'"),
        (["t.parquet", "--to", "chrome"], "the following arguments are required: -o/--output"),
        (["t.parquet", "-o", "x"], "the following arguments are required: --to"),
        (["t.parquet", "--to", "html", "-o", "./t.parquet"], "./t.parquet: cannot be written, it is the trace itself"),
    ],
)
def test_the_command_refuses_in_one_line(arguments, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scheduled().save("t.parquet")
    assert command("export", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("kosmos") and says in err and err.count("\n") == 1
    assert os.listdir() == ["t.parquet"]
