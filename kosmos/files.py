"""Files that appear whole or not at all."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import BinaryIO

from kosmos.errors import KosmosError


def path_text(path: str | os.PathLike[str], error: type[KosmosError]) -> str:
    """A path as text. Raises `error` for what is none."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise error(f"path={path!r} must name a file, as text or as a pathlib.Path")
    return text


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str], error: type[KosmosError]) -> Iterator[BinaryIO]:
    """A file to write that takes its place at `path` when the block ends well, and leaves nothing if it does not.

    Raises `error` with one sentence if it cannot be written.
    """
    path = path_text(path, error)
    refuse_unwritable(path, error)
    target = os.path.realpath(path)  # a link stays, what it leads to is replaced
    # in the same folder, so that the rename is one step of one file system
    temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{uuid.uuid4().hex}.tmp")
    try:
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
    except OSError as failure:
        raise error(f"{os.fspath(path)}: cannot be written ({failure.strerror or failure})") from None


def refuse_unwritable(path: str | os.PathLike[str], error: type[KosmosError]) -> None:
    """Raise `error` for a file that could not be written, before there is something to write."""
    path = path_text(path, error)
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        why = "it is a folder"
    elif os.path.exists(path) and not os.path.isfile(path):
        why = "it is no file"  # replacing a device, as root may, would remove it
    elif not os.path.isdir(folder):
        why = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK):
        why = f"{folder} is not writable"
    else:
        return
    raise error(f"{path}: cannot be written, {why}")
