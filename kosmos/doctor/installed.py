"""Which packages are here, against the versions that this KOSMOS says it works with."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from kosmos.errors import KosmosEnvironmentError

NEEDED_FOR = {
    "torch": "the kernels, on a GPU and in the emulator, need it",
    "triton": "the kernels, on a GPU and in the emulator, need it",
    "greenlet": "the emulator needs it",
    "numpy": "everything needs it",
    "pyarrow": "traces need it",
    "matplotlib": "pictures of traces need it",
    "jupyterlab": "the notebooks need it",
    "ipykernel": "the notebooks need it",
    "ipywidgets": "the notebooks need it",
}
"""What a person sees of the packages that KOSMOS asks for; the others are for those who work on KOSMOS itself."""


class Package(NamedTuple):
    """verdict: ok, missing or FAILED. advice: what to do about it, one sentence, empty if there is nothing to do."""

    name: str
    version: str
    range: str
    verdict: str
    advice: str = ""


def packages() -> list[Package]:
    """Python, and each package of NEEDED_FOR that KOSMOS asks for on this platform."""
    python, ranges = requirements()
    version = ".".join(map(str, sys.version_info[:3]))
    inside = fits(version, python)
    advice = "" if inside else f"Python {version} is outside {python}: make the environment from one that is inside."
    found = [Package("python", version, python, "ok" if inside else "FAILED", advice)]
    return found + [_package(name, ranges[name]) for name in NEEDED_FOR if name in ranges]


def _package(name: str, versions: str) -> Package:
    found = _distributions(name)
    install = f'pip install "{name}{versions}"'
    if not found:
        return Package(name, "-", versions, "missing", f"{name} is missing, {NEEDED_FOR[name]}: {install}")
    if len(found) > 1:
        both = " and ".join(sorted(found))
        advice = f"{both} overwrite each other's files: uninstall both, then install the one that torch came with."
        return Package(name, ", ".join(found.values()), versions, "FAILED", advice)
    version = next(iter(found.values()))
    if not fits(version, versions):
        return Package(name, version, versions, "FAILED", f"{name} {version} is outside {versions}: {install}")
    return Package(name, version, versions, "ok")


def _distributions(name: str) -> dict[str, str]:
    """The versions, by name, of the installed distributions that are this package: Triton's has several names."""
    if name == "triton":
        providers = importlib.metadata.packages_distributions().get("triton", [])
    else:
        providers = [name]
    found = {}
    for provider in providers:
        try:
            found[provider] = importlib.metadata.version(provider)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def requirements() -> tuple[str, dict[str, str]]:
    """The range of Python and those of the packages for this platform, as the installed KOSMOS or its checkout says.

    Raises KosmosEnvironmentError where neither is there to ask.
    """
    try:
        metadata = importlib.metadata.metadata("kosmos")
        python, lines = metadata["Requires-Python"], metadata.get_all("Requires-Dist") or []
    except importlib.metadata.PackageNotFoundError:
        checkout = Path(__file__).parents[2] / "pyproject.toml"
        if not checkout.is_file():
            raise KosmosEnvironmentError(
                "which versions KOSMOS works with is not known here: it is neither installed nor a checkout"
            ) from None
        project = tomllib.loads(checkout.read_text())["project"]
        python = project["requires-python"]
        lines = sum(project["optional-dependencies"].values(), project["dependencies"])
    ranges = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        name, versions = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement.strip()).groups()
        if "sys_platform" not in marker or sys.platform in marker:
            ranges[name] = ",".join(sorted(versions.replace(" ", "").strip("()").split(","), reverse=True))
    return python, ranges


def fits(version: str, versions: str) -> bool:
    """Whether a version is in a range like ">=3.6,<3.10". Builds of a version ("2.13.0+cpu") are that version."""
    return all(
        _number(version) >= _number(bound[2:]) if bound.startswith(">=") else _number(version) < _number(bound[1:])
        for bound in versions.replace(" ", "").split(",")
        if bound
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.match(r"[\d.]*\d", version)[0].split("."))
