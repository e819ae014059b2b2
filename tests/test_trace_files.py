"""Traces in files: bit for bit, whole or not at all, and one sentence for everything that is not a trace."""

import base64
import json
import os
import re
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_trace import one, scheduled

from kosmos import benchmark, power
from kosmos.benchmark import results
from kosmos.benchmark.sustained.results import Results as Sweep
from kosmos.errors import KosmosError, KosmosTraceError
from kosmos.trace import ROLES, Trace, schema
from kosmos.trace.files import FORMAT

META = {"op": "all_gather_matmul", "shape": {"m": 8192, "n": 7, "k": 3}, "π": [0.1 + 0.2, 1e-310, None, True, 2**70]}
COUNTERS = {
    "name": ["power", "clock", "clock"],
    "rank": [0, 0, 1],
    "time_ns": [-5, 2**60 + 1, 3],
    "value": [float("nan"), -0.0, 0.1 + 0.2],
    "unit": ["W", "MHz", "µ"],
}
RANGES = {
    "rank": [-1, 0, 2**31 - 1],
    "track": ["thread 1", "", "queue\n2"],
    "name": ["step", "step", "gemm<float, 3>"],
    "start_ns": [-(2**63), 2**60 + 1, 5],
    "end_ns": [2**63 - 1, 2**60 + 2, -5],
}


def full(seed=0):
    trace = scheduled(seed)
    return Trace(trace.spans, trace.queue, COUNTERS, META, RANGES)


def refused(path):
    """The one sentence that loading gives; no other traceback hangs on it."""
    with pytest.raises(KosmosTraceError) as caught:
        Trace.load(path)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ") and "\n" not in sentence
    return sentence.removeprefix(f"{path}: ")


@pytest.mark.parametrize("trace", [full(), scheduled(1), Trace(None), Trace(one(), meta={"ranks": 3})])
def test_a_trace_comes_back_bit_for_bit_and_gives_the_same_bytes(trace, tmp_path):
    trace.save(tmp_path / "a.parquet")
    back = Trace.load(str(tmp_path / "a.parquet"))
    assert back.equals(trace) and back.meta == trace.meta
    back.save(tmp_path / "b.parquet")
    shuffled = Trace(
        pa.concat_tables([trace.spans.slice(0, 5), trace.spans.slice(5)]),
        trace.queue,
        trace.counters,
        dict(reversed(trace.meta.items())),
        trace.ranges,
    )
    shuffled.save(tmp_path / "c.parquet")
    assert len({(tmp_path / name).read_bytes() for name in ("a.parquet", "b.parquet", "c.parquet")}) == 1


def test_times_above_2_to_the_53_survive(tmp_path):
    late = [2**62 + 1, 2**62 + 2, 2**62 + 4]
    spans = one(claim_ns=late[:1], start_ns=late[1:2], end_ns=late[2:], cycles=[2**63 - 1])
    Trace(spans).save(tmp_path / "late.parquet")
    row = Trace.load(tmp_path / "late.parquet").spans.to_pylist()[0]
    assert [row["claim_ns"], row["start_ns"], row["end_ns"], row["cycles"]] == [*late, 2**63 - 1]


INT64 = [-(2**63), -(2**53) - 1, -1, 0, 2**53 + 1, 2**62 + 1, 2**63 - 1]


def extremes(table, count, draw):
    """Rows with the largest and smallest numbers that the columns hold, and any between, in any order."""
    columns = {}
    for field in table:
        if pa.types.is_dictionary(field.type):
            columns[field.name] = [ROLES[code] for code in draw.integers(0, len(ROLES), count)]
        elif pa.types.is_string(field.type):
            columns[field.name] = ["", "a\0b", "π" * 300, *map(str, draw.integers(0, 9, count))][:count]
        elif pa.types.is_floating(field.type):
            columns[field.name] = draw.integers(-(2**63), 2**63, count).view(np.float64)  # NaNs of all kinds too
        else:
            least, most = np.iinfo(field.type.to_pandas_dtype()).min, np.iinfo(field.type.to_pandas_dtype()).max
            some = draw.integers(least, most, count, dtype=field.type.to_pandas_dtype(), endpoint=True)
            some[: len(INT64)] = np.clip(INT64, least, most)[:count]
            columns[field.name] = draw.permutation(some)
    return columns


@pytest.mark.parametrize("seed", range(20))
def test_any_numbers_come_back_bit_for_bit(seed, tmp_path):
    draw = np.random.default_rng(seed)
    counts = [int(draw.choice([0, 1, 7, 50, 3000])) for _ in range(4)]
    tables = [
        extremes(table, count, draw)
        for table, count in zip((schema.SPANS, schema.QUEUE, schema.COUNTERS, schema.RANGES), counts)
    ]
    for name in ("rank", "workgroup"):  # what a trace cannot have is a negative lane
        tables[0][name] = np.maximum(tables[0][name], 0)
    trace = Trace(*tables[:3], {"seed": [seed, -(2**70), 1e308]}, tables[3])
    trace.save(tmp_path / "t.parquet")
    back = Trace.load(tmp_path / "t.parquet")
    assert back.equals(trace)
    for table, given in zip((back.spans, back.queue, back.counters, back.ranges), tables):
        for name, column in given.items():
            kept = np.asarray(table[name])
            same = kept.view(np.int64) == column.view(np.int64) if kept.dtype == float else kept == np.asarray(column)
            assert len(kept) == len(column) and np.all(same)
    # such a trace makes no sense, and is told so
    assert len(back.flows()) >= 0 and isinstance(back.summary()["makespan_ns"], int)
    assert bool(back.problems()) == any(counts[at] for at in (0, 1, 3))


def test_any_parquet_reader_finds_the_spans(tmp_path):
    trace = full()
    trace.save(tmp_path / "rank=7.parquet")
    table = pq.read_table(tmp_path / "rank=7.parquet")
    assert table.to_pylist() == trace.spans.to_pylist()
    pandas = pytest.importorskip("pandas")
    assert list(pandas.read_parquet(tmp_path / "rank=7.parquet").columns) == trace.spans.column_names


def test_a_folder_that_looks_like_a_partition_adds_no_column(tmp_path):
    (tmp_path / "rank=7").mkdir()
    full().save(tmp_path / "rank=7" / "t.parquet")
    assert Trace.load(tmp_path / "rank=7" / "t.parquet").equals(full())


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "cut.parquet"
    full().save(path)
    whole = path.read_bytes()
    assert len(whole) > 10_000
    for size in [*range(0, len(whole), 41), 1, 4, 7, 8, 11, 12, *range(len(whole) - 20, len(whole))]:
        path.write_bytes(whole[:size])
        assert refused(path) in ("is cut off: its end is missing", "is empty", "is not a trace (not a Parquet file)")


def test_a_damaged_file_is_refused_or_says_the_same(tmp_path):
    path = tmp_path / "bad.parquet"
    trace = full()
    trace.save(path)
    whole = bytearray(path.read_bytes())
    draw = np.random.default_rng(0)
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at in [
        *draw.integers(0, footer, 200),
        *draw.integers(footer, len(whole), 600),
        *range(len(whole) - 12, len(whole)),
    ]:
        bad = whole.copy()
        bad[at] ^= 1 << int(draw.integers(0, 8))
        path.write_bytes(bad)
        try:
            loaded = Trace.load(path)
        except KosmosTraceError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
        else:
            assert loaded.equals(trace)


def written(path, table, footer):
    """A file with this footer, its checksum right."""
    texts = [footer.get(key, "") for key in ("kosmos", "kosmos.queue", "kosmos.counters", "kosmos.ranges")]
    footer = footer | {"kosmos.crc32": f"{zlib.crc32(''.join(texts).encode()):08x}"}
    with pq.ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(footer)
    return path


def test_files_of_others_are_refused(tmp_path):
    trace = full()
    assert refused(tmp_path / "none.parquet") == "cannot be read (No such file or directory)"
    assert refused(tmp_path) == "cannot be read (Is a directory)"
    (tmp_path / "text").write_text("rank,workgroup,role\n0,0,mover\n")
    assert refused(tmp_path / "text") == "is not a trace (not a Parquet file)"
    (tmp_path / "empty").touch()
    assert refused(tmp_path / "empty") == "is empty"
    (tmp_path / "false").write_bytes(b"PAR1" + b"\x05" * 40 + b"PAR1")
    assert refused(tmp_path / "false").startswith("is a damaged trace")
    assert refused(written(tmp_path / "foreign", trace.spans, {})) == "is a Parquet file, but not a trace of KOSMOS"


def test_other_versions_and_missing_parts_are_refused(tmp_path):
    path = tmp_path / "t.parquet"
    trace = full()
    trace.save(path)
    footer = {key.decode(): text.decode() for key, text in pq.read_metadata(path).metadata.items()}
    footer = {key: text for key, text in footer.items() if key.startswith("kosmos")}
    assert Trace.load(written(path, trace.spans, footer)).equals(trace)

    def changed(table=trace.spans, **parts):
        return refused(written(path, table, footer | {key.replace("_", "."): text for key, text in parts.items()}))

    footer_of_another = footer | {"kosmos.crc32": "0" * 8}
    with pq.ParquetWriter(path, trace.spans.schema) as writer:
        writer.write_table(trace.spans)
        writer.add_key_value_metadata(footer_of_another)
    assert refused(path).startswith("is a damaged trace")
    newer = changed(kosmos=json.dumps({"format": FORMAT + 1, "anything": "else"}))
    assert newer == f"has format {FORMAT + 1}, written by a newer KOSMOS; this one reads up to {FORMAT}"
    assert changed(trace.spans.drop_columns(["item", "unit"])) == "spans: lacks columns item, unit"
    assert changed(kosmos=json.dumps({"format": 1, "meta": {"ranks": 1}})).startswith("meta: ranks is 1, but spans")
    heads = ['{"format": 1}', '{"format": 1, "meta": 5}']
    heads += [f'{{"format": {number}, "meta": {{}}}}' for number in ('"1"', "0", "-1", "true", "1.0", "null")]
    for nonsense in ("", "{", "[]", *heads):
        assert changed(kosmos=nonsense).startswith("is a damaged trace")
    assert changed(kosmos_queue="?").startswith("is a damaged trace")
    assert changed(kosmos_queue=base64.b64encode(b"PAR1").decode()).startswith("is a damaged trace")
    for table in ("queue", "counters", "ranges"):
        without = {key: text for key, text in footer.items() if key != f"kosmos.{table}"}
        assert refused(written(path, trace.spans, without)) == f"lacks its table kosmos.{table}"


def test_files_of_format_1_have_no_ranges(tmp_path):
    path = tmp_path / "t.parquet"
    trace = full()
    trace.save(path)
    footer = {key.decode(): text.decode() for key, text in pq.read_metadata(path).metadata.items()}
    head = json.loads(footer["kosmos"]) | {"format": 1}
    old = {"kosmos": json.dumps(head)} | {key: footer[key] for key in ("kosmos.queue", "kosmos.counters")}
    loaded = Trace.load(written(path, trace.spans, old))
    assert loaded.equals(Trace(trace.spans, trace.queue, trace.counters, trace.meta))
    assert loaded.ranges.schema == schema.RANGES and len(loaded.ranges) == 0


RECORDED = sorted((Path(__file__).parent.parent / "traces" / "h200").glob("*.parquet"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_traces_load_and_come_back(path, tmp_path):
    assert json.loads(pq.read_metadata(path).metadata[b"kosmos"])["format"] <= FORMAT
    trace = Trace.load(path)
    trace.save(tmp_path / "again.parquet")
    assert Trace.load(tmp_path / "again.parquet").equals(trace)
    assert pq.read_table(path).to_pylist() == trace.spans.to_pylist()


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    scheduled(1).save(path)
    before = path.read_bytes()
    trace = full()

    def fails(*_):
        raise OSError(28, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as broken:
            broken.setattr(os, step, fails)
            with pytest.raises(KosmosTraceError, match="cannot be written .No space left on device"):
                trace.save(path)
        assert path.read_bytes() == before and os.listdir(tmp_path) == ["t.parquet"]
    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            trace.save(path)
    trace.meta["when"] = object()
    with pytest.raises(KosmosTraceError, match="meta: cannot be written as JSON"):
        trace.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["t.parquet"]
    with pytest.raises(KosmosTraceError, match="cannot be written"):
        trace.save(tmp_path / "no" / "folder.parquet")


@pytest.mark.parametrize("path", [None, 5, b"t.parquet", [], "", "a\0b"])
def test_what_is_no_path_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = scheduled(0)
    uses = [Trace.load, Trace.from_rocpd, trace.save, trace.to_html, trace.to_perfetto, trace.to_chrome]
    uses += [power.load, Sweep().save, benchmark.load, results.Results().save]
    for use in uses:
        with pytest.raises(KosmosError, match=f"^path={re.escape(repr(path))} must name a file, as text or as"):
            use(path)
    assert not os.listdir(tmp_path)
