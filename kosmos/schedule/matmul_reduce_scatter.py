"""The queues of GEMM + reduce-scatter: builders make partial tiles for every rank, reducers add up their own.

counter of a rank:   band*columns + column   partials of this output tile that have been made, one a rank
"""

import numpy as np

from kosmos.schedule.queues import Order, Queues, Tile, by, by_rows, numbered, ordered, tile_table


def band_order(group: int, items: np.recarray) -> np.ndarray:
    """Band by band across every rank's chunk, own chunk last: after one band every reducer has work."""
    ranks = items.chunk.max() + 1
    turn = (items.chunk - items.rank - 1) % ranks
    bands = max(1, group // int(ranks))
    return by(items.band // bands, items.column, items.band % bands, turn)


ORDERS = {"band": band_order, "row": by_rows}


def queues(
    *, m: int, n: int, k: int, ranks: int, tile: Tile, itemsize: int = 2, order: Order = "band", group: int = 8
) -> Queues:
    """Queues for sum over ranks of x[m, k] @ w[n, k].T, of which each of `ranks` ranks keeps m / ranks rows.

    group: how many row blocks the named orders walk together (kosmos.schedule.queues.group_for).
    """
    chunk_rows = m // ranks
    columns = -(-n // tile.cols)
    tiles = []
    for rank in range(ranks):
        table = tile_table(rank, ranks, chunk_rows, n, tile)
        table.signal_rank, table.signal = table.chunk, table.band * columns + table.column
        tiles.append(ordered(table, order, ORDERS, group))
    builders = np.stack(tiles)
    bands = -(-chunk_rows // tile.rows)
    reducers = np.stack([_reductions(builders, rank, bands * columns) for rank in range(ranks)])
    return Queues(
        op="matmul_reduce_scatter",
        ranks=ranks,
        counters=bands * columns,
        announced=0,
        producer="builder",
        consumer="reducer",
        crew_role="reducer",
        items={"builder": builders, "reducer": reducers},
    )


def _reductions(builders: np.ndarray, rank: int, tiles: int) -> np.ndarray:
    """The output tiles of one rank in the order in which their last partial is claimed."""
    position = np.broadcast_to(np.arange(builders.shape[1]), builders.shape)
    mine = builders["chunk"] == rank
    complete = np.zeros(tiles, np.int64)
    np.maximum.at(complete, builders["signal"][mine], position[mine])
    table = builders[rank][builders[rank]["chunk"] == rank].view(np.recarray)
    table = table[by(complete[table.signal], table.signal)]
    table.wait, table.wait_count = table.signal, builders.shape[0]
    table.signal_rank, table.signal = -1, -1
    return numbered(table)
