"""All-gather + GEMM in one persistent kernel.

Every rank holds M / ranks rows of x and its own w, and computes y = gather(x) @ w.T:

    rank s: shard of x  --mover of rank r copies-->  rank r: gathered  --builder of rank r multiplies-->  rank r: y
                              signal: this row block is here       wait

A rank's own rows need no copy: its builders start on them while its movers fetch the others, in the order in which
the builders will ask for them, blocks of different peers part by part in turns. A mover whose queue is empty becomes a
builder, if the policy lets it.
"""

import torch
import triton
import triton.language as tl

from kosmos.lang import (
    BUILDER,
    MOVER,
    announce,
    claim,
    claim_two_way,
    close_slice,
    copy_tile,
    counter_of,
    enter,
    fence_async,
    gemm_tile,
    leave,
    on_peer,
    open_slice,
    pace,
    record,
    signal,
    stamp,
    store_tile,
    wait,
)
from kosmos.lang.items import CHUNK, COL, COLS, COLUMN, INDEX, ITEM_WORDS, ROW, ROWS, SIGNAL, WAIT, WAIT_COUNT
from kosmos.ops.arguments import alignment, check_operands
from kosmos.ops.autograd import Fused
from kosmos.ops.launch import launch, plan_for
from kosmos.schedule import Policy
from kosmos.schedule.queues import Order
from kosmos.world import World


@triton.jit
def all_gather_matmul_kernel(
    x,  # [ranks, m / RANKS, k], symmetric
    gathered,  # [ranks, m, k]; a rank's own rows of it stay unused
    x_tiles,  # x, gathered and w again, as gemm_tile reads them: pointers or tensor descriptors of [rows, k]
    gathered_tiles,
    w_tiles,
    y_tiles,  # [ranks, m, n] as store_tile writes it: a pointer or a tensor descriptor of [rows, n]
    moves,  # the movers' queue, [ranks, n_moves + 1, ITEM_WORDS]
    n_moves,
    width,  # columns that a mover item carries, but for the last part of a row block
    tiles,  # the builders' queue, [ranks, n_tiles + 1, ITEM_WORDS]
    n_tiles,
    x_peers,  # bytes from each rank's x to every other's, [ranks, ranks]
    state,  # [ranks, state_words], symmetric: lang.sync
    state_words,
    trace,  # the trace buffer, if TRACE: lang.record
    links,  # until when each link is taken, [ranks * ranks], if PACED
    first_rank,  # of this launch
    crew,  # workgroups of a rank that start by communicating
    capacity,  # records that a workgroup has room for
    ticks_per_byte,  # of a paced link
    m,
    n,
    k,
    RANKS: tl.constexpr,
    SCOPE: tl.constexpr,
    WORKGROUPS: tl.constexpr,
    SWITCH: tl.constexpr,
    TWO_WAY: tl.constexpr,
    PACED: tl.constexpr,
    TRACE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    ALIGN: tl.constexpr,
    STAGES: tl.constexpr,
    CM: tl.constexpr,
    CN: tl.constexpr,
    TMA: tl.constexpr,
    TMA_STORE: tl.constexpr,
    FLATTEN: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    local = tl.program_id(0) // WORKGROUPS
    workgroup = tl.program_id(0) % WORKGROUPS
    rank = first_rank + local
    moves += local.to(tl.int64) * (n_moves + 1) * ITEM_WORDS
    tiles += local.to(tl.int64) * (n_tiles + 1) * ITEM_WORDS
    x_peers += local * RANKS
    state += local.to(tl.int64) * state_words
    log = open_slice(trace, capacity, TRACE)
    here = (state, enter(state), rank, workgroup)
    if workgroup == 0:
        announce(state, rank, RANKS, SCOPE)

    done = tl.full((), 0, tl.int32)
    claimed = stamp(TRACE)
    if TWO_WAY:
        role, ticket = claim_two_way(here, MOVER, n_moves, BUILDER, tiles, n_tiles, workgroup >= crew, RANKS, SCOPE)
        while (role == MOVER) | (ticket < n_tiles):
            if role == MOVER:
                done, claimed = _move(
                    here, moves, ticket, width, local, x, x_peers, gathered, m, k, links, ticks_per_byte,
                    log, done, claimed, RANKS, SCOPE, PACED, TRACE, ALIGN, STAGES, CM, CN,
                )  # fmt: skip
            else:
                done, claimed = _build(
                    here, tiles, n_tiles, ticket, local, x_tiles, gathered_tiles, w_tiles, y_tiles, m, n, k,
                    log, done, claimed, RANKS, SCOPE, TRACE, BM, BN, BK, TMA, TMA_STORE, EVEN_K,
                )  # fmt: skip
            role, ticket = claim_two_way(here, MOVER, n_moves, BUILDER, tiles, n_tiles, workgroup >= crew, RANKS, SCOPE)
    else:
        if workgroup < crew:
            ticket = claim(state, MOVER)
            while ticket < n_moves:
                done, claimed = _move(
                    here, moves, ticket, width, local, x, x_peers, gathered, m, k, links, ticks_per_byte,
                    log, done, claimed, RANKS, SCOPE, PACED, TRACE, ALIGN, STAGES, CM, CN,
                )  # fmt: skip
                ticket = claim(state, MOVER)
        if SWITCH or workgroup >= crew:
            ticket = claim(state, BUILDER)
            # where nothing is waited for: one tile's stores overlap the next one's loads. The rest goes one by one,
            # so that all workgroups end together.
            if FLATTEN and RANKS == 1:
                for _ in tl.range(0, n_tiles // WORKGROUPS - 1, flatten=True):
                    following = claim(state, BUILDER)
                    done, claimed = _build(
                        here, tiles, n_tiles, ticket, local, x_tiles, gathered_tiles, w_tiles, y_tiles, m, n, k,
                        log, done, claimed, RANKS, SCOPE, TRACE, BM, BN, BK, TMA, TMA_STORE, EVEN_K,
                    )  # fmt: skip
                    ticket = following
            while ticket < n_tiles:
                done, claimed = _build(
                    here, tiles, n_tiles, ticket, local, x_tiles, gathered_tiles, w_tiles, y_tiles, m, n, k,
                    log, done, claimed, RANKS, SCOPE, TRACE, BM, BN, BK, TMA, TMA_STORE, EVEN_K,
                )  # fmt: skip
                ticket = claim(state, BUILDER)
    close_slice(log, done, claimed, TRACE)
    leave(state, WORKGROUPS)


@triton.jit
def _move(
    here, moves, ticket, width, local, x, x_peers, gathered, m, k, links, ticks_per_byte,
    log, done, claimed,
    RANKS: tl.constexpr, SCOPE: tl.constexpr, PACED: tl.constexpr, TRACE: tl.constexpr, ALIGN: tl.constexpr,
    STAGES: tl.constexpr, CM: tl.constexpr, CN: tl.constexpr,
):  # fmt: skip
    """Mover: fetch part of a peer's row block and say that it is here. Returns the next record's number and its end."""
    state, _, rank, _ = here
    item = moves + ticket.to(tl.int64) * ITEM_WORDS
    chunk, row, rows = tl.load(item + CHUNK), tl.load(item + ROW), tl.load(item + ROWS)
    # parts start at multiples of 64 columns: said so that accesses can be 16 bytes wide
    col, cols, arrived = tl.load(item + COL) // 64 * 64, tl.load(item + COLS), tl.load(item + SIGNAL)
    wait(here, tl.load(item + WAIT), tl.load(item + WAIT_COUNT), MOVER, ticket, RANKS, SCOPE)
    started = stamp(TRACE)
    shard = m // RANKS
    source = on_peer(x, x_peers, chunk, ALIGN) + (local * shard + row - chunk * shard).to(tl.int64) * k
    target = gathered + (local * m + row).to(tl.int64) * k
    copy_tile(source, target, rows, col, tl.minimum(col + width, k), k, CM, CN, STAGES)
    if PACED:
        pace(
            state,
            links,
            chunk * RANKS + rank,
            rows * cols * (x.dtype.element_ty.primitive_bitwidth // 8),
            ticks_per_byte,
        )
    done, claimed = record(log, done, MOVER, ticket, claimed, started, TRACE)
    signal(counter_of(state, arrived, RANKS), SCOPE)
    return done, claimed


@triton.jit
def _build(
    here, tiles, n_tiles, ticket, local, x_tiles, gathered_tiles, w_tiles, y_tiles, m, n, k,
    log, done, claimed,
    RANKS: tl.constexpr, SCOPE: tl.constexpr, TRACE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, TMA: tl.constexpr, TMA_STORE: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Builder: multiply one tile, once its rows are here. A ticket beyond the queue makes nothing."""
    _, _, rank, _ = here
    item = tiles + tl.minimum(ticket, n_tiles).to(tl.int64) * ITEM_WORDS
    # what comes after the product uses only what is loaded here: in a flattened loop Triton gives it the next `ticket`
    index, chunk, row, rows = tl.load(item + INDEX), tl.load(item + CHUNK), tl.load(item + ROW), tl.load(item + ROWS)
    col, cols = tl.load(item + COLUMN) * BN, tl.load(item + COLS)
    started = claimed
    if RANKS > 1:
        wait(here, tl.load(item + WAIT), tl.load(item + WAIT_COUNT), BUILDER, ticket, RANKS, SCOPE)
        started = stamp(TRACE)
    # a rank's own rows are read where they are
    if chunk == rank:
        a, a_row = x_tiles, local * (m // RANKS) + row - rank * (m // RANKS)
    else:
        a, a_row = gathered_tiles, local * m + row
    if TMA and RANKS > 1:
        fence_async()
    tile = gemm_tile(a, a_row, w_tiles, local * n + col, k, rows, cols, TMA, EVEN_K, BM, BN, BK)
    store_tile(y_tiles, tile, local * m + row, rows, col, n, TMA_STORE, BM, BN)
    done, claimed = record(log, done, BUILDER, index, claimed, started, TRACE, rows > 0)
    return done, claimed


def all_gather_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    world: World,
    policy: Policy | str | None = None,
    order: Order = "local_first",
) -> torch.Tensor:
    """gather(x) @ w.T on every rank: x [ranks, M/ranks, K], w [ranks, N, K] -> [ranks, M, N], dtype of x.

    bf16, fp16 or fp32, accumulated in fp32; the same bits under every policy and order. order: "local_first", "rank",
    "random:SEED", or a function from a rank's table of builder items (kosmos.schedule.ITEM) to a permutation of it.
    Differentiable in x and w; the backward has the default policy and order.

    Raises KosmosShapeError, KosmosArgumentError or KosmosDeadlock before the launch, and KosmosTimeout for a wait that
    expired in an earlier one.
    """
    check_operands(x, w, world, "[ranks, M/ranks, K]", "[ranks, N, K]")
    return Fused.apply(x, w, world, policy, order, _forward, (_grad_x, _grad_w))


def _forward(x: torch.Tensor, w: torch.Tensor, world: World, policy, order: Order) -> torch.Tensor:
    ranks, shard, k = x.shape
    m, n = ranks * shard, w.shape[1]
    plan = plan_for(world, "all_gather_matmul", m, n, k, x, w, policy, order)
    gathered = plan.tensor("gathered", (ranks, m, k))
    y = torch.empty((ranks, m, n), dtype=x.dtype, device=x.device)
    arguments = {
        "x": x,
        "gathered": gathered,
        **plan.operands(x=(x, "rows"), gathered=(gathered, "rows"), w=(w, "cols")),
        **plan.result(y=y),
        "moves": plan.tables["mover"],
        "n_moves": plan.length("mover"),
        "width": int(plan.queues.items["mover"]["cols"].max(initial=1)),
        "tiles": plan.tables["builder"],
        "n_tiles": plan.length("builder"),
        "x_peers": world.distances(shard * k * x.element_size()),
        "ALIGN": alignment(x, k),
        "STAGES": plan.blocks.copy_stages,
        "CM": plan.blocks.copy.rows,
        "CN": plan.blocks.copy.cols,
    }
    launch(plan, all_gather_matmul_kernel, arguments, symmetric=(x, gathered, w, y))
    return y


def _grad_x(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, world: World) -> torch.Tensor:
    """The gradient of a gather is a reduce-scatter."""
    from kosmos.ops.matmul_reduce_scatter import matmul_reduce_scatter

    return matmul_reduce_scatter(grad, w.transpose(1, 2).contiguous(), world=world)


def _grad_w(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, world: World) -> torch.Tensor:
    return grad.transpose(1, 2) @ x.flatten(0, 1)
