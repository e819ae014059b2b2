"""Which cell of a notebook shows which viewer, so that a cell that runs again replaces what it showed before.

A widget lives until it is closed, and a notebook that is saved with its widgets keeps every one that lives.
"""

import weakref
from typing import Any, Protocol


class _Closes(Protocol):
    def close(self) -> None: ...


class _Cell:
    """A cell since it last began to run: the viewers that it has made, and those that it shows."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.made: weakref.WeakSet[_Closes] = weakref.WeakSet()
        self.shown: weakref.WeakSet[_Closes] = weakref.WeakSet()


_cells: dict[str, _Cell] = {}


def made(viewer: _Closes) -> None:
    """Note that the running cell has made this viewer."""
    cell = _running(viewer)
    if cell is not None:
        cell.made.add(viewer)


def shown(viewer: _Closes) -> None:
    """Note that the running cell shows this viewer."""
    cell = _running(viewer)
    if cell is not None:
        cell.shown.add(viewer)


def _running(viewer: _Closes) -> _Cell | None:
    """The cell that runs, None outside a notebook. What its last run has left, and no other cell shows, is closed."""
    name, run = _name_and_run()
    if name is None or run is None:
        return None
    before = _cells.get(name)
    if before is not None and before.run == run:
        return before
    cell = _cells[name] = _Cell(run)
    if before is not None:
        elsewhere = {id(one) for other in _cells.values() for one in other.shown}
        for one in {*before.made, *before.shown}:
            if one is not viewer and id(one) not in elsewhere:
                one.close()
    return cell


def _name_and_run() -> tuple[Any, Any]:
    """The identity of the cell that runs and of this run of it, as the front end of a notebook tells them."""
    try:
        from IPython import get_ipython

        parent = get_ipython().kernel.get_parent()
        return parent["metadata"].get("cellId"), parent["header"]["msg_id"]
    except (ImportError, AttributeError, KeyError, TypeError, LookupError):
        return None, None
