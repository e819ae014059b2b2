"""The queues of all-gather + GEMM: movers fetch the other ranks' row blocks, builders multiply what has arrived.

counter of a rank:   0 .. ranks-1            rank s has entered the launch: its shard may be read
                     ranks + chunk*bands+b   row block b of chunk's shard has arrived
"""

import numpy as np

from kosmos.schedule.queues import Order, Queues, Tile, by, by_rows, numbered, ordered, tile_table

COPY_BYTES = 512 * 1024
"""About how much one mover item carries: enough to hide a claim, little enough to share a row block."""


def local_first(group: int, items: np.recarray) -> np.ndarray:
    """Own rows first, while the others travel; then the peers' row blocks in turns, the nearest rank first."""
    distance = (items.chunk - items.rank) % (items.chunk.max() + 1)
    peers = max(int(distance.max()), 1)
    local = distance == 0
    bands = np.where(local, group, max(1, group // peers))
    return by(~local, items.band // bands, items.column, items.band % bands, distance)


ORDERS = {"local_first": local_first, "rank": by_rows}


def queues(
    *,
    m: int,
    n: int,
    k: int,
    ranks: int,
    tile: Tile,
    itemsize: int = 2,
    order: Order = "local_first",
    group: int = 8,
) -> Queues:
    """Queues for y[m, n] = gather(x)[m, k] @ w[n, k].T on each of `ranks` ranks that hold m / ranks rows of x each.

    group: how many row blocks the named orders walk together (kosmos.schedule.queues.group_for).
    """
    chunk_rows = m // ranks
    bands = -(-chunk_rows // tile.rows)
    width = _part_width(k, k * itemsize * tile.rows)
    parts = -(-k // width)
    tiles, moves = [], []
    for rank in range(ranks):
        table = tile_table(rank, ranks, chunk_rows, n, tile)
        remote = table.chunk != rank
        table.wait[remote] = (ranks + table.chunk * bands + table.band)[remote]
        table.wait_count[remote] = parts
        table = ordered(table, order, ORDERS, group)
        tiles.append(table)
        moves.append(_moves(table, rank, width, k))
    return Queues(
        op="all_gather_matmul",
        ranks=ranks,
        counters=ranks + ranks * bands,
        announced=ranks,
        producer="mover",
        consumer="builder",
        crew_role="mover",
        items={"mover": np.stack(moves), "builder": np.stack(tiles)},
    )


def _part_width(k: int, block_bytes: int) -> int:
    """How many of the k columns of a row block of `block_bytes` one mover item carries: a multiple of 64, or all."""
    parts = max(1, round(block_bytes / COPY_BYTES))
    return k if parts == 1 else min(k, -(-k // (64 * parts)) * 64)


def _runs(chunks: np.ndarray) -> np.ndarray:
    """Number the runs of a sequence of chunks: no run has a chunk twice, it ends before the first repetition."""
    runs, run, seen = np.zeros(len(chunks), int), 0, set[int]()
    for place, chunk in enumerate(chunks.tolist()):
        if chunk in seen:
            run, seen = run + 1, set()
        seen.add(chunk)
        runs[place] = run
    return runs


def _moves(tiles: np.recarray, rank: int, width: int, k: int) -> np.recarray:
    """The fetches of one rank in the order in which its builders ask for the row blocks, `width` columns an item.

    Blocks of different peers that are asked for one after the other are fetched part by part in turns, so that few
    movers keep all links busy.
    """
    remote = tiles[tiles.chunk != rank]
    _, first = np.unique(remote.row, return_index=True)
    blocks = remote[np.sort(first)]
    parts = -(-k // width)
    table = np.repeat(blocks, parts).view(np.recarray)
    table.column = np.tile(np.arange(parts), len(blocks))
    table = table[by(np.repeat(_runs(blocks.chunk), parts), table.column)]
    table.col = table.column * width
    table.cols = np.minimum(width, k - table.col)
    table.signal_rank, table.signal = rank, table.wait
    table.wait, table.wait_count = table.chunk, 1
    return numbered(table)
