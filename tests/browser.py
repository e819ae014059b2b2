"""Chromium for the tests of the viewer: one that is installed, headless, with no word to anybody."""

import os
import shutil
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_FLAGS = [
    "--no-sandbox",  # in a container there is none to be had
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def executable(playwright) -> str | None:
    """Chromium's path: Playwright's own if it is installed, else the system's."""
    own = playwright.chromium.executable_path
    if own and Path(own).exists():
        return own
    return next(filter(None, map(shutil.which, _NAMES)), None)


def launch(playwright):
    path = executable(playwright)
    if path is None:
        missing = "there is no Chromium here: playwright install chromium, or the system's package"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return playwright.chromium.launch(executable_path=path, args=_FLAGS)
