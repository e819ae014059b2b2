"""A small picture of the whole run, for whatever shows notebooks without their widgets."""

import io
import warnings
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np

from kosmos.trace import ROLES
from kosmos.trace.colours import PALETTE
from kosmos.viewer.detail import Detail

if TYPE_CHECKING:
    from PIL.Image import Image

STEPS = 6
"""Shades of a colour: noise of finer ones is most of what a file would hold."""

LONGEST_TITLE = 110  # letters


def snapshot(detail: Detail, coverage: np.ndarray) -> tuple[bytes, tuple[int, int]]:
    """A PNG of `coverage`, uint8 [7 kinds][rows][width] of the whole run, and its width and height in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import to_rgba
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    image = np.ones((*coverage.shape[1:], 3))
    labels = {}
    for kind in detail.kinds:
        name = "wait" if kind == len(ROLES) else ROLES[kind]
        *colour, alpha = to_rgba(PALETTE[name])
        cover = np.round(coverage[kind, :, :, None] / 255 * STEPS) / STEPS
        image += cover * alpha * (np.array(colour) - 1)
        labels[name] = Patch(facecolor=PALETTE[name])
    # Its own white ground and black text, whatever the theme around it or matplotlib's style.
    black, grey = "#000000", "#808080"
    figure = Figure(figsize=(9, 3.2), dpi=100, facecolor="white", layout="constrained")
    axes = figure.add_subplot(facecolor="white")
    extent = (0, detail.length / 1000, max(detail.lanes, 1), 0)
    axes.imshow(image.clip(0, 1), aspect="auto", extent=extent, interpolation="nearest")
    borders = [
        (detail.first_lane[index] + rank * run.workgroups, f"rank {rank}")
        for index, run in enumerate(detail.runs)
        for rank in range(run.ranks)
    ]
    axes.hlines([lane for lane, _ in borders[1:]], 0, extent[1], color=grey, linewidth=0.5)
    some = borders[:: -(-len(borders) // 16) or 1]
    axes.set_yticks([lane for lane, _ in some], [name for _, name in some], va="top")
    axes.tick_params(length=0, colors=black, labelsize="small")
    axes.set_xlabel("time (µs)", color=black)
    title = shorten("  |  ".join(detail.titles), LONGEST_TITLE, placeholder=" …")
    axes.set_title(title, loc="left", fontsize="medium", color=black, parse_math=False)
    for spine in axes.spines.values():
        spine.set_color(grey)
    figure.legend(
        labels.values(),
        labels.keys(),
        loc="outside lower center",
        ncols=len(labels),
        frameon=False,
        handlelength=1.2,
        labelcolor=black,
        fontsize="small",
    )
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a box in a title is no matter
        canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    png = io.BytesIO()
    _with_palette(pixels).save(png, "PNG", optimize=True)
    return png.getvalue(), (pixels.shape[1], pixels.shape[0])


def _with_palette(pixels: np.ndarray) -> "Image":
    """uint8 [rows, columns, 4] with its 256 most frequent colours as they are, and the few others as the nearest."""
    from PIL.Image import fromarray

    packed = pixels.view("<u4")[..., 0] & 0xFFFFFF
    colours, place, count = np.unique(packed, return_inverse=True, return_counts=True)
    kept = np.sort(np.argsort(-count, kind="stable")[:256])
    channels = np.stack([colours >> shift & 255 for shift in (0, 8, 16)], axis=1).astype(np.int64)
    nearest = ((channels[:, None] - channels[kept]) ** 2).sum(axis=2).argmin(axis=1)
    image = fromarray(nearest[place.reshape(packed.shape)].astype(np.uint8))
    image.putpalette(channels[kept].astype(np.uint8).tobytes())
    return image
