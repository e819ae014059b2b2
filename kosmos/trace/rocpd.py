"""A rocpd file, which `rocprofv3 --kernel-trace --marker-trace --output-format rocpd` writes, as ranges of a trace.

rocpd is SQLite. Its tables have the run's id in their names and change with the version of its schema; the columns of
its views that are read here are the same in schema 3 (ROCm 7) and 4, as published in
https://github.com/ROCm/rocm-systems/tree/develop/projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd
"""

import os
import sqlite3
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

from kosmos.errors import KosmosTraceError
from kosmos.files import path_text

_MAGIC = b"SQLite format 3\0"
_VIEWS = ("kernels", "regions_and_samples", "rocpd_kernel_dispatch", "rocpd_info_agent")

# In brackets, what is no column is an error; in quotes, SQLite would take it for a text.
_AGENTS = "SELECT DISTINCT nid, type_index, name FROM rocpd_info_agent WHERE type = 'GPU' ORDER BY nid, type_index"
_KERNELS = """
SELECT nid, agent_type_index, coalesce(stream, queue, 'queue ' || queue_id), name, [start], [end] FROM kernels
WHERE agent_type = 'GPU' ORDER BY [start], id
"""
# A marker's text is its message; `name` is the function that set it.
_HOST = """
SELECT nid, pid, tid,
    coalesce(CASE WHEN json_valid(extdata) THEN json_extract(extdata, '$.message') END, name), [start], [end]
FROM regions_and_samples ORDER BY [start], id
"""

Path = str | os.PathLike[str]


def load(path: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The columns of `ranges`, in ns from the first of them, and the `meta` of the trace.

    Raises KosmosTraceError for a file that cannot be read, is not rocpd, is cut off or damaged, or has no dispatches.
    """
    path = path_text(path, KosmosTraceError)
    _look_at(path)
    try:
        uri = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return _read(database, path)
    except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
        if "no such column" in str(error):
            raise KosmosTraceError(f"{path}: is rocpd of a schema that is not known here ({error})") from None
        raise KosmosTraceError(f"{path}: is damaged ({' '.join(str(error).split())})") from None


def _look_at(path: str) -> None:
    """Refuse what SQLite would take for an empty database, or for a whole one until it comes to the end."""
    try:
        with open(path, "rb") as file:
            head, size = file.read(100), file.seek(0, os.SEEK_END)
    except OSError as error:
        raise KosmosTraceError(f"{path}: cannot be read ({error.strerror})") from None
    if not size:
        raise KosmosTraceError(f"{path}: is empty")
    if not head.startswith(_MAGIC[: len(head)]):
        raise KosmosTraceError(f"{path}: is not a rocpd file (not SQLite)")
    # https://www.sqlite.org/fileformat.html: bytes of a page, and how many there were at the last change
    page = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big") if head[24:28] == head[92:96] else 0
    if len(head) < 100 or size < (65536 if page == 1 else page) * pages:
        raise KosmosTraceError(f"{path}: is cut off: its end is missing")


def _read(database: sqlite3.Connection, path: str) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    lacking = [name for name in _VIEWS if name not in there]
    if lacking:
        raise KosmosTraceError(f"{path}: is SQLite, but not rocpd: it lacks the view {lacking[0]}")
    (dispatches,) = database.execute("SELECT count(*) FROM rocpd_kernel_dispatch").fetchone()
    if not dispatches:
        raise KosmosTraceError(f"{path}: has no kernel dispatches; rocprofv3 records them with --kernel-trace")
    agents = database.execute(_AGENTS).fetchall()
    kernels = database.execute(_KERNELS).fetchall()
    host = database.execute(_HOST).fetchall()
    if len(kernels) != dispatches:
        raise KosmosTraceError(
            f"{path}: contradicts itself: its view kernels shows {len(kernels)} of {dispatches} dispatches"
        )
    rank = {(node, index): place for place, (node, index, _) in enumerate(agents)}
    rows = [*_dispatches(kernels, rank), *_threads(host)]
    types = (int, str, str, int, int)
    for row in rows:
        if not all(type(value) is kind for value, kind in zip(row, types, strict=True)):
            raise KosmosTraceError(f"{path}: is damaged: {row[1:]} is no range")
    epoch = min(row[3] for row in rows)
    columns = [list(column) for column in zip(*rows, strict=True)]
    columns[3:] = [[time - epoch for time in column] for column in columns[3:]]
    meta = {
        "place": "gpu",
        "machine": ", ".join(sorted({str(name) for _, _, name in agents})),
        "clock": {"source": "rocprofiler", "tick_ns": 1},
        "epoch": epoch,
    }
    return dict(zip(("rank", "track", "name", "start_ns", "end_ns"), columns, strict=True)), meta


def _dispatches(kernels: Iterable[tuple[Any, ...]], rank: dict[Any, int]) -> Iterator[tuple[Any, ...]]:
    """Ranges on the rank of their GPU, whose place among all GPUs it is."""
    for node, gpu, track, *rest in kernels:
        yield (rank.get((node, gpu)), track, *rest)


def _threads(host: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Ranges of no rank, on tracks that say as much of where they ran as is needed to tell them apart."""
    nodes, processes = {node for node, *_ in host}, {(node, pid) for node, pid, *_ in host}
    for node, pid, tid, *rest in host:
        parts = [f"node {node}"] * (len(nodes) > 1) + [f"process {pid}"] * (len(processes) > 1) + [f"thread {tid}"]
        yield (-1, " ".join(parts), *rest)
