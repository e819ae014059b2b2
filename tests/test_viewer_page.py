"""The viewer's page in Chromium: what it paints, what keys and pointer do, what it says, what it writes."""

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from browser import launch
from matplotlib.colors import to_rgba
from viewer_page import BUNDLE, WAIT, Page, coverage, generated

from kosmos.plots import PALETTE
from kosmos.trace import ROLES, Trace
from kosmos.trace.schema import numbers

SOURCES = Path(__file__).parents[1] / "kosmos" / "viewer" / "src"
RECORDED = Path(__file__).parents[1] / "traces" / "h200"
GUTTER = 128  # px left of the lanes


def recorded(name: str) -> Trace:
    return Trace.load(RECORDED / f"{name}.parquet")


# ---- the bundle


def test_bundle_is_small_and_asks_nobody():
    text = BUNDLE.read_text()
    assert len(text.encode()) <= 300_000
    assert "</script" not in text
    hosts = set(re.findall(r"https?://[\w.-]+", text))
    assert hosts <= {"http://www.w3.org"}  # names of SVG


def test_bundle_is_what_the_sources_make(tmp_path):
    esbuild = SOURCES / "node_modules" / ".bin" / "esbuild"
    if not esbuild.exists():
        pytest.skip("esbuild is not installed: make viewer")
    build = json.loads((SOURCES / "package.json").read_text())["scripts"]["build"].split()
    build[0] = str(esbuild)
    build[-1] = f"--outfile={tmp_path / 'viewer.js'}"
    subprocess.run(build, cwd=SOURCES, check=True, capture_output=True)
    assert (tmp_path / "viewer.js").read_bytes() == BUNDLE.read_bytes(), "make viewer builds it anew"


def test_scripts_pass_their_own_tests():
    node = shutil.which("node")
    if node is None or not (SOURCES / "node_modules" / "d3-array").exists():
        pytest.skip("node or the packages of the page are not installed: make viewer")
    done = subprocess.run([node, "--test"], cwd=SOURCES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_lock_file_names_no_host():
    assert "://" not in re.sub(r'"url": "https://[^"]*"', "", (SOURCES / "package-lock.json").read_text())


# ---- in the browser


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


class Opened:
    """A page with a view in it, and what a person does there."""

    def __init__(self, context, page, data: Page) -> None:
        self.context, self.page, self.data = context, page, data

    def run(self, script: str, argument=None):
        return self.page.evaluate(script, argument)

    @property
    def box(self) -> dict:
        return self.page.locator(".lanes").first.bounding_box()

    def settle(self) -> None:
        """Until the sharp picture of where the view came to rest is painted."""
        self.page.wait_for_function("view.target === undefined || view.target === null", timeout=10_000, polling=20)
        self.page.wait_for_function(
            """() => { const key = [view.t0, view.t1, view.layout.scroll, view.layout.lane, view.tab].join();
            const calm = !view.frame && view.base2d.dataset.sharp === "true" && !view.desk.waiting();
            const rest = window.was === key && calm; window.was = key; return rest; }""",
            timeout=10_000,
            polling=40,
        )

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def window(self) -> tuple[float, float]:
        return tuple(self.run("[view.t0, view.t1]"))

    def says(self) -> str:
        return self.page.locator(".said").inner_text()

    def point(self, lane: int, t: float) -> tuple[float, float]:
        """Where a lane is at a time, in the page."""
        y, x = self.run(
            "([lane, t]) => { const p = view.layout.place(lane); return [p.y + p.h / 2, view.xOf(t)]; }", [lane, t]
        )
        return self.box["x"] + x, self.box["y"] + y

    def rows(self) -> list[int]:
        """A row of pixels of every lane, -1 for those that have none of their own."""
        return self.run(
            """[...view.layout.rowOf].map((row) => view.layout.rows[row])
            .map((row) => (row && row.lane >= 0 ? (row.y0 + row.y1) >> 1 : -1))"""
        )

    def span(self, index: int) -> dict:
        names = ("lane", "role", "claim", "start", "end")
        return {name: int(getattr(self.data, name)[index]) for name in names}

    def click_span(self, index: int) -> dict:
        span = self.span(index)
        self.page.mouse.click(*self.point(span["lane"], (span["start"] + span["end"]) / 2))
        self.page.wait_for_function("index => view.selected?.index === index", arg=index)
        self.settle()
        return span

    def pixels(self, canvas: str = "canvas.base") -> np.ndarray:
        """[height][width][4] of a canvas, right of the names."""
        flat = self.run(
            """name => { const c = view.root.querySelector(name); const x = Math.round(128 * view.ratio);
            const d = c.getContext("2d").getImageData(x, 0, c.width - x, c.height);
            let text = ""; for (let i = 0; i < d.data.length; i += 8192)
              text += String.fromCharCode(...d.data.subarray(i, i + 8192));
            return [d.width, d.height, btoa(text)]; }""",
            canvas,
        )
        import base64

        width, height, text = flat
        return np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)

    def background(self) -> np.ndarray:
        return np.array(self.run("view.theme.background.slice(0, 3)"), float)


@pytest.fixture
def show(chromium, tmp_path):
    """Opens traces as a page; afterwards: no message on the console, nobody else was asked for anything."""
    contexts, messages, requests = [], [], []

    def opened(
        *traces: Trace,
        ratio: float = 1,
        width: int = 1000,
        attributes="",
        dark=False,
        titles=None,
        height=None,
        ranges=None,
    ) -> Opened:
        data = Page(*traces, titles=titles)
        if ranges:
            data.add_ranges(ranges)
        data.json["options"] = {} if height is None else {"height": height}
        path = tmp_path / f"{len(contexts)}.html"
        path.write_text(data.html(attributes))
        context = chromium.new_context(
            viewport={"width": width, "height": 700},
            device_scale_factor=ratio,
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        # of reading pixels back, as only a test does, Chromium says that it is slow
        page.on("console", lambda message: "getImageData" in message.text or messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(f"{error}\n{error.stack}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function("window.view !== undefined", timeout=30_000)
        view = Opened(context, page, data)
        view.settle()
        return view

    yield opened
    for context in contexts:
        context.close()
    assert not messages
    assert all(url.startswith(("file:", "blob:")) for url in requests), requests


def blend(cover: np.ndarray, background: np.ndarray) -> np.ndarray:
    """[rows][width][3] of what the coverage [7][rows][width] is painted as."""
    image = np.broadcast_to(background, (*cover.shape[1:], 3)).copy()
    for kind in range(7):
        *colour, alpha = to_rgba(PALETTE["wait" if kind == WAIT else ROLES[kind]])
        image += alpha * (cover[kind, :, :, None] / 255) * (255 * np.array(colour) - background)
    return image.clip(0, 255)


browser = pytest.mark.browser


@browser
@pytest.mark.parametrize("ratio", [1, 2, 1.5])
def test_pixels_are_the_coverage(show, ratio):
    view = show(recorded("all_gather_matmul_one_way6_20gbps"), ratio=ratio)
    data = view.data
    rows = np.arange(data.lanes)
    for t0, t1 in [(0, data.length), (300_000, 900_000), (1_200_000, 1_215_000), (731_111, 731_900)]:
        view.run("([t0, t1]) => view.go(t0, t1)", [t0, t1])
        view.settle()
        pixels = view.pixels()
        shown = view.window()
        assert shown == pytest.approx((t0, t1))
        want = blend(data.coverage(*shown, pixels.shape[1], data.lanes, rows), view.background())
        assert np.abs(pixels[view.rows()][:, :, :3] - want).max() <= 2.5, f"{t0} to {t1}"


@browser
def test_pixels_that_several_lanes_share(show):
    trace = generated(4, 256, 12)
    view = show(trace)
    data = view.data
    for t0, t1 in [(0, data.length), (4_000, 9_000)]:
        view.run("([t0, t1]) => view.go(t0, t1)", [t0, t1])
        view.settle()
        pixels = view.pixels()
        blocks = view.run("view.layout.blocks.map(b => [Math.round(b.y), Math.round(b.y + b.h), b.lanes[0]])")
        row_of = np.full(data.lanes, -1)
        for y0, y1, first in blocks:
            row_of[first : first + 256] = y0 + np.arange(256) * (y1 - y0) // 256
        want = blend(data.coverage(t0, t1, pixels.shape[1], len(pixels), row_of), view.background())
        used = np.unique(row_of)
        assert len(used) < data.lanes
        assert np.abs(pixels[used][:, :, :3] - want[used]).max() <= 2.5


@browser
def test_thin_wait_is_not_lost(show):
    """One wait of 0.2 % of a pixel's time, in one of eight lanes, moves the pixel's colour sum, if only by a little."""
    spans = {"rank": [0, 0], "workgroup": [0, 0], "role": ["builder", "builder"], "item": [0, 1]}
    spans |= {"claim_ns": [0, 500_000], "start_ns": [0, 560_000], "end_ns": [500_000, 1_000_000]}
    spans |= {"cycles": [1, 1], "unit": [0, 0]}
    view = show(Trace(spans, meta={"ranks": 1, "workgroups": 1}))
    pixels = view.pixels()[5, :, :3].astype(int)
    plain = np.abs(pixels - pixels[10]).sum(axis=1)
    touched = np.flatnonzero(plain > 6)
    width = pixels.shape[0]
    assert touched.min() == pytest.approx(0.5 * width, abs=1.5) and touched.max() == pytest.approx(
        0.56 * width, abs=1.5
    )


@browser
def test_queue_is_items_over_time(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    view.page.get_by_role("tab", name="Queue").click()
    view.settle()
    queues = view.run("view.queues.map(q => [q.y, q.h, q.items, q.role])")
    assert [ROLES[role] for *_, role in queues] == ["mover", "builder"]
    data, pixels = view.data, view.pixels()
    trace = data.traces[0]
    rank, role, item = numbers(trace.spans, "rank", "role", "item")
    for y, h, items, code in queues:
        mine = (rank == 0) & (role == code)
        row_of = np.arange(items) * min(items, h) // items
        columns = (data.role, data.claim, data.start, data.end)
        shared, row = np.bincount(row_of), row_of[item[mine]]
        cover = coverage(row, *(column[mine] for column in columns), shared, 0, data.length, pixels.shape[1])
        assert len(shared) == h  # a row of pixels each
        assert np.abs(pixels[y : y + h, :, :3] - blend(cover, view.background())).max() <= 2.5, ROLES[code]
    # the spans of the queue can be pointed at and chosen
    index = int(np.flatnonzero((rank == 0) & (role == 1))[40])
    y, h, items, _ = queues[1]
    x = view.box["x"] + view.run("t => view.xOf(t)", int(data.start[index] + data.end[index]) / 2)
    view.page.mouse.click(x, view.box["y"] + y + (item[index] + 0.5) / items * h)
    view.page.wait_for_function("view.selected !== null")
    assert f"builder item {item[index]}" in view.says()
    view.page.get_by_label("Queues of which rank").select_option("0/2")
    view.settle()
    assert view.run("view.queues.map(q => q.rank)") == [2, 2]
    view.page.locator(".lanes").focus()
    view.press("v")
    assert view.run("view.tab") == "lanes"


@browser
def test_moving(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    length = view.data.length
    x, y = view.box["x"] + GUTTER + 400, view.box["y"] + 60
    view.page.mouse.click(x, y)
    at = view.run("x => view.tOf(x)", GUTTER + 400)

    def under():
        return view.run("x => view.tOf(x)", GUTTER + 400)

    view.press("w", "w")
    t0, t1 = view.window()
    assert t1 - t0 == pytest.approx(length / 1.5**2)
    assert under() == pytest.approx(at, abs=length / 800)
    view.press("d")
    assert view.window()[0] - t0 == pytest.approx((t1 - t0) / 4, abs=1)
    view.press("a")
    assert view.window()[0] == pytest.approx(t0, abs=1)
    view.press("s", "s")
    assert view.window() == pytest.approx((0, length), abs=length / 100)
    view.page.keyboard.down("Control")
    view.page.mouse.wheel(0, -240)
    view.page.keyboard.up("Control")
    view.settle()
    t0, t1 = view.window()
    assert t1 - t0 < 0.8 * length
    assert under() == pytest.approx(at, abs=length / 500)
    view.page.mouse.down()
    view.page.mouse.move(x + 90, y, steps=3)
    view.page.mouse.up()
    view.settle()
    moved = (t1 - t0) * 90 / (view.box["width"] - GUTTER)
    assert view.window()[0] == pytest.approx(t0 - moved, rel=0.01, abs=1)
    view.page.keyboard.down("Shift")
    view.page.mouse.wheel(0, 90)
    view.page.keyboard.up("Shift")
    view.settle()
    assert view.window()[0] == pytest.approx(t0, rel=0.01, abs=1)
    lane = view.run("view.layout.lane")
    view.press("+", "+", "+", "+")
    assert view.run("view.layout.lane") > 3 * lane
    scroll = view.run("view.layout.scroll")
    view.page.mouse.wheel(0, 60)
    view.settle()
    assert view.run("view.layout.scroll") == pytest.approx(scroll + 60)
    view.press("0")
    assert view.window() == (0, length)
    assert view.run("view.layout.lane") == pytest.approx(lane)
    mini = view.page.locator(".mini .plot").bounding_box()
    view.page.mouse.move(mini["x"] + mini["width"] * 0.25, mini["y"] + 10)
    view.page.mouse.down()
    view.page.mouse.move(mini["x"] + mini["width"] * 0.5, mini["y"] + 10, steps=4)
    view.page.mouse.up()
    view.settle()
    assert view.window() == pytest.approx((0.25 * length, 0.5 * length), rel=0.02)


@browser
def test_hover_tells_what_is_there(show):
    trace = recorded("all_gather_matmul_one_way6_20gbps")
    view = show(trace)
    wait = view.data.start - view.data.claim
    index = int(np.argmax(wait))
    span, row = view.span(index), trace.spans.slice(index, 1).to_pylist()[0]
    view.page.mouse.move(*view.point(span["lane"], (span["claim"] + span["start"]) / 2))
    card = view.page.locator(".card")
    card.get_by_text("waited for").wait_for()
    text = card.inner_text()
    assert f"builder item {row['item']}" in text and "waiting" in text
    assert f"rank {row['rank']} · workgroup {row['workgroup']}" in text
    assert f"{span['end'] / 1000:,.3f} µs" in text
    assert f"{1000 * row['cycles'] / (row['end_ns'] - row['start_ns']):,.0f} MHz" in text
    flows = trace.flows().to_pylist()
    mine = [
        flow
        for flow in flows
        if (flow["dst_rank"], flow["dst_role"], flow["dst_item"]) == (row["rank"], row["role"], row["item"])
    ]
    done = {(s["rank"], s["role"], s["item"]): s["end_ns"] for s in trace.spans.to_pylist()}
    last = max(mine, key=lambda flow: done[flow["src_rank"], flow["src_role"], flow["src_item"]])
    assert f"waited for {last['src_role']} item {last['src_item']} · rank {last['src_rank']}" in text
    view.page.mouse.move(view.box["x"] + 400, view.box["y"] - 40)
    card.wait_for(state="hidden")


@browser
def test_click_steps_and_fit(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    data = view.data
    lane = int(data.lane[1500])
    mine = np.flatnonzero(data.lane == lane)
    mine = mine[np.argsort(data.claim[mine], kind="stable")]
    view.click_span(int(mine[5]))
    for key, place in [(".", 6), (".", 7), (",", 6), (",", 5), (",", 4)]:
        view.page.keyboard.press(key)
        view.page.wait_for_function("index => view.selected?.index === index", arg=int(mine[place]))
    view.press("f")
    t0, t1 = view.window()
    span = view.span(int(mine[4]))
    assert t0 < span["claim"] and span["end"] < t1 and (t1 - t0) < 3 * (span["end"] - span["claim"])
    y, h = view.run("lane => { const p = view.layout.place(lane); return [p.y, p.h]; }", lane)
    assert h >= 14 and 0 <= y and y + h <= view.box["height"]
    # a label stands on the span now: dark or light pixels of text over it
    over = view.pixels("canvas.over")
    x0, x1 = (int((t - t0) / (t1 - t0) * over.shape[1]) for t in (span["start"], span["end"]))
    strip = over[int(y + 2) : int(y + h - 2), x0 + 3 : x1 - 3, 3]
    assert (strip > 128).sum() > 20
    view.press("ArrowDown")
    assert view.run("view.selected.lane") == view.run("view.layout.groups.flatMap(g => g.lanes)")[lane + 1]


@browser
def test_details_lead_to_producers(show):
    trace = recorded("all_gather_matmul_one_way6_20gbps")
    view = show(trace)
    index = int(np.argmax(view.data.start - view.data.claim))
    view.click_span(index)
    before = view.pixels("canvas.over")
    view.press("Enter")
    panel = view.page.get_by_role("region", name="Selected span")
    first = panel.get_by_role("listitem").first.get_by_role("button")
    name = first.inner_text()
    assert name.startswith("mover item")
    first.click()
    view.page.wait_for_function("index => view.selected.index !== index", arg=index)
    view.settle()
    assert view.says().startswith(name.split(" · ")[0])
    # the arrows of the first span: from its movers' lanes down to it
    assert (before[:, :, 3] > 0).any()
    consumers = view.run("view.selected.signals.map(s => s.index)")
    assert index in consumers
    assert panel.inner_text().count("builder item") >= 1


@browser
def test_chain(show):
    view = show(recorded("matmul_reduce_scatter_row_fixed4"))
    data = view.data
    last = int(np.argmax(data.end))
    view.click_span(last)
    plain = view.pixels("canvas.over")
    view.press("c")
    view.page.wait_for_function("view.chain !== null")
    chain = view.run("view.chain")
    assert chain["spans"][-1]["index"] == last
    assert f"Critical chain: {len(chain['spans']):,} spans" in view.says()
    ends = {span["index"]: span for span in chain["spans"]}
    for a, b, why in chain["edges"]:
        if why == "wait":
            assert ends[b]["claim"] < ends[a]["end"] <= ends[b]["start"] + 32
        else:
            assert ends[a]["lane"] == ends[b]["lane"] and ends[a]["end"] <= ends[b]["claim"]
    assert {why for *_, why in chain["edges"]} == {"wait", "lane"}
    drawn = view.pixels("canvas.over")
    assert (drawn != plain).any(axis=2).mean() > 0.5  # all else is veiled
    for span in chain["spans"][-3:]:
        y, x = view.run("s => { const r = view.rectOf(s); return [r.y + r.h / 2, (r.xs + r.x1) / 2 - 128]; }", span)
        near = drawn[max(0, int(y) - 2) : int(y) + 3, int(x) - 1 : int(x) + 2]
        assert (near[:, :, 3] > 200).any()
    view.press("c")
    assert view.run("view.chain") is None


@browser
def test_folding(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    data = view.data
    button = view.page.get_by_role("button", name="rank 1")
    button.click()
    view.settle()
    assert button.get_attribute("aria-expanded") == "false"
    assert "rank 1 folded" in view.says()
    row_of = np.full(data.lanes, -1)
    row_of[33:66] = 0
    pixels = view.pixels()
    want = blend(data.coverage(0, data.length, pixels.shape[1], 1, row_of), view.background())[0]
    y = view.run("view.layout.blocks.find(b => b.g === 1).y")
    assert np.abs(pixels[int(y + 11), :, :3] - want).max() <= 2.5
    button.click()
    view.settle()
    view.page.mouse.move(view.box["x"] + 300, view.box["y"] + view.box["height"] - 20)
    view.press("g")
    assert view.run("view.layout.groups.map(g => g.folded)") == [False, False, False, True]
    view.press("Shift+G")
    assert view.run("view.layout.groups.every(g => g.folded)")


@browser
def test_sorting_and_pinning(show):
    view = show(recorded("all_gather_matmul_one_way6_20gbps"))
    data = view.data
    sorter = view.page.get_by_label("Sort the lanes of each rank")
    t = 1_400_000
    x, y = view.point(5, t)
    view.page.mouse.click(x, y)
    view.page.mouse.move(x, y)
    view.press("o")
    view.page.wait_for_function("view.sort === 'role' && view.layout.order[0] !== undefined")
    view.settle()
    t = view.run("view.sortTime")
    assert sorter.input_value() == "role"

    def kind(lane):
        at = np.flatnonzero((data.lane == lane) & (data.claim <= t) & (t < data.end))
        if not len(at):
            return 7
        return WAIT if t < data.start[at[-1]] else int(data.role[at[-1]])

    order = view.run("view.layout.groups.map(g => g.lanes)")
    assert any(lanes != sorted(lanes) for lanes in order)
    for lanes in order:
        assert [kind(lane) for lane in lanes] == sorted(kind(lane) for lane in lanes)
    sorter.select_option("idle")
    view.settle()
    busy = np.bincount(data.lane, data.end - data.claim)
    for lanes in view.run("view.layout.groups.map(g => g.lanes)"):
        assert (np.diff(busy[lanes]) >= 0).all()
    pixels = view.pixels()
    lane = view.run("view.layout.groups[2].lanes[7]")
    want = blend(data.coverage(0, data.length, pixels.shape[1], data.lanes, np.arange(data.lanes)), view.background())
    assert np.abs(pixels[view.rows()][:, :, :3] - want).max() <= 2.5
    view.page.mouse.move(*view.point(lane, t))
    view.press("p")
    assert view.run("view.layout.pins") == [lane]
    assert "pinned on top" in view.says()
    assert np.abs(view.pixels()[10, :, :3] - want[lane]).max() <= 2.5
    view.page.mouse.move(view.box["x"] + 300, view.box["y"] + 8)
    view.press("p")
    assert view.run("view.layout.pins") == []


@browser
@pytest.mark.parametrize(
    "text, test",
    [
        ("mover", lambda s, q: s["role"] == "mover"),
        ("builder item 12", lambda s, q: s["role"] == "builder" and s["item"] == 12),
        ("tile 3,4", lambda s, q: (q["band"], q["column"]) == (3, 4)),
        ("wg 17 rank 2 wait", lambda s, q: (s["rank"], s["workgroup"]) == (2, 17) and s["start_ns"] > s["claim_ns"]),
    ],
)
def test_search(show, text, test):
    trace = recorded("all_gather_matmul_fixed6")
    view = show(trace)
    queue = {(q["rank"], q["role"], q["item"]): q for q in trace.queue.to_pylist()}
    spans = trace.spans.to_pylist()
    want = [i for i, s in enumerate(spans) if test(s, queue[s["rank"], s["role"], s["item"]])]
    want.sort(key=lambda i: (spans[i]["start_ns"], i))
    view.page.locator(".lanes").focus()
    view.page.keyboard.press("/")
    view.page.keyboard.type(text)
    find = view.page.get_by_role("region", name="Search")
    find.get_by_text(f"{len(want):,} span{'s'[: len(want) != 1]}", exact=True).wait_for()
    view.page.keyboard.press("Enter")
    view.page.wait_for_function("index => view.selected?.index === index", arg=want[0])
    if len(want) > 2:
        view.page.keyboard.press("Enter")
        view.page.wait_for_function("index => view.selected?.index === index", arg=want[1])
        view.page.keyboard.press("Shift+Enter")
        view.page.wait_for_function("index => view.selected?.index === index", arg=want[0])
    view.page.keyboard.press("Escape")
    find.wait_for(state="hidden")
    assert view.run("view.found") is None


@browser
def test_measure(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    span = view.span(1500)
    view.run("([a, b]) => view.go(a, b)", [span["start"] - 40_000, span["end"] + 40_000])
    view.page.locator(".lanes").focus()
    view.press("m")
    for t in (span["start"], span["end"]):
        x, y = view.point(span["lane"], t)
        view.page.mouse.click(x + 1 if t == span["start"] else x - 1, y)  # it snaps to the edge of the span
    assert view.run("[view.measure.a, view.measure.b]") == [span["start"], span["end"]]
    assert view.says().startswith(f"{(span['end'] - span['start']) / 1000:.2f} µs from {span['start'] / 1000:,.3f} µs")
    view.press("Escape")
    assert view.run("view.measure") is None


@browser
def test_selecting(show):
    trace = recorded("all_gather_matmul_one_way6_20gbps")
    view = show(trace)
    data = view.data
    x0, y0 = view.point(8, 300_000)
    x1, y1 = view.point(40, 900_000)
    view.page.mouse.move(x0, y0)
    view.page.keyboard.down("Shift")
    view.page.mouse.down()
    view.page.mouse.move((x0 + x1) / 2, y1, steps=3)
    panel = view.page.get_by_role("region", name="Sums of the region")
    panel.wait_for()  # while it is still dragged
    view.page.mouse.move(x1, y1, steps=3)
    view.page.mouse.up()
    view.page.keyboard.up("Shift")
    view.page.wait_for_function("view.region !== null")
    view.settle()
    selection = view.run("view.host.get('selection')")
    t0, t1, lanes = int(selection["t0"]) - data.base, int(selection["t1"]) - data.base, selection["lanes"]
    assert lanes == list(range(8, 41))
    assert t0 == pytest.approx(300_000, abs=3000) and t1 == pytest.approx(900_000, abs=3000)
    inside = np.isin(data.lane, lanes)

    def spent(begin, end):
        return int(np.maximum(0, np.minimum(end, t1) - np.maximum(begin, t0))[inside].sum())

    sums = view.run("view.sums.ns")
    wait = spent(data.claim, data.start)
    work = {
        role: spent(data.start, np.where(data.role == ROLES.index(role), data.end, data.start))
        for role in sums
        if role in ROLES
    }
    assert sums == work | {"wait": wait, "idle": len(lanes) * (t1 - t0) - wait - sum(work.values())}
    text = panel.inner_text()
    for kind, ns in sums.items():
        assert re.search(rf"{kind}.*{100 * ns / len(lanes) / (t1 - t0):.1f} %", text), text
    view.press("f")
    w0, w1 = view.window()
    assert w0 < t0 < t1 < w1 and (w1 - w0) < 1.3 * (t1 - t0)
    # set from outside: the view goes there
    view.run("value => view.host.set('selection', value, false)", {"t0": "1500000", "t1": "1600000", "lanes": None})
    view.settle()
    w0, w1 = view.window()
    assert 1_400_000 < w0 <= 1_500_000 and 1_600_000 <= w1 < 1_700_000
    assert view.run("view.sums.lanes") == data.lanes
    view.run("value => view.host.set('selection', value, false)", None)
    assert view.run("view.region") is None
    # a stretch of the axis is one of all lanes; the button makes plain dragging select
    axis = view.page.locator(".axis .plot").bounding_box()
    view.page.mouse.move(axis["x"] + 100, axis["y"] + 8)
    view.page.mouse.down()
    view.page.mouse.move(axis["x"] + 300, axis["y"] + 8, steps=3)
    view.page.mouse.up()
    assert view.run("view.host.get('selection').lanes") is None
    view.page.get_by_label("Select a region by dragging").click()
    view.page.mouse.move(x0, y0)
    view.page.mouse.down()
    view.page.mouse.move(x1, y1, steps=3)
    view.page.mouse.up()
    assert view.run("view.host.get('selection').lanes.length") == 33


@browser
def test_times_beyond_doubles_survive(show):
    base = 2**60 + 1
    spans = {"rank": [0], "workgroup": [0], "role": ["builder"], "item": [0]}
    spans |= {"claim_ns": [base], "start_ns": [base + 3], "end_ns": [base + 1001], "cycles": [1], "unit": [0]}
    view = show(Trace(spans, meta={"ranks": 1, "workgroups": 2}))
    view.run("view.setRegion({ t0: 3, t1: 1001, lanes: [0] })")
    assert view.run("view.host.get('selection')") == {"t0": str(base + 3), "t1": str(base + 1001), "lanes": [0]}
    view.page.mouse.click(*view.point(0, 500))
    view.page.wait_for_function("view.selected !== null")
    assert view.run("view.selected.end_ns") == str(base + 1001)


@browser
def test_bad_spans_are_marked_and_counted(show):
    trace = recorded("all_gather_matmul_fixed6")
    columns = {name: trace.spans[name].to_pylist() for name in trace.spans.column_names}
    columns["end_ns"][1000] += 60_000  # overlaps the next
    columns["start_ns"][1200], columns["end_ns"][1200] = columns["end_ns"][1200], columns["start_ns"][1200]
    bad = Trace(columns, trace.queue, trace.counters, trace.meta)
    view = show(bad)
    problems = bad.problems()
    badge = view.page.get_by_role("button", name="Quality of the recording")
    assert badge.inner_text() == f"{len(problems)} problem{'s'[: len(problems) != 1]}"
    assert badge.get_attribute("class") == "badge amber"
    badge.click()
    text = view.page.get_by_role("region", name="Quality of the recording").inner_text()
    for problem in problems:
        assert problem in text
    view.press("Escape")
    over = view.pixels("canvas.over")
    warn = np.array(
        view.run("(() => { const c = view.theme.warn; return [1, 3, 5].map(i => parseInt(c.slice(i, i + 2), 16)); })()")
    )
    for index in (1001, 1200):
        span = view.span(index)
        x, y = view.point(span["lane"], span["claim"])
        x, y = int(x - view.box["x"] - GUTTER), int(y - view.box["y"])
        near = over[max(0, y - 3) : y + 4, max(0, x - 6) : x + 12].astype(int)
        assert ((np.abs(near[:, :, :3] - warn).max(axis=2) < 60) & (near[:, :, 3] > 100)).any(), index
    clean = show(trace)
    assert clean.page.get_by_role("button", name="Quality of the recording: no problems").inner_text() == "no problems"


@browser
def test_comparing(show):
    a, b = recorded("all_gather_matmul_fixed6"), recorded("all_gather_matmul_one_way6")
    view = show(a, b, titles=["fixed", "one way"], height=680)
    heads = [text.replace("\n", " ") for text in view.page.locator(".head").all_inner_texts()]
    first, second = a.summary()["makespan_ns"], b.summary()["makespan_ns"]
    assert "fixed" in heads[0] and "one way" in heads[1]
    assert f"−{(first - second) / 1000:.2f} µs (−{100 * (first - second) / first:.1f} %)" in heads[1]
    assert f"idle {100 * b.summary()['idle']:.1f} %" in heads[1]
    data, pixels = view.data, view.pixels()
    want = blend(data.coverage(0, data.length, pixels.shape[1], data.lanes, np.arange(data.lanes)), view.background())
    assert np.abs(pixels[view.rows()][:, :, :3] - want).max() <= 2.5
    view.click_span(len(a.spans) + 700)
    assert view.run("view.selected.trace") == 1


@browser
def test_themes_are_followed(show):
    view = show(recorded("all_gather_matmul_fixed6"), attributes='data-jp-theme-light="true"')
    idle = view.pixels()[-3, -3, :3]
    assert idle.min() > 200
    view.run("document.body.dataset.jpThemeLight = 'false'")
    view.page.wait_for_function("view.root.classList.contains('dark')")
    view.settle()
    pixels = view.pixels()
    assert pixels[-3, -3, :3].max() < 60
    data = view.data
    want = blend(data.coverage(0, data.length, pixels.shape[1], data.lanes, np.arange(data.lanes)), view.background())
    assert np.abs(pixels[view.rows()][:, :, :3] - want).max() <= 2.5
    view.run("document.body.dataset.jpThemeLight = 'true'")
    view.page.wait_for_function("!view.root.classList.contains('dark')")
    assert show(recorded("all_gather_matmul_fixed6"), dark=True).run("view.root.classList.contains('dark')")
    assert show(recorded("all_gather_matmul_fixed6"), attributes='class="vscode-dark"').run(
        "view.root.classList.contains('dark')"
    )


@browser
def test_colours_are_those_of_the_plots(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    swatches = view.page.locator(".legend i").all()
    text = view.page.locator(".legend li").all_inner_texts()
    assert [line.split()[0] for line in text] == ["mover", "builder", "wait", "idle"]
    for kind, swatch in zip(("mover", "builder", "wait"), swatches):
        colour = swatch.evaluate("node => getComputedStyle(node).backgroundColor")
        parts = [float(part) for part in re.findall(r"[\d.]+", colour)]
        red, green, blue, alpha = to_rgba(PALETTE[kind])
        assert parts[:3] == pytest.approx([255 * red, 255 * green, 255 * blue])
        assert (parts[3] if len(parts) > 3 else 1) == pytest.approx(alpha, abs=0.01)


@browser
def test_files_of_the_view(show, tmp_path):
    view = show(recorded("all_gather_matmul_fixed6"))
    with view.page.expect_download() as download:
        view.page.get_by_label("Download this view as PNG").click()
    download.value.save_as(tmp_path / "view.png")
    from matplotlib.image import imread

    image = imread(tmp_path / "view.png")
    assert image.shape[1] == 2 * view.run("view.root.clientWidth")
    colours = {tuple(np.round(255 * row).astype(int)) for row in image[image.shape[0] // 2, ::3, :3]}
    assert tuple(np.round(255 * np.array(to_rgba(PALETTE["builder"])[:3])).astype(int)) in colours

    def svg():
        with view.page.expect_download() as download:
            view.page.get_by_label("Download this view as SVG").click()
        download.value.save_as(tmp_path / "view.svg")
        return ElementTree.parse(tmp_path / "view.svg").getroot()

    def named(root, name):
        return list(root.iter(f"{{http://www.w3.org/2000/svg}}{name}"))

    root = svg()
    words = " ".join(node.text or "" for node in named(root, "text"))
    share = f"builder {recorded('all_gather_matmul_fixed6').summary()['builder']:.1%}".replace("%", " %")
    assert "all_gather_matmul" in words and "µs" in words and share in words and "rank 3" in words
    spans = len(view.data.lane)
    work = [node for node in named(root, "rect") if node.get("fill") == PALETTE["builder"]]
    assert spans * 0.7 < len(work) <= spans and not named(root, "image")
    view.run("view.foldAll()")
    view.settle()
    assert len(named(svg(), "image")) == 1  # a mixture of lanes is a picture


@browser
def test_two_views_are_independent(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    view.run(
        """async () => { const element = document.createElement("div"); document.body.append(element);
        const text = (id) => document.getElementById(id).textContent;
        const viewer = await import(URL.createObjectURL(new Blob([text("bundle")], { type: "text/javascript" })));
        window.other = await viewer.mountPage(element, JSON.parse(text("data"))); }"""
    )
    view.page.wait_for_function("other.base2d.dataset.sharp === 'true'")
    view.run("view.go(1000, 90000)")
    view.click_span(int(np.flatnonzero((view.data.start > 2000) & (view.data.end < 80_000))[0]))
    assert view.run("[other.t0, other.t1, other.selected]") == [0, view.data.length, None]
    view.run("other.close()")
    assert view.page.locator(".kosmos").count() == 1


# A model as anywidget gives it: questions go to a source in the page, packed as Python packs them.
MODEL = """async ([silent]) => {
  const text = (id) => document.getElementById(id).textContent;
  const viewer = await import(URL.createObjectURL(new Blob([text("bundle")], { type: "text/javascript" })));
  const json = JSON.parse(text("data"));
  const data = await viewer.unpack(json);
  const page = new viewer.PageSource(data);
  const pack = async (buffer) => new DataView(await new Response(
    new Blob([buffer]).stream().pipeThrough(new CompressionStream("deflate-raw"))).arrayBuffer());
  const listeners = {};
  const traits = { meta: data.meta, overview: data.overview, selection: null, window: null, options: { height: 400 } };
  window.model = {
    silent, asked: [], traits, saved: 0,
    get: (name) => traits[name],
    set: (name, value) => { traits[name] = value; model.tell(`change:${name}`); },
    save_changes: () => model.saved++,
    on: (name, fn) => (listeners[name] ??= new Set()).add(fn),
    off: (name, fn) => listeners[name]?.delete(fn),
    tell: (name, ...rest) => [...(listeners[name] ?? [])].forEach((fn) => fn(...rest)),
    send: async (message, callbacks, buffers) => {
      model.asked.push(message);
      if (model.silent) return;
      const [answer, parts] = page.answer(message, buffers);
      const deflated = ["picture", "counters"].includes(message.ask);
      const packed = await Promise.all(parts.map((part) => (deflated ? pack(part) : new DataView(part))));
      model.tell("msg:custom", { ...answer, id: message.id, ask: message.ask, view: message.view }, packed);
    },
  };
  const widget = viewer.default();
  window.elements = [0, 1].map(() => document.body.appendChild(document.createElement("div")));
  window.ends = [];
  for (const el of elements) window.ends.push(await widget.render({ model, el }));
}"""


@browser
def test_widget_asks_its_model(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    view.run(MODEL, [False])
    page = view.page
    sharp = "elements.every(e => e.firstChild.shadowRoot.querySelector('canvas.base').dataset.sharp === 'true')"
    page.wait_for_function(sharp)
    assert len({message["view"] for message in view.run("model.asked")}) == 2
    heights = view.run("elements.map(e => e.firstChild.shadowRoot.querySelector('.kosmos').offsetHeight)")
    assert heights == [400, 400]
    pixels = """e => { const c = e.firstChild.shadowRoot.querySelector('canvas.base');
      return [...c.getContext('2d').getImageData(128, 50, c.width - 128, 1).data]; }"""
    same = view.run("view.base2d.height")
    first = view.run(f"({pixels})(elements[0])")
    assert first == view.run(f"({pixels})(elements[1])") and same > 0
    # one view zooms: the other stays, though they share the trait
    lanes = page.locator(".lanes").nth(1)
    lanes.click(position={"x": 500, "y": 40})
    page.keyboard.press("w")
    page.wait_for_function("model.traits.window !== null")
    page.wait_for_function(sharp)
    assert view.run(f"({pixels})(elements[0])") != first
    assert view.run(f"({pixels})(elements[1])") == first
    # Python moves both
    view.run("model.set('window', { t0: '100000', t1: '300000' })")
    page.wait_for_timeout(100)
    page.wait_for_function(sharp)
    assert view.run(f"({pixels})(elements[0])") == view.run(f"({pixels})(elements[1])") != first
    view.run("ends.forEach((end) => end())")
    assert view.run("elements.every(e => !e.firstChild)")
    view.page.mouse.move(5, 5)


@browser
def test_without_a_kernel_the_overview_stays(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    view.run(MODEL, [True])
    page = view.page
    note = page.locator(".kosmos").nth(1).get_by_role("alert")
    assert not note.is_visible()
    assert page.locator(".kosmos").nth(1).locator(".busy.on").count() == 1  # it shows that it waits
    note.wait_for(timeout=6000)
    assert "has not answered for 3 s" in note.inner_text()
    blue = """() => { const c = elements[0].firstChild.shadowRoot.querySelector('canvas.base');
      const d = c.getContext('2d').getImageData(128, 0, c.width - 128, c.height).data; let n = 0;
      for (let i = 0; i < d.length; i += 4) n += d[i] < 40 && d[i + 2] > 140; return n / (d.length / 4); }"""
    whole = view.run(blue)
    assert whole > 0.5
    # it still zooms, coarsely
    page.locator(".lanes").nth(1).click(position={"x": 1, "y": 1})
    page.keyboard.press("w")
    page.keyboard.press("d")
    page.keyboard.press("d")
    page.wait_for_timeout(300)
    assert view.run(blue) != whole
    # the kernel is back: so is the picture
    view.run("model.silent = false")
    page.keyboard.press("w")
    page.wait_for_function(
        "elements[0].firstChild.shadowRoot.querySelector('canvas.base').dataset.sharp === 'true'", timeout=9000
    )
    assert not note.is_visible()
    view.run("model.tell('comm_live_update')")
    assert "The kernel is gone" in note.inner_text()


@browser
def test_keyboard_is_taken_and_given_back(show):
    view = show(recorded("all_gather_matmul_fixed6"))
    page = view.page
    marked = "view.shell.getAttribute('data-lm-suppress-shortcuts')"
    view.run(
        """() => { window.heard = []; document.addEventListener("keydown", (event) => heard.push([event.key,
        event.target.closest?.("[data-lm-suppress-shortcuts]") !== null]), true);
        document.body.tabIndex = -1; }"""
    )
    assert view.run(marked) is None
    page.keyboard.press("Tab")
    for _ in range(40):  # by the keyboard alone, past the tools, to the lanes
        if view.run("view.shell.shadowRoot.activeElement === view.lanesNode"):
            break
        page.keyboard.press("Tab")
    assert view.run("view.shell.shadowRoot.activeElement === view.lanesNode")
    assert view.run(marked) == "true"
    view.run("heard.length = 0")
    keys = [*"wasdf0,.mm/"]
    for key in keys:
        page.keyboard.press(key)
    page.keyboard.press("Escape")
    for key in [*"ppccggovvln?"]:
        page.keyboard.press(key)
    page.keyboard.press("Escape")  # closes the help
    page.keyboard.press("Escape")  # ends the measuring
    assert all(suppressed for _, suppressed in view.run("heard"))
    assert view.run("view.selected !== null")
    # with Ctrl or Cmd a key is the notebook's
    view.run("heard.length = 0")
    page.keyboard.press("Control+s")
    page.keyboard.press("Meta+s")
    assert [suppressed for key, suppressed in view.run("heard") if key == "s"] == [False, False]
    page.keyboard.press("w")
    assert view.run("heard.at(-1)") == ["w", True]
    page.keyboard.press("Escape")
    assert view.run(marked) is None
    assert view.run("view.shell.shadowRoot.activeElement") is None
    assert view.run("document.activeElement === document.body")
    assert view.run("view.selected !== null")  # it stays selected


@browser
def test_names_for_screen_readers(show):
    trace = recorded("all_gather_matmul_fixed6")
    view = show(trace)
    names = view.run(
        "[...view.root.querySelectorAll('button, select')].map(b => b.getAttribute('aria-label') || b.textContent)"
    )
    assert all(name.strip() for name in names)
    application = view.page.get_by_role("application")
    label = application.get_attribute("aria-label")
    makespan = f"makespan {trace.summary()['makespan_ns'] / 1000:,.1f} µs"
    assert "4 ranks of 33 workgroups" in label and f"{len(trace.spans):,} spans" in label and makespan in label
    view.page.locator(".lanes").focus()
    view.page.keyboard.press(".")
    view.page.wait_for_function("view.selected !== null")
    status = view.page.locator("footer").get_by_role("status")
    assert re.match(
        r"mover item 5, rank 0 workgroup 0; waited [\d.,]+ ns; |mover item \d+, rank 0 workgroup 0", status.inner_text()
    )
    view.page.keyboard.press("?")
    help_text = view.page.get_by_role("region", name="Keys and mouse").inner_text()
    for key in ["W", "F", "M", "/", "P", "C", "Esc"]:
        assert key in help_text


@browser
def test_counters_follow(show):
    trace = recorded("all_gather_matmul_fixed6")
    counters = {
        "name": ["power"] * 4 + ["power"] * 4,
        "rank": [0] * 4 + [1] * 4,
        "time_ns": [0, 400_000, 800_000, 1_200_000] * 2,
        "value": [100.0, 500.0, 600.0, 300.0] * 2,
        "unit": ["W"] * 8,
    }
    view = show(Trace(trace.spans, trace.queue, counters, trace.meta))
    view.page.wait_for_function("view.charts.length === 3")
    assert view.run("view.charts.map(c => [c.title, c.unit, c.lines.length])") == [
        ["workgroups", "workgroups", 3],
        ["clock", "MHz", 1],
        ["power", "W", 2],
    ]
    power = view.run("[...view.charts[2].lines[0].mean]")
    assert power[0] == 100 and max(power) == 600
    height = view.page.locator(".counters").bounding_box()["height"]
    view.page.get_by_label("Counters", exact=True).click()
    view.page.get_by_label("clock (MHz)").uncheck()
    view.settle()
    assert view.page.locator(".counters").bounding_box()["height"] == height - 38
    view.press("Escape")
    view.page.locator(".lanes").focus()
    view.press("l")
    assert view.page.locator(".counters").is_hidden()


@browser
def test_ranges_lie_above_the_lanes(show):
    ranges = [
        ("stream 0", "gemm", 0, 500_000),
        ("stream 0", "memcpy", 600_000, 700_000),
        ("host", "step", 0, 1_600_000),
        ("host", "launch", 10_000, 300_000),
    ]
    view = show(recorded("all_gather_matmul_fixed6"), ranges=ranges)
    view.page.wait_for_function("view.ranges?.rows.length === 3")
    assert view.run("view.ranges.rows.map(r => [r.title, r.ranges.map(one => one.name)])") == [
        ["stream 0", ["gemm", "memcpy"]],
        ["host", ["step"]],
        ["", ["launch"]],
    ]
    strip = view.page.locator(".ranges").bounding_box()
    assert strip["y"] + strip["height"] <= view.box["y"]
    x = strip["x"] + view.run("view.xOf(650_000)")
    view.page.mouse.move(x, strip["y"] + 9)
    card = view.page.locator(".card").inner_text()
    assert "memcpy" in card and "100.0 µs from 600.000 µs to 700.000 µs" in card
    pixels = view.pixels(".ranges canvas")
    middle = int(view.run("view.xOf(650_000) - 128"))
    assert pixels[9, middle - 20, 3] == 255 and pixels[9, middle + 60, 3] == 0


@browser
def test_queue_from_close_by(show):
    trace = recorded("matmul_reduce_scatter_row_fixed4")
    view = show(trace)
    view.page.locator(".lanes").focus()
    view.press("v")
    view.run("view.go(893000, 950000)")
    view.settle()
    rank, role, item = numbers(trace.spans, "rank", "role", "item")
    data = view.data
    for y, h, first, last, code in view.run("view.queues.map(q => [q.y, q.h, q.first, q.last, q.role])"):
        seen = (rank == 0) & (role == code) & (data.claim < 950_000) & (data.end > 893_000)
        low, high = item[seen].min(), item[seen].max()
        assert first <= low <= first + 6 and high <= last <= high + 6
        index = int(np.flatnonzero(seen & (item == (low + high) // 2))[0])
        middle = (max(int(data.start[index]), 893_000) + min(int(data.end[index]), 950_000)) / 2
        x = view.box["x"] + view.run("t => view.xOf(t)", middle)
        view.page.mouse.click(x, view.box["y"] + y + (item[index] - first + 0.5) / (last - first + 1) * h)
        view.page.wait_for_function("index => view.selected?.index === index", arg=index)


@browser
@pytest.mark.parametrize("width", [380, 1600])
def test_widths(show, width):
    view = show(recorded("all_gather_matmul_fixed6"), width=width)
    assert view.run("document.documentElement.scrollWidth") <= width
    assert view.run("view.root.clientHeight") >= 450
    tools = view.page.get_by_role("toolbar").bounding_box()
    last = view.page.get_by_label("Keys and mouse").bounding_box()
    assert last["x"] + last["width"] <= tools["x"] + tools["width"] + 1 <= width + 1


@browser
@pytest.mark.parametrize(
    "trace",
    [
        Trace(None, meta={"ranks": 2, "workgroups": 3}),
        Trace(None),
        Trace(
            {
                "rank": pa.array([0], pa.int32()), "workgroup": [0], "role": ["folder"], "item": [0],
                "claim_ns": [5], "start_ns": [5], "end_ns": [5], "cycles": [0], "unit": [-1],
            }
        ),
    ],
    ids=["no spans", "nothing", "no time"],
)  # fmt: skip
def test_little_traces(show, trace):
    view = show(trace)
    view.page.locator(".lanes").focus()
    view.press("w", ".", "f", "c", "g", "v", "v", "0", "l", "l", "p", "m", "Escape")
    assert view.says()
