"""The tile helpers of kosmos.lang as numpy operations: the same bits and the same charges, less interpretation."""

import ctypes

import numpy as np
import triton.language as tl

from kosmos.emulator.interpreter import Handle, numpy_dtype, round_to_bfloat16, to_float32
from kosmos.lang import tiles


def gemm_tile(clock, run, a, a_row, b, b_row, k, rows, cols, TMA, EVEN_K, BM, BN, BK):
    k, rows, cols = int(k), int(rows), int(cols)
    itemsize = numpy_dtype(a.dtype.element_ty).itemsize
    a_offset, b_offset = int(a_row) * k * itemsize, int(b_row) * k * itemsize
    a_rows, b_rows = _view(a, rows, k, k, a_offset), _view(b, cols, k, k, b_offset)
    a_rows = a_rows[np.minimum(np.arange(BM), rows - 1)]
    b_rows = b_rows[np.minimum(np.arange(BN), cols - 1)]
    dtype = a.dtype.element_ty
    tile = np.zeros((BM, BN), np.float32)
    for step in range(0, k, BK):
        a_part, b_part = _padded(a_rows[:, step : step + BK], BK), _padded(b_rows[:, step : step + BK], BK)
        tile = to_float32(a_part, dtype) @ to_float32(b_part, dtype).T + tile
        clock.multiplied(2 * BM * BN * BK)
    clock.moved(_address(a) + a_offset, BM * k * itemsize)
    clock.moved(_address(b) + b_offset, BN * k * itemsize)
    return tl.core.tensor(Handle(tile, tl.float32), tl.block_type(tl.float32, [BM, BN]))


def store_tile(clock, run, y, tile, row, rows, col, pitch, TMA, BM, BN, FIRST=True, REST=True):
    if not REST:
        return
    row, rows, col, pitch = int(row), int(rows), int(col), int(pitch)
    cols = min(BN, pitch - col)
    itemsize = numpy_dtype(y.dtype.element_ty).itemsize
    offset = (row * pitch + col) * itemsize
    _view(y, rows, cols, pitch, offset)[:] = _rounded(tile.handle.data[:rows, :cols], y.dtype.element_ty)
    clock.moved(_address(y) + offset, rows * cols * itemsize)


def copy_tile(clock, run, source, target, rows, col, end, pitch, CM, CN, STAGES=1):
    rows, col, end, pitch = int(rows), int(col), int(end), int(pitch)
    offset = col * numpy_dtype(source.dtype.element_ty).itemsize
    values = _view(source, rows, end - col, pitch, offset)
    _view(target, rows, end - col, pitch, offset)[:] = values
    for pointer in (source, target):
        clock.moved(_address(pointer) + offset, rows * (end - col) * values.itemsize)


def reduce_tile(clock, run, part, peers, y, rows, col, pitch, RANKS, RM, RN, ALIGN=1, STAGES=1):
    rows, col, pitch = int(rows), int(col), int(pitch)
    cols = min(RN, pitch - col)
    dtype = part.dtype.element_ty
    offset = col * numpy_dtype(dtype).itemsize
    distances = np.frombuffer((ctypes.c_int64 * RANKS).from_address(_address(peers)), np.int64)
    total = np.zeros((rows, cols), np.float32)
    for distance in distances.tolist():
        values = _view(part, rows, cols, pitch, offset + distance)
        total = total + to_float32(values, dtype)
        clock.moved(_address(part) + offset + distance, rows * cols * values.itemsize)
    target = _view(y, rows, cols, pitch, offset)
    target[:] = _rounded(total, dtype)
    clock.moved(_address(y) + offset, rows * cols * target.itemsize)


MACROS = {getattr(tiles, macro.__name__).fn: macro for macro in (gemm_tile, store_tile, copy_tile, reduce_tile)}


def _address(pointer) -> int:
    return int(pointer.handle.data.reshape(-1)[0])


def _view(pointer, rows: int, cols: int, pitch: int, offset: int = 0) -> np.ndarray:
    """The matrix that a kernel pointer (plus an offset in bytes) points to; bf16 as its raw 16 bits."""
    dtype = numpy_dtype(pointer.dtype.element_ty)
    memory = (ctypes.c_char * (((rows - 1) * pitch + cols) * dtype.itemsize)).from_address(_address(pointer) + offset)
    return np.lib.stride_tricks.as_strided(
        np.frombuffer(memory, dtype), (rows, cols), (pitch * dtype.itemsize, dtype.itemsize), writeable=True
    )


def _padded(part: np.ndarray, width: int) -> np.ndarray:
    # a copy in row order either way: BLAS then takes the same path as for an interpreted load
    padded = np.zeros((part.shape[0], width), part.dtype)
    padded[:, : part.shape[1]] = part
    return padded


def _rounded(values: np.ndarray, dtype) -> np.ndarray:
    return round_to_bfloat16(values) if dtype == tl.bfloat16 else values.astype(numpy_dtype(dtype))
