"""What a fused op accepts; everything else is refused by name before anything is launched."""

import torch

from kosmos.errors import KosmosArgumentError, KosmosShapeError
from kosmos.world import World

WIDEST = (1 << 24) - 1
"""The most columns of a matrix: with it an offset inside a tile of 128 rows fits 32 bits."""

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def alignment(tensor: torch.Tensor, columns: int) -> int:
    """What every row address of a dense matrix of so many columns is a multiple of, in bytes: 16, or an element."""
    size = tensor.element_size()
    return 16 if tensor.data_ptr() % 16 == 0 and columns * size % 16 == 0 else size


def check_operands(x: torch.Tensor, w: torch.Tensor, world: World, x_is: str, w_is: str) -> None:
    """Check x against `x_is` and w against `w_is` ("[ranks, ...]" as an error would show it) for a virtual world.

    Raises KosmosShapeError that names the tensor, what it is and what is allowed.
    """
    if not isinstance(world, World):
        raise KosmosArgumentError(f"world={world!r} must be a kosmos.World")
    for name, tensor, shape in (("x", x, x_is), ("w", w, w_is)):
        if not isinstance(tensor, torch.Tensor):
            raise KosmosShapeError(f"{name} must be a torch.Tensor {shape}, not {type(tensor).__name__}")
        if tensor.dim() != 3 or tensor.shape[0] != world.ranks or 0 in tensor.shape:
            raise KosmosShapeError(
                f"{name} has shape {list(tensor.shape)}; it must be {shape} with ranks={world.ranks} and nothing empty"
            )
        if tensor.dtype not in DTYPES:
            raise KosmosShapeError(f"{name} has dtype {tensor.dtype}; allowed are {', '.join(map(str, DTYPES))}")
        if tensor.device != world.device:
            raise KosmosShapeError(f"{name} is on {tensor.device}; the world is on {world.device}")
        if not tensor.is_contiguous():
            raise KosmosShapeError(f"{name} is not contiguous (strides {tensor.stride()}); pass {name}.contiguous()")
    if x.dtype != w.dtype:
        raise KosmosShapeError(f"x has dtype {x.dtype} and w has dtype {w.dtype}; they must be the same")
    if x.shape[2] != w.shape[2]:
        raise KosmosShapeError(
            f"x has {x.shape[2]} columns and w has {w.shape[2]}: x {x_is} and w {w_is} must have the same K"
        )
    for name, tensor, rows in (("x", x, world.ranks**2 * x.shape[1]), ("w", w, world.ranks * w.shape[1])):
        if rows >= 1 << 31:
            raise KosmosShapeError(
                f"{name} has shape {list(tensor.shape)}, which is too many rows for {world.ranks} ranks"
            )
    for name, columns in (("K", x.shape[2]), ("N", w.shape[1])):
        if columns > WIDEST:
            raise KosmosShapeError(f"{name}={columns} is larger than the {WIDEST} columns that a matrix may have")
