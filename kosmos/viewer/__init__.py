"""The trace viewer: a widget for notebooks, and the same as one HTML file.

What is shown is computed from the spans when the page asks for it (`detail`, over `lanes` and the compiled loops of
`kernels`); the page is `static/viewer.js`, built from `src`.
"""

import os
from typing import TYPE_CHECKING, Any

from kosmos.errors import KosmosEnvironmentError
from kosmos.trace import Trace

if TYPE_CHECKING:
    from kosmos.viewer.viewer import Viewer

__all__ = ["compare", "to_html", "view"]


def view(trace: Trace, *, title: str | None = None, **options: Any) -> "Viewer":
    """A widget that shows `trace`; `options` are those of `kosmos.viewer.viewer.Viewer`.

    Raises KosmosEnvironmentError without anywidget, KosmosTraceError for a trace of 2**53 ns or more.
    """
    return _viewer([trace], None if title is None else [title], options)


def compare(*traces: Trace, titles: list[str] | None = None, **options: Any) -> "Viewer":
    """A widget that shows several traces one above the other on one axis of time, aligned at their launch.

    Its header says by how much the makespan and the shares of the others differ from those of the first. `titles`: one
    for each trace; `options` and errors as in `view`.
    """
    return _viewer(list(traces), titles, options)


def to_html(path: str | os.PathLike[str], *traces: Trace, titles: list[str] | None = None, **options: Any) -> None:
    """Write `path`: one HTML file that shows the traces, without a kernel and without a network.

    Raises KosmosTraceError if it cannot be written.
    """
    from kosmos.viewer.detail import Detail
    from kosmos.viewer.page import checked_options, write_page

    write_page(path, Detail(traces, titles), checked_options(options))


def _viewer(traces: list[Trace], titles: list[str] | None, options: dict[str, Any]) -> "Viewer":
    try:
        from kosmos.viewer.viewer import Viewer
    except ModuleNotFoundError as missing:
        if missing.name not in ("anywidget", "ipywidgets", "traitlets"):
            raise
        raise KosmosEnvironmentError(
            f"the viewer is a widget and needs {missing.name}, which is not installed here: pip install 'kosmos[lab]'; "
            "kosmos view FILE and Trace.to_html work without it"
        ) from None
    return Viewer(traces, titles, **options)
