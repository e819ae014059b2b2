"""GEMM + reduce-scatter in one persistent kernel.

Every rank holds its share of K: x [M, K], w [N, K]. The ranks' products are added up, and each keeps M / ranks rows:

    rank s: x, w  --builder of rank s multiplies-->  rank s: part  --reducer of rank r adds up all ranks'-->  rank r: y
                            signal rank r: this tile is made        wait for all

The builders go band by band across every rank's rows, so that all reducers have work after the first band. A builder
whose queue is empty becomes a reducer, if the policy lets it. Sums are taken in rank order: always the same bits.
"""

import torch
import triton
import triton.language as tl

from kosmos.errors import KosmosShapeError
from kosmos.lang import (
    BUILDER,
    REDUCER,
    WIDE,
    claim,
    claim_two_way,
    close_slice,
    counter_on,
    enter,
    gemm_tile,
    hold,
    leave,
    open_slice,
    pace,
    record,
    reduce_tile,
    signal,
    stamp,
    store_tile,
    wait,
)
from kosmos.lang.items import COLS, COLUMN, INDEX, ITEM_WORDS, ROW, ROWS, SIGNAL, SIGNAL_RANK, WAIT, WAIT_COUNT
from kosmos.ops.arguments import alignment, check_operands
from kosmos.ops.autograd import Fused
from kosmos.ops.launch import launch, plan_for
from kosmos.schedule import Policy
from kosmos.schedule.queues import Order
from kosmos.world import World


@triton.jit
def matmul_reduce_scatter_kernel(
    x_tiles,  # x [ranks, m, k] and w [ranks, n, k] as gemm_tile reads them: pointers or descriptors of [rows, k]
    w_tiles,
    part,  # [ranks, m, n], symmetric: each rank's product, in the dtype of x
    part_tiles,  # part as store_tile writes it: a pointer or a descriptor of [rows, n]
    y,  # [ranks, m / RANKS, n]
    tiles,  # the builders' queue, [ranks, n_tiles + 1, ITEM_WORDS]
    n_tiles,
    sums,  # the reducers' queue, [ranks, n_sums + 1, ITEM_WORDS]
    n_sums,
    part_peers,  # bytes from each rank's part to every other's, [ranks, ranks]
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
    RM: tl.constexpr,
    RN: tl.constexpr,
    TMA: tl.constexpr,
    TMA_STORE: tl.constexpr,
    FLATTEN: tl.constexpr,
    EVEN_K: tl.constexpr,
):
    local = tl.program_id(0) // WORKGROUPS
    workgroup = tl.program_id(0) % WORKGROUPS
    rank = first_rank + local
    tiles += local.to(tl.int64) * (n_tiles + 1) * ITEM_WORDS
    sums += local.to(tl.int64) * (n_sums + 1) * ITEM_WORDS
    part_peers += local * RANKS
    state += local.to(tl.int64) * state_words
    log = open_slice(trace, capacity, TRACE)
    here = (state, enter(state), rank, workgroup)

    done = tl.full((), 0, tl.int32)
    claimed = stamp(TRACE)
    nothing = tl.full((), 0, tl.int64)
    if TWO_WAY:
        role, ticket = claim_two_way(here, BUILDER, n_tiles, REDUCER, sums, n_sums, workgroup < crew, RANKS, SCOPE)
        while (role == BUILDER) | (ticket < n_sums):
            if role == BUILDER:
                done, claimed, made = _build(
                    here, tiles, n_tiles, ticket, local, x_tiles, w_tiles, part_tiles, m, n, k, nothing,
                    log, done, claimed, RANKS, SCOPE, TRACE, BM, BN, BK, TMA, TMA_STORE, EVEN_K,
                )  # fmt: skip
                _tell(made, SCOPE)
            else:
                done, claimed = _reduce(
                    here, sums, ticket, local, part, part_peers, y, m, n, links, ticks_per_byte,
                    log, done, claimed, RANKS, SCOPE, PACED, TRACE, ALIGN, STAGES, RM, RN,
                )  # fmt: skip
            role, ticket = claim_two_way(here, BUILDER, n_tiles, REDUCER, sums, n_sums, workgroup < crew, RANKS, SCOPE)
    else:
        if workgroup >= crew:
            ticket = claim(state, BUILDER)
            # builders wait for nobody: one tile's stores overlap the next one's loads, and a tile is told of after the
            # next one's product, when its stores have long arrived. The rest goes one by one, so that all workgroups
            # end together.
            if FLATTEN:
                made = nothing
                for _ in tl.range(0, n_tiles // (WORKGROUPS - crew) - 1, flatten=True):
                    following = claim(state, BUILDER)
                    done, claimed, made = _build(
                        here, tiles, n_tiles, ticket, local, x_tiles, w_tiles, part_tiles, m, n, k, made,
                        log, done, claimed, RANKS, SCOPE, TRACE, BM, BN, BK, TMA, TMA_STORE, EVEN_K,
                    )  # fmt: skip
                    ticket = following
                _tell(made, SCOPE)
            while ticket < n_tiles:
                done, claimed, made = _build(
                    here, tiles, n_tiles, ticket, local, x_tiles, w_tiles, part_tiles, m, n, k, nothing,
                    log, done, claimed, RANKS, SCOPE, TRACE, BM, BN, BK, TMA, TMA_STORE, EVEN_K,
                )  # fmt: skip
                _tell(made, SCOPE)
                ticket = claim(state, BUILDER)
        if SWITCH or workgroup < crew:
            ticket = claim(state, REDUCER)
            while ticket < n_sums:
                done, claimed = _reduce(
                    here, sums, ticket, local, part, part_peers, y, m, n, links, ticks_per_byte,
                    log, done, claimed, RANKS, SCOPE, PACED, TRACE, ALIGN, STAGES, RM, RN,
                )  # fmt: skip
                ticket = claim(state, REDUCER)
    close_slice(log, done, claimed, TRACE)
    leave(state, WORKGROUPS)


@triton.jit
def _build(
    here, tiles, n_tiles, ticket, local, x_tiles, w_tiles, part_tiles, m, n, k, made,
    log, done, claimed,
    RANKS: tl.constexpr, SCOPE: tl.constexpr, TRACE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, TMA: tl.constexpr, TMA_STORE: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """Builder: multiply one tile and store it; tell of what was `made` before while the first part of it is on its way.
    Returns besides what it has made itself, to be told of: the address of the counter of the rank that adds it up. A
    ticket beyond the queue makes nothing, 0.
    """
    state, _, _, _ = here
    item = tiles + tl.minimum(ticket, n_tiles).to(tl.int64) * ITEM_WORDS
    # what comes after the product uses only what is loaded here: in a flattened loop Triton gives it the next `ticket`
    index, row, rows = tl.load(item + INDEX), tl.load(item + ROW), tl.load(item + ROWS)
    col, cols = tl.load(item + COLUMN) * BN, tl.load(item + COLS)
    adder, counter = tl.load(item + SIGNAL_RANK), tl.load(item + SIGNAL)
    making = tl.where(counter < 0, 0, counter_on(state, adder, counter, RANKS).to(tl.int64))
    tile = gemm_tile(x_tiles, local * m + row, w_tiles, local * n + col, k, rows, cols, TMA, EVEN_K, BM, BN, BK)
    store_tile(part_tiles, tile, local * m + row, rows, col, n, TMA_STORE, BM, BN, REST=False)
    _tell(made, SCOPE, 1 if TMA_STORE and BN >= WIDE else 0)
    store_tile(part_tiles, tile, local * m + row, rows, col, n, TMA_STORE, BM, BN, FIRST=False)
    done, claimed = record(log, done, BUILDER, index, claimed, claimed, TRACE, rows > 0)
    return done, claimed, hold(making)


@triton.jit
def _tell(made, SCOPE: tl.constexpr, SPARED: tl.constexpr = 0):
    """Signal the rank that adds a tile up that its part of it is made; made: where to, 0 for nothing."""
    if made != 0:
        signal(made.to(tl.pointer_type(tl.int32)), SCOPE, SPARED)


@triton.jit
def _reduce(
    here, sums, ticket, local, part, part_peers, y, m, n, links, ticks_per_byte,
    log, done, claimed,
    RANKS: tl.constexpr, SCOPE: tl.constexpr, PACED: tl.constexpr, TRACE: tl.constexpr, ALIGN: tl.constexpr,
    STAGES: tl.constexpr, RM: tl.constexpr, RN: tl.constexpr,
):  # fmt: skip
    """Reducer: add up all ranks' parts of one tile of this rank's rows, once they are made."""
    state, _, rank, _ = here
    item = sums + ticket.to(tl.int64) * ITEM_WORDS
    row, rows = tl.load(item + ROW), tl.load(item + ROWS)
    col, cols = tl.load(item + COLUMN) * RN, tl.load(item + COLS)
    wait(here, tl.load(item + WAIT), tl.load(item + WAIT_COUNT), REDUCER, ticket, RANKS, SCOPE)
    started = stamp(TRACE)
    shard = m // RANKS
    mine = part + (local * m + row).to(tl.int64) * n
    out = y + (local * shard + row - rank * shard).to(tl.int64) * n
    reduce_tile(mine, part_peers, out, rows, col, n, RANKS, RM, RN, ALIGN, STAGES)
    if PACED:
        size = rows * cols * (part.dtype.element_ty.primitive_bitwidth // 8)
        for peer in range(RANKS):
            if peer != rank:
                pace(state, links, peer * RANKS + rank, size, ticks_per_byte)
    done, claimed = record(log, done, REDUCER, ticket, claimed, started, TRACE)
    return done, claimed


def matmul_reduce_scatter(
    x: torch.Tensor,
    w: torch.Tensor,
    *,
    world: World,
    policy: Policy | str | None = None,
    order: Order = "band",
) -> torch.Tensor:
    """The ranks' rows of sum over ranks of x @ w.T: x [ranks, M, K], w [ranks, N, K] -> [ranks, M/ranks, N].

    K is a rank's share. bf16, fp16 or fp32, accumulated in fp32; the ranks' products are rounded to that dtype before
    they are added, in fp32 and in rank order: the same bits under every policy and order. order: "band", "row",
    "random:SEED", or a function from a rank's table of builder items (kosmos.schedule.ITEM) to a permutation of it.
    Differentiable in x and w; the backward has the default policy and order.

    Raises KosmosShapeError, KosmosArgumentError or KosmosDeadlock before the launch, and KosmosTimeout for a wait that
    expired in an earlier one.
    """
    check_operands(x, w, world, "[ranks, M, K]", "[ranks, N, K]")
    if x.shape[1] % world.ranks:
        raise KosmosShapeError(f"x has M={x.shape[1]} rows; they must divide by ranks={world.ranks} to be scattered")
    return Fused.apply(x, w, world, policy, order, _forward, (_grad_x, _grad_w))


def _forward(x: torch.Tensor, w: torch.Tensor, world: World, policy, order: Order) -> torch.Tensor:
    ranks, m, k = x.shape
    n = w.shape[1]
    plan = plan_for(world, "matmul_reduce_scatter", m, n, k, x, w, policy, order)
    part = plan.tensor("part", (ranks, m, n))
    y = torch.empty((ranks, m // ranks, n), dtype=x.dtype, device=x.device)
    arguments = {
        **plan.operands(x=(x, "rows"), w=(w, "cols")),
        "part": part,
        **plan.result(part=part),
        "y": y,
        "tiles": plan.tables["builder"],
        "n_tiles": plan.length("builder"),
        "sums": plan.tables["reducer"],
        "n_sums": plan.length("reducer"),
        "part_peers": world.distances(m * n * part.element_size()),
        "ALIGN": alignment(part, n),
        "STAGES": plan.blocks.reduce_stages,
        "RM": plan.blocks.reduce.rows,
        "RN": plan.blocks.reduce.cols,
    }
    launch(plan, matmul_reduce_scatter_kernel, arguments, symmetric=(x, w, part, y))
    return y


def _grad_x(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, world: World) -> torch.Tensor:
    """The gradient of a reduce-scatter is a gather."""
    from kosmos.ops.all_gather_matmul import all_gather_matmul

    return all_gather_matmul(grad, w.transpose(1, 2).contiguous(), world=world)


def _grad_w(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, world: World) -> torch.Tensor:
    return grad.flatten(0, 1).T @ x
