"""rocprofv3 around a command: a stand-in on the PATH that runs it and writes rocpd files to ROCm's published schema."""

import ctypes
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kosmos
from kosmos import rocprof
from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError
from kosmos.trace import Trace

TESTS = Path(__file__).parent


# Runs what it is given, and leaves the dispatches and markers that the command writes into the file MARKS.
STAND_IN = """\
#!{python}
import os, subprocess, sys
sys.path.insert(0, {tests!r})
arguments = sys.argv[1:]
split = arguments.index("--")
options, command = arguments[:split], arguments[split + 1:]
assert {{"--kernel-trace", "--marker-trace"}} <= {{*options}}
assert options[options.index("--output-format") + 1] == "rocpd"
folder = options[options.index("--output-directory") + 1]
code = subprocess.run(command).returncode
if code:
    sys.exit(code)
from test_rocpd import Rocpd
where = os.path.join(folder, "host")
os.makedirs(where)
for number in range({processes}):
    file = Rocpd(os.path.join(where, f"kosmos_{{number}}_results.db"), {version})
    base = 5_000_000_000 + 1000 * number
    {fill}
    file.done()
"""

ONE_OF_OURS = """
    file.dispatch("setup_kernel", 0, base, base + 500)
    file.dispatch("all_gather_matmul_kernel", 0, base + 10_000, base + 20_000)
    file.dispatch("all_gather_matmul_kernel", 0, base + 70_000, base + 90_000)
    file.marker("kosmos all_gather_matmul one_way:3", base + 60_000, base + 61_000)
"""


@pytest.fixture
def profiler(tmp_path, monkeypatch):
    """Puts a rocprofv3 on the PATH that writes `fill` for each of so many processes."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def install(fill=ONE_OF_OURS, version=3, processes=1):
        script = folder / "rocprofv3"
        text = textwrap.dedent(fill).strip().replace("\n", "\n    ")
        filled = STAND_IN.format(
            python=sys.executable, tests=str(TESTS), fill=text, version=version, processes=processes
        )
        script.write_text(filled)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))

    return install


def command(text):
    return [sys.executable, "-c", text]


def test_without_rocm_one_sentence_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert rocprof.find() is None
    with pytest.raises(KosmosEnvironmentError, match="rocprofv3 is not installed here: it comes with ROCm 7") as caught:
        rocprof.run(["true"])
    assert "\n" not in str(caught.value)


def test_rocm_path_is_looked_at_too(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "rocprofv3"
    script.write_text("")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert rocprof.find() == str(script)


@pytest.mark.parametrize("wrong", ["python train.py", [], [1], None])
def test_a_command_is_a_list_of_words(wrong):
    with pytest.raises(KosmosArgumentError, match="command=.* must be a list of words"):
        rocprof.run(wrong)


@pytest.mark.parametrize("version", [3, 4])
def test_dispatches_and_markers_come_back(profiler, version, tmp_path):
    profiler(version=version)
    marked = tmp_path / "asked"
    trace = rocprof.run(command(f"import os; open({str(marked)!r}, 'w').write(os.environ['KOSMOS_ROCTX'])"))
    assert marked.read_text() == "1"
    ranges = trace.ranges.to_pylist()
    named = {(one["rank"], one["name"]): one["end_ns"] - one["start_ns"] for one in ranges}
    assert named[-1, "kosmos all_gather_matmul one_way:3"] == 1000
    ours = [one for one in ranges if one["name"] == "all_gather_matmul_kernel"]
    assert [one["end_ns"] - one["start_ns"] for one in ours] == [10_000, 20_000]
    assert {one["rank"] for one in ours} == {0}
    assert len(trace.spans) == 0


def test_the_profile_comes_beside_the_trace_that_the_command_saved(profiler, tmp_path):
    profiler()
    file = tmp_path / "run.parquet"
    spans = {"rank": [0], "workgroup": [0], "role": ["builder"], "item": [0]}
    times = {"claim_ns": [400], "start_ns": [500], "end_ns": [19_000], "cycles": [9], "unit": [0]}
    Trace({**spans, **times}, meta={"op": "all_gather_matmul"}).save(file)
    kept = tmp_path / "kept.db"
    trace = rocprof.run(command("pass"), trace=file, keep=kept)
    assert trace.spans["claim_ns"].to_pylist() == [400]
    starts = {one["start_ns"]: one["end_ns"] for one in trace.ranges.to_pylist() if "matmul_kernel" in one["name"]}
    # the last dispatch of the kernel is this launch, the one before it a warm-up
    assert starts == {400: 20_400, 400 - 60_000: 400 - 50_000}
    assert len(Trace.from_rocpd(kept).ranges) == 4


def test_several_processes_share_one_axis(profiler):
    profiler(processes=2)
    trace = rocprof.run(command("pass"))
    starts = [one["start_ns"] for one in trace.ranges.to_pylist() if one["name"] == "setup_kernel"]
    assert sorted(starts) == [0, 1000]


def test_a_profile_without_our_kernel_cannot_be_put_beside_a_trace(profiler, tmp_path):
    profiler(fill="file.dispatch('other', 0, base, base + 9)")
    file = tmp_path / "run.parquet"
    Trace(None, meta={"op": "all_gather_matmul"}).save(file)
    with pytest.raises(KosmosEnvironmentError, match="no dispatch of all_gather_matmul_kernel is in the profile"):
        rocprof.run(command("pass"), trace=file)


def test_what_goes_wrong_in_the_command_is_told(profiler):
    profiler()
    with pytest.raises(KosmosEnvironmentError, match="ended with the exit code 3 under rocprofv3"):
        rocprof.run(command("import sys; sys.exit(3)"))


def test_no_file_is_told(profiler):
    profiler(processes=0)
    with pytest.raises(KosmosEnvironmentError, match="has written no rocpd file"):
        rocprof.run(command("pass"))


ROCTX = """
#include <stdio.h>
static int depth;
static void say(const char *what, const char *text) {
    FILE *file = fopen(getenv_path(), "a");
    fprintf(file, "%s %s\\n", what, text);
    fclose(file);
}
int roctxRangePushA(const char *message) { say("push", message); return depth++; }
int roctxRangePop(void) { say("pop", "-"); return --depth; }
"""


@pytest.fixture
def roctx(tmp_path, monkeypatch):
    """A libroctx that writes what it is told into a file; the file's path."""
    log = tmp_path / "marks"
    source = tmp_path / "roctx.c"
    source.write_text(ROCTX.replace("getenv_path()", f'"{log}"'))
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "librocprofiler-sdk-roctx.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a C compiler")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(rocprof, "_roctx", rocprof._Roctx())
    return log


def test_launches_are_ranges(roctx):
    with rocprof.launch_range("all_gather_matmul", "one_way:3"):
        pass
    assert not roctx.exists()  # nobody asked for it
    assert rocprof.mark_launches() and rocprof.why_not_marked() == ""
    with pytest.raises(ZeroDivisionError), rocprof.launch_range("all_gather_matmul", "one_way:3"):
        raise ZeroDivisionError
    assert roctx.read_text().splitlines() == ["push kosmos all_gather_matmul one_way:3", "pop -"]


def test_without_roctx_launches_are_not_marked(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(rocprof, "_roctx", rocprof._Roctx())

    def nothing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", nothing)
    assert not rocprof.mark_launches()
    assert "cannot be loaded" in rocprof.why_not_marked()
    with rocprof.launch_range("all_gather_matmul", "one_way:3"):
        pass


def test_the_module_is_found_by_its_name():
    assert kosmos.rocprof.run is rocprof.run
