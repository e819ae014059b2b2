"""The command line: what it prints, what it writes, and one line with code 2 for everything that is wrong."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from test_trace import scheduled

from kosmos.cli import main
from kosmos.trace import Trace

ROOT = Path(__file__).parent.parent
KOSMOS = [sys.executable, "-m", "kosmos"]
SMALL = ["--m", "8", "--n", "5", "--k", "3", "--ranks", "2", "--workgroups", "2", "--device", "cpu"]

runs_kernels = pytest.mark.triton


@pytest.fixture
def run(capsys):
    """Call the command in this process: code, stdout, stderr."""

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def refused(run, tmp_path):
    """The one line that a command says when it refuses; it leaves nothing behind."""

    def call(*arguments):
        before = sorted(tmp_path.rglob("*"))
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("kosmos") and err.endswith("\n") and err.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
        return err.strip()

    return call


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "saved.parquet"
    trace = scheduled(1)
    shape = {"m": 8192, "n": 7, "k": 3}
    Trace(trace.spans, trace.queue, meta={"op": "matmul_reduce_scatter", "shape": shape, "order": "row"}).save(path)
    return path


# what it is told


def test_help_is_quick_and_has_an_example():
    for command in ([], ["doctor"], ["record"], ["show"], ["export"]):
        done = subprocess.run([*KOSMOS, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "example: kosmos " in done.stdout
    code = (
        "import sys\nfrom kosmos.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'pyarrow', 'matplotlib', 'torch', 'triton'} & {*sys.modules}\n"
        "sys.exit(f'--help imports {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], "kosmos: the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["record"], "required: OP, -o/--output"),
        (["record", "all_gather", "-o", "x"], "invalid choice: 'all_gather'"),
        (["record", "all_gather_matmul"], "required: -o/--output"),
        (["record", "all_gather_matmul", "-o", "x", "--m", "many"], "--m: 'many' is not a whole number, 1 or more"),
        (["record", "all_gather_matmul", "-o", "x", "--ranks", "0"], "--ranks: '0' is not a whole number, 1 or more"),
        (["record", "all_gather_matmul", "-o", "x", "--k=-1"], "--k: '-1' is not a whole number, 1 or more"),
        (["record", "all_gather_matmul", "-o", "x", "--seed", str(2**63)], "is not a whole number from 0 to 2**63 - 1"),
        (["record", "all_gather_matmul", "-o", "x", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["show"], "required: FILE"),
        (["show", "x", "--png", "a", "--svg", "b"], "--svg: not allowed with argument --png"),
        (["doctor", "--heal"], "unrecognized arguments: --heal"),
    ],
)
def test_wrong_words(refused, arguments, says):
    assert says in refused(*arguments)


# record


@runs_kernels
@pytest.mark.parametrize("op", ["all_gather_matmul", "matmul_reduce_scatter"])
def test_record_and_show(run, tmp_path, op):
    path = tmp_path / "trace.parquet"
    options = [*SMALL, "--policy", "two_way:1", "--dtype", "fp16", "--order", "random:3", "--machine", "H200"]
    code, recorded, err = run("record", op, "-o", path, *options, "--link-gbps", "5", "--seed", "7", "--check")
    assert (code, err) == (0, "")
    assert os.listdir(tmp_path) == ["trace.parquet"]
    trace = Trace.load(path)
    assert trace.problems() == []
    expected = {"op": op, "shape": {"m": 8, "n": 5, "k": 3}, "dtype": "float16", "policy": "two_way:1"}
    expected |= {
        "order": "random:3",
        "ranks": 2,
        "workgroups": 2,
        "place": "emulator",
        "machine": "H200",
        "link_gbps": 5,
    }
    assert trace.meta.items() >= expected.items()
    assert "relative error" in recorded and f"{path}, {path.stat().st_size:,} bytes" in recorded

    code, shown, err = run("show", path)
    assert (code, err) == (0, "")
    facts = [
        op,
        "m=8, n=5, k=3",
        "float16",
        "2 of 2 workgroups",
        "two_way:1",
        "random:3",
        "H200",
        "emulator",
        "5.0 GB/s",
    ]
    for fact in [*facts, "problems   none", str(trace.summary())]:
        assert fact in shown and fact in recorded


@runs_kernels
def test_same_seed_same_file(run, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run("record", "matmul_reduce_scatter", "-o", tmp_path / name, *SMALL, "--seed", seed)[0] == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@runs_kernels
@pytest.mark.parametrize(
    "options, says",
    [
        (["--policy", "wild"], "policy='wild' is unknown; allowed are"),
        (["--policy", "fixed:99"], "crew=99 of policy fixed:99 is larger than the 2 workgroups of a rank"),
        (["--policy", "fixed:0"], "policy fixed:0 leaves nobody to be a mover"),
        (["--order", "zigzag"], "order='zigzag' is unknown; allowed are 'local_first', 'rank'"),
        (["--m", "9"], "m=9 must divide by ranks=2"),
        (["--n", str(10**12)], f"n={10**12}, k=3 on 2 ranks do not fit the memory"),
        (["--device", "abacus"], "device='abacus' is unknown; allowed are 'cpu' and 'cuda[:N]'"),
        (["--device", "cuda:77"], "device='cuda:77'"),
        (["--machine", "PDP-11"], "machine='PDP-11' is unknown; known are laptop"),
        (["--link-gbps", "nan"], "link_gbps=nan must be"),
        (["--link-gbps", "-1"], "link_gbps=-1.0 must be"),
    ],
)
def test_wrong_values(refused, tmp_path, options, says):
    assert says in refused("record", "all_gather_matmul", "-o", tmp_path / "x", *SMALL, *options)


@pytest.mark.parametrize("command", ["record", "show"])
def test_output_that_cannot_be_written(refused, saved, tmp_path, monkeypatch, command):
    def into(path):
        if command == "show":
            return refused("show", saved, "--png", path)
        return refused("record", "all_gather_matmul", "-o", path, *SMALL)

    assert into(tmp_path).endswith("cannot be written, it is a folder")
    assert into(tmp_path / "no" / "x").endswith(f"there is no folder {tmp_path / 'no'}")
    assert into(saved / "x").endswith(f"there is no folder {saved}")
    os.mkfifo(tmp_path / "pipe")  # root may replace even a device
    assert into(tmp_path / "pipe").endswith("cannot be written, it is no file")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert into(tmp_path / "x").endswith(f"{tmp_path} is not writable")


@runs_kernels
def test_wrong_result_is_not_saved(run, tmp_path, monkeypatch):
    monkeypatch.setattr("kosmos.doctor.reference.relative_error", lambda *_: float("nan"))
    code, out, err = run("record", "all_gather_matmul", "-o", tmp_path / "x", *SMALL, "--check")
    assert (code, out) == (1, "") and err == "kosmos: the result is off by nan, 0.01 is allowed; not saved\n"
    assert os.listdir(tmp_path) == []


@runs_kernels
def test_interrupted_inside_a_workgroup(run, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("kosmos.emulator.clock.Clock.multiplied", lambda *_: signal.raise_signal(signal.SIGINT))
        assert run("record", "all_gather_matmul", "-o", tmp_path / "x", *SMALL) == (130, "", "")
    assert os.listdir(tmp_path) == []
    assert run("record", "all_gather_matmul", "-o", tmp_path / "x", *SMALL, "--check")[0] == 0


@pytest.mark.parametrize(
    "absent, arguments, says",
    [
        ("torch", ["record", "all_gather_matmul", "-o", "x"], "needs torch, which is not installed here"),
        ("triton", ["doctor", "--compile"], "kernels are compiled with Triton, which is not usable here"),
    ],
)
def test_without_what_it_needs(tmp_path, absent, arguments, says):
    code = f"import sys; sys.modules[{absent!r}] = None; from kosmos.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert says in done.stderr and os.listdir(tmp_path) == []


# show


def test_show_tells_of_problems(run, tmp_path):
    trace = scheduled(1)
    Trace(trace.spans.slice(1), trace.queue).save(tmp_path / "x")
    code, out, err = run("show", tmp_path / "x")
    assert (code, err) == (0, "")
    assert "problems\n  1 of " in out and "items in the queue were never done" in out


@pytest.mark.parametrize("kind, start", [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_show_draws(run, saved, tmp_path, kind, start):
    picture = tmp_path / f"picture.{kind}"
    code, out, err = run("show", saved, f"--{kind}", picture)
    assert (code, err) == (0, "") and f"drawn      {picture}" in out
    assert picture.read_bytes().startswith(start)
    assert {*os.listdir(tmp_path)} == {saved.name, picture.name}


def test_a_picture_appears_whole_or_not_at_all(refused, saved, tmp_path, monkeypatch):
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"the one before")

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    assert refused("show", saved, "--png", picture).endswith("cannot be written (No space left on device)")
    assert picture.read_bytes() == b"the one before"


def test_files_that_are_no_traces(refused, saved, tmp_path):
    assert refused("show", tmp_path / "none").endswith("none: cannot be read (No such file or directory)")
    assert refused("show", tmp_path).endswith("cannot be read (Is a directory)")
    (tmp_path / "cut").write_bytes(saved.read_bytes()[:-20])
    assert refused("show", tmp_path / "cut").endswith("is cut off: its end is missing")
    (tmp_path / "text").write_text(json.dumps({}))
    assert refused("show", tmp_path / "text", "--png", tmp_path / "x").endswith("is not a trace (not a Parquet file)")
    Trace(None).save(tmp_path / "blank")
    assert refused("show", tmp_path / "blank", "--svg", tmp_path / "x").endswith("without spans cannot be drawn")


def test_a_reader_that_has_enough(saved):
    command = f"{sys.executable} -m kosmos show {saved} | head -c 1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("o", "")


# doctor


@runs_kernels
def test_doctor(run):
    code, out, err = run("doctor")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    for package in ("python", "torch", "triton", "greenlet", "numpy", "pyarrow", "matplotlib"):
        (line,) = [line for line in lines if line[0] == package]
        assert line[-1] == "ok" and line[-2].startswith(">=")
    (emulator,) = [line for line in lines if line[0] == "emulator"]
    assert emulator[-1] == "ok"


@runs_kernels
def test_doctor_finds_a_wrong_kernel(run, monkeypatch):
    monkeypatch.setattr("kosmos.doctor.reference.relative_error", lambda *_: 0.5)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = run("doctor")
    (emulator,) = [line for line in out.splitlines() if line.startswith("  emulator")]
    assert code == 1 and emulator.endswith("FAILED")
    assert "cpu: all_gather_matmul in torch.bfloat16 is off by 5.0e-01; 0.01 is allowed" in out


@pytest.mark.parametrize("absent", [["torch"], ["triton"], ["greenlet"], ["torch", "triton", "numpy", "pyarrow"]])
def test_doctor_without(absent):
    code = (
        "import importlib.metadata as metadata, sys\n"
        f"absent = {absent}\n"
        "sys.modules |= dict.fromkeys(absent)\n"  # import torch raises ModuleNotFoundError
        "version = metadata.version\n"
        "def missing(name):\n"
        "    if name in absent: raise metadata.PackageNotFoundError(name)\n"
        "    return version(name)\n"
        "metadata.version = missing\n"
        "if 'torch' not in absent:\n"
        "    import torch\n"
        "    torch.cuda.is_available = lambda: False\n"
        "from kosmos.cli import main\n"
        "sys.exit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    for package in absent:
        (line,) = [line for line in lines if line.startswith(f"  {package}  ")]
        assert line.endswith("missing")
        (advice,) = [line for line in lines if line.startswith(f"  {package} is missing, ")]
        assert f'pip install "{package}>=' in advice
    (emulator,) = [line for line in lines if line.startswith("  emulator")]
    assert emulator.endswith("missing")


def test_ranges_are_those_of_the_package():
    from kosmos.doctor.installed import NEEDED_FOR, fits, requirements

    python, ranges = requirements()
    assert python == ">=3.11" and {*NEEDED_FOR} <= {*ranges}
    assert ranges["triton"] == ">=3.6,<3.10" and ranges["pyarrow"] == ">=18"
    inside = ["3.6.0", "3.9.0", "3.9.0+git1a2b", "3.9", "3.6.0.post1"]
    outside = ["3.5.9", "3.10.0", "4.0", "3"]
    assert all(fits(version, ranges["triton"]) for version in inside)
    assert not any(fits(version, ranges["triton"]) for version in outside)
    assert fits("2.13.0+rocm7.2", ">=2.11,<3") and not fits("3.0.0", ">=2.11,<3")


def test_two_tritons_over_each_other(monkeypatch):
    from kosmos.doctor import installed

    monkeypatch.setattr(installed, "_distributions", lambda name: {"triton-rocm": "3.6.0", "triton": "3.7.1"})
    package = installed._package("triton", ">=3.6,<3.10")
    assert package.verdict == "FAILED" and package.advice.startswith(
        "triton and triton-rocm overwrite each other's files"
    )
