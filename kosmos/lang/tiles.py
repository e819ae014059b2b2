"""The work on tiles. The emulator can replace each of these by one numpy operation with the same bits and charges.

Pointers to tiles are 64 bits wide; offsets inside a tile are 32 bits, which ops.arguments makes sure is enough: they
cost half the registers.
"""

import triton
import triton.language as tl

from kosmos.lang.sync import on_peer

WIDE = tl.constexpr(256)
"""Tiles of so many columns are stored in two halves."""


@triton.jit
def gemm_tile(
    a,
    a_row,
    b,
    b_row,
    k,
    rows,
    cols,
    TMA: tl.constexpr,
    EVEN_K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """a[a_row:, :k] @ b[b_row:, :k].T in fp32: a [BM, BN] tile of which the first [rows, cols] are valid.

    a, b: dense matrices of k columns, as pointers or, with TMA, as tensor descriptors of blocks [BM, BK] and [BN, BK].
    """
    tile = tl.zeros((BM, BN), tl.float32)
    if TMA:
        for step in range(0, k, BK):
            tile = tl.dot(a.load([a_row, step]), b.load([b_row, step]).T, tile, input_precision="ieee")
    else:
        # beyond the edge read the last row again: no mask, and what comes of it is never stored
        i, j = tl.minimum(tl.arange(0, BM), rows - 1), tl.minimum(tl.arange(0, BN), cols - 1)
        ks = tl.arange(0, BK)
        a_at = a + a_row.to(tl.int64) * k + (i[:, None] * k + ks[None, :])
        b_at = b + b_row.to(tl.int64) * k + (j[:, None] * k + ks[None, :])
        for step in range(0, k, BK):
            if EVEN_K:
                a_part, b_part = tl.load(a_at), tl.load(b_at)
            else:
                inside = ks[None, :] < k - step
                a_part, b_part = tl.load(a_at, mask=inside, other=0.0), tl.load(b_at, mask=inside, other=0.0)
            # "ieee": fp32 inputs keep their 24 bits; 16-bit inputs are not affected
            tile = tl.dot(a_part, tl.trans(b_part), tile, input_precision="ieee")
            a_at += BK
            b_at += BK
    return tile


@triton.jit
def store_tile(
    y,
    tile,
    row,
    rows,
    col,
    pitch,
    TMA: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    FIRST: tl.constexpr = True,
    REST: tl.constexpr = True,
):
    """Store `rows` rows of a tile at y[row, col], rounded to y's type; y has `pitch` columns.

    With TMA, y is a tensor descriptor of blocks [BM, BN // 2] and all BM rows are stored: the accelerator only knows
    where the whole of y ends. FIRST, REST: which part of it; narrow tiles have no first one. With TMA what is done
    between the two takes no time of its own: the rest has to wait until the first part has been read.
    """
    if BN >= WIDE:
        # one half after the other: fewer registers, and half the shared memory
        HALF: tl.constexpr = BN // 2
        left, right = tl.split(tl.permute(tl.reshape(tile, (BM, 2, HALF)), (0, 2, 1)))
        if FIRST:
            _store(y, left, row, rows, col, pitch, TMA, BM, HALF)
        if REST:
            _store(y, right, row, rows, col + HALF, pitch, TMA, BM, HALF)
    elif REST:
        _store(y, tile, row, rows, col, pitch, TMA, BM, BN)


@triton.jit
def _store(y, tile, row, rows, col, pitch, TMA: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    if TMA:
        y.store([row, col], tile.to(y.dtype))
    else:
        i, j = tl.arange(0, BM)[:, None], col + tl.arange(0, BN)[None, :]
        at = y + row.to(tl.int64) * pitch + (i * pitch + j)
        tl.store(at, tile.to(y.dtype.element_ty), mask=(i < rows) & (j < pitch))


@triton.jit
def copy_tile(source, target, rows, col, end, pitch, CM: tl.constexpr, CN: tl.constexpr, STAGES: tl.constexpr = 1):
    """Copy columns col..end of `rows` rows between two matrices of `pitch` columns, [CM, CN] at a time.

    STAGES: how many of these are on their way at once.
    """
    across = tl.cdiv(end - col, CN)
    for step in tl.range(0, tl.cdiv(rows, CM) * across, num_stages=STAGES):
        i = step // across * CM + tl.arange(0, CM)[:, None]
        j = col + step % across * CN + tl.arange(0, CN)[None, :]
        at, inside = i * pitch + j, (i < rows) & (j < end)
        tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


@triton.jit
def reduce_tile(
    part,
    peers,
    y,
    rows,
    col,
    pitch,
    RANKS: tl.constexpr,
    RM: tl.constexpr,
    RN: tl.constexpr,
    ALIGN: tl.constexpr = 1,
    STAGES: tl.constexpr = 1,
):
    """RN columns from `col` of y = the sum of every rank's `part`, added in fp32 in rank order: always the same bits.

    part, y: pointers to the first of `rows` rows of `pitch` columns. STAGES: how many [RM, RN] are on their way.
    """
    # found before the loop: a load whose address is loaded inside it takes up half of the loop's stages
    parts = ()
    for rank in tl.static_range(RANKS):
        parts = parts + (on_peer(part, peers, rank, ALIGN),)
    j = col + tl.arange(0, RN)[None, :]
    for row in tl.range(0, rows, RM, num_stages=STAGES):
        i = row + tl.arange(0, RM)[:, None]
        at, inside = i * pitch + j, (i < rows) & (j < pitch)
        total = tl.zeros((RM, RN), tl.float32)
        for rank in tl.static_range(RANKS):
            total += tl.load(parts[rank] + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)
