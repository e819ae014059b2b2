"""rocpd files, built here to the schemas that ROCm publishes (3 and 4), as ranges of a trace and beside a run."""

import json
import os
import sqlite3

import numpy as np
import pytest
from test_trace import one, scheduled

from kosmos.errors import KosmosTraceError
from kosmos.trace import Trace, schema

GUID = "01980f6a-7b2c-7d3e-8f40-a1b2c3d4e5f6"
EPOCH = 2**60 + 12_345_678_901_234_567  # ns, beyond what a float holds

# Columns of the tables; every one begins with id and, but for the metadata, guid.
COMMON = {
    "metadata": "tag, value",
    "string": "string",
    "info_node": "hash, machine_id, hostname",
    "info_process": "nid, ppid, pid, command",
    "info_thread": "nid, ppid, pid, tid, name",
    "info_agent": "nid, pid, type, absolute_index, logical_index, type_index, name, product_name",
    "info_queue": "nid, pid, name",
    "info_stream": "nid, pid, name",
    "info_kernel_symbol": "nid, pid, code_object_id, kernel_name, display_name",
    "event": "category_id, stack_id, parent_stack_id, correlation_id, extdata",
}
TABLES = {
    3: COMMON
    | {
        "track": "nid, pid, tid, name_id",
        "region": "nid, pid, tid, start, end, name_id, event_id",
        "sample": "track_id, timestamp, event_id",
        "kernel_dispatch": "nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end, event_id",
    },
    4: COMMON
    | {
        "info_category": "name",
        "track": "nid, pid, tid, agent_id, queue_id, stream_id, name_id",
        "region": "track_id, name_id, start, end, event_id",
        "sample": "track_id, name_id, timestamp, event_id",
        "kernel_dispatch": "track_id, kernel_id, dispatch_id, start, end, event_id",
    },
}
VIEWS = {
    3: """
    CREATE VIEW kernels AS SELECT K.id, K.guid, K.nid, P.pid, T.tid, S.display_name AS name, A.type AS agent_type,
        A.absolute_index AS agent_abs_index, A.type_index AS agent_type_index, K.queue_id, Q.name AS queue,
        K.stream_id, ST.name AS stream, K.start, K.end, K.end - K.start AS duration
      FROM rocpd_kernel_dispatch K JOIN rocpd_info_agent A ON A.id = K.agent_id AND A.guid = K.guid
        JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id AND S.guid = K.guid
        LEFT JOIN rocpd_info_queue Q ON Q.id = K.queue_id LEFT JOIN rocpd_info_stream ST ON ST.id = K.stream_id
        JOIN rocpd_info_process P ON P.id = K.pid JOIN rocpd_info_thread T ON T.id = K.tid;
    CREATE VIEW regions AS SELECT R.id, R.guid, C.string AS category, S.string AS name, R.nid, P.pid, T.tid,
        R.start, R.end, R.end - R.start AS duration, E.extdata
      FROM rocpd_region R JOIN rocpd_event E ON E.id = R.event_id JOIN rocpd_string S ON S.id = R.name_id
        JOIN rocpd_string C ON C.id = E.category_id
        JOIN rocpd_info_process P ON P.id = R.pid JOIN rocpd_info_thread T ON T.id = R.tid;
    CREATE VIEW samples AS SELECT R.id, R.guid, C.string AS category, N.string AS name, T.nid, P.pid, H.tid,
        R.timestamp AS start, R.timestamp AS end, 0 AS duration, E.extdata
      FROM rocpd_sample R JOIN rocpd_event E ON E.id = R.event_id JOIN rocpd_track T ON T.id = R.track_id
        JOIN rocpd_string C ON C.id = E.category_id JOIN rocpd_string N ON N.id = T.name_id
        JOIN rocpd_info_process P ON P.id = T.pid JOIN rocpd_info_thread H ON H.id = T.tid;
    CREATE VIEW regions_and_samples AS SELECT * FROM regions UNION ALL SELECT * FROM samples;
    """,
    4: """
    CREATE VIEW tracks AS SELECT T.*, A.type AS agent_type, A.absolute_index AS agent_absolute_index,
        A.type_index AS agent_type_index, Q.name AS queue_name, S.name AS stream_name
      FROM rocpd_track T LEFT JOIN rocpd_info_agent A ON A.id = T.agent_id
        LEFT JOIN rocpd_info_queue Q ON Q.id = T.queue_id LEFT JOIN rocpd_info_stream S ON S.id = T.stream_id;
    CREATE VIEW kernels AS SELECT K.id, K.guid, T.nid, T.pid, T.tid, S.display_name AS name, T.agent_type,
        T.agent_absolute_index, T.agent_type_index, T.queue_id, T.queue_name AS queue, T.stream_id,
        T.stream_name AS stream, K.start, K.end, K.end - K.start AS duration
      FROM rocpd_kernel_dispatch K JOIN tracks T ON T.id = K.track_id
        JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id;
    CREATE VIEW regions AS SELECT R.id, R.guid, C.name AS category, N.string AS name, T.nid, T.pid, T.tid,
        R.start, R.end, R.end - R.start AS duration, E.extdata
      FROM rocpd_region R JOIN rocpd_event E ON E.id = R.event_id JOIN tracks T ON T.id = R.track_id
        JOIN rocpd_string N ON N.id = R.name_id JOIN rocpd_info_category C ON C.id = E.category_id;
    CREATE VIEW samples AS SELECT R.id, R.guid, C.name AS category, N.string AS name, T.nid, T.pid, T.tid,
        R.timestamp AS start, R.timestamp AS end, 0 AS duration, E.extdata
      FROM rocpd_sample R JOIN rocpd_event E ON E.id = R.event_id JOIN tracks T ON T.id = R.track_id
        JOIN rocpd_string N ON N.id = R.name_id JOIN rocpd_info_category C ON C.id = E.category_id;
    CREATE VIEW regions_and_samples AS SELECT * FROM regions UNION ALL SELECT * FROM samples;
    """,
}


class Rocpd:
    """A rocpd file as rocprofv3 writes it, schema 3 or 4, filled one dispatch and marker at a time."""

    def __init__(self, path, version, gpus=2, nodes=(77,), guid=GUID):
        self.path, self.version, self.suffix = path, version, "_" + guid.replace("-", "_")
        self.database = sqlite3.connect(path)
        for name, columns in TABLES[version].items():
            table = f"rocpd_{name}{self.suffix}"
            listed = ", ".join(f'"{column}"' for column in columns.split(", "))
            self.database.execute(
                f'CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, guid TEXT DEFAULT "{guid}", {listed})'
            )
            self.database.execute(f"CREATE VIEW rocpd_{name} AS SELECT * FROM {table}")
        self.database.executescript(VIEWS[version])
        self.add("metadata", tag="schema_version", value=str(version))
        self.nodes = nodes
        for place, node in enumerate(nodes):
            self.add("info_node", id=node, hash=node, machine_id=f"machine {node}")
            for index in range(gpus + 1):  # agent 0 of each is its CPU
                self.add(
                    "info_agent",
                    id=index + 10 * place,
                    nid=node,
                    type="GPU" if index else "CPU",
                    absolute_index=index,
                    type_index=max(index - 1, 0),
                    name="gfx950" if index else "EPYC",
                )

    def add(self, table, **values):
        names, marks = ", ".join(f'"{name}"' for name in values), ", ".join("?" * len(values))
        command = f"INSERT INTO rocpd_{table}{self.suffix} ({names}) VALUES ({marks})"
        return self.database.execute(command, list(values.values())).lastrowid

    def known(self, table, **values):
        """The id of a row that is added once."""
        if "id" not in values:
            tests = " AND ".join(f'"{name}" IS ?' for name in values)
            found = self.database.execute(
                f"SELECT id FROM rocpd_{table} WHERE {tests}", list(values.values())
            ).fetchone()
            return found[0] if found else self.add(table, **values)
        if not self.database.execute(f"SELECT 1 FROM rocpd_{table} WHERE id = ?", [values["id"]]).fetchone():
            self.add(table, **values)
        return values["id"]

    def event(self, category, extdata="{}"):
        table, column = ("string", "string") if self.version == 3 else ("info_category", "name")
        return self.add("event", category_id=self.known(table, **{column: category}), extdata=extdata)

    def thread(self, node, pid, tid):
        self.known("info_process", id=pid, nid=node, pid=pid)
        self.known("info_thread", id=tid, nid=node, pid=pid, tid=tid)
        return {"nid": node, "pid": pid, "tid": tid}

    def dispatch(self, name, gpu, start, end, stream="Stream 1", node=0, pid=100, tid=101):
        thread = self.thread(self.nodes[node], pid, tid)
        place = {"agent_id": gpu + 1 + 10 * node, "queue_id": self.known("info_queue", name="Queue 0")}
        place["stream_id"] = self.known("info_stream", name=stream) if stream else None
        values = {
            "kernel_id": self.known("info_kernel_symbol", display_name=name),
            "event_id": self.event("KERNEL_DISPATCH"),
        }
        where = thread | place if self.version == 3 else {"track_id": self.known("track", **thread, **place)}
        self.add("kernel_dispatch", **where, **values, start=start, end=end)

    def marker(self, message, start, end, node=0, pid=100, tid=101, extdata=None):
        thread = self.thread(self.nodes[node], pid, tid)
        extdata = json.dumps({"message": message}) if extdata is None else extdata
        event = self.event("MARKER_CORE_RANGE_API", extdata)
        name = self.known("string", string="roctxThreadRangeA" if start != end else "roctxMarkA")
        times = {"start": start, "end": end} if start != end else {"timestamp": start}
        if self.version == 4:
            where = {"track_id": self.known("track", **thread), "name_id": name}
        elif start != end:
            where = thread | {"name_id": name}
        else:
            where = {"track_id": self.known("track", **thread, name_id=name)}
        self.add("region" if start != end else "sample", **where, **times, event_id=event)

    def done(self):
        self.database.commit()
        self.database.close()
        return self.path


every_schema = pytest.mark.parametrize("version", [3, 4])


def small(path, version):
    file = Rocpd(path, version)
    file.marker('step "1"; é', EPOCH + 1, EPOCH + 900)
    file.marker("here", EPOCH + 5, EPOCH + 5)
    file.marker("", EPOCH + 6, EPOCH + 7, extdata="not json", tid=102)
    file.dispatch("gemm<float, 3>", 1, EPOCH + 100, EPOCH + 300)
    file.dispatch("_reduce_scatter", 0, EPOCH, EPOCH + 400, stream="Default Stream")
    file.dispatch("copy", 1, EPOCH + 150, EPOCH + 200, stream=None)
    return file.done()


@every_schema
def test_dispatches_and_markers_are_ranges(version, tmp_path):
    trace = Trace.from_rocpd(small(tmp_path / "100_results.db", version))
    assert len(trace.spans) == 0 and trace.ranges.schema == schema.RANGES
    assert sorted(tuple(row.values()) for row in trace.ranges.to_pylist()) == [
        (-1, "thread 101", "here", 5, 5),
        (-1, "thread 101", 'step "1"; é', 1, 900),
        (-1, "thread 102", "roctxThreadRangeA", 6, 7),
        (0, "Default Stream", "_reduce_scatter", 0, 400),
        (1, "Queue 0", "copy", 150, 200),
        (1, "Stream 1", "gemm<float, 3>", 100, 300),
    ]
    assert trace.meta["epoch"] == EPOCH and trace.meta["clock"] == {"source": "rocprofiler", "tick_ns": 1}
    assert trace.meta["machine"] == "gfx950" and trace.problems() == []
    trace.save(tmp_path / "t.parquet")
    assert Trace.load(tmp_path / "t.parquet").equals(trace)
    assert sorted(os.listdir(tmp_path)) == ["100_results.db", "t.parquet"]


@every_schema
def test_nodes_and_processes_are_told_apart(version, tmp_path):
    file = Rocpd(tmp_path / "both.db", version, gpus=2, nodes=(9, 77))
    for node, pid in ((0, 100), (0, 200), (1, 300)):
        file.marker("step", 10, 20, node=node, pid=pid, tid=pid + 1)
        file.dispatch("gemm", 1, 11, 19, node=node, pid=pid, tid=pid + 1)
    rows = Trace.from_rocpd(file.done()).ranges.to_pylist()
    assert sorted(row["rank"] for row in rows if row["name"] == "gemm") == [1, 1, 3]
    tracks = {row["track"] for row in rows if row["name"] == "step"}
    assert tracks == {
        "node 9 process 100 thread 101",
        "node 9 process 200 thread 201",
        "node 77 process 300 thread 301",
    }


def refused(path):
    with pytest.raises(KosmosTraceError) as caught:
        Trace.from_rocpd(path)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ") and "\n" not in sentence
    return sentence.removeprefix(f"{path}: ")


@every_schema
def test_what_is_no_rocpd_file_is_refused_in_one_sentence(version, tmp_path):
    assert refused(tmp_path / "none.db") == "cannot be read (No such file or directory)"
    assert refused(tmp_path) == "cannot be read (Is a directory)"
    (tmp_path / "empty.db").touch()
    assert refused(tmp_path / "empty.db") == "is empty"
    scheduled().save(tmp_path / "t.parquet")
    assert refused(tmp_path / "t.parquet") == "is not a rocpd file (not SQLite)"
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE kernels (name)")
    other.commit()
    other.close()
    assert refused(tmp_path / "other.db") == "is SQLite, but not rocpd: it lacks the view regions_and_samples"

    file = Rocpd(tmp_path / "idle.db", version)
    file.marker("step", 10, 20)
    assert refused(file.done()) == "has no kernel dispatches; rocprofv3 records them with --kernel-trace"

    path = small(tmp_path / "older.db", version)
    change(path, "DROP VIEW kernels", "CREATE VIEW kernels AS SELECT id, start FROM rocpd_kernel_dispatch")
    assert refused(path).startswith("is rocpd of a schema that is not known here (no such column: ")


def change(path, *commands):
    database = sqlite3.connect(path)
    for command in commands:
        database.execute(command)
    database.commit()
    database.close()


@every_schema
@pytest.mark.parametrize("value", ["NULL", "'soon'", "1.5"])
def test_times_that_are_none_are_refused(version, value, tmp_path):
    path = small(tmp_path / "t.db", version)
    change(path, f"UPDATE rocpd_kernel_dispatch_{GUID.replace('-', '_')} SET start = {value} WHERE id = 1")
    assert refused(path).startswith("is damaged: (")


@every_schema
def test_dispatches_that_the_view_loses_are_noticed(version, tmp_path):
    path = small(tmp_path / "t.db", version)
    change(path, f"DELETE FROM rocpd_info_kernel_symbol_{GUID.replace('-', '_')} WHERE display_name = 'copy'")
    assert refused(path) == "contradicts itself: its view kernels shows 2 of 3 dispatches"


@every_schema
def test_a_file_cut_anywhere_is_refused(version, tmp_path):
    path = small(tmp_path / "t.db", version)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 997), 1, 15, 16, 99, 100, len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert refused(path) in ("is cut off: its end is missing", "is empty")


@every_schema
def test_a_damaged_file_is_refused_or_says_something(version, tmp_path):
    """SQLite has no checksums: a flipped bit in a time cannot be seen. No traceback of its own comes through."""
    path = small(tmp_path / "t.db", version)
    whole = bytearray(path.read_bytes())
    draw = np.random.default_rng(version)
    outcomes = set()
    for at in [*range(100), *draw.integers(100, len(whole), 300)]:
        bad = whole.copy()
        bad[at] ^= 1 << int(draw.integers(0, 8))
        path.write_bytes(bad)
        try:
            Trace.from_rocpd(path)
            outcomes.add("read")
        except KosmosTraceError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


# beside a run


def ranges(*names, start=100):
    count = len(names)
    return {
        "rank": [0] * count,
        "track": ["Stream 1"] * count,
        "name": [*names],
        "start_ns": [start + 10 * place for place in range(count)],
        "end_ns": [start + 10 * place + 5 for place in range(count)],
    }


def run(source="globaltimer", epoch=1000):
    spans = one(claim_ns=[7], start_ns=[8], end_ns=[9])
    return Trace(
        spans, meta={"clock": {"source": source, "tick_ns": 1}, "epoch": epoch}, ranges=ranges("mine", start=0)
    )


def times(trace):
    return [(row["name"], row["start_ns"], row["end_ns"]) for row in trace.ranges.to_pylist()]


def test_ranges_come_beside_a_run_by_its_launch():
    other = Trace(
        None, meta={"clock": {"source": "rocprofiler"}, "epoch": EPOCH}, ranges=ranges("copy", "_rs_kernel.kd")
    )
    both = run().beside(other, launch="_rs_kernel")
    assert times(both) == [("mine", 0, 5), ("copy", -3, 2), ("_rs_kernel.kd", 7, 12)]
    assert both.meta["beside"] == [{"offset_ns": -103, "by": "launch='_rs_kernel'"}]
    assert both.spans.equals(run().spans)
    again = both.beside(other, offset_ns=2**62 + 1)
    assert times(again)[3:] == [("copy", 2**62 + 101, 2**62 + 106), ("_rs_kernel.kd", 2**62 + 111, 2**62 + 116)]
    assert again.meta["beside"][1] == {"offset_ns": 2**62 + 1, "by": "offset_ns"}


def test_one_clock_needs_no_offset():
    both = run().beside(Trace(None, meta=run(epoch=1400).meta, ranges=ranges("theirs")))
    assert times(both)[1:] == [("theirs", 500, 505)]
    assert both.meta["beside"] == [{"offset_ns": 400, "by": "the clock globaltimer"}]


@pytest.mark.parametrize(
    ("this", "options", "sentence"),
    [
        (
            run("s_memrealtime"),
            {},
            "beside: the clocks 's_memrealtime' and 'rocprofiler' have no common zero; give offset",
        ),
        (run(), {"launch": "x"}, "beside: launch='x' is in the names of 0 ranges, not of one; one is 'gemm a'"),
        (run(), {"launch": "gemm"}, "beside: launch='gemm' is in the names of 2 ranges, not of one"),
        (run(), {"launch": "a", "offset_ns": 5}, "beside: offset_ns and launch exclude each other"),
        (run(), {"offset_ns": 1.5}, "beside: offset_ns must be a whole number of ns, not 1.5"),
        (run(), {"launch": 5}, "beside: launch must be a text, not 5"),
        (run(), {"offset_ns": 2**63}, f"beside: times that are {2**63} ns later do not fit int64"),
        (Trace(None), {"launch": "gemm a"}, "beside: a trace without spans has no launch to align with"),
    ],
)
def test_what_cannot_be_aligned_is_refused(this, options, sentence):
    other = Trace(None, meta={"clock": {"source": "rocprofiler"}, "epoch": EPOCH}, ranges=ranges("gemm a", "gemm b"))
    with pytest.raises(KosmosTraceError) as caught:
        this.beside(other, **options)
    assert str(caught.value).startswith(sentence)
