"""A trace as one Parquet file: the spans are its table, everything else is in the metadata of its footer."""

import base64
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kosmos.errors import KosmosTraceError
from kosmos.files import path_text, whole_file

FORMAT = 2

# Keys of the footer: {"format": FORMAT, "meta": ...} as JSON; the other tables as Parquet in base64.
_KEY = "kosmos"
# Pages have their own checksums, the footer has this one: of the texts above and below, in their order.
_CHECKSUM_KEY, _CHECKSUM_SINCE = "kosmos.crc32", 2
# Tables in the footer, under kosmos.NAME, and the format that brought each; older files have an empty one.
_SINCE = {"queue": 1, "counters": 1, "ranges": 2}

# A queue of some million items in the footer is more than Parquet's guard against broken files expects.
_FOOTER_LIMIT = 2**31 - 1

Path = str | os.PathLike[str]


def save(path: Path, spans: pa.Table, tables: Mapping[str, pa.Table], meta: dict[str, Any]) -> None:
    """Write a trace's spans, its other tables by name, and meta to `path`, whole or not at all.

    The same trace gives the same bytes. Raises KosmosTraceError if the file cannot be written or `meta` is not JSON.
    """
    head = as_text({"format": FORMAT, "meta": as_json(meta)})
    footer = {_KEY: head} | {f"{_KEY}.{name}": _pack(tables[name]) for name in _SINCE}
    footer[_CHECKSUM_KEY] = checksum(footer.values())
    with whole_file(path, KosmosTraceError) as file:
        _write(spans, file, footer)


def load(path: Path) -> tuple[pa.Table, dict[str, pa.Table], dict[str, Any]]:
    """Spans, other tables by name, and meta of the file at `path`; what the tables hold is not looked at.

    Raises KosmosTraceError for a file that is missing, truncated, damaged, foreign or of a newer format.
    """
    path = path_text(path, KosmosTraceError)
    try:
        with open(path, "rb") as file:
            return _read(file, path)
    except KosmosTraceError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise KosmosTraceError(f"{path}: cannot be read ({error.strerror})") from None
        raise _damaged(path) from None
    except (pa.ArrowException, ValueError, TypeError, MemoryError):
        raise _damaged(path) from None


def as_json(meta: dict[str, Any]) -> dict[str, Any]:
    """`meta` as it comes back from a file: tuples are lists, keys are text. KosmosTraceError if it cannot be JSON."""
    if not isinstance(meta, dict):
        raise KosmosTraceError(f"meta: must be a dict, not {type(meta).__name__}")
    try:
        return json.loads(json.dumps(meta))
    except (TypeError, ValueError, RecursionError) as error:
        raise KosmosTraceError(f"meta: cannot be written as JSON ({error})") from None


def as_text(value: dict[str, Any]) -> str:
    """JSON of which two equal values have the same."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def checksum(texts: Iterable[str | bytes]) -> str:
    """CRC-32 of texts that follow one another, in hexadecimal."""
    value = 0
    for text in texts:
        value = zlib.crc32(text.encode() if isinstance(text, str) else text, value)
    return f"{value:08x}"


def _write(table: pa.Table, where: Any, footer: dict[str, str]) -> None:
    integers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    with pq.ParquetWriter(
        where,
        table.schema,
        compression="zstd",
        # Neighbours are alike: times climb along a workgroup, items along a queue.
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        use_dictionary=[field.name for field in table.schema if field.name not in integers],
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(footer)


def _read(file: Any, path: str) -> tuple[pa.Table, dict[str, pa.Table], dict[str, Any]]:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(4)
    if start != b"PAR1":
        raise KosmosTraceError(f"{path}: is {'empty' if not size else 'not a trace (not a Parquet file)'}")
    file.seek(max(0, size - 4))
    if size < 12 or file.read(4) != b"PAR1":
        raise KosmosTraceError(f"{path}: is cut off: its end is missing")
    file.seek(0)
    parquet = _parquet(file)
    footer = parquet.metadata.metadata or {}
    if _KEY.encode() not in footer:
        raise KosmosTraceError(f"{path}: is a Parquet file, but not a trace of KOSMOS")
    head = json.loads(footer[_KEY.encode()])
    number = head.get("format") if isinstance(head, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise _damaged(path)
    if number > FORMAT:
        raise KosmosTraceError(f"{path}: has format {number}, written by a newer KOSMOS; this one reads up to {FORMAT}")
    if not isinstance(head.get("meta"), dict):
        raise _damaged(path)
    if number >= _CHECKSUM_SINCE:
        texts = [footer.get(key.encode(), b"") for key in (_KEY, *(f"{_KEY}.{name}" for name in _SINCE))]
        if footer.get(_CHECKSUM_KEY.encode()) != checksum(texts).encode():
            raise _damaged(path)
    tables = {name: _unpack(footer, f"{_KEY}.{name}", path) for name, since in _SINCE.items() if number >= since}
    return parquet.read(), tables, head["meta"]


def _parquet(file: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        file,
        page_checksum_verification=True,
        thrift_string_size_limit=_FOOTER_LIMIT,
        thrift_container_size_limit=_FOOTER_LIMIT,
    )


def _pack(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    _write(table, sink, {})
    return base64.b64encode(sink.getvalue()).decode()


def _unpack(footer: dict[bytes, bytes], key: str, path: str) -> pa.Table:
    if key.encode() not in footer:
        raise KosmosTraceError(f"{path}: lacks its table {key}")
    return _parquet(pa.BufferReader(base64.b64decode(footer[key.encode()], validate=True))).read()


def _damaged(path: str) -> KosmosTraceError:
    return KosmosTraceError(f"{path}: is a damaged trace: its content contradicts itself")
