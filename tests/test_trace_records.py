"""Decoding of the device's buffer, against plain loops."""

import numpy as np
import pytest

from kosmos.errors import KosmosTraceError
from kosmos.trace import ROLES, Trace, decode
from kosmos.trace.records import CLAIM, ITEM_SHIFT, UNIT_SHIFT, WORDS

EPOCH = 1_764_430_000_123_456_789  # ns of a Unix clock, well above 2**53


def buffer(seed, ranks=3, workgroups=4, capacity=6, tick=1):
    """A buffer as the device leaves it, and the rows that it must decode to."""
    draw = np.random.default_rng(seed)
    raw = draw.integers(-(2**62), 2**62, (ranks, workgroups, 2 + capacity, WORDS))  # unused rows hold anything
    written = []
    enters = draw.integers(0, 1000, (ranks, workgroups))
    for rank in range(ranks):
        for workgroup in range(workgroups):
            count = int(draw.integers(0, capacity + 3))
            raw[rank, workgroup, 0] = (count, 7, EPOCH + enters[rank, workgroup], EPOCH + 5000)
            claims = [int(t) for t in draw.integers(0, 5000, capacity + 1)]
            raw[rank, workgroup, 1 : 2 + min(count, capacity), CLAIM] = EPOCH + np.array(
                claims[: 1 + min(count, capacity)]
            )
            for row in range(min(count, capacity)):
                role, unit, item = (int(draw.integers(0, top)) for top in (len(ROLES), 2**24, 2**31))
                times = [claims[row], int(draw.integers(0, 5000)), claims[row + 1]]
                cycles = int(draw.integers(0, 2**50))
                tag = role | unit << UNIT_SHIFT | item << ITEM_SHIFT
                raw[rank, workgroup, 1 + row] = (tag, *(EPOCH + t for t in times[:2]), cycles)
                since = [(t - int(enters.min())) * tick for t in times]
                written.append((rank, workgroup, ROLES[role], item, *since, cycles, unit))
    return raw, written, enters


@pytest.mark.parametrize("tick", [1, 10])
@pytest.mark.parametrize("seed", range(5))
def test_decoding_agrees_with_plain_loops(seed, tick):
    raw, written, enters = buffer(seed, tick=tick)
    before = raw.copy()
    spans, extra = decode(raw, tick)
    assert [tuple(row.values()) for row in spans.to_pylist()] == written
    assert extra["epoch"] == EPOCH + enters.min()
    assert extra["enter_ns"] == ((enters - enters.min()) * tick).tolist()
    assert extra["leave_ns"][0][0] == (5000 - enters.min()) * tick
    lost = {(slot["rank"], slot["workgroup"]): slot["records"] for slot in extra["dropped"]}
    assert lost == {(r, w): raw[r, w, 0, 0] - 6 for r in range(3) for w in range(4) if raw[r, w, 0, 0] > 6}
    assert (raw == before).all()
    assert Trace(spans, meta=extra).meta == extra  # ready for a file


def test_a_workgroup_that_never_ran_is_no_epoch():
    raw, written, enters = buffer(1)
    raw[1, 2] = 0
    spans, extra = decode(raw)
    assert extra["epoch"] == EPOCH + np.delete(enters.ravel(), 6).min()
    assert extra["enter_ns"][1][2] is None and extra["leave_ns"][1][2] is None
    spans, extra = decode(np.zeros_like(raw))
    assert len(spans) == 0 and extra["epoch"] == 0 and extra["dropped"] == []


def test_slices_without_room_for_a_record_count_what_they_lost():
    raw = np.zeros((1, 2, 2, WORDS), np.int64)
    raw[0, 1, 0, 0] = 4
    spans, extra = decode(raw)
    assert len(spans) == 0 and extra["dropped"] == [{"rank": 0, "workgroup": 1, "records": 4}]


@pytest.mark.parametrize(
    ("raw", "tick", "sentence"),
    [
        (np.zeros((1, 1, 2, WORDS), np.int32), 1, "a trace buffer is int64"),
        (np.zeros((1, 2, WORDS), np.int64), 1, "a trace buffer is int64"),
        (np.zeros((1, 1, 2, WORDS + 1), np.int64), 1, "a trace buffer is int64"),
        ([], 1, "a trace buffer is int64 .*, not list"),
        (np.zeros((1, 1, 1, WORDS), np.int64), 1, "has no room for a header"),
        (np.zeros((1, 1, 2, WORDS), np.int64), 0.5, "tick_ns must be a whole number"),
        (np.full((1, 1, 3, WORDS), -1, np.int64), 1, "rank 0 workgroup 0 counts -1 records"),
        (np.full((1, 1, 3, WORDS), 99, np.int64), 1, "record 0 of rank 0 workgroup 0 has role 99"),
    ],
)
def test_another_layout_is_refused_in_one_sentence(raw, tick, sentence):
    with pytest.raises(KosmosTraceError, match=sentence):
        decode(raw, tick)
