"""The loops over every span, compiled: counting, checking, painting.

Spans come lane by lane: those of lane `l` are `first[l]` to `first[l + 1]`. Times are int64 ns, `base` is subtracted
from them before anything becomes a float. All of them run without the interpreter's lock.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import boolean, float64, int8, int32, int64, types, uint8, uint64

WAITS_BACK, ENDS_EARLY, OVERLAPS, UNKNOWN = 1, 2, 4, 8
"""Bits of what is wrong with a span."""

WAIT = 6
"""The kind after the roles."""


def _array(of: types.Type, dimensions: int = 1) -> types.Array:
    """An argument that is only read."""
    return types.Array(of, dimensions, "C", readonly=True)


def _compiled(result: types.Type, *arguments: types.Type) -> Callable[[Callable[..., Any]], Any]:
    def compiled(function: Callable[..., Any]) -> Any:
        signature = result(*arguments)
        try:
            return numba.njit(signature, cache=True, nogil=True)(function)
        except RuntimeError:  # neither beside this file nor in the user's cache can anything be written
            return numba.njit(signature, nogil=True)(function)

    return compiled


_FLAGS, _SMALL, _WHOLE, _LONG = _array(boolean), _array(int8), _array(int32), _array(int64)


@_compiled(boolean, _WHOLE, _WHOLE, _LONG, _LONG, int64, int64[::1])
def count_lanes(rank, workgroup, claim, end, workgroups, first):
    """Fill `first`, zeros [lanes + 1]; whether the spans already are in the order of lane, claim and end."""
    ordered = True
    before = -1
    for i in range(len(rank)):
        lane = rank[i] * workgroups + workgroup[i]
        first[lane + 1] += 1
        if lane < before:
            ordered = False
        elif lane == before and (claim[i] < claim[i - 1] or (claim[i] == claim[i - 1] and end[i] < end[i - 1])):
            ordered = False
        before = lane
    for lane in range(len(first) - 1):
        first[lane + 1] += first[lane]
    return ordered


@_compiled(types.UniTuple(int64, 2), _LONG, _LONG, _LONG, _LONG, uint8[::1], boolean[::1])
def check_lanes(first, claim, start, end, bad, tidy):
    """Set the bits of `bad`, and `tidy` for lanes in which times only climb; the first and the last time of all."""
    low, high = claim[0], claim[0]
    for lane in range(len(first) - 1):
        tidy[lane] = True
        done = claim[first[lane]] if first[lane] < len(claim) else 0
        for i in range(first[lane], first[lane + 1]):
            low = min(low, claim[i], start[i], end[i])
            high = max(high, claim[i], start[i], end[i])
            if start[i] < claim[i]:
                bad[i] |= WAITS_BACK
            if end[i] < start[i]:
                bad[i] |= ENDS_EARLY
            if claim[i] < done:
                bad[i] |= OVERLAPS
            done = max(done, end[i])
            if bad[i]:
                tidy[lane] = False
    return low, high


@_compiled(types.void, _LONG, int64, _SMALL, _WHOLE, _LONG, _WHOLE, int32[::1], uint8[::1])
def find_items(first, workgroups, role, item, group, queued, place, bad):
    """Where in the queue each span's item stands: `place`, -1 for none, whose bit is set in `bad`.

    Group g = rank * 6 + role has the items `queued[group[g]]` to `queued[group[g + 1]]`, ascending.
    """
    for lane in range(len(first) - 1):
        rank = lane // workgroups
        for i in range(first[lane], first[lane + 1]):
            g = rank * 6 + role[i]
            low, high = group[g], group[g + 1]
            place[i] = -1
            if low < high:
                at = low + item[i] - queued[low]  # there, if none is missing
                if at < low or at >= high or queued[at] != item[i] or (at > low and queued[at - 1] == item[i]):
                    at = low
                    while low < high:
                        at = (low + high) // 2
                        if queued[at] < item[i]:
                            low = at + 1
                        else:
                            high = at
                    at = low
                if at < group[g + 1] and queued[at] == item[i]:
                    place[i] = at
            if place[i] < 0:
                bad[i] |= UNKNOWN


@_compiled(types.void, _WHOLE, int64[::1], int32[::1])
def fill_groups(key, next_place, member):
    """Sort 0, 1, 2, ... by `key` (-1: left out) into `member`; `next_place` holds where each key's members begin."""
    for i in range(len(key)):
        if key[i] >= 0:
            member[next_place[key[i]]] = i
            next_place[key[i]] += 1


@numba.njit(inline="always")
def _add(into, begin, end, length, per_ns, slice_ns, weight):
    """Add the part of begin to end that lies in each pixel of 0 to length, times `weight`, to `into` [width + 1]."""
    begin, end = max(begin, 0.0), min(end, length)
    if end <= begin:
        return
    a, b = int(begin * per_ns), int(end * per_ns)
    if a == b:
        into[a] += (end - begin) * weight
    else:
        into[a] += ((a + 1) * slice_ns - begin) * weight
        for pixel in range(a + 1, b):
            into[pixel] += slice_ns * weight
        into[b] += (end - b * slice_ns) * weight


@numba.njit(inline="always")
def _first_at(times, low, high, time):
    """The first of low to high whose time is `time` or later; times climb."""
    while low < high:
        middle = (low + high) // 2
        if times[middle] < time:
            low = middle + 1
        else:
            high = middle
    return low


# Without NaN, and with unsigned places, which cannot count from the end: what the general rules of both cost is half of
# the whole picture's time.
@numba.njit(fastmath={"nnan", "nsz"}, error_model="numpy")
def _add_inside(low, high, base, t0, claim, start, end, role, slot, per_ns, slice_ns, into, spare):
    """Add the spans low to high, which lie inside the window and follow each other, to `into` and `spare`.

    A short stretch lies in two pixels at most, its last and the one before: the parts are added without asking whether
    they are the same one, that of the last pixel to `into`, the other to `spare`: no addition waits for another.
    """
    width = into.shape[1]
    right, left = into.ravel(), spare.ravel()
    wait = slot[WAIT] * width
    for i in range(uint64(low), uint64(high)):
        c, s, e = float64(claim[i] - base) - t0, float64(start[i] - base) - t0, float64(end[i] - base) - t0
        work = slot[role[i]] * width
        pc, ps, pe = int64(c * per_ns), int64(s * per_ns), int64(e * per_ns)
        if ps - pc > 1:
            left[uint64(wait + pc)] += (pc + 1) * slice_ns - c
            for pixel in range(pc + 1, ps):
                right[uint64(wait + pixel)] += slice_ns
            right[uint64(wait + ps)] += s - ps * slice_ns
        else:
            part = s - max(ps * slice_ns, c)
            right[uint64(wait + ps)] += part
            left[uint64(wait + pc)] += s - c - part
        if pe - ps > 1:
            left[uint64(work + ps)] += (ps + 1) * slice_ns - s
            for pixel in range(ps + 1, pe):
                right[uint64(work + pixel)] += slice_ns
            right[uint64(work + pe)] += e - pe * slice_ns
        else:
            part = e - max(pe * slice_ns, s)
            right[uint64(work + pe)] += part
            left[uint64(work + ps)] += e - s - part


@_compiled(
    int64, _LONG, _FLAGS, _LONG, _LONG, _LONG, _SMALL, int64, _WHOLE, _WHOLE,
    float64, float64, _SMALL, float64[:, :, ::1], int32[::1],
)  # fmt: skip
def paint(first, tidy, claim, start, end, role, base, lanes, rows, t0, t1, slot, total, found):
    """Add the ns that each kind lasts in each pixel of t0 to t1 to `total` [rows, kinds, width + 1].

    The column after the last takes what rounding puts behind t1. Lane lanes[i] goes to rows[i], which do not descend;
    kind k goes to slot[k]. Returns how many spans meet t0 to t1 and leaves the first of them in `found`.
    """
    width = total.shape[2] - 1
    length = t1 - t0
    slice_ns, per_ns = length / width, width / length
    begin, until = base + int64(np.ceil(t0)), base + int64(np.ceil(t1))
    wait = slot[WAIT]
    spare = np.zeros((total.shape[1], width + 1))
    meet = 0
    for k in range(len(lanes)):
        into = total[rows[k]]
        low, high = first[lanes[k]], first[lanes[k] + 1]
        inside, outside = low, low  # the spans that lie inside the window as a whole
        if tidy[lanes[k]]:
            low = _first_at(end, low, high, begin)
            high = _first_at(claim, low, high, until)
            inside = _first_at(claim, low, high, begin)
            outside = max(_first_at(end, inside, high, until), inside)
            _add_inside(inside, outside, base, t0, claim, start, end, role, slot, per_ns, slice_ns, into, spare)
            for i in range(min(outside - inside, len(found) - meet)):
                found[meet + i] = inside + i
            meet += outside - inside
        i = low
        while i < high:
            if i == inside and outside > inside:
                i = outside
                continue
            c, s, e = float64(claim[i] - base) - t0, float64(start[i] - base) - t0, float64(end[i] - base) - t0
            begins, ends = min(c, s, e), max(c, s, e)
            if begins < length and (ends > 0 or begins >= 0):
                if meet < len(found):
                    found[meet] = i
                meet += 1
                _add(into[wait], c, s, length, per_ns, slice_ns, 1.0)
                _add(into[slot[role[i]]], s, e, length, per_ns, slice_ns, 1.0)
            i += 1
        if k + 1 == len(lanes) or rows[k + 1] != rows[k]:
            for kind in range(total.shape[1]):
                for pixel in range(width):
                    into[kind, pixel] += spare[kind, pixel]
                    spare[kind, pixel] = 0.0
    return meet


@_compiled(types.void, _array(float64, 3), _array(float64), uint8[:, :, ::1])
def to_bytes(total, whole, coverage):
    """coverage [kinds, rows, width] = 255 * total [rows, kinds, width + 1] / whole [rows], rounded, at most 255."""
    kinds, rows, width = coverage.shape
    for row in range(rows):
        scale = 255.0 / whole[row] if whole[row] > 0 else 0.0
        for kind in range(kinds):
            for pixel in range(width):
                coverage[kind, row, pixel] = min(int(total[row, kind, pixel] * scale + 0.5), 255)


@_compiled(types.void, _LONG, _FLAGS, _LONG, _LONG, _LONG, int64, float64, float64, float64[:, ::1])
def add_cycles(first, tidy, start, end, cycles, base, t0, t1, total):
    """Add the ns at work, of spans that have cycles, and the cycles, in each pixel to `total` [2, width + 1]."""
    width = total.shape[1] - 1
    length = t1 - t0
    slice_ns, per_ns = length / width, width / length
    begin, until = base + int64(np.ceil(t0)), base + int64(np.ceil(t1))
    for lane in range(len(first) - 1):
        low, high = first[lane], first[lane + 1]
        if tidy[lane]:
            low = _first_at(end, low, high, begin)
            high = _first_at(start, low, high, until)
        for i in range(low, high):
            s, e = float64(start[i] - base) - t0, float64(end[i] - base) - t0
            if cycles[i] > 0 and e > s:
                _add(total[0], s, e, length, per_ns, slice_ns, 1.0)
                _add(total[1], s, e, length, per_ns, slice_ns, cycles[i] / (e - s))
