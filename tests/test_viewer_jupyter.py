"""The viewer as a person has it: in JupyterLab, in a browser, with five million spans."""

import base64
import io
import json
import os
import re
import time

import numpy as np
import pytest

pytest.importorskip("anywidget")
pytest.importorskip("jupyterlab")
playwright = pytest.importorskip("playwright.sync_api")

from jupyter_page import ARGUMENTS, CHROMIUM, WIDGETS, Lab, Notebook  # noqa: E402
from PIL import Image  # noqa: E402
from test_trace import scheduled  # noqa: E402

from kosmos.trace import ROLES  # noqa: E402
from kosmos.trace.colours import PALETTE  # noqa: E402

pytestmark = [pytest.mark.browser, pytest.mark.speed]

GUTTER = 128  # pixels to the left of the lanes, as in the style sheet
PATIENCE = 3
"""Times are printed beside their targets and asserted at so many times them: a machine that others use is slow, only
what is broken is slower than that. Sizes do not depend on the machine and are asserted as they are."""

SHARP = "canvas.base[data-sharp=true]"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI has to install chromium")
        pytest.skip("needs a browser, and there is no chromium or chrome")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture
def open_page(browser):
    """Pages without animations; what goes wrong in them fails the test."""
    contexts, errors = [], []

    def call(**options):
        context = browser.new_context(viewport={"width": 1300, "height": 1100}, reduced_motion="reduce", **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield call
    for context in contexts:
        context.close()
    assert not errors


@pytest.fixture
def notebook(lab, open_page, request):
    """Open a notebook of these cells."""
    name = re.sub(r"\W+", "_", request.node.name)
    yield lambda *cells: Notebook(lab, open_page(), f"{name}.ipynb", *cells)
    lab.end_kernels()


def sharp(place, seconds=20):
    """Wait until what is shown has been answered."""
    place.locator(SHARP).first.wait_for(state="attached", timeout=1000 * seconds)


def lanes_of(place):
    """The pixels right of the gutter, uint8 [height, width, 3], and the colour of the background."""
    url = place.locator("canvas.base").first.evaluate("canvas => canvas.toDataURL()")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"))
    return pixels[:, GUTTER:], pixels[0, 0]


def expected_lanes(trace, t0, t1, width, background):
    """What each lane of a trace without faults has to look like: float64 [lanes, width, 3]."""
    edges = t0 + (t1 - t0) / width * np.arange(width + 1)
    lanes = np.tile(background.astype(float), (trace.ranks * trace.workgroups, width, 1))
    for span in trace.spans.to_pylist():
        lane = span["rank"] * trace.workgroups + span["workgroup"]
        for kind, since, until in (
            ("wait", span["claim_ns"], span["start_ns"]),
            (span["role"], span["start_ns"], span["end_ns"]),
        ):
            share = (np.minimum(edges[1:], until) - np.maximum(edges[:-1], since)).clip(0) / ((t1 - t0) / width)
            code = PALETTE[kind].removeprefix("#").ljust(8, "f")
            *colour, alpha = (int(code[at : at + 2], 16) for at in (0, 2, 4, 6))
            lanes[lane] += share[:, None] * alpha / 255 * (np.array(colour) - background)
    return lanes


def assert_painted(place, trace, t0, t1, seconds=10):
    """Soon every line of pixels is that of a lane, from the first lane to the last, within 2 levels, or empty."""
    until = time.monotonic() + seconds
    while True:
        try:
            return assert_painted_now(place, trace, t0, t1)
        except AssertionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def assert_painted_now(place, trace, t0, t1):
    pixels, background = lanes_of(place)
    expected = expected_lanes(trace, t0, t1, pixels.shape[1], background)
    seen = [0]
    for line in pixels.astype(float):
        if np.abs(line - background).max() > 2:
            off = np.abs(expected[seen[-1] :] - line).max(axis=(1, 2))
            assert off.min() <= 2, f"a line is {off.min():.1f} levels off every lane from {seen[-1]} on"
            seen.append(seen[-1] + int((off <= 2).argmax()))
    for lane, line in enumerate(expected):  # neighbours may look the same
        alike = np.abs(expected[seen] - line).max(axis=(1, 2)) <= 2
        assert alike.any() or np.abs(line - background).max() <= 2, f"lane {lane} is not to be seen"


LARGE = (
    """
import resource, time
import kosmos
from generated import generated

def memory(key="VmRSS"):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024

trace = generated(5_000_000)
kosmos.Trace(None).summary()
""",
    """
open("/proc/self/clear_refs", "w").write("5")  # the peak from here on
before = memory()
viewer = trace.view()
took = []
answer = viewer._detail.answer
def timed(request, buffers=()):
    start = time.perf_counter()
    try:
        return answer(request, buffers)
    finally:
        took.append((request["ask"], time.perf_counter() - start))
viewer._detail.answer = timed
viewer
""",
    """
import json, statistics
until = time.monotonic() + 30
while viewer.meta["traces"][0]["problems"] is None and time.monotonic() < until:
    time.sleep(0.1)
tables = trace.spans.nbytes + trace.queue.nbytes
pictures = [seconds for ask, seconds in took if ask == "picture"]
print(json.dumps({
    "tables": tables, "used": tables + memory("VmHWM") - before, "problems": len(viewer.meta["traces"][0]["problems"]),
    "pictures": len(pictures), "median": statistics.median(pictures), "slowest": max(pictures),
}))
""",
)

STEPS = """
async (lanes) => {
  const base = lanes.querySelector("canvas.base");
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const took = [];
  lanes.focus();
  for (const key of [..."wwwwdddaasssswwdwdwdwawasss"]) {
    const since = performance.now();
    const event = { key, code: `Key${key.toUpperCase()}`, bubbles: true, composed: true };
    lanes.dispatchEvent(new KeyboardEvent("keydown", event));
    lanes.dispatchEvent(new KeyboardEvent("keyup", event));
    let moved = false;
    while (performance.now() - since < 3000) {
      await frame();
      moved ||= base.dataset.sharp === "false";
      if (moved && base.dataset.sharp === "true") break;
    }
    took.push(performance.now() - since);
    await new Promise((done) => setTimeout(done, 30));
  }
  return took;
}
"""

FIRST_PICTURE = """
async (prompt) => {
  const sharp = () => {
    const shell = document.querySelector(".kosmos-viewer");
    return shell?.shadowRoot.querySelector("canvas.base")?.dataset.sharp === "true";
  };
  let ended = null;
  for (;;) {
    await new Promise((done) => setTimeout(done, 5));
    if (ended === null && /\\d/.test(prompt.textContent)) ended = performance.now();
    if (ended !== null && sharp()) return performance.now() - ended;
    if (ended !== null && performance.now() - ended > 20000) return Infinity;
  }
}
"""


def test_five_million_spans(notebook):
    book = notebook(*LARGE)
    empty = len((book.lab.notebooks / book.name).read_bytes())
    book.run(0)
    prompt = book.cell(1).locator(".jp-InputArea-prompt").element_handle()
    book.start(1)
    first_ms = book.page.evaluate(FIRST_PICTURE, prompt)
    steps_ms = book.cell(1).locator(".lanes").evaluate(STEPS)
    told = json.loads(book.run(2))
    print(
        f"first picture {first_ms:.0f} ms after the cell (target 2000), steps {np.median(steps_ms):.0f} ms (100), "
        f"answers {1000 * told['median']:.0f} ms (50), memory {told['used'] / told['tables']:.2f} tables (3), {told}"
    )
    assert first_ms <= 2000 * PATIENCE and np.median(steps_ms) <= 100 * PATIENCE
    # a slow machine moves on before every picture has come
    assert told["pictures"] >= 10 and told["median"] <= 0.05 * PATIENCE
    assert told["used"] <= 3 * told["tables"] and told["problems"] > 0
    grown = len(json.dumps(book.save())) - empty
    assert 10_000 < grown <= 2_000_000


SMALL = "import kosmos\nfrom test_trace import scheduled\ntrace = scheduled(3)"


def test_a_cell_that_runs_again_leaves_one_viewer(notebook):
    book = notebook(SMALL, "trace.view()", "viewer = trace.view()", "viewer")
    sizes = []
    book.run(0)
    for times in (1, 20):
        for _ in range(times):
            book.run(1)
        for _ in range(min(times, 3)):
            book.run(2)
            book.run(3)
        sharp(book.cell(1))
        sharp(book.cell(3))
        saved = book.save()
        state = saved.metadata["widgets"][WIDGETS]["state"]
        assert [model["model_name"] for model in state.values()].count("AnyModel") == 2
        sizes.append(len(json.dumps(saved)))
    assert sizes[1] - sizes[0] < 1000


def test_what_is_painted_is_what_happened(notebook):
    trace = scheduled(3)
    length = int(trace.spans["end_ns"].to_numpy().max())
    windows = [(length // 3, length // 2), (length // 2, length // 2 + 20)]
    book = notebook(
        SMALL, "viewer = trace.view()\nviewer", *(f"viewer.window = {{'t0': {a}, 't1': {b}}}" for a, b in windows)
    )
    book.run(0)
    book.run(1)
    sharp(book.cell(1))
    assert_painted(book.cell(1), trace, 0, length)
    for number, window in enumerate(windows):
        book.run(2 + number)
        assert_painted(book.cell(1), trace, *window)


KEYS = (
    *"wasdf0,.m/pgcl?+-=WASDFMPGCL",
    *(
        "ArrowLeft",
        "ArrowRight",
        "ArrowUp",
        "ArrowDown",
        "Enter",
        "Tab",
        "Delete",
        "Backspace",
        "PageDown",
        "Home",
        "End",
    ),
    *"ddxzyvbijkhr123ooii00",
    *("Space", "Shift+Enter", "Control+Enter", "Alt+Enter", "Shift+A", "Shift+M"),
)


def test_no_key_edits_the_notebook_and_escape_gives_the_keyboard_back(notebook):
    book = notebook(SMALL, "viewer = trace.view()\nviewer", "print(viewer.window)")
    book.run(0)
    book.run(1)
    sharp(book.cell(1))
    before = book.sources()
    lanes = book.cell(1).locator(".lanes")
    lanes.click(position={"x": 400, "y": 60})
    for key in KEYS:
        book.page.keyboard.press("Escape")  # out of what the key before has opened
        lanes.focus()
        book.page.keyboard.press(key)
        if key in "/?":
            book.page.keyboard.type("dd")  # into what has opened
    assert book.sources() == before
    assert book.cell(1).locator(".kosmos-viewer").count() == 1
    lanes.focus()
    assert [cell.source for cell in book.save().cells] == before
    lanes.focus()
    for _ in range(3):
        book.page.keyboard.press("Escape")
    book.page.keyboard.press("a")
    book.page.locator(".jp-Notebook-cell").nth(3).wait_for(timeout=5000)
    assert [source.strip() for source in book.sources()] == [before[0], "", *before[1:]]


def test_selection_goes_both_ways_and_views_are_independent(notebook):
    book = notebook(
        SMALL,
        "one = trace.view()\none",
        "two = trace.view()\ntwo",
        "one.select(40, 90, [1, 2])\nprint(one.window, two.window, two.selection)",
        "print(one.selection, two.selection, two.selected().num_rows)",
    )
    for number in range(3):
        book.run(number)
    sharp(book.cell(1))
    sharp(book.cell(2))
    still = lanes_of(book.cell(2))[0]
    assert book.run(3).strip() == "{'t0': 38, 't1': 92} None None"
    assert_painted(book.cell(1), scheduled(3), 38, 92)
    assert (lanes_of(book.cell(2))[0] == still).all()
    box = book.cell(2).locator(".lanes").bounding_box()
    book.page.mouse.move(box["x"] + 300, box["y"] + 30)
    book.page.keyboard.down("Shift")
    book.page.mouse.down()
    book.page.mouse.move(box["x"] + 500, box["y"] + 90, steps=5)
    book.page.mouse.up()
    book.page.keyboard.up("Shift")
    until = time.monotonic() + 20
    while not (told := re.fullmatch(r"(\{.*?\}) (\{.*?\}) (\d+)", book.run(4).strip())):
        assert time.monotonic() < until, "what was dragged does not come to the kernel"
    assert told and eval(told[1]) == {"t0": 40, "t1": 90, "lanes": [1, 2]}
    dragged = eval(told[2])
    length = int(scheduled(3).spans["end_ns"].to_numpy().max())
    width = box["width"] - GUTTER
    assert abs(dragged["t0"] - (300 - GUTTER) / width * length) <= 2
    assert abs(dragged["t1"] - (500 - GUTTER) / width * length) <= 2
    assert int(told[3]) > 0 and dragged["lanes"]


def test_a_kernel_that_restarts_leaves_the_overview_and_a_sentence(notebook):
    book = notebook(SMALL, "viewer = trace.view()\nviewer")
    book.run(0)
    book.run(1)
    sharp(book.cell(1))
    book.cell(0).locator(".jp-InputArea-prompt").click()
    book.page.keyboard.press("0")
    book.page.keyboard.press("0")
    book.page.locator(".jp-Dialog .jp-mod-warn, .jp-Dialog .jp-mod-accept").last.click()
    book.page.wait_for_timeout(1000)
    book.page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=30_000)
    lanes = book.cell(1).locator(".lanes")
    lanes.click(position={"x": 400, "y": 60})
    book.page.keyboard.press("w")
    note = book.cell(1).locator(".note")
    note.wait_for(state="visible", timeout=10_000)
    assert "kernel" in note.inner_text() and "overview" in note.inner_text()
    pixels, background = lanes_of(book.cell(1))
    assert (np.abs(pixels.astype(int) - background).max(axis=2) > 20).mean() > 0.2


def test_a_notebook_without_its_widgets_shows_the_snapshot(notebook):
    nbconvert = pytest.importorskip("nbconvert")
    book = notebook(SMALL, "viewer = trace.view()\nviewer")
    book.run(0)
    book.run(1)
    sharp(book.cell(1))
    saved = book.save()
    assert {"image/png", "application/vnd.jupyter.widget-view+json"} <= saved.cells[1].outputs[0].data.keys()
    del saved.metadata["widgets"]  # JupyterLab saves them if it is told to
    html, _ = nbconvert.HTMLExporter().from_notebook_node(saved)
    png = saved.cells[1].outputs[0].data["image/png"].replace("\n", "")
    assert f"data:image/png;base64,{png[:200]}" in html.replace("\n", "")


def test_the_html_works_without_a_network(open_page, tmp_path):
    trace = scheduled(3)
    length = int(trace.spans["end_ns"].to_numpy().max())
    trace.to_html(tmp_path / "run.html")
    page = open_page(offline=True)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "run.html").as_uri())
    sharp(page)
    assert_painted(page, trace, 0, length)
    lanes = page.locator(".lanes")
    lanes.click(position={"x": GUTTER + 300, "y": 60})
    before = lanes_of(page)[0]
    page.keyboard.press("w")
    until = time.monotonic() + 20
    while not (lanes_of(page)[0] != before).any():
        assert time.monotonic() < until, "it does not zoom"
        page.wait_for_timeout(50)
    sharp(page)
    assert {url.partition(":")[0] for url in asked} <= {"file", "blob", "data"}


def test_the_html_of_five_million_spans(open_page, tmp_path):
    from generated import generated

    path = tmp_path / "large.html"
    generated(5_000_000).to_html(path)
    assert path.stat().st_size < 60_000_000
    page = open_page(offline=True)
    since = time.monotonic()
    page.goto(path.as_uri())
    sharp(page, 60)
    print(f"{path.stat().st_size / 1e6:.0f} MB, shown after {time.monotonic() - since:.1f} s")
    pixels, background = lanes_of(page)
    assert (np.abs(pixels.astype(int) - background).max(axis=2) > 20).mean() > 0.5


def test_the_palette_of_the_page_is_that_of_the_plots():
    from kosmos.viewer import page

    code = page.bundle().lower()
    missing = [name for name in (*ROLES, "wait") if PALETTE[name].lower()[:7] not in code]
    assert not missing
