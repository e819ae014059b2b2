"""A trace as a page of the viewer holds it, made with numpy alone: what the tests of the page compare it with."""

import base64
import json
import struct
import zlib
from pathlib import Path

import numpy as np

from kosmos.trace import ROLES, Trace
from kosmos.trace.schema import numbers

WAIT = 6
BUNDLE = Path(__file__).parents[1] / "kosmos" / "viewer" / "static" / "viewer.js"


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def column(values: np.ndarray, kind: str, **options) -> dict:
    data = np.asarray(values).astype(np.dtype(kind).newbyteorder("<")).tobytes()
    return {"type": kind, "data": base64.b64encode(deflate(data)).decode(), **options}


class Page:
    """One or several traces as the JSON of a page: `json`, and `coverage` of any window of them."""

    def __init__(self, *traces: Trace, titles: list[str] | None = None) -> None:
        self.traces = traces
        self.titles = titles or [str(trace.meta.get("op") or "run") for trace in traces]
        metas, packed, first_lane, first_span = [], [], 0, 0
        self.lane, self.role, self.claim, self.start, self.end = [], [], [], [], []
        for trace, title in zip(traces, self.titles):
            rank, workgroup, role, item, cycles, unit = numbers(
                trace.spans, "rank", "workgroup", "role", "item", "cycles", "unit"
            )
            claim, start, end = numbers(trace.spans, "claim_ns", "start_ns", "end_ns")
            base = int(min(claim.min(), start.min(), end.min())) if len(claim) else 0
            lane = rank.astype(np.int64) * trace.workgroups + workgroup
            lanes = trace.ranks * trace.workgroups
            units = np.full(lanes, -1)
            units[lane[::-1]] = unit[::-1]
            queue = {name: numbers(trace.queue, name)[0] for name in trace.queue.column_names}
            roles = sorted({int(r) for r in np.unique(role)} | {int(r) for r in np.unique(queue["role"])})
            counted: dict[tuple[int, int], int] = {}
            for r, code, i in [(rank, role, item), (queue["rank"], queue["role"], queue["item"])]:
                for a, b, c in zip(r.tolist(), code.tolist(), i.tolist()):
                    counted[a, b] = max(counted.get((a, b), 0), c + 1)
            series, of, time, value = [], [], [], []
            for row in trace.counters.to_pylist():
                one = {"name": row["name"], "unit": row["unit"], "rank": row["rank"]}
                if one not in series:
                    series.append(one)
                of.append(series.index(one))
                time.append(row["time_ns"] - base)
                value.append(row["value"])
            shares = dict(trace.summary())
            summary = {"makespan_ns": shares.pop("makespan_ns"), "shares": shares}
            metas.append(
                {
                    "title": title,
                    "base": str(base),
                    "length_ns": int(max(end.max(), start.max()) - base) if len(end) else 0,
                    "ranks": trace.ranks,
                    "workgroups": trace.workgroups,
                    "first_lane": first_lane,
                    "first_span": first_span,
                    "spans": len(claim),
                    "roles": roles,
                    "place": trace.meta.get("place"),
                    "machine": trace.meta.get("machine"),
                    "clock": trace.meta.get("clock") or {},
                    "tick_ns": (trace.meta.get("clock") or {}).get("tick_ns", 1),
                    "summary": summary,
                    "problems": trace.problems(),
                    "bad": 0,
                    "queues": [
                        {"rank": r, "role": code, "items": items} for (r, code), items in sorted(counted.items())
                    ],
                    "counters": series,
                    "unit_name": "SM",
                    "units": units.tolist(),
                    "ranges": 0,
                }
            )
            packed.append(
                {
                    "columns": {
                        "lane": column(lane, "int32"),
                        "role": column(role, "uint8"),
                        "item": column(item, "int32"),
                        "claim": column(np.diff(claim - base, prepend=0), "float64", delta=True),
                        "start": column(start - claim, "float64", plus="claim"),
                        "end": column(end - start, "float64", plus="start"),
                        "cycles": column(cycles, "float64"),
                    },
                    "units": column(units, "int32"),
                    "queue": {name: column(values, "int32") for name, values in queue.items()},
                    "counters": {
                        "series": series,
                        "columns": {
                            "series": column(of, "int32"),
                            "time": column(time, "float64"),
                            "value": column(value, "float64"),
                        },
                    },
                    "ranges": None,
                }
            )
            self.lane.append(lane + first_lane)
            self.role.append(role)
            for mine, theirs in ((self.claim, claim), (self.start, start), (self.end, end)):
                mine.append(theirs - base)
            first_lane += lanes
            first_span += len(claim)
        for name in ("lane", "role", "claim", "start", "end"):
            setattr(self, name, np.concatenate(getattr(self, name)))
        self.lanes = first_lane
        self.base = int(metas[0]["base"])
        self.length = max(meta["length_ns"] for meta in metas)
        first = metas[0]["summary"]
        difference = [
            {
                "title": meta["title"],
                "makespan_ns": meta["summary"]["makespan_ns"],
                "ratio": meta["summary"]["makespan_ns"] / max(1, first["makespan_ns"]),
                "shares": meta["summary"]["shares"],
            }
            for meta in metas
        ]
        rows = min(128, self.lanes)
        row = np.arange(self.lanes) * rows // self.lanes
        cover = self.coverage(0, self.length, 1000, rows, row)
        overview = struct.pack("<II", rows, 1000) + deflate(cover.tobytes())
        self.meta = {
            "version": 1,
            "traces": metas,
            "lanes": self.lanes,
            "difference": difference if len(metas) > 1 else None,
        }
        self.json = {"meta": self.meta, "overview": base64.b64encode(overview).decode(), "traces": packed}

    def coverage(self, t0: float, t1: float, width: int, rows: int, row_of: np.ndarray) -> np.ndarray:
        """uint8[7][rows][width] of a window, see `coverage`; `row_of`: the row of each lane, -1 is none."""
        shared = np.bincount(row_of[row_of >= 0], minlength=rows)
        return coverage(row_of[self.lane], self.role, self.claim, self.start, self.end, shared, t0, t1, width)

    def add_ranges(self, ranges: list[tuple[str, str, int, int]]) -> None:
        """(track, name, start, end), times from the base, beside the spans of the first trace."""
        tracks, names, start, end = zip(*ranges)
        table = {"tracks": list(dict.fromkeys(tracks)), "names": list(dict.fromkeys(names))}
        self.meta["traces"][0]["ranges"] = len(ranges)
        self.json["traces"][0]["ranges"] = table | {
            "columns": {
                "track": column([table["tracks"].index(track) for track in tracks], "int32"),
                "name": column([table["names"].index(name) for name in names], "int32"),
                "start": column(start, "float64"),
                "end": column(end, "float64"),
            }
        }

    def html(self, attributes: str = "", head: str = "") -> str:
        """The page as one file, as `to_html` makes it."""
        bundle = BUNDLE.read_text()
        data = json.dumps(self.json).replace("<", "\\u003c")
        return f"""<!doctype html><html><head><meta charset="utf-8"><title>viewer</title>{head}</head>
<body {attributes}><div id="viewer"></div>
<script type="application/json" id="data">{data}</script>
<script type="text/plain" id="bundle">{bundle}</script>
<script type="module">
const text = (id) => document.getElementById(id).textContent;
const viewer = await import(URL.createObjectURL(new Blob([text("bundle")], {{ type: "text/javascript" }})));
window.view = await viewer.mountPage(document.getElementById("viewer"), JSON.parse(text("data")));
</script></body></html>"""


def coverage(row, role, claim, start, end, shared, t0: float, t1: float, width: int) -> np.ndarray:
    """uint8[7][rows][width]: how much of each pixel is work in each role and waiting, 255 is all of it.

    Spans are given by `row` (-1 is none), role and times; `shared` is how many lanes or items each row has.
    """
    change = np.zeros((7, len(shared), width + 2))
    for kind, begin, until in [(None, start, end), (WAIT, claim, start)]:
        use = (row >= 0) & (until > begin)
        plane = role[use] if kind is None else np.full(use.sum(), kind)
        for edge, sign in ((begin, 1.0), (until, -1.0)):
            # a step at x fills its own pixel by what is left of it and all later ones
            x = np.clip((edge[use] - t0) / (t1 - t0) * width, 0, width)
            cell = x.astype(np.int64)
            part = x - cell
            np.add.at(change, (plane, row[use], cell), sign * (1 - part))
            np.add.at(change, (plane, row[use], cell + 1), sign * part)
    cover = change.cumsum(axis=2)[:, :, :width] / np.maximum(1, shared)[:, None]
    return np.rint(255 * cover.clip(0, 1)).astype(np.uint8)


def generated(ranks: int, workgroups: int, spans: int, seed: int = 0) -> Trace:
    """A run of `spans` spans a workgroup: movers that become builders at a time of their own, some waits, no queue."""
    rng = np.random.default_rng(seed)
    lanes = ranks * workgroups
    wait = rng.exponential(300, (lanes, spans)).astype(np.int64) * (rng.random((lanes, spans)) < 0.4)
    work = rng.integers(800, 4000, (lanes, spans))
    gap = rng.integers(0, 40, (lanes, spans))
    end = np.cumsum(wait + work + gap, axis=1)
    start = end - work
    claim = start - wait
    mover = np.arange(lanes) % workgroups < workgroups // 8
    turn = np.where(mover, rng.integers(spans // 3, spans // 2 + 1, lanes), 0)
    last = rng.integers(9 * spans // 10, spans, lanes)
    at = np.arange(spans)
    role = np.where(at < turn[:, None], 0, np.where(at >= last[:, None], 2, 1))
    rank = np.repeat(np.arange(ranks), workgroups * spans)
    key = rank * 6 + role.ravel()
    order = np.lexsort((claim.ravel(), key))
    item = np.empty(len(key), np.int64)
    first = np.searchsorted(key[order], key[order])
    item[order] = np.arange(len(key)) - first
    spans_table = {
        "rank": rank.astype(np.int32),
        "workgroup": np.tile(np.repeat(np.arange(workgroups), spans), ranks).astype(np.int32),
        "role": role_names(role.ravel()),
        "item": item.astype(np.int32),
        "claim_ns": claim.ravel(),
        "start_ns": start.ravel(),
        "end_ns": end.ravel(),
        "cycles": (work * 1.7).astype(np.int64).ravel(),
        "unit": np.repeat(np.arange(lanes) * 7 % workgroups, spans).astype(np.int32),
    }
    return Trace(spans_table, meta={"op": "generated", "ranks": ranks, "workgroups": workgroups})


def role_names(codes: np.ndarray):
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(ROLES))
