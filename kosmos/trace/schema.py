"""The tables of a trace: their columns, and how a table that somebody made becomes one of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosTraceError

# The index is the code that the device writes.
ROLES = ("mover", "builder", "reducer", "router", "pusher", "folder")

_ROLE = pa.dictionary(pa.int8(), pa.string())

SPANS = pa.schema(
    {
        "rank": pa.int32(),
        "workgroup": pa.int32(),
        "role": _ROLE,
        "item": pa.int32(),  # position in the queue of (rank, role): the ticket
        "claim_ns": pa.int64(),  # the workgroup turned to the item
        "start_ns": pa.int64(),  # its wait ended
        "end_ns": pa.int64(),  # done
        "cycles": pa.int64(),  # from start to end
        "unit": pa.int32(),  # the XCD or SM that it ran on
    }
)

QUEUE = pa.schema(
    {
        "rank": pa.int32(),
        "role": _ROLE,
        "item": pa.int32(),
        "chunk": pa.int32(),
        "band": pa.int32(),
        "column": pa.int32(),
        "row": pa.int32(),
        "rows": pa.int32(),
        "col": pa.int32(),
        "cols": pa.int32(),
        "wait": pa.int32(),  # counter on the item's own rank, -1 = none
        "wait_count": pa.int32(),
        "signal_rank": pa.int32(),  # -1 = none
        "signal": pa.int32(),  # counter on signal_rank, -1 = none
    }
)

COUNTERS = pa.schema(
    {
        "name": pa.string(),
        "rank": pa.int32(),
        "time_ns": pa.int64(),
        "value": pa.float64(),
        "unit": pa.string(),
    }
)

# What ran outside the workgroups' items: host ranges, kernel dispatches, markers
RANGES = pa.schema(
    {
        "rank": pa.int32(),  # -1 = of no rank: the host's
        "track": pa.string(),  # what it ran on: a thread, a stream
        "name": pa.string(),
        "start_ns": pa.int64(),
        "end_ns": pa.int64(),
    }
)


def conform(table: pa.Table | Mapping[str, Any] | None, schema: pa.Schema, name: str) -> pa.Table:
    """`table` (or a mapping from column name to values; None is empty) with the columns of `schema` and no others.

    Every column comes out in one chunk, roles coded as in ROLES. An integer may change its width, never its value.
    Raises KosmosTraceError, its sentence starting with `name`, for what does not fit.
    """
    if table is None:
        return schema.empty_table()
    if isinstance(table, Mapping):
        try:
            table = pa.table(dict(table))
        except (pa.ArrowException, TypeError, ValueError):
            raise KosmosTraceError(f"{name}: these columns do not make a table: {_shapes(table)}") from None
    if not isinstance(table, pa.Table):
        raise KosmosTraceError(f"{name}: must be a pyarrow Table or a mapping of columns, not {type(table).__name__}")
    given = table.column_names
    for complaint, columns in (
        ("lacks", [column for column in schema.names if column not in given]),
        ("has unknown", [column for column in given if column not in schema.names]),
        ("repeats", [column for column in schema.names if given.count(column) > 1]),
    ):
        if columns:
            raise KosmosTraceError(f"{name}: {complaint} column{'s'[: len(columns) > 1]} {', '.join(columns)}")
    if not len(table):
        return schema.empty_table()
    columns = [_cast(table[field.name], field.type, f"{name}: column {field.name}") for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def numbers(table: pa.Table, *names: str) -> list[np.ndarray]:
    """Columns of a table of this module as numpy arrays; a role comes as its code, an index into ROLES."""
    # combine_chunks copies a single chunk too
    columns = [table[name] for name in names]
    arrays = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in columns]
    return [(a.indices if pa.types.is_dictionary(a.type) else a).to_numpy(zero_copy_only=False) for a in arrays]


def _cast(column: pa.ChunkedArray, to: pa.DataType, where: str) -> pa.Array:
    if column.null_count:
        raise KosmosTraceError(f"{where} has {column.null_count} missing values")
    array = column.combine_chunks()
    if to == _ROLE:
        return _roles(array, where)
    kinds = pa.types
    # A time that went through a float has already lost its nanoseconds: integers are taken from integers only.
    if kinds.is_integer(to):
        fits = kinds.is_integer(array.type)
    elif kinds.is_floating(to):
        fits = kinds.is_integer(array.type) or kinds.is_floating(array.type)
    else:
        fits = kinds.is_string(array.type) or kinds.is_large_string(array.type)
    if not fits:
        raise KosmosTraceError(f"{where} must be {to}, not {array.type}")
    try:
        return array.cast(to)
    except pa.ArrowException:
        raise KosmosTraceError(f"{where} has values that do not fit {to}") from None


def _roles(array: pa.Array, where: str) -> pa.Array:
    if not pa.types.is_dictionary(array.type):
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            raise KosmosTraceError(f"{where} must be names of roles, not {array.type}")
        array = array.dictionary_encode()
    names = array.dictionary.to_pylist()
    codes = array.indices.to_numpy()
    if names != list(ROLES):
        unknown = [names[code] for code in np.unique(codes) if names[code] not in ROLES]
        if unknown:
            raise KosmosTraceError(f"{where} has the unknown role {unknown[0]!r}; roles are {', '.join(ROLES)}")
        codes = np.array([ROLES.index(name) if name in ROLES else -1 for name in names])[codes]
    return role_array(codes)


def role_array(codes: np.ndarray) -> pa.DictionaryArray:
    """The role column whose codes, indices into ROLES, are given."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(ROLES))


def _shapes(columns: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} ({len(value) if hasattr(value, '__len__') else type(value).__name__})" for key, value in columns.items()
    )
