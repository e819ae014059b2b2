"""What is installed here, where kernels can run, whether they run right, and how they compile for other GPUs."""

import time
from collections.abc import Callable, Iterable

Write = Callable[[str], object]


def examine(write: Write = print) -> bool:
    """Tell what is installed and run a self-test of every place; whether kernels run anywhere.

    Nothing that is missing or broken is an error here: it is what the report is about.
    """
    from kosmos.doctor.installed import packages
    from kosmos.doctor.places import places
    from kosmos.errors import KosmosEnvironmentError

    advice = []
    write("Installed")
    try:
        found = packages()
    except KosmosEnvironmentError as error:
        write(f"  {error}")
    else:
        _table(write, ((one.name, one.version, one.range, one.verdict) for one in found))
        advice += (one.advice for one in found)
    write("Places")
    tested = []
    for place in places():
        _table(write, [(f"{place.name:10}", f"{place.what:60}", place.verdict)])
        tested.append(place)
    _table(write, [(f"{'simulator':10}", f"{'whole nodes, no numbers':60}", "not built yet")])
    advice += (place.advice for place in tested)
    if any(advice):
        write("What to do")
        _table(write, ((sentence,) for sentence in advice if sentence))
    return any(place.verdict == "ok" for place in tested)


def examine_kernels(write: Write = print) -> bool:
    """Compile every kernel for every GPU and tell what came out; whether all is well.

    Raises KosmosEnvironmentError where there is no Triton.
    """
    from kosmos.doctor.compiled import compile_all, triton_version, variants

    started = time.monotonic()
    chosen = variants()
    write(f"{len(chosen)} variants of the kernels, compiled with Triton {triton_version()}")
    write(
        "registers and bytes spilled from them are a thread's, shared bytes a workgroup's; scalars are kept in lanes of"
    )
    write("vector registers, which costs no memory")
    names = "".join(f"{{:<{max(map(len, column)) + 2}}}" for column in zip(*chosen, strict=True))
    layout = names + "{:>9}{:>9}{:>9}{:>9}{:>10}  {}"
    write(layout.format("kernel", *chosen[0]._fields[1:], "registers", "shared", "spilled", "scalars", "releases", ""))
    done = []
    for compiled in compile_all(chosen):
        done.append(compiled)
        numbers = ("-" if number is None else f"{number:,}" for number in compiled[2:])
        write(layout.format(*compiled.variant, *numbers, "FAILED" if compiled.problems else "ok"))
    wrong = [compiled for compiled in done if compiled.problems]
    for compiled in wrong:
        for problem in compiled.problems:
            write(f"FAILED  {compiled.variant}: {problem}")
    write(f"{len(done) - len(wrong)} of {len(chosen)} variants are well, in {time.monotonic() - started:.0f} s")
    return not wrong


def _table(write: Write, rows: Iterable[tuple[str, ...]]) -> None:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        write("  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip())
