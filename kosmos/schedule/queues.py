"""Queues as tables: the ordered work of every role on every rank, as data that kernels and models read alike."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosArgumentError

FIELDS = "index rank chunk band column row rows col cols wait wait_count signal_rank signal".split()
ITEM = np.dtype([(field, np.int32) for field in FIELDS])
"""One row of a queue, all int32; on the device a row is these fields as consecutive int32 words.

index: its place in the queue. rank: whose queue. chunk: the rank that the rows belong to (all-gather: whose shard;
reduce-scatter: whose output).
band: row block inside the chunk. column: column block. row, rows, col, cols: the tile in elements of the full matrix.
wait, wait_count: the counter of this rank that must be complete before the work starts, and how many signals
complete it (wait = -1: nothing). A counter is waited for as a whole: wait_count is all that it gets in one launch.
signal_rank, signal: the counter, and the rank that holds it, that the finished item adds one to (-1: none).
"""

Order = str | Callable[[np.recarray], np.ndarray]
"""An order: a name, or a function from the item table of one rank to a permutation of it."""


class Tile(NamedTuple):
    """Rows and columns of an output tile, in elements."""

    rows: int
    cols: int


def group_for(workgroups: int, tile: Tile) -> int:
    """How many row blocks to walk column by column together: with a tile in every workgroup, the tiles at work then
    have about as many rows as columns, so that they read the fewest operands. A power of two."""
    return 2 ** round(math.log2(max(1.0, math.sqrt(workgroups * tile.cols / tile.rows))))


@dataclass(frozen=True)
class Queues:
    """The queues of one fused op: for each role an ITEM array [ranks, items] in the order in which they are claimed.

    The items of `producer` wait for nothing that another item of the launch makes ready; those of `consumer` wait for
    the producer's. `crew_role` is that of the workgroups that a policy sets aside for communication. Counters below
    `announced` are signalled by each rank's entry into the launch and not by an item.
    """

    op: str
    ranks: int
    counters: int
    announced: int
    producer: str
    consumer: str
    crew_role: str
    items: dict[str, np.ndarray]

    def table(self) -> pa.Table:
        """The items of all queues as a trace keeps them."""
        tables = self.items.values()
        columns: dict[str, Any] = {name: np.concatenate([table[name].ravel() for table in tables]) for name in FIELDS}
        columns["item"] = columns.pop("index")
        codes = np.repeat(np.arange(len(tables), dtype=np.int8), [table.size for table in tables])
        columns["role"] = pa.DictionaryArray.from_arrays(codes, list(self.items))
        return pa.table(columns)


def tile_table(rank: int, ranks: int, chunk_rows: int, cols: int, tile: Tile) -> np.recarray:
    """All output tiles of a [ranks * chunk_rows, cols] matrix as ITEM rows of `rank`, chunk by chunk, row by row.

    A tile never spans two chunks. Waits and signals are left at "none".
    """
    bands, columns = -(-chunk_rows // tile.rows), -(-cols // tile.cols)
    chunk, band, column = (axis.ravel() for axis in np.indices((ranks, bands, columns)))
    table = np.zeros(chunk.size, ITEM)
    table["rank"], table["chunk"], table["band"], table["column"] = rank, chunk, band, column
    table["row"] = chunk * chunk_rows + band * tile.rows
    table["rows"] = np.minimum(tile.rows, chunk_rows - band * tile.rows)
    table["col"] = column * tile.cols
    table["cols"] = np.minimum(tile.cols, cols - column * tile.cols)
    for field in ("wait", "signal", "signal_rank"):
        table[field] = -1
    return numbered(table)


def ordered(
    table: np.recarray, order: Order, named: Mapping[str, Callable[[int, np.recarray], np.ndarray]], group: int
) -> np.recarray:
    """`table` in the given order: one of the `named` ones, "random:SEED", or a function that returns a permutation.

    named: functions of `group`, the number of row blocks that are walked together, and of the table.

    Raises KosmosArgumentError for an unknown name and for a result that is no permutation.
    """
    if isinstance(order, str) and order.startswith("random:") and _is_number(order[7:]):
        generator = np.random.default_rng((int(order[7:]), int(table.rank[0])))
        return numbered(table[generator.permutation(len(table))])
    rule = order
    if isinstance(order, str) and order in named:
        rule = partial(named[order], group)
    if not callable(rule):
        allowed = ", ".join(repr(name) for name in (*named, "random:SEED"))
        raise KosmosArgumentError(f"order={order!r} is unknown; allowed are {allowed} or a function")
    returned = rule(table.copy())
    try:
        permutation = np.asarray(returned)
        right = permutation.dtype.kind in "iu" and np.array_equal(np.sort(permutation), np.arange(len(table)))
    except (TypeError, ValueError, OverflowError):
        right = False
    if not right:
        raise KosmosArgumentError(
            f"order {order_name(order)} must return a permutation of 0..{len(table) - 1}, one whole number for each of "
            f"the {len(table)} items; it returned {_brief(returned)}"
        )
    return numbered(table[permutation])


def numbered(table: np.ndarray) -> np.recarray:
    """The table with its rows' own places written in."""
    table["index"] = np.arange(len(table))
    return table.view(np.recarray)


def order_name(order: Order) -> str:
    """How an order is called in a trace and in an error."""
    return order if isinstance(order, str) else getattr(order, "__name__", repr(order))


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def _brief(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


def by(*keys: np.ndarray) -> np.ndarray:
    """The permutation that sorts by the first key, then the second, and so on."""
    return np.lexsort(keys[::-1])


def by_rows(group: int, items: np.recarray) -> np.ndarray:
    """Rows from the first to the last, on every rank alike; the last rank's chunk comes last everywhere."""
    block = items.chunk * (items.band.max() + 1) + items.band
    return by(block // group, items.column, block % group)
