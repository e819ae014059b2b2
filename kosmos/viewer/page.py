"""A trace as one HTML file that works offline: the page's code, and the tables that its answers are made of."""

import base64
import html
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError, KosmosTraceError
from kosmos.files import refuse_unwritable, whole_file
from kosmos.trace.schema import QUEUE, numbers
from kosmos.viewer.detail import Detail
from kosmos.viewer.lanes import Lanes, ranges_of

BUNDLE = Path(__file__).parent / "static" / "viewer.js"

LEAST_HEIGHT, MOST_HEIGHT = 200, 4000


def bundle() -> str:
    """The code of the page, an ES module. Raises KosmosEnvironmentError if it has not been built."""
    try:
        return BUNDLE.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KosmosEnvironmentError(
            f"the viewer's page is not built: {BUNDLE.name} is missing; in kosmos/viewer/src run npm ci, npm run build"
        ) from None


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """What a person may choose: `height`, in pixels of the screen. Raises KosmosArgumentError for what may not be."""
    for name in options:
        if name != "height":
            raise KosmosArgumentError(f"{name} is no option of the viewer; there is height")
    height = options.get("height")
    if height is None:
        return {}
    if isinstance(height, bool) or not isinstance(height, int) or not LEAST_HEIGHT <= height <= MOST_HEIGHT:
        raise KosmosArgumentError(
            f"height={height!r} must be a whole number of pixels, {LEAST_HEIGHT} to {MOST_HEIGHT}"
        )
    return {"height": height}


def write_page(path: str | os.PathLike[str], detail: Detail, options: dict[str, Any]) -> None:
    """Write the file, whole or not at all. Raises KosmosTraceError if that fails."""
    refuse_unwritable(path, KosmosTraceError)
    meta = detail.meta()
    for about, run in zip(meta["traces"], detail.runs):
        about["problems"] = run.trace.problems()
    title = " and ".join(detail.titles)
    head = {"meta": meta, "overview": _base64(detail.overview()[1])}
    code = bundle()
    with whole_file(path, KosmosTraceError) as file:
        before, between, after = _TEMPLATE.split("@")
        file.write(before.replace("TITLE", html.escape(title)).encode())
        file.write(_json(code).encode())
        file.write(between.encode())
        # piece by piece: a large trace is as large as all else in memory
        file.write(_json(head)[:-1].encode() + b', "traces": [')
        for index, run in enumerate(detail.runs):
            file.write(b", " * (index > 0))
            file.write(_json(_packed(run)).encode())
        file.write(b"]}")
        file.write(after.replace("OPTIONS", _json(options)).encode())


def _packed(run: Lanes) -> dict[str, Any]:
    """The tables of a trace, in the order of their rows, column by column."""
    spans, queue, counters, ranges = run.trace.spans, run.trace.queue, run.trace.counters, ranges_of(run.trace)
    rank, workgroup, role, item, cycles = numbers(spans, "rank", "workgroup", "role", "item", "cycles")
    claim, start, end = numbers(spans, "claim_ns", "start_ns", "end_ns")
    packed: dict[str, Any] = {
        "columns": {
            "lane": _column(rank * np.int32(run.workgroups) + workgroup, delta=True),
            "role": _column(role),
            "item": _column(item, delta=True),
            "claim": _column(claim, run.base, delta=True),
            "start": _column(start, claim, plus="claim"),
            "end": _column(end, start, plus="start"),
            "cycles": _column(cycles),
        },
        "units": None if run.units is None else _column(run.units),
        "queue": None,
        "counters": None,
        "ranges": None,
    }
    if len(queue):
        packed["queue"] = {
            name: _column(column, delta=name != "role") for name in QUEUE.names for column in numbers(queue, name)
        }
    if len(counters):
        names = pa.StructArray.from_arrays(
            [counters[name].combine_chunks() for name in ("name", "unit", "rank")], ["name", "unit", "rank"]
        )
        words = [json.dumps(one) for one in names.to_pylist()]
        series = list(dict.fromkeys(words))
        time, value = numbers(counters, "time_ns", "value")
        packed["counters"] = {
            "series": [json.loads(one) for one in series],
            "columns": {
                "series": _column(np.array([series.index(word) for word in words], np.int32)),
                "time": _column(time, run.base, delta=True),
                "value": _column(value),
            },
        }
    if ranges is not None:
        start, end = numbers(ranges, "start_ns", "end_ns")
        tracks, names = (ranges[name].combine_chunks().dictionary_encode() for name in ("track", "name"))
        packed["ranges"] = {
            "tracks": tracks.dictionary.to_pylist(),
            "names": names.dictionary.to_pylist(),
            "columns": {
                "track": _column(tracks.indices.to_numpy()),
                "name": _column(names.indices.to_numpy()),
                "start": _column(start, run.base, delta=True),
                "end": _column(end, start, plus="start"),
            },
        }
    return packed


def _column(values: np.ndarray, less: np.ndarray | int = 0, *, delta: bool = False, plus: str | None = None) -> Any:
    """`values - less` for the page: `delta` makes differences to the row before, `plus` names a column to add there.

    Times are exact, as `Lanes` allows none so far apart that they are not; cycles of 2**53 or more are rounded.
    """
    if values.dtype.kind != "f":
        values = values.astype(np.int64) - less
        if delta:
            values = np.diff(values, prepend=0)
        least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        kinds = (("uint8", 0, 2**8), ("int8", -(2**7), 2**7), ("int32", -(2**31), 2**31), ("float64", -(2**53), 2**53))
        kind = next((name for name, low, high in kinds if low <= least and most < high), "float64")
    else:
        kind = "float64"
    packer = zlib.compressobj(4, wbits=-15)  # 6 takes four times as long for a twentieth less
    data = packer.compress(values.astype(np.dtype(kind).newbyteorder("<")).tobytes()) + packer.flush()
    column: dict[str, Any] = {"type": kind, "data": _base64(data)}
    if delta:
        column["delta"] = True
    if plus:
        column["plus"] = plus
    return column


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


# The policy lets nothing in from anywhere: what the page needs is in it.
_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline' blob:; \
style-src 'unsafe-inline'; img-src data: blob:">
<title>TITLE</title>
<style>
:root { color-scheme: light dark; }
body { margin: 0; font: 13px system-ui, sans-serif; }
#problem { padding: 1em; }
</style>
</head>
<body>
<main id="viewer"></main>
<p id="problem" role="alert" hidden></p>
<script type="application/json" id="bundle">@</script>
<script type="application/json" id="data">@</script>
<script type="module">
const read = (id) => JSON.parse(document.getElementById(id).textContent);
try {
  const code = URL.createObjectURL(new Blob([read("bundle")], { type: "text/javascript" }));
  const { mountPage } = await import(code);
  await mountPage(document.getElementById("viewer"), read("data"), OPTIONS);
} catch (error) {
  const problem = document.getElementById("problem");
  problem.hidden = false;
  problem.textContent = `This trace cannot be shown: ${error.message}`;
  throw error;
}
</script>
</body>
</html>
"""
