"""The widget: what is synchronised with the page, and the desk that answers it."""

import operator
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import anywidget
import numpy as np
import pyarrow as pa
import traitlets

from kosmos.errors import KosmosArgumentError, KosmosError
from kosmos.trace import Trace
from kosmos.viewer import cells
from kosmos.viewer.detail import Detail, checked_lanes
from kosmos.viewer.page import bundle, checked_options, write_page

MANY_SPANS = 200_000
"""From here on `problems` takes so long that the picture comes first."""

PATIENCE_S = 5.0
"""So long the search for problems waits for the first picture, and"""

QUIET_S = 1.5
"""so long without a question it waits after that: a person who moves about comes first."""

IDLE_S = 30.0
"""After so long without a question the thread that answers them ends."""


def _to_page(value: dict[str, Any] | None, _: Any) -> dict[str, Any] | None:
    """Times as decimal text: a page's numbers would round them."""
    return None if value is None else {**value, "t0": str(value["t0"]), "t1": str(value["t1"])}


def _from_page(value: Any, _: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: int(one) if name in ("t0", "t1") else one for name, one in value.items()}


class Viewer(anywidget.AnyWidget):
    """Traces in a notebook. Made by `Trace.view` and `kosmos.compare`.

    `selection`: None or {"t0": ns, "t1": ns, "lanes": [lanes] or None for all}, what is selected in the page; setting
    it moves the view there. `window`: None (the whole run) or {"t0": ns, "t1": ns}, what is shown. Times are those of
    the first trace; the others are aligned with it at their launch. A lane is trace, rank and workgroup, counted
    through; see `lane`. `height`, in pixels of the screen, is how tall the view is.

    Raises KosmosArgumentError for traces, titles, options, selections and windows that are not allowed.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    meta = traitlets.Dict().tag(sync=True)
    overview = traitlets.Bytes().tag(sync=True)
    selection = traitlets.Any(None, allow_none=True).tag(sync=True, to_json=_to_page, from_json=_from_page)
    window = traitlets.Any(None, allow_none=True).tag(sync=True, to_json=_to_page, from_json=_from_page)
    options = traitlets.Dict().tag(sync=True)

    def __init__(self, traces: Sequence[Trace], titles: Sequence[str] | None = None, **options: Any) -> None:
        chosen = checked_options(options)
        self._detail = Detail(traces, titles)
        self._coverage, overview = self._detail.overview()
        self._snapshot: tuple[bytes, tuple[int, int]] | None = None
        self._from_page = False
        self._pictured = threading.Event()
        self._desk = _Desk(self)
        meta = self._detail.meta()
        many = self._detail.first_span[-1] > MANY_SPANS
        if not many:
            _find_problems(self._detail, meta)
        cells.made(self)
        super().__init__(meta=meta, overview=overview, options=chosen)
        if many:
            threading.Thread(target=self._prepare, name="kosmos-viewer-problems", daemon=True).start()

    @traitlets.default("_esm")
    def _code(self) -> str:
        return bundle()

    # what a person does with it

    @property
    def traces(self) -> list[Trace]:
        """The traces that are shown."""
        return [run.trace for run in self._detail.runs]

    def lane(self, rank: int, workgroup: int, trace: int = 0) -> int:
        """The lane of a workgroup, for `selection`."""
        _refuse_outside("trace", trace, len(self._detail.runs))
        run = self._detail.runs[trace]
        _refuse_outside("rank", rank, run.ranks)
        _refuse_outside("workgroup", workgroup, run.workgroups)
        return self._detail.first_lane[trace] + rank * run.workgroups + workgroup

    def select(self, t0: int, t1: int, lanes: Iterable[int] | None = None) -> None:
        """Select t0 to t1 (ns) of these lanes, or of all, and show it."""
        self.selection = {"t0": t0, "t1": t1, "lanes": lanes}

    def selected(self) -> pa.Table:
        """The spans that meet the selection, as rows of `Trace.spans` in their order; none if nothing is selected.

        With several traces the first column, `trace`, int32, says which of them a span is from.
        """
        parts = []
        for index, run in enumerate(self._detail.runs):
            rows = np.zeros(0, np.int64)
            if self.selection is not None:
                origin = self._detail.runs[0].base
                t0, t1 = self.selection["t0"] - origin, self.selection["t1"] - origin
                lanes = self.selection["lanes"]
                if lanes is not None:
                    lanes = np.array(lanes, np.int64) - self._detail.first_lane[index]
                    lanes = lanes[(lanes >= 0) & (lanes < run.lanes)]
                rows = np.sort(run.rows(run.meeting(t0, t1, lanes)))
            part = run.trace.spans.take(pa.array(rows))
            if len(self._detail.runs) > 1:
                part = part.add_column(0, "trace", pa.array(np.full(len(rows), index, np.int32)))
            parts.append(part)
        return pa.concat_tables(parts).combine_chunks()

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that shows the same, offline. Raises KosmosTraceError if it cannot be written."""
        write_page(path, self._detail, self.options)

    # traits

    @traitlets.validate("selection")
    def _check_selection(self, proposal: Any) -> dict[str, Any] | None:
        if proposal["value"] is None:
            return None
        window = _checked_window("selection", proposal["value"], {"lanes"})
        lanes = proposal["value"].get("lanes")
        return {**window, "lanes": None if lanes is None else checked_lanes(lanes, self._detail.lanes)}

    @traitlets.validate("window")
    def _check_window(self, proposal: Any) -> dict[str, Any] | None:
        return None if proposal["value"] is None else _checked_window("window", proposal["value"], set())

    @traitlets.observe("selection")
    def _show_selection(self, change: Any) -> None:
        if self._from_page or change["new"] is None:
            return
        t0, t1 = change["new"]["t0"], change["new"]["t1"]
        around = max((t1 - t0) // 20, 1)
        base, length = self._detail.runs[0].base, self._detail.length
        begin, end = max(t0 - around, base), min(t1 + around, base + length)
        if begin < end:  # else it is outside the run
            self.window = {"t0": begin, "t1": end}

    def set_state(self, sync_data: dict[str, Any]) -> None:
        self._from_page = True
        try:
            super().set_state(sync_data)
        finally:
            self._from_page = False

    # questions of the page

    def _handle_custom_msg(self, content: Any, buffers: Sequence[Any]) -> None:
        if isinstance(content, dict) and "ask" in content:
            self._desk.put(content, buffers)
        else:
            super()._handle_custom_msg(content, buffers)

    def _reply(self, request: dict[str, Any], buffers: Sequence[Any]) -> None:
        packed: list[bytes] = []
        try:
            answer, packed = self._detail.answer(request, buffers)
        except KosmosError as error:
            answer = {"error": str(error)}
        except Exception as error:
            self.log.exception("the viewer could not answer %s", request)
            answer = {"error": f"the kernel could not answer ({type(error).__name__}: {error})"}
        self.send({**answer, "id": request.get("id"), "ask": request["ask"], "view": request.get("view")}, packed)
        if request["ask"] == "picture":
            self._pictured.set()

    def _prepare(self) -> None:
        """What takes longer than a person waits for a first picture."""
        self._pictured.wait(PATIENCE_S)
        while (since := time.monotonic() - self._desk.asked) < QUIET_S:
            time.sleep(QUIET_S - since)
        meta = dict(self.meta, traces=[dict(trace) for trace in self.meta["traces"]])
        _find_problems(self._detail, meta)
        self.meta = meta
        for run in self._detail.runs:
            run.flows  # noqa: B018

    # showing and closing

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if self.comm is None:
            self.layout.open()
            self.open()
        cells.shown(self)
        if self._snapshot is None:
            from kosmos.viewer.snapshot import snapshot

            self._snapshot = snapshot(self._detail, self._coverage)
        png, (width, height) = self._snapshot
        data, about = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "image/png": png}, {**about, "image/png": {"width": width, "height": height}}

    def close(self) -> None:
        """Take the view out of the page. What was selected can still be had, and the viewer be shown again."""
        self.layout.close()
        super().close()
        self.__dict__.pop("_repr_mimebundle_", None)  # ipywidgets hides it for good

    def __repr__(self) -> str:
        return f"<Viewer: {' | '.join(self._detail.titles)}>"


class _Desk:
    """Answers a viewer's questions in a thread: of each sort and view the newest, pictures first.

    So a question that came while another was answered takes the place of those that it outdates.
    """

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self._waiting: dict[tuple[Any, Any], tuple[dict[str, Any], Sequence[Any]]] = {}
        self._change = threading.Condition()
        self._works = False
        self.asked = time.monotonic()

    def put(self, request: dict[str, Any], buffers: Sequence[Any]) -> None:
        with self._change:
            self.asked = time.monotonic()
            self._waiting[request.get("view"), request["ask"]] = (request, buffers)
            self._change.notify()
            if self._works:
                return
            self._works = True
        try:
            threading.Thread(target=self._work, name="kosmos-viewer", daemon=True).start()
        except RuntimeError:  # there are no threads, in a browser
            self._work(IDLE_S * 0)

    def _work(self, patience: float = IDLE_S) -> None:
        while True:
            with self._change:
                if not self._waiting and not self._change.wait_for(lambda: self._waiting, patience):
                    self._works = False
                    return
                key = next((key for key in self._waiting if key[1] == "picture"), next(iter(self._waiting)))
                request, buffers = self._waiting.pop(key)
            self._viewer._reply(request, buffers)


def _find_problems(detail: Detail, meta: dict[str, Any]) -> None:
    for about, run in zip(meta["traces"], detail.runs):
        about["problems"] = run.trace.problems()


def _refuse_outside(name: str, value: Any, count: int) -> None:
    if not isinstance(value, Integral) or not 0 <= int(value) < count:
        raise KosmosArgumentError(f"{name}={value!r} must be a whole number from 0 to {count - 1}")


def _checked_window(name: str, value: Any, more: set[str]) -> dict[str, int]:
    allowed = f"{name} must be None or {{'t0': ns, 't1': ns{', ' if more else ''}{', '.join(map(repr, more))}}}"
    if not isinstance(value, Mapping) or not {"t0", "t1"} <= set(value) <= {"t0", "t1"} | more:
        raise KosmosArgumentError(f"{allowed}, not {value!r:.80}")
    try:
        t0, t1 = operator.index(value["t0"]), operator.index(value["t1"])
    except TypeError:
        raise KosmosArgumentError(f"{allowed} with whole numbers, not {value!r:.80}") from None
    if not -(2**63) <= t0 < t1 < 2**63:
        raise KosmosArgumentError(f"{name}: t1={t1} must be later than t0={t0}, both int64")
    return {"t0": t0, "t1": t1}
