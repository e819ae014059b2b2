"""Queues, orders, policies and the deadlock check, against plain loops and a simulator that tries every which way."""

import inspect
import re

import numpy as np
import pytest

from kosmos.errors import KosmosArgumentError, KosmosDeadlock
from kosmos.machine import machine_named, machines
from kosmos.schedule import ITEM, QUEUES, Policy, Queues, Tile, check, deadlock
from kosmos.schedule.queues import FIELDS, tile_table

AG, RS = "all_gather_matmul", "matmul_reduce_scatter"
NAMED = {AG: ["local_first", "rank"], RS: ["band", "row"]}


def backwards(items):
    return np.arange(len(items))[::-1]


def by_column(items):
    return np.lexsort((items.row, items.col)).tolist()


def orders(op):
    return [*NAMED[op], "random:0", "random:7", backwards, by_column]


def shapes(count=24, seed=5):
    """(m, n, k, ranks, tile): by hand what is special, by chance the rest."""
    yield from [
        (1, 1, 1, 1, Tile(64, 64)),  # one element
        (8, 1, 1, 8, Tile(64, 64)),  # a row a rank, fewer columns than a tile
        (512, 512, 512, 4, Tile(64, 64)),  # everything divides
        (512, 512, 512, 4, Tile(128, 256)),  # a tile a rank in rows
        (65 * 3, 129, 7, 3, Tile(64, 64)),  # a row and a column too many
        (63 * 2, 64, 8, 2, Tile(64, 64)),
        (1000, 3, 20000, 5, Tile(64, 64)),  # row blocks of several mover items
        (2 * 640, 64, 100, 2, Tile(64, 64)),  # ten bands: one group and a part of the next
        (7 * 40, 200, 9000, 7, Tile(32, 16)),
    ]
    draw = np.random.default_rng(seed)
    for _ in range(count):
        ranks = int(draw.integers(1, 9))
        tile = Tile(int(draw.choice([16, 32, 64, 128])), int(draw.choice([16, 64, 256])))
        m = ranks * int(draw.integers(1, 6 * tile.rows))
        yield m, int(draw.integers(1, 5 * tile.cols)), int(draw.choice([1, 63, 64, 65, 4000, 30011])), ranks, tile


SHAPES = list(shapes())


def every_queue():
    for op in QUEUES:
        for m, n, k, ranks, tile in SHAPES:
            for order in orders(op):
                arguments = dict(m=m, n=n, k=k, ranks=ranks, tile=tile, order=order)
                yield op, arguments, QUEUES[op](**arguments)


@pytest.fixture(scope="module")
def built():
    return list(every_queue())


def rows_of(table):
    """A queue as a list of plain tuples, without the places in it."""
    return table[[field for field in FIELDS if field != "index"]].tolist()


# --------------------------------------------------------------------------------------------------------- queues


def test_tiles_cover_the_matrix_once_and_stay_inside_their_chunk(built):
    for _, a, queues in built:
        m, n, ranks, tile = a["m"], a["n"], a["ranks"], a["tile"]
        shard = m // ranks
        for rank, table in enumerate(queues.items["builder"]):
            covered = np.zeros((m, n), np.int8)
            for item in table:
                assert item["rank"] == rank
                assert item["row"] + item["rows"] <= m and item["col"] + item["cols"] <= n
                assert 1 <= item["rows"] <= tile.rows and 1 <= item["cols"] <= tile.cols
                assert item["row"] == item["chunk"] * shard + item["band"] * tile.rows
                assert item["col"] == item["column"] * tile.cols
                assert item["row"] // shard == (item["row"] + item["rows"] - 1) // shard == item["chunk"]
                covered[item["row"] : item["row"] + item["rows"], item["col"] : item["col"] + item["cols"]] += 1
            assert (covered == 1).all(), a


def test_queues_are_tables_of_the_stated_layout(built):
    for op, a, queues in built:
        assert queues.op == op and queues.ranks == a["ranks"]
        assert {queues.producer, queues.consumer} == set(queues.items) and queues.crew_role != "builder"
        for table in queues.items.values():
            assert table.dtype == ITEM and table.ndim == 2 and len(table) == queues.ranks
            assert (table["index"] == np.arange(table.shape[1])).all()
            assert table["wait"].min(initial=-1) >= -1 and table["wait"].max(initial=-1) < queues.counters
            assert table["signal"].max(initial=-1) < queues.counters
            assert table["signal_rank"].max(initial=-1) < queues.ranks
            assert ((table["signal"] < 0) == (table["signal_rank"] < 0)).all()
    assert ITEM.itemsize == 4 * len(FIELDS) and ITEM.names == tuple(FIELDS)


def test_every_order_is_a_permutation_of_the_same_items(built):
    first = {}
    for op, a, queues in built:
        shape = op, *(a[name] for name in ("m", "n", "k", "ranks", "tile"))
        for role, table in queues.items.items():
            for rank in range(a["ranks"]):
                items = sorted(rows_of(table[rank]))
                assert first.setdefault((shape, role, rank), items) == items
        assert queues.counters == first.setdefault(shape, queues.counters)


def test_every_counter_gets_what_is_waited_for(built):
    for op, a, queues in built:
        given = {(rank, counter): 1 for rank in range(queues.ranks) for counter in range(queues.announced)}
        for table in queues.items.values():
            for item in table.ravel():
                if item["signal"] >= 0:
                    key = int(item["signal_rank"]), int(item["signal"])
                    assert key[1] >= queues.announced, "a counter is either announced or signalled"
                    given[key] = given.get(key, 0) + 1
        waited = set()
        for table in queues.items.values():
            for item in table.ravel():
                if item["wait"] >= 0:
                    waited.add((int(item["rank"]), int(item["wait"])))
                    assert given[int(item["rank"]), int(item["wait"])] == item["wait_count"], (op, a)
                else:
                    assert item["wait_count"] == 0
        assert {key for key in given if key[1] >= queues.announced} <= waited, "a signal that nobody waits for"


def test_producers_wait_for_announcements_only(built):
    for _, _, queues in built:
        produced = queues.items[queues.producer]
        assert (produced["wait"] < queues.announced).all()


def test_builders_wait_for_exactly_the_rows_that_they_read(built):
    """All-gather: before a builder starts, movers have brought every element of its rows; of its own it needs none."""
    for op, a, queues in built:
        if op != AG:
            continue
        for rank in range(a["ranks"]):
            brought = {}
            for item in queues.items["mover"][rank]:
                assert item["chunk"] != rank and item["signal_rank"] == rank
                assert item["wait"] == item["chunk"] and item["wait_count"] == 1
                brought.setdefault(int(item["signal"]), []).append(item)
            for tile in queues.items["builder"][rank]:
                assert tile["signal"] == -1
                if tile["chunk"] == rank:
                    assert tile["wait"] == -1
                    continue
                parts = sorted(brought[int(tile["wait"])], key=lambda item: item["col"])
                assert {(p["chunk"], p["row"], p["rows"]) for p in parts} == {
                    (tile["chunk"], tile["row"], tile["rows"])
                }
                edges = [0, *(int(p["col"] + p["cols"]) for p in parts)]
                assert edges[:-1] == [p["col"] for p in parts] and edges[-1] == a["k"]


def test_mover_items_are_of_one_width_that_is_a_multiple_of_64(built):
    several = set()
    for op, a, queues in built:
        moves = queues.items.get("mover")
        if op != AG or not moves.size:
            continue
        width = moves["cols"].max()
        assert (moves["col"] == moves["column"] * width).all()
        assert (moves["cols"] == np.minimum(width, a["k"] - moves["col"])).all()
        assert width == a["k"] or width % 64 == 0
        if width < a["k"]:
            several.add(a["k"])
    assert len(several) >= 2


@pytest.mark.parametrize("itemsize", [2, 4])
def test_mover_items_carry_about_what_hides_a_claim(itemsize):
    for k in (64, 1000, 4096, 16384, 40000):
        for rows in (16, 64, 128):
            moves = QUEUES[AG](m=2 * rows, n=1, k=k, ranks=2, tile=Tile(rows, 64), itemsize=itemsize).items["mover"]
            carried = rows * int(moves["cols"].max()) * itemsize
            assert carried <= 1024 * 1024 and (moves.shape[1] == 1 or carried >= 256 * 1024)


def test_movers_follow_the_builders_demand(built):
    for op, a, queues in built:
        if op != AG:
            continue
        for rank in range(a["ranks"]):
            chunk_of = {int(t["row"]): int(t["chunk"]) for t in queues.items["builder"][rank] if t["chunk"] != rank}
            moves = queues.items["mover"][rank]
            assert list(dict.fromkeys(moves["row"])) == list(chunk_of)
            # blocks of different peers in turns, part by part, and a peer's next block when its last is through
            expected, together = [], []
            for row, chunk in (*chunk_of.items(), (None, None)):
                if row is None or chunk in [chunk_of[other] for other in together]:
                    expected += [(other, col) for col in sorted({*moves["col"]}) for other in together]
                    together = []
                together.append(row)
            assert [(item["row"], item["col"]) for item in moves] == expected


def test_reducers_follow_the_completion_of_their_tiles(built):
    """In the order in which the last of the ranks' builders gets to a tile, if all builders go at the same pace."""
    for op, a, queues in built:
        if op != RS:
            continue
        builders = queues.items["builder"]
        complete = {}
        for place in range(builders.shape[1]):
            for rank in range(a["ranks"]):
                item = builders[rank, place]
                complete[int(item["signal_rank"]), int(item["signal"])] = place
        for rank in range(a["ranks"]):
            sums = queues.items["reducer"][rank]
            places = [complete[rank, int(item["wait"])] for item in sums]
            assert places == sorted(places)
            assert (sums["chunk"] == rank).all() and (sums["signal"] == -1).all()
            assert (sums["wait_count"] == a["ranks"]).all()
            own = [item for item in builders[rank] if item["chunk"] == rank]
            assert sorted((i["row"], i["col"]) for i in sums) == sorted((i["row"], i["col"]) for i in own)


def test_partial_tiles_go_to_the_rank_that_owns_the_rows(built):
    for op, _, queues in built:
        if op == RS:
            builders = queues.items["builder"]
            assert (builders["signal_rank"] == builders["chunk"]).all() and (builders["wait"] == -1).all()


# --------------------------------------------------------------------------------------------------------- orders


def sequence(op, order, ranks=2, bands=2, columns=2, rank=0):
    """A builder queue as (chunk, band, column) words."""
    table = QUEUES[op](m=ranks * bands, n=columns, k=8, ranks=ranks, tile=Tile(1, 1), order=order).items["builder"]
    return " ".join(f"{item['chunk']}{item['band']}{item['column']}" for item in table[rank])


@pytest.mark.parametrize(
    ("op", "order", "rank", "expected"),
    [
        (AG, "local_first", 0, "000 010 001 011 100 110 101 111"),
        (AG, "local_first", 1, "100 110 101 111 000 010 001 011"),
        (AG, "rank", 0, "000 010 100 110 001 011 101 111"),
        (AG, "rank", 1, "000 010 100 110 001 011 101 111"),
        (RS, "band", 0, "100 000 110 010 101 001 111 011"),
        (RS, "band", 1, "000 100 010 110 001 101 011 111"),
        (RS, "row", 0, "000 010 100 110 001 011 101 111"),
    ],
)
def test_named_orders_on_two_ranks_of_two_by_two_tiles(op, order, rank, expected):
    assert sequence(op, order, rank=rank) == expected


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_local_first_takes_own_rows_first_and_then_the_peers_in_turns(ranks):
    for rank in range(ranks):
        queues = QUEUES[AG](m=ranks * 24, n=3, k=8, ranks=ranks, tile=Tile(1, 1))
        chunks = queues.items["builder"][rank]["chunk"]
        own = 24 * 3
        assert (chunks[:own] == rank).all() and (chunks[own:] != rank).all()
        # nobody is drained before the others: every stretch of a group's length has tiles of all peers
        group = 3 * max(8, ranks - 1)
        for at in range(own, len(chunks) - group + 1, group):
            assert len(set(chunks[at : at + group])) == ranks - 1
        moved = queues.items["mover"][rank]["chunk"]
        assert moved[0] == (rank + 1) % ranks, "the nearest rank first: not all ranks read from the same one"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_after_one_group_of_bands_every_reducer_has_work(ranks):
    queues = QUEUES[RS](m=ranks * 24, n=5, k=8, ranks=ranks, tile=Tile(1, 1), order="band")
    group = max(8, ranks)
    for rank, table in enumerate(queues.items["builder"]):
        assert set(table["chunk"][:group]) == set(range(ranks))
        turn = table["chunk"][:ranks]
        assert turn[-1] == rank and turn[0] == (rank + 1) % ranks, "own chunk last: the others wait for it"
    by_row = QUEUES[RS](m=ranks * 24, n=5, k=8, ranks=ranks, tile=Tile(1, 1), order="row").items["builder"]
    assert (np.diff(by_row["chunk"], axis=1) >= 0).all()


@pytest.mark.parametrize(("op", "order"), [(op, order) for op in NAMED for order in NAMED[op]])
def test_named_orders_walk_few_rows_and_columns_at_a_time(op, order):
    """Of 64 tiles in a row a cache holds the operands: no more row blocks + column blocks than a square group needs."""
    table = QUEUES[op](m=4 * 32, n=32, k=8, ranks=4, tile=Tile(1, 1), order=order).items["builder"][1]
    for at in range(0, table.size - 64, 64):
        some = table[at : at + 64]
        assert len(set(some["row"])) + len(set(some["col"])) <= 24


def test_a_seed_is_an_order_of_its_own_on_every_rank():
    for op in QUEUES:
        made = {
            seed: QUEUES[op](m=3 * 8, n=8, k=1, ranks=3, tile=Tile(1, 1), order=f"random:{seed}").items["builder"]
            for seed in (0, 1, 123456789)
        }
        again = QUEUES[op](m=3 * 8, n=8, k=1, ranks=3, tile=Tile(1, 1), order="random:1").items["builder"]
        assert (again == made[1]).all()
        places = [tuple(zip(t["row"], t["col"])) for tables in made.values() for t in tables]
        assert len(set(places)) == 9


@pytest.mark.parametrize("op", QUEUES)
def test_a_users_order_gets_each_ranks_table_and_is_taken_as_it_is(op):
    seen = []

    def order(items):
        seen.append(items.copy())
        permutation = np.random.default_rng(len(seen)).permutation(len(items))
        items[:] = 0  # it may scribble on what it was given
        return permutation

    queues = QUEUES[op](m=3 * 5, n=4, k=2, ranks=3, tile=Tile(2, 2), order=order)
    assert [int(table.rank[0]) for table in seen] == [0, 1, 2]
    for rank, table in enumerate(seen):
        assert table.dtype.names == tuple(FIELDS) and (table.rank == rank).all()
        assert all(isinstance(getattr(table, field), np.ndarray) for field in FIELDS), "columns by their names"
        assert (table.index == np.arange(len(table))).all()
        expected = table[np.random.default_rng(rank + 1).permutation(len(table))]
        assert rows_of(queues.items["builder"][rank]) == rows_of(expected)


@pytest.mark.parametrize("kind", [list, tuple, np.array, np.int32, np.int64, np.uint8, np.uint64, "torch"])
def test_a_permutation_may_come_as_any_sequence_of_whole_numbers(kind):
    if kind == "torch":
        kind = pytest.importorskip("torch").tensor
    elif isinstance(kind, type) and issubclass(kind, np.integer):
        kind = np.dtype(kind).type
    queues = QUEUES[AG](m=12, n=1, k=1, ranks=1, tile=Tile(1, 1), order=lambda t: kind(list(range(len(t)))[::-1]))
    assert queues.items["builder"][0]["row"].tolist() == list(range(12))[::-1]


NO_PERMUTATIONS = {
    "too short": lambda n: np.arange(n - 1),
    "too long": lambda n: np.arange(n + 1),
    "one twice": lambda n: [0, *range(n - 1)],
    "from one": lambda n: np.arange(n) + 1,
    "negative": lambda n: np.arange(n) - n,
    "floats": lambda n: np.arange(n) + 0.5,
    "floats that are whole": lambda n: np.arange(n).astype(float),
    "complex": lambda n: np.arange(n).astype(complex),
    "a mask": lambda n: np.arange(n) % 2 == 0,
    "rows": lambda n: np.arange(n)[:, None],
    "ragged": lambda n: [[0]] * (n - 1) + [[1, 2]],
    "words": lambda n: ["a"] * n,
    "nothing": lambda n: None,
    "nothings": lambda n: [None] * n,
    "a number": lambda n: 3,
    "a set": lambda n: set(range(n)),
    "a generator": lambda n: iter(range(n)),
    "empty": lambda n: [],
    "nan": lambda n: np.full(n, np.nan),
    "huge": lambda n: [2**70] * n,
}


@pytest.mark.parametrize("wrong", NO_PERMUTATIONS)
@pytest.mark.parametrize("op", QUEUES)
def test_what_is_no_permutation_is_refused_in_one_sentence(op, wrong):
    def my_order(items):
        return NO_PERMUTATIONS[wrong](len(items))

    with pytest.raises(KosmosArgumentError) as error:
        QUEUES[op](m=2 * 4, n=1, k=1, ranks=2, tile=Tile(1, 1), order=my_order)
    sentence = str(error.value)
    assert re.match(r"order my_order must return a permutation of 0\.\.7, .* the 8 items; it returned ", sentence)
    assert len(sentence) < 300 and "\n" not in sentence


def test_a_mask_of_two_items_is_no_permutation():
    """[False, True] sorts like [0, 1], but as an index it drops the first item."""
    with pytest.raises(KosmosArgumentError, match="must return a permutation"):
        QUEUES[AG](m=2, n=1, k=1, ranks=1, tile=Tile(1, 1), order=lambda items: np.array([False, True]))


def test_an_error_in_a_users_order_comes_out_as_it_is():
    def order(items):
        raise LookupError("my own mistake")

    with pytest.raises(LookupError, match="my own mistake"):
        QUEUES[RS](m=4, n=4, k=4, ranks=2, tile=Tile(1, 1), order=order)


@pytest.mark.parametrize("op", QUEUES)
@pytest.mark.parametrize(
    "order",
    ["", "Band", "local-first", "random", "random:", "random:x", "random:-1", "random:1.5", "random:" + "9" * 5000]
    + [None, 3, b"rank", ("rank",), 1.5, [0, 1]],
)
def test_unknown_orders_are_refused_by_name(op, order):
    with pytest.raises(KosmosArgumentError) as error:
        QUEUES[op](m=4, n=4, k=4, ranks=2, tile=Tile(1, 1), order=order)
    assert all(repr(name) in str(error.value) for name in (*NAMED[op], "random:SEED"))
    assert str(error.value).startswith("order=")


def test_an_order_of_the_other_op_is_unknown():
    with pytest.raises(KosmosArgumentError, match="order='band' is unknown; allowed are 'local_first', 'rank'"):
        QUEUES[AG](m=4, n=4, k=4, ranks=2, tile=Tile(1, 1), order="band")


# --------------------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("policy", "text", "switches"),
    [
        (Policy.fixed(3), "fixed:3", False),
        (Policy.fixed(0), "fixed:0", False),
        (Policy.planned(), "planned", False),
        (Policy.one_way(12), "one_way:12", True),
        (Policy.two_way(1), "two_way:1", True),
    ],
)
def test_a_policy_and_its_text_are_the_same(policy, text, switches):
    assert str(policy) == text and Policy.parse(text) == policy and Policy.parse(policy) is policy
    assert hash(Policy.parse(text)) == hash(policy) and policy.switches == switches


@pytest.mark.parametrize(
    "policy",
    ["", "fixed", "fixed:", "fixed:x", "fixed:-1", "fixed:1.5", " fixed:1", "fixed:1 ", "Fixed:1", "planned:3"]
    + ["planned:", "one-way:3", "fixed:1:2", "fixed:²", "fixed:" + "9" * 5000, "both_ways:1"]
    + [None, 4, 1.5, True, b"fixed:1", ["fixed:1"], {}, ("fixed", 1)],
)
def test_unknown_policies_are_refused_in_one_sentence(policy):
    with pytest.raises(KosmosArgumentError) as error:
        Policy.parse(policy)
    sentence = str(error.value)
    assert sentence.startswith("policy=")
    assert all(kind in sentence for kind in ("fixed:CREW", "planned", "one_way:CREW", "two_way:CREW"))


@pytest.mark.parametrize("crew", [-1, 1.0, True, "2", None, [], np.float64(1)])
def test_a_crew_is_a_whole_number(crew):
    for make in (Policy.fixed, Policy.one_way, Policy.two_way):
        with pytest.raises(KosmosArgumentError, match=r"^crew=.* must be a whole number of workgroups, 0 or more$"):
            make(crew)


def test_kinds_are_checked():
    with pytest.raises(
        KosmosArgumentError, match="'sideways' is unknown; allowed are fixed, planned, one_way, two_way"
    ):
        Policy("sideways", 2)
    with pytest.raises(KosmosArgumentError, match="planned picks its own crew; crew=2 is not allowed"):
        Policy("planned", 2)


def small(op, ranks=2, **more):
    return QUEUES[op](**dict(m=ranks * 3, n=3, k=8, ranks=ranks, tile=Tile(1, 1)) | more)


@pytest.mark.parametrize("op", QUEUES)
@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("workgroups", [1, 2, 3, 8, 9, 33, 132])
def test_the_default_policy_can_always_finish(op, ranks, workgroups):
    queues = small(op, ranks)
    cost_ns = {"mover": 1.0, "reducer": 1.0, "builder": 9.0}
    policy = Policy.default(queues, workgroups, {role: cost_ns[role] for role in queues.items})
    assert policy.kind == "one_way" and policy.crew <= max(1, workgroups // 2)
    check(queues, policy, workgroups)


@pytest.mark.parametrize("workgroups", [2, 3, 8, 33, 132])
def test_planned_takes_the_crew_whose_slower_side_is_fastest(workgroups):
    draw = np.random.default_rng(workgroups)
    queues, picked = small(AG), set()
    for _ in range(50):
        cost = {"mover": float(draw.choice([0, 1, 50, 1000]) * draw.random()), "builder": float(draw.random() * 100)}
        policy = Policy.planned().settle(queues, workgroups, cost)
        assert policy.kind == "fixed" and 1 <= policy.crew < workgroups
        time = {crew: max(cost["mover"] / crew, cost["builder"] / (workgroups - crew)) for crew in range(1, workgroups)}
        assert time[policy.crew] == min(time.values())
        check(queues, policy, workgroups)
        picked.add(policy.crew)
    assert len(picked) > 2 or workgroups <= 3


def test_only_planned_is_planned():
    for policy in (Policy.fixed(2), Policy.one_way(1), Policy.two_way(0)):
        assert policy.settle(small(AG), 8, {}) is policy
    with pytest.raises(KosmosArgumentError, match="planned needs at least 2 workgroups a rank; there are 1"):
        Policy.planned().settle(small(RS), 1, {"builder": 1.0, "reducer": 1.0})
    with pytest.raises(KosmosArgumentError, match="policy planned has no crew yet"):
        check(small(AG), Policy.planned(), 4)


@pytest.mark.parametrize("op", QUEUES)
@pytest.mark.parametrize("name", machines)
def test_costs_grow_with_the_work_and_shrink_with_the_machine(op, name):
    def cost(machine, **more):
        a = dict(m=4 * 256, n=256, k=1024, ranks=4, tile=Tile(64, 64)) | more
        return machine.cost_ns(QUEUES[op](**a).items, a["k"], 2, 4)

    machine = machine_named(name)
    usual, communicate = cost(machine), {AG: "mover", RS: "reducer"}[op]
    assert set(usual) == {"builder", communicate} and min(usual.values()) > 0
    assert cost(machine, k=2048)["builder"] > usual["builder"] and cost(machine, n=512)["builder"] > usual["builder"]
    assert cost(machine, m=8 * 256)[communicate] > usual[communicate]
    slow = cost(machine.with_link(machine.copy_gbps / 100))
    assert slow[communicate] > usual[communicate] and slow["builder"] == usual["builder"]


def test_a_slower_link_never_asks_for_a_smaller_planned_crew():
    for op in QUEUES:
        queues = QUEUES[op](m=4 * 512, n=512, k=2048, ranks=4, tile=Tile(64, 64))
        crews = []
        for link in (64, 16, 8, 4, 2, 1, 0.5, 0.1):
            machine = machine_named("laptop").with_link(link)
            cost = machine.cost_ns(queues.items, 2048, 2, 4)
            crews.append(Policy.planned().settle(queues, 16, cost).crew)
        assert crews == sorted(crews) and crews[0] < crews[-1]


# --------------------------------------------------------------------------------------------------------- deadlocks


def items(*rows):
    """A queue of one rank: rows of (wait, count, signal_rank, signal)."""
    table = np.zeros((1, len(rows)), ITEM)
    for at, (wait, count, signal_rank, signal) in enumerate(rows):
        table[0, at]["wait"], table[0, at]["wait_count"] = wait, count
        table[0, at]["signal_rank"], table[0, at]["signal"] = signal_rank, signal
    return table


def hand_made(producer, consumer, *, movers=True, counters=8, announced=0):
    """Queues from lists, a rank each, of such rows."""

    def stack(lists):
        tables = [items(*rows) for rows in lists]
        for rank, table in enumerate(tables):
            table["rank"] = rank
        return np.concatenate(tables)

    names = ("mover", "builder") if movers else ("builder", "reducer")
    return Queues(
        op="hand_made",
        ranks=len(producer),
        counters=counters,
        announced=announced,
        producer=names[0],
        consumer=names[1],
        crew_role="mover" if movers else "reducer",
        items={names[0]: stack(producer), names[1]: stack(consumer)},
    )


class Interleaving:
    """One run of the queues in which the next step is drawn by chance, written from the rules of the kernels."""

    def __init__(self, queues, policy, workgroups, draw):
        self.queues, self.policy, self.draw = queues, policy, draw
        self.counters = np.zeros((queues.ranks, queues.counters), int)
        self.counters[:, : queues.announced] = 1
        self.taken = {(rank, role): 0 for rank in range(queues.ranks) for role in queues.items}
        self.done = set()
        self.home, self.holds, self.left = {}, {}, set()
        for rank in range(queues.ranks):
            for workgroup in range(workgroups):
                self.home[rank, workgroup] = queues.crew_role if workgroup < policy.crew else "builder"

    def ready(self, rank, role, index):
        item = self.queues.items[role][rank, index]
        return item["wait"] < 0 or self.counters[rank, item["wait"]] >= item["wait_count"]

    def ticket(self, rank, role):
        if self.taken[rank, role] == self.queues.items[role].shape[1]:
            return None
        self.taken[rank, role] += 1
        return role, self.taken[rank, role] - 1

    def claim(self, rank, home):
        producer, consumer = self.queues.producer, self.queues.consumer
        if self.policy.kind == "two_way":
            head = self.taken[rank, consumer]
            if home == consumer and head < self.queues.items[consumer].shape[1] and self.ready(rank, consumer, head):
                return self.ticket(rank, consumer)
            return self.ticket(rank, producer) or self.ticket(rank, consumer)
        if home == producer and self.policy.kind == "one_way":
            return self.ticket(rank, producer) or self.ticket(rank, consumer)
        return self.ticket(rank, home)

    def run(self):
        while True:
            able = [
                worker
                for worker in self.home
                if worker not in self.left and (worker not in self.holds or self.ready(worker[0], *self.holds[worker]))
            ]
            if not able:
                return self
            worker = able[self.draw.integers(len(able))]
            if worker not in self.holds:
                work = self.claim(worker[0], self.home[worker])
                if work is None:
                    self.left.add(worker)
                else:
                    self.holds[worker] = work
                continue
            role, index = self.holds.pop(worker)
            item = self.queues.items[role][worker[0], index]
            if item["signal"] >= 0:
                self.counters[item["signal_rank"], item["signal"]] += 1
            self.done.add((worker[0], role, index))

    @property
    def finished(self):
        return len(self.done) == sum(table.size for table in self.queues.items.values())


def policies(workgroups):
    for kind in ("fixed", "one_way", "two_way"):
        for crew in range(workgroups + 1):
            yield Policy(kind, crew)


def drawn(seed, free_producers):
    """Small queues with waits and signals by chance, some cyclic; with `free_producers` only consumers wait."""
    draw = np.random.default_rng(seed)
    ranks, counters = int(draw.integers(1, 3)), int(draw.integers(1, 5))
    announced = int(draw.integers(0, 2))

    def row(waits):
        wait = int(draw.integers(0, counters)) if waits and draw.random() < 0.6 else -1
        signal = int(draw.integers(0, counters)) if draw.random() < 0.7 else -1
        return wait, int(draw.integers(1, 4)), -1 if signal < 0 else int(draw.integers(0, ranks)), signal

    lengths = draw.integers(0, 5, 2)
    producer = [[row(not free_producers) for _ in range(lengths[0])] for _ in range(ranks)]
    consumer = [[row(True) for _ in range(lengths[1])] for _ in range(ranks)]
    return hand_made(producer, consumer, movers=bool(seed % 2), counters=counters, announced=announced), draw


WAITS = re.compile(
    r"rank (\d+), workgroup (\d+): (\w+) item (\d+) would wait for ever for counter (\d+), "
    r"which gets (\d+) of (\d+) signals$"
)
NEVER = re.compile(r"rank (\d+): (\w+) item (\d+) is never claimed under policy \S+$")


@pytest.mark.parametrize("free_producers", [True, False])
def test_the_check_says_what_chance_interleavings_come_to(free_producers):
    """Under two_way only where producers wait for nothing, which is what Queues promises."""
    outcomes = []
    for seed in range(150):
        queues, draw = drawn(seed, free_producers)
        workgroups = 1 + seed % 3
        for policy in policies(workgroups):
            if policy.kind == "two_way" and not free_producers:
                continue
            sentence = deadlock(queues, policy, workgroups)
            runs = [Interleaving(queues, policy, workgroups, draw).run() for _ in range(5)]
            finished = {run.finished for run in runs}
            assert finished == {sentence is None}, (seed, policy, workgroups, sentence)
            outcomes.append((policy.kind, sentence is None))
            if sentence is None:
                continue
            stuck = WAITS.match(sentence)
            rank, role, index = stuck.group(1, 3, 4) if stuck else NEVER.match(sentence).groups()
            assert all((int(rank), role, int(index)) not in run.done for run in runs), sentence
            if stuck:
                item = queues.items[role][int(rank), int(index)]
                counter, gets, wanted = map(int, stuck.group(5, 6, 7))
                assert (item["wait"], item["wait_count"]) == (counter, wanted)
                assert all(run.counters[int(rank), counter] == gets for run in runs)
                workgroup = int(stuck.group(2))
                assert workgroup < workgroups
                assert policy.kind != "fixed" or (workgroup < policy.crew) == (role == queues.crew_role)
    kinds = ["fixed", "one_way"] + ["two_way"] * free_producers
    assert {(kind, ends) for kind in kinds for ends in (True, False)} == set(outcomes)


@pytest.mark.parametrize("op", QUEUES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_the_check_lets_through_finishes(op, ranks):
    draw = np.random.default_rng(ranks)
    allowed = 0
    for order in orders(op):
        queues = small(op, ranks, order=order, k=9000)
        for workgroups in (1, 2, 3):
            for policy in policies(workgroups):
                try:
                    check(queues, policy, workgroups)
                except KosmosArgumentError:
                    continue
                allowed += 1
                assert Interleaving(queues, policy, workgroups, draw).run().finished
    assert allowed >= 6 * 3 * 3


def test_policies_are_refused_exactly_where_a_role_has_nobody():
    """The sentence is about the policy, not about the item that would have been stuck."""
    for op in QUEUES:
        for ranks in (1, 2):
            queues = small(op, ranks)
            for workgroups in (1, 2, 4):
                for policy in policies(workgroups):
                    finishes = deadlock(queues, policy, workgroups) is None
                    try:
                        check(queues, policy, workgroups)
                        assert finishes
                    except KosmosArgumentError as error:
                        assert not finishes and re.match(r"policy \w+:\d+ leaves nobody to be a \w+", str(error))


NONE = (-1, 0, -1, -1)


def wait(counter, count=1):
    return counter, count, -1, -1


def signal(rank, counter):
    return -1, 0, rank, counter


@pytest.mark.parametrize(
    ("queues", "policy", "workgroups", "sentence"),
    [
        (  # two ranks, each of which waits for the other's second item
            hand_made(
                [[(0, 1, 1, 0)], [(0, 1, 0, 0)]],
                [[NONE], [NONE]],
            ),
            "fixed:1",
            2,
            "rank 0, workgroup *: mover item 0 would wait for ever for counter 0, which gets 0 of 1 signals",
        ),
        (  # an item behind the one that waits for it: with one builder never, with two in time
            hand_made([[NONE]], [[wait(1), signal(0, 1)]]),
            "fixed:1",
            2,
            "rank 0, workgroup *: builder item 0 would wait for ever for counter 1, which gets 0 of 1 signals",
        ),
        (hand_made([[NONE]], [[wait(1), signal(0, 1)]]), "fixed:1", 3, None),
        (hand_made([[NONE]], [[wait(1), signal(0, 1)]]), "one_way:1", 2, None),
        (  # too few signals
            hand_made([[signal(0, 2), signal(0, 2)]], [[wait(2, 3)]]),
            "one_way:1",
            4,
            "rank 0, workgroup *: builder item 0 would wait for ever for counter 2, which gets 2 of 3 signals",
        ),
        (  # the last rank's item is named where only it is stuck
            hand_made([[NONE], [NONE], [NONE]], [[NONE], [NONE], [wait(5)]]),
            "two_way:1",
            1,
            "rank 2, workgroup *: builder item 0 would wait for ever for counter 5, which gets 0 of 1 signals",
        ),
        (  # announced counters count once
            hand_made([[(0, 1, 0, 3)]], [[wait(3)]], announced=2),
            "one_way:1",
            1,
            None,
        ),
        (
            hand_made([[(1, 2, 0, 3)]], [[wait(3)]], announced=2),
            "one_way:1",
            1,
            "rank 0, workgroup *: mover item 0 would wait for ever for counter 1, which gets 1 of 2 signals",
        ),
        (hand_made([[]], [[]]), "fixed:0", 1, None),  # nothing to do
    ],
)
def test_the_first_item_that_waits_for_ever_is_named(queues, policy, workgroups, sentence):
    policy = Policy.parse(policy)
    if sentence is None:
        assert deadlock(queues, policy, workgroups) is None
        check(queues, policy, workgroups)
    else:
        assert re.fullmatch(sentence.replace("*", r"\d"), deadlock(queues, policy, workgroups))
        with pytest.raises(KosmosDeadlock) as error:
            check(queues, policy, workgroups)
        assert re.fullmatch(sentence.replace("*", r"\d"), str(error.value))


@pytest.mark.parametrize(
    ("queues", "policy", "workgroups", "sentence"),
    [
        (small(AG), "fixed:9", 8, "crew=9 of policy fixed:9 is larger than the 8 workgroups of a rank"),
        (small(AG), "fixed:0", 8, "fixed:0 leaves nobody to be a mover among 8 .* has 3 mover items a rank"),
        (small(AG), "one_way:0", 8, "one_way:0 leaves nobody to be a mover"),
        (small(AG), "fixed:8", 8, "fixed:8 leaves nobody to be a builder among 8 .* has 18 builder items a rank"),
        (small(RS), "fixed:0", 8, "fixed:0 leaves nobody to be a reducer"),
        (small(RS), "fixed:8", 8, "fixed:8 leaves nobody to be a builder"),
        (small(RS), "one_way:8", 8, "one_way:8 leaves nobody to be a builder"),
        (
            hand_made([[signal(0, 1), signal(0, 1)]], [[wait(1)]]),
            "one_way:1",
            2,
            "counter 1 of rank 0 gets 2 signals but a builder item waits for 1: a counter is waited for as a whole",
        ),
        (
            hand_made([[signal(0, 0)]], [[wait(0)]], announced=1),
            "one_way:1",
            2,
            "counter 0 of rank 0 gets 2 signals but a builder item waits for 1",
        ),
        (
            hand_made([[wait(1)]], [[signal(0, 1)]]),
            "two_way:1",
            2,
            "two_way:1 needs mover items that wait for no other item: whoever waits cannot switch",
        ),
    ],
)
def test_the_check_refuses_in_one_sentence(queues, policy, workgroups, sentence):
    with pytest.raises(KosmosArgumentError, match=sentence) as error:
        check(queues, Policy.parse(policy), workgroups)
    assert "\n" not in str(error.value)


def test_one_rank_needs_no_movers():
    queues = small(AG, ranks=1)
    assert queues.items["mover"].shape == (1, 0)
    for policy in ("fixed:0", "fixed:3", "one_way:0", "one_way:4", "two_way:4"):
        check(queues, Policy.parse(policy), 4)


# ------------------------------------------------------------------------------------------------------ odds and ends


def test_the_queues_of_an_op_take_the_same_words():
    names = {op: list(inspect.signature(make).parameters) for op, make in QUEUES.items()}
    assert len({tuple(parameters) for parameters in names.values()}) == 1


def test_tiles_before_an_order_go_chunk_by_chunk_and_row_by_row():
    table = tile_table(1, 2, 3, 3, Tile(2, 2))
    assert list(zip(table.row, table.rows, table.col, table.cols)) == [
        (0, 2, 0, 2),
        (0, 2, 2, 1),
        (2, 1, 0, 2),
        (2, 1, 2, 1),
        (3, 2, 0, 2),
        (3, 2, 2, 1),
        (5, 1, 0, 2),
        (5, 1, 2, 1),
    ]
    assert (table.rank == 1).all() and (table.wait == -1).all() and (table.signal == -1).all()
