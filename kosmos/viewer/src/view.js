// One view of one or several traces: what it shows (state), how that comes onto the screen (draw), what it asks.

import { charts } from "./counters.js";
import { download, pngOf, svgOf } from "./export.js";
import { Input } from "./input.js";
import { drawLanes, drawOver } from "./lanes.js";
import { Layout, MOST_LANE } from "./layout.js";
import { ROLES } from "./page.js";
import { Picture } from "./paint.js";
import {
  briefSpan,
  closable,
  el,
  helpPanel,
  hoverCard,
  nameOfSpan,
  problemsPanel,
  spanPanel,
  sumsPanel,
  swatch,
  tool,
} from "./panels.js";
import { drawQueues, makeQueues } from "./queue.js";
import { rangeAt, stack } from "./ranges.js";
import { build, judge } from "./shell.js";
import { Desk } from "./source.js";
import { drawAxis, drawCounters, drawGroups, drawMini, drawRangeStrip } from "./strips.js";
import { isDark, readTheme, watchTheme } from "./theme.js";
import { count, duration, moment, percent } from "./time.js";

export const GUTTER = 128; // px, as in the style sheet
const LEAST_WINDOW = 10; // ns; windows begin and end at whole ones
const GLIDE = 80; // ms

const quiet = matchMedia("(prefers-reduced-motion: reduce)");

export class View {
  /** `host` has the traits: get(name), set(name, value), on(name, fn) which returns what ends it. */
  constructor(element, source, host, overview, options = {}) {
    this.meta = host.get("meta");
    this.panels = {};
    this.source = source;
    this.host = host;
    this.desk = new Desk(source);
    this.layout = new Layout(this.meta);
    this.length = Math.max(1, ...this.meta.traces.map((trace) => trace.length_ns));
    this.base = BigInt(this.meta.traces[0]?.base ?? "0");
    this.t0 = 0;
    this.t1 = this.length;
    this.tab = "lanes";
    this.sort = "workgroup";
    this.picture = null;
    this.queues = []; // panels of the queue view
    this.queueOf = { trace: 0, rank: 0 };
    this.cursor = null; // {x, y, t, lane} of the pointer over the lanes
    this.selected = null; // a span
    this.chain = null;
    this.region = null; // {t0, t1, lanes}
    this.measure = null; // {a, b} times
    this.measuring = false;
    this.selecting = false;
    this.found = null; // {text, matches, total, at}
    this.ranges = null; // {t0, t1, rows, whole}
    this.counters = null;
    this.charts = [];
    this.hidden = new Set(); // keys of charts
    this.countersShown = true;
    this.overview = overview;
    this.ends = [];
    build(this, element, options);
    this.input = new Input(this);
    this.follow();
    this.retheme();
    this.say(this.idleSentence());
  }

  // ---- the page

  idleSentence() {
    return "Click here, then ? shows the keys";
  }

  follow() {
    const resize = new ResizeObserver(() => this.resize());
    resize.observe(this.root);
    this.ends.push(() => resize.disconnect());
    this.ends.push(watchTheme(() => this.retheme()));
    for (const [name, use] of [
      ["selection", (value, mine) => this.takeSelection(value, !mine)],
      ["window", (value, mine) => !mine && this.takeWindow(value)],
      ["overview", () => this.takeOverview()],
      ["meta", (meta) => ((this.meta = meta), judge(this))],
    ]) {
      this.ends.push(this.host.on(name, use));
    }
    this.source.changed = (state) => this.kernelState(state);
    this.desk.busy = (on) => this.busyNode.classList.toggle("on", on && this.source.state !== "gone");
    const given = this.host.get("window");
    if (given) this.takeWindow(given, false);
    const selection = this.host.get("selection");
    if (selection) this.takeSelection(selection, !given, false);
    const hide = () => document.visibilityState === "visible" && this.redraw();
    document.addEventListener("visibilitychange", hide);
    this.ends.push(() => document.removeEventListener("visibilitychange", hide));
  }

  close() {
    this.closed = true;
    for (const end of this.ends) end();
    this.input.close();
    this.source.close?.();
    this.shell.remove();
  }

  kernelState(state) {
    this.note.hidden = state === "ok";
    this.note.textContent =
      state === "gone"
        ? "The kernel is gone: this is the overview that the notebook holds. Run the cell again to see every span."
        : "The kernel has not answered for 3 s, it is busy or gone: until it answers this is the overview that the notebook holds.";
    this.busyNode.classList.toggle("on", state === "ok" && this.desk.waiting());
    this.redraw();
  }

  retheme() {
    const dark = isDark(this.shell);
    this.root.classList.toggle("dark", dark);
    const theme = readTheme(this.root);
    const key = JSON.stringify(theme);
    if (key === this.themeKey) return;
    this.themeKey = key;
    this.theme = theme;
    this.overview?.repaint(theme.background);
    this.picture?.repaint(theme.background);
    for (const queue of this.queues) queue.picture?.repaint(theme.background);
    this.redraw();
  }

  takeOverview() {
    const given = this.host.get("overview");
    this.host.decode?.(given).then((overview) => {
      this.overview = overview;
      this.overview.repaint(this.theme.background);
      this.redraw();
    });
  }

  resize() {
    this.ratio = window.devicePixelRatio || 1;
    this.redraw();
  }

  // ---- time and screen

  get width() {
    return Math.max(10, this.lanesNode.clientWidth - GUTTER);
  }

  get height() {
    return this.lanesNode.clientHeight;
  }

  xOf(t) {
    return GUTTER + ((t - this.t0) / (this.t1 - this.t0)) * this.width;
  }

  tOf(x) {
    return this.t0 + ((x - GUTTER) / this.width) * (this.t1 - this.t0);
  }

  /** Moves the window, at once or gliding. */
  go(t0, t1, { glide = false, tell = true } = {}) {
    const size = Math.max(LEAST_WINDOW, Math.min(t1 - t0, 1.25 * this.length));
    const middle = (t0 + t1) / 2;
    const slack = 0.125 * Math.max(size, this.length * 0.01);
    let from = middle - size / 2;
    from = Math.max(-slack, Math.min(from, this.length + slack - size));
    if (size >= this.length * 1.2499) from = (this.length - size) / 2;
    from = Math.round(from);
    const to = from + Math.round(size);
    if (tell) this.tellWindow(from, to);
    cancelAnimationFrame(this.gliding);
    if (!glide || quiet.matches) {
      this.target = null;
      this.t0 = from;
      this.t1 = to;
      this.redraw();
      this.wish();
      return;
    }
    this.target = [from, to];
    this.wish();
    const begin = [this.t0, this.t1];
    const since = performance.now();
    const frame = () => {
      const part = Math.min(1, (performance.now() - since) / GLIDE);
      const eased = 1 - (1 - part) ** 3;
      this.t0 = begin[0] + (from - begin[0]) * eased;
      this.t1 = begin[1] + (to - begin[1]) * eased;
      if (part === 1) [this.t0, this.t1, this.target] = [from, to, null];
      else this.gliding = requestAnimationFrame(frame);
      this.redraw();
    };
    frame();
  }

  all() {
    this.layout.laneHeight = null;
    this.layout.scroll = 0;
    this.go(0, this.length, { glide: true });
  }

  /** Zooms about a time: the cursor's, else the middle. */
  zoom(factor, at = null, glide = true) {
    const [t0, t1] = this.target ?? [this.t0, this.t1];
    const x = at ?? (this.cursor && this.cursor.x >= GUTTER ? this.cursor.x : GUTTER + this.width / 2);
    const part = (x - GUTTER) / this.width;
    const size = Math.max(LEAST_WINDOW, Math.min((t1 - t0) * factor, 1.25 * this.length));
    const fixed = t0 + part * (t1 - t0);
    this.go(fixed - part * size, fixed + (1 - part) * size, { glide });
  }

  pan(share, glide = true) {
    const [t0, t1] = this.target ?? [this.t0, this.t1];
    const by = share * (t1 - t0);
    this.go(t0 + by, t1 + by, { glide });
  }

  laneZoom(factor, y = this.cursor?.y ?? this.height / 2) {
    if (this.tab !== "lanes") return;
    this.layout.zoom(this.layout.lane * factor, y);
    this.redraw();
  }

  scrollBy(pixels) {
    const before = this.layout.scroll;
    this.layout.scroll = Math.max(0, Math.min(before + pixels, this.layout.content - this.height));
    if (this.layout.scroll !== before) this.redraw();
    return this.layout.scroll !== before;
  }

  tellWindow(t0, t1) {
    clearTimeout(this.telling);
    this.telling = setTimeout(() => this.host.set("window", { t0: this.absolute(t0), t1: this.absolute(t1) }), 250);
  }

  absolute(t) {
    return String(this.base + BigInt(Math.round(t)));
  }

  relative(text) {
    return Number(BigInt(text) - this.base);
  }

  takeWindow(value, glide = true) {
    if (value) this.go(this.relative(value.t0), this.relative(value.t1), { glide, tell: false });
  }

  // ---- drawing

  redraw() {
    if (this.frame || this.closed) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  /** Without waiting for the next frame. */
  drawNow() {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.draw();
  }

  prepare(canvas) {
    const ratio = this.ratio;
    const { clientWidth: width, clientHeight: height } = canvas;
    const w = Math.round(width * ratio);
    const h = Math.round(height * ratio);
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
    }
    const context = canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, w, h);
    return [context, width, height];
  }

  draw() {
    if (this.closed || !this.lanesNode.clientWidth || !this.theme) return;
    this.ratio = window.devicePixelRatio || 1;
    this.layout.arrange(this.height, this.ratio);
    if (this.tab === "lanes") {
      drawLanes(this);
      drawOver(this);
    } else {
      drawQueues(this);
    }
    drawGroups(this);
    drawAxis(this);
    drawMini(this);
    drawRangeStrip(this);
    drawCounters(this);
    this.placePanels();
    this.wish();
  }

  /** Asks for what is shown, unless it is there or on its way. */
  wish() {
    if (!this.layout.rows) return; // nothing was drawn yet
    const width = Math.max(1, Math.round(this.width * this.ratio));
    const [t0, t1] = this.target ?? [this.t0, this.t1];
    if (this.tab === "lanes") {
      const key = [t0, t1, width, this.layout.rows.length, hash(this.layout.rowOf)].join();
      if (key !== this.wished) {
        this.wished = key;
        const rowOf = this.layout.rowOf.slice();
        const request = { ask: "picture", t0, t1, width, rows: this.layout.rows.length, axis: "lanes" };
        this.ask("picture", request, [rowOf.buffer]).then((answer) => {
          if (!answer) return;
          this.picture = new Picture(request, rowOf, answer, this.theme.background);
          this.drawNow();
          this.refreshHover();
        });
      }
    } else {
      for (const queue of this.queues) {
        const rows = Math.max(1, Math.min(queue.items, Math.round(queue.h * this.ratio)));
        const key = [t0, t1, width, rows, queue.key].join();
        if (key === queue.wished) continue;
        queue.wished = key;
        const group = { trace: queue.trace, rank: queue.rank, role: queue.role };
        const request = { ask: "picture", t0, t1, width, rows, axis: "items", group };
        this.ask(`picture/${queue.role}`, request).then((answer) => {
          if (!answer) return;
          queue.picture = new Picture(request, null, answer, this.theme.background);
          this.redraw();
        });
      }
    }
    this.askRanges();
    if (this.countersShown) {
      const key = [t0, t1, width].join();
      if (key !== this.wishedCounters) {
        // the lanes first: while they move, the lines are only stretched
        this.wishedCounters = key;
        clearTimeout(this.counting);
        this.counting = setTimeout(() => this.askCounters({ ask: "counters", t0, t1, width }), this.counters ? 350 : 0);
      }
    }
  }

  /** Ranges are few: all are asked for once, and those of a window only where there were too many. */
  async askRanges() {
    if (!this.meta.traces.some((trace) => trace.ranges > 0)) return;
    const [t0, t1] = this.target ?? [this.t0, this.t1];
    if (this.ranges?.whole || (this.ranges && this.ranges.t0 === t0 && this.ranges.t1 === t1)) return;
    const first = !this.ranges;
    const request = first ? { ask: "ranges", t0: -this.length, t1: 2 * this.length } : { ask: "ranges", t0, t1 };
    this.ranges ??= { rows: [] };
    const answer = await this.ask("ranges", request);
    if (!answer) return;
    const { ranges, total } = answer[0];
    const rows = stack(
      ranges,
      this.meta.traces.length > 1,
      this.meta.traces.map((trace) => trace.title),
    );
    this.ranges = { t0: request.t0, t1: request.t1, rows, whole: first && total <= ranges.length };
    this.redraw();
  }

  hoverRange(x, y) {
    this.cursor = { ...this.hit(x, -1), lane: null };
    const range =
      x < GUTTER ? null : rangeAt(this.ranges?.rows ?? [], y, this.cursor.t, (2 * (this.t1 - this.t0)) / this.width);
    this.card.hidden = !range;
    if (range) {
      this.card.replaceChildren(
        el("h4", {}, range.name),
        el("div", {}, range.track),
        el("div", {}, `${duration(range.end - range.start)} from ${moment(range.start)} to ${moment(range.end)}`),
      );
      this.card.style.left = `${Math.min(x + 16, this.root.clientWidth - this.card.offsetWidth - 4)}px`;
      this.card.style.top = `${this.rangesNode.offsetTop + y + 14}px`;
    }
    this.redraw();
  }

  async askCounters(request) {
    const answer = await this.ask("counters", request);
    if (!answer) return;
    this.counters = request;
    this.charts = charts(this.meta, answer);
    this.redraw();
  }

  /** The newest answer of a slot; null when it is stale or does not come. */
  async ask(slot, request, buffers = []) {
    try {
      return await this.desk.ask(slot, request, buffers);
    } catch (error) {
      if (!this.closed) this.say(`The ${request.ask} could not be computed: ${error.message}`);
      return null;
    }
  }

  traceOf(lane) {
    return this.meta.traces.findLast((trace) => lane >= trace.first_lane) ?? this.meta.traces[0];
  }

  rectOf(span) {
    const { y, h } = this.layout.place(span.lane);
    return {
      x0: this.xOf(Math.min(span.claim ?? span.start, span.start)),
      x1: this.xOf(span.end),
      xs: this.xOf(span.start),
      y,
      h: Math.max(2, h - (h >= 6 ? 1 : 0)),
    };
  }

  inView({ y, h }) {
    return y + h > this.layout.pinned && y < this.height;
  }

  frame2d(height) {
    return { left: GUTTER, right: GUTTER + this.width, top: this.layout.pinned, bottom: height };
  }

  line(context, x, height, colour) {
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, 0);
    context.lineTo(Math.round(x) + 0.5, height);
    context.stroke();
  }

  get chartsShown() {
    return this.countersShown ? this.charts.filter((chart) => !this.hidden.has(chart.key)) : [];
  }

  // ---- views

  setTab(tab) {
    this.tab = tab;
    for (const [name, node] of Object.entries(this.tabs)) node.setAttribute("aria-selected", String(name === tab));
    this.sorter.hidden = tab !== "lanes";
    this.ranker.hidden = tab !== "queue";
    if (tab === "queue") makeQueues(this);
    this.hoverOff();
    this.say(
      tab === "queue"
        ? "Queue: every item of each role over time, the first on top"
        : "Lanes: every workgroup over time",
    );
    this.redraw();
  }

  setQueue(value) {
    const [trace, rank] = value.split("/").map(Number);
    this.queueOf = { trace, rank };
    this.ranker.value = value;
    makeQueues(this);
    this.redraw();
  }

  // ---- pointing and choosing

  /** What is under a point of the lanes: {x, y, t, lane, queue, item}. */
  hit(x, y) {
    const t = this.tOf(x);
    if (this.tab === "queue") {
      const queue = this.queues.find((one) => y >= one.y && y < one.y + one.h);
      return {
        x,
        y,
        t,
        lane: null,
        queue,
        item: queue ? queue.first + Math.floor(((y - queue.y) / queue.h) * (queue.last - queue.first + 1)) : null,
      };
    }
    const found = this.layout.at(y);
    return { x, y, t, lane: found ? found.lane : null, block: found?.block };
  }

  /** The span under a point, as far as it is known without asking; undefined: it has to be asked for. */
  known(point) {
    const near = (2 * (this.t1 - this.t0)) / this.width;
    if (this.tab === "queue") {
      const exact = point.queue?.picture?.exact;
      if (!exact) return null;
      const several = Math.ceil((point.queue.last - point.queue.first + 1) / point.queue.h);
      let best = null;
      for (let i = 0; i < exact.length; i++) {
        if (
          Math.abs(exact.item[i] - point.item) <= several &&
          exact.low(i) - near <= point.t &&
          point.t < exact.high(i) + near
        ) {
          if (best === null || Math.abs(exact.item[i] - point.item) < Math.abs(exact.item[best] - point.item)) best = i;
        }
      }
      return best === null ? null : exact.get(best);
    }
    if (point.lane === null || point.lane < 0) return null;
    const exact = this.picture?.exact;
    const picture = this.picture;
    if (exact && picture.t0 <= point.t && point.t < picture.t1 && picture.rowOf[point.lane] >= 0)
      return exact.at(point.lane, point.t, near);
    return undefined;
  }

  hover(x, y) {
    this.cursor = this.hit(x, y);
    this.redraw();
    const span = this.known(this.cursor);
    const mine = this.cursor;
    clearTimeout(this.hovering);
    if (span === null || (span && span.index !== this.hovered?.index)) this.showCard(span);
    else if (span) this.showCard(this.hovered);
    else this.card.hidden = true;
    if (span === null) return;
    if (span && this.hovered?.index === span.index && this.hovered.claim_ns) return;
    this.hovering = setTimeout(async () => {
      const request = span
        ? { ask: "span", index: span.index }
        : { ask: "span", lane: mine.lane, t: Math.floor(mine.t) };
      const answer = await this.ask("span", request);
      if (!answer || this.cursor !== mine) return;
      this.showCard(answer[0].span);
    }, 70);
  }

  refreshHover() {
    if (this.cursor && !this.input.dragging && !this.card.hidden) this.hover(this.cursor.x, this.cursor.y);
  }

  showCard(span) {
    this.hovered = span;
    const { cursor, card } = this;
    if (!cursor || cursor.x < GUTTER || (cursor.lane === null && !span) || cursor.lane === -1 || this.input?.dragging) {
      card.hidden = true;
      return;
    }
    if (!span && (cursor.t < 0 || cursor.t > this.length)) {
      card.hidden = true;
      return;
    }
    hoverCard(card, this.meta, span, span ? span.lane : cursor.lane, Math.round(cursor.t));
    card.hidden = false;
    const top = this.lanesNode.offsetTop;
    const { offsetWidth: w, offsetHeight: h } = card;
    const right = cursor.x + 16 + w < this.root.clientWidth;
    card.style.left = `${right ? cursor.x + 16 : Math.max(4, cursor.x - 16 - w)}px`;
    card.style.top = `${Math.max(4, Math.min(this.root.clientHeight - h - 4, top + cursor.y + 14))}px`;
  }

  hoverOff() {
    clearTimeout(this.hovering);
    this.cursor = null;
    this.hovered = null;
    this.card.hidden = true;
    this.redraw();
  }

  async click(x, y) {
    const point = this.hit(x, y);
    if (this.measuring) {
      this.setMeasurePoint(point.t, y);
      return;
    }
    if (point.x < GUTTER) {
      if (point.block?.g !== undefined && point.lane === -1) this.fold(point.block.g);
      return;
    }
    const span = this.known(point);
    if (span === null) {
      this.unselect();
      return;
    }
    if (span && span.index === this.selected?.index) {
      this.showSpan();
      return;
    }
    await this.select(span ? { index: span.index } : { lane: point.lane, t: Math.floor(point.t) });
  }

  /** Selects the span that an answer to `span` gives. */
  async select(request, { reveal = false, ask = "span" } = {}) {
    const answer = await this.ask("span", { ask, ...request });
    if (!answer) return null;
    const span = answer[0].span;
    if (!span) {
      if (ask === "step") this.say("There is no further span in this lane");
      else this.unselect();
      return null;
    }
    this.selected = span;
    this.latest = "span";
    if (this.chain && !this.chain.spans.some((one) => one.index === span.index)) this.dropChain();
    if (reveal) this.reveal(span);
    this.say(this.sentence(span));
    this.card.hidden = true;
    if (this.shown("span")) this.showSpan();
    this.details.hidden = false;
    this.redraw();
    return span;
  }

  sentence(span) {
    const parts = [
      `${nameOfSpan(span)}, rank ${span.rank} workgroup ${span.workgroup}`,
      `waited ${duration(span.start - span.claim)}, worked ${duration(span.end - span.start)} from ${moment(span.start)}`,
    ];
    if (span.mhz) parts.push(`${count(Math.round(span.mhz))} MHz`);
    if (span.released) parts.push(`waited for ${briefSpan(this.meta, span.released)}`);
    if (span.bad) parts.push(`bad: ${span.bad}`);
    return parts.join("; ");
  }

  reveal(span) {
    if (this.tab === "lanes") this.layout.reveal(span.lane);
    const low = Math.min(span.claim, span.start);
    const [t0, t1] = this.target ?? [this.t0, this.t1];
    if (span.end - low > (t1 - t0) * 0.9) this.fit(low, span.end);
    else if (low < t0 || span.end > t1) {
      const middle = (low + span.end) / 2;
      this.go(middle - (t1 - t0) / 2, middle + (t1 - t0) / 2, { glide: true });
    }
  }

  unselect() {
    this.selected = null;
    this.dropChain();
    this.hide("span");
    this.details.hidden = true;
    this.say(this.idleSentence());
    this.redraw();
  }

  showSpan() {
    if (!this.selected) return this.say("Select a span first: click one, or press .");
    const panel = this.panel("span", "Selected span");
    spanPanel(panel, this.meta, this.selected, {
      go: (one) => this.select({ index: one.index }, { reveal: true }),
      close: () => this.hide("span"),
      chain: () => this.toggleChain(),
    });
    this.placePanels();
  }

  async step(by) {
    if (this.selected) {
      await this.select({ index: this.selected.index, by }, { reveal: true, ask: "step" });
      return;
    }
    const lane =
      this.cursor?.lane >= 0 && this.cursor.lane !== null ? this.cursor.lane : (this.layout.rows[0]?.first ?? 0);
    const t =
      this.cursor && this.cursor.x >= GUTTER
        ? Math.floor(this.cursor.t)
        : by > 0
          ? Math.floor(this.t0) - 1
          : Math.ceil(this.t1);
    await this.select({ lane, t, by }, { reveal: true, ask: "step" });
  }

  /** Selects the lane above or below, at the time of the selected span. */
  async lane(by) {
    if (!this.selected) return this.step(1);
    const blocks = this.layout.blocks.filter((block) => block.lanes.length && block.kind !== "fold");
    const lanes = blocks.flatMap((block) => block.lanes);
    const next = lanes[lanes.indexOf(this.selected.lane) + by];
    if (next === undefined) return this.say("There is no further lane");
    const t = Math.floor((this.selected.start + this.selected.end) / 2);
    const found = await this.select({ lane: next, t }, { reveal: true });
    if (!found) await this.select({ lane: next, t, by: -1 }, { reveal: true, ask: "step" });
    if (!this.selected) await this.select({ lane: next, t, by: 1 }, { reveal: true, ask: "step" });
  }

  fit(t0, t1) {
    const margin = Math.max(2, 0.06 * (t1 - t0));
    this.go(t0 - margin, t1 + margin, { glide: true });
  }

  fitSelection() {
    if (this.region && (!this.selected || this.latest === "region")) {
      this.fit(this.region.t0, this.region.t1);
      this.fitLanes(this.region.lanes);
    } else if (this.chain) {
      const spans = this.chain.spans;
      this.fit(Math.min(...spans.map((span) => span.claim)), Math.max(...spans.map((span) => span.end)));
      if (this.selected && this.tab === "lanes") this.layout.reveal(this.selected.lane);
    } else if (this.selected) {
      const { claim, start, end, lane } = this.selected;
      const low = Math.min(claim, start);
      const long = Math.max(end - low, 1);
      this.fit(low - long * 0.6, end + long * 0.6);
      if (this.tab === "lanes") {
        if (this.layout.lane < 14) this.layout.laneHeight = 16;
        this.layout.reveal(lane);
        this.layout.arrange(this.height, this.ratio);
        const { y, h } = this.layout.place(lane);
        this.layout.scroll += y + h / 2 - this.height / 2;
      }
    } else this.say("Nothing is selected");
    this.redraw();
  }

  fitLanes(lanes) {
    if (!lanes?.length || this.tab !== "lanes") return;
    const { layout } = this;
    const groups = new Set(lanes.map((lane) => layout.groupOf[lane]));
    if (groups.size > 1 && layout.laneHeight === null) return;
    const places = lanes.filter((lane) => !layout.pins.includes(lane)).map((lane) => layout.placeOf[lane]);
    if (!places.length) return;
    const rows = Math.max(...places) - Math.min(...places) + 1;
    layout.laneHeight = Math.min(MOST_LANE, Math.max(layout.fit, (0.8 * (this.height - layout.pinned)) / rows));
    layout.arrange(this.height, this.ratio);
    layout.scroll += layout.place(lanes[0]).y - layout.pinned - 0.1 * this.height;
    layout.arrange(this.height, this.ratio);
  }

  fold(g, folded) {
    const group = this.layout.groups[g];
    if (!group) return;
    this.layout.fold(g, folded);
    this.say(`rank ${group.rank} ${group.folded ? "folded" : "unfolded"}`);
    this.redraw();
  }

  foldHere() {
    const lane = this.cursor?.block?.g ?? (this.selected ? this.layout.groupOf[this.selected.lane] : 0);
    this.fold(lane);
  }

  foldAll() {
    const folded = !this.layout.groups.every((group) => group.folded);
    this.layout.groups.forEach((_, g) => this.layout.fold(g, folded));
    this.say(`all ranks ${folded ? "folded" : "unfolded"}`);
    this.redraw();
  }

  pin() {
    const lane = this.cursor?.lane >= 0 && this.cursor.lane !== null ? this.cursor.lane : this.selected?.lane;
    if (lane === undefined || this.tab !== "lanes") return this.say("Point at a lane or select a span to pin it");
    this.layout.pin(lane);
    const trace = this.traceOf(lane);
    const local = lane - trace.first_lane;
    this.say(
      `rank ${Math.floor(local / trace.workgroups)} workgroup ${local % trace.workgroups} ${this.layout.pins.includes(lane) ? "pinned on top" : "no longer pinned"}`,
    );
    this.redraw();
  }

  async setSort(by, t = null) {
    this.sort = by;
    this.sorter.value = by;
    if (by === "role") {
      this.sortTime = Math.round(t ?? this.mark ?? (this.t0 + this.t1) / 2);
    }
    const answer = await this.ask("order", { ask: "order", by, t: this.sortTime ?? 0 });
    if (!answer || this.sort !== by) return;
    this.layout.reorder(new Int32Array(answer[1][0]));
    this.say(
      `sorted ${this.sorter.selectedOptions[0].textContent}${by === "role" ? `: ${moment(this.sortTime)}` : ""}`,
    );
    this.redraw();
  }

  setSelecting(on) {
    this.selecting = on;
    this.buttons.select.setAttribute("aria-pressed", String(on));
    this.lanesNode.classList.toggle("selecting", on || this.measuring);
    if (on && this.measuring) this.setMeasuring(false);
  }

  setMeasuring(on) {
    this.measuring = on;
    this.measure = on ? this.measure : null;
    if (on) this.measure = null;
    this.buttons.measure.setAttribute("aria-pressed", String(on));
    this.lanesNode.classList.toggle("selecting", on || this.selecting);
    this.say(on ? "Measure: click the first moment, then the second" : this.idleSentence());
    this.redraw();
  }

  setMeasurePoint(t, y) {
    const span = this.known(this.hit(this.xOf(t), y));
    // the edges of spans are what people measure
    const near = (5 * (this.t1 - this.t0)) / this.width;
    const edges = span ? [span.claim, span.start, span.end].filter((edge) => Math.abs(edge - t) < near) : [];
    edges.sort((a, b) => Math.abs(a - t) - Math.abs(b - t));
    const at = edges.length ? edges[0] : Math.round(t);
    if (!this.measure || this.measure.b !== null) {
      this.measure = { a: at, b: null, y };
      this.say(`Measure: from ${moment(at)}; click the second moment`);
    } else {
      this.measure.b = at;
      this.say(
        `${duration(Math.abs(at - this.measure.a))} from ${moment(Math.min(at, this.measure.a))} to ${moment(Math.max(at, this.measure.a))}`,
      );
    }
    this.redraw();
  }

  async toggleChain() {
    if (this.chain) {
      this.dropChain();
      this.redraw();
      return;
    }
    if (!this.selected)
      return this.say("Select a span first: its critical chain is what it waited for, back to the launch");
    const answer = await this.ask("chain", { ask: "chain", index: this.selected.index });
    if (!answer) return;
    this.chain = answer[0];
    this.buttons.chain.setAttribute("aria-pressed", "true");
    const { spans, edges } = this.chain;
    const work = spans.reduce((sum, span) => sum + Math.max(0, span.end - span.start), 0);
    const total = Math.max(1, spans.at(-1).end - spans[0].claim);
    const waits = edges.filter(([, , kind]) => kind === "wait").length;
    this.say(
      `Critical chain: ${count(spans.length)} spans over ${duration(total)}, ${percent(Math.min(1, work / total))} at work, ${count(waits)} waits for another workgroup`,
    );
    this.redraw();
  }

  dropChain() {
    this.chain = null;
    this.buttons.chain.setAttribute("aria-pressed", "false");
  }

  // ---- regions

  /** Selects a region; its sums follow. */
  setRegion(region, { tell = true } = {}) {
    this.region = region;
    this.latest = "region"; // what F fits
    this.dragged = null;
    if (!region) {
      this.hide("sums");
      if (tell) this.host.set("selection", null);
      this.redraw();
      return;
    }
    if (tell)
      this.host.set("selection", { t0: this.absolute(region.t0), t1: this.absolute(region.t1), lanes: region.lanes });
    this.sumsOf(region);
    this.redraw();
  }

  async sumsOf(region) {
    const answer = await this.ask("sums", { ask: "sums", t0: region.t0, t1: region.t1, lanes: region.lanes });
    if (!answer || (this.region !== region && this.dragged !== region)) return;
    const sums = answer[0];
    this.sums = sums;
    const panel = this.panel("sums", "Sums of the region");
    sumsPanel(
      panel,
      region,
      sums,
      () => this.setRegion(null),
      () => this.fitRegion(),
    );
    this.placePanels();
    if (this.region !== region) return;
    const total = Math.max(1, sums.lanes * (region.t1 - region.t0));
    const shares = Object.entries(sums.ns).map(([kind, ns]) => `${kind} ${percent(ns / total)}`);
    this.say(`Region of ${duration(region.t1 - region.t0)} and ${count(sums.lanes)} lanes: ${shares.join(", ")}`);
  }

  fitRegion() {
    if (!this.region) return;
    this.fit(this.region.t0, this.region.t1);
    this.fitLanes(this.region.lanes);
    this.redraw();
  }

  takeSelection(value, move, glide = true) {
    if (!value) {
      if (this.region) this.setRegion(null, { tell: false });
      return;
    }
    const region = { t0: this.relative(value.t0), t1: this.relative(value.t1), lanes: value.lanes ?? null };
    const old = this.region;
    if (old && old.t0 === region.t0 && old.t1 === region.t1 && String(old.lanes) === String(region.lanes)) return;
    this.setRegion(region, { tell: false });
    if (!move) return;
    const margin = 0.1 * (region.t1 - region.t0);
    this.go(region.t0 - margin, region.t1 + margin, { glide, tell: false });
    if (region.lanes?.length) this.layout.reveal(region.lanes[0]);
  }

  // ---- panels

  panel(name, label) {
    if (!this.panels[name]) {
      this.panels[name] = el("div.panel", { role: "region", "aria-label": label });
      this.input.movable(this.panels[name]);
      this.root.append(this.panels[name]);
    }
    this.panels[name].hidden = false;
    return this.panels[name];
  }

  shown(name) {
    return this.panels[name] && !this.panels[name].hidden;
  }

  hide(name) {
    if (!this.shown(name)) return false;
    const inside = this.panels[name].contains(this.shell.shadowRoot.activeElement);
    this.panels[name].hidden = true;
    this.buttons[name]?.setAttribute("aria-expanded", "false");
    if (name === "problems") this.badge.setAttribute("aria-expanded", "false");
    if (name === "find" && this.found) this.found = null;
    if (inside) this.lanesNode.focus({ preventScroll: true });
    this.redraw();
    return true;
  }

  toggle(name) {
    if (this.hide(name)) return;
    const close = () => this.hide(name);
    if (name === "help") {
      const panel = this.panel("help", "Keys and mouse");
      panel.classList.add("help");
      helpPanel(panel, close);
    } else if (name === "problems") {
      problemsPanel(this.panel("problems", "Quality of the recording"), this.meta, close);
      this.badge.setAttribute("aria-expanded", "true");
    } else if (name === "menu") {
      this.menu();
    } else if (name === "find") {
      this.findPanel();
    }
    this.buttons[name]?.setAttribute("aria-expanded", "true");
    this.placePanels();
    if (name === "find") this.finder.focus();
    else this.panels[name].querySelector("button, input")?.focus({ preventScroll: true });
  }

  menu() {
    const panel = closable(this.panel("menu", "Counters"), "Counters", () => this.hide("menu"));
    panel.classList.add("menu");
    const check = (label, on, change) =>
      el(
        "label",
        {},
        el("input", { type: "checkbox", checked: on, change: (event) => change(event.target.checked) }),
        label,
      );
    for (const chart of this.charts) {
      const trace =
        this.meta.traces.length > 1 && chart.derived && chart.unit === "workgroups"
          ? `${this.meta.traces[chart.trace].title}: `
          : "";
      const unit = chart.unit && chart.unit !== chart.title ? ` (${chart.unit})` : "";
      panel.append(
        check(
          `${trace}${chart.title === "workgroups" ? "workgroups in each role" : chart.title}${unit}`,
          this.countersShown && !this.hidden.has(chart.key),
          (on) => {
            this.countersShown = true;
            if (on) this.hidden.delete(chart.key);
            else this.hidden.add(chart.key);
            this.redraw();
          },
        ),
      );
    }
    if (!this.charts.length) panel.append(el("div", {}, "none"));
  }

  toggleCounters() {
    this.countersShown = !this.countersShown;
    this.say(`Counters ${this.countersShown ? "shown" : "hidden"}`);
    if (this.shown("menu")) this.menu();
    this.redraw();
  }

  findPanel() {
    const panel = this.panel("find", "Search");
    panel.classList.add("find");
    this.finder = el("input", {
      type: "search",
      "aria-label": "Search spans: role, item, tile, workgroup",
      placeholder: "builder item 12 · tile 3,4 · wg 17 · rank 1 · wait",
      spellcheck: "false",
      input: () => this.search(this.finder.value),
    });
    this.foundText = el("span", { role: "status" });
    this.foundList = el("div.list", { role: "listbox", "aria-label": "Matches" });
    panel.replaceChildren(
      this.finder,
      el(
        "div.row",
        {},
        this.foundText,
        tool("left", "Previous match", "Shift+N", () => this.nextMatch(-1)),
        tool("right", "Next match", "N", () => this.nextMatch(1)),
        tool("close", "Close the search", "Esc", () => this.hide("find")),
      ),
      this.foundList,
    );
  }

  async search(text) {
    if (!text.trim()) {
      this.found = null;
      this.foundText.textContent = "";
      this.foundList.replaceChildren();
      this.redraw();
      return;
    }
    const answer = await this.ask("search", { ask: "search", text });
    if (!answer || this.finder.value !== text) return;
    const { matches, total } = answer[0];
    this.found = { text, matches, total, at: -1 };
    this.foundText.textContent =
      total > matches.length
        ? `${count(total)} spans, the first ${count(matches.length)} listed`
        : `${count(total)} span${total === 1 ? "" : "s"}`;
    this.foundList.replaceChildren(
      ...matches
        .slice(0, 200)
        .map((span, i) =>
          el(
            "button",
            { type: "button", role: "option", click: () => this.showMatch(i) },
            swatch(ROLES[span.role]),
            briefSpan(this.meta, span),
            el("span", {}, moment(span.start)),
          ),
        ),
    );
    this.redraw();
  }

  nextMatch(by) {
    if (!this.found?.matches.length) return this.say("Nothing is found: / opens the search");
    const n = this.found.matches.length;
    let at = this.found.at + by;
    if (this.found.at < 0)
      at =
        by > 0
          ? Math.max(
              0,
              this.found.matches.findIndex((span) => span.end > this.t0),
            )
          : n - 1;
    this.showMatch((at + n) % n);
  }

  showMatch(i) {
    if (!this.found) return;
    this.found.at = i;
    [...this.foundList.children].forEach((node, n) => node.setAttribute("aria-selected", String(n === i)));
    this.foundList.children[i]?.scrollIntoView({ block: "nearest" });
    this.select({ index: this.found.matches[i].index }, { reveal: true });
  }

  /** Panels keep to the corners of the lanes, away from what they speak of. */
  placePanels() {
    const top = this.lanesNode.offsetTop;
    const bottom = this.root.clientHeight - top - this.height;
    const room = this.root.clientHeight - top - 34;
    const span = this.selected && this.rectOf(this.selected);
    const away = span && span.x0 > GUTTER + this.width * 0.58 && span.x0 < GUTTER + this.width;
    const put = (name, css) => this.shown(name) && !this.panels[name].moved && (this.panels[name].style.cssText = css);
    put("find", `top:${top + 6}px;right:8px`);
    put("menu", `top:36px;right:8px;max-height:${this.root.clientHeight - 70}px`);
    put("problems", `top:36px;right:8px;max-width:min(520px,90%);max-height:${this.root.clientHeight - 70}px`);
    const beside = this.shown("find") && !away;
    put(
      "span",
      `${away ? `left:${GUTTER + 8}px` : beside ? "right:336px" : "right:8px"};top:${top + 6}px;max-height:${room}px`,
    );
    put(
      "sums",
      `left:${away && this.shown("span") ? "auto;right:8px" : `${GUTTER + 8}px`};bottom:${bottom + 6}px;max-height:${room}px`,
    );
  }

  say(text) {
    if (this.said.textContent !== text) this.said.textContent = text;
    this.said.title = text;
  }

  /** Esc: closes one thing after the other; false when there was nothing to close. */
  escape() {
    for (const name of ["help", "menu", "problems", "find"]) if (this.hide(name)) return true;
    if (this.measuring || this.measure) {
      this.setMeasuring(false);
      return true;
    }
    if (this.selecting) {
      this.setSelecting(false);
      return true;
    }
    return false;
  }

  // ---- files

  fileName(kind) {
    const title =
      this.meta.traces
        .map((trace) => trace.title)
        .join("_vs_")
        .replace(/[^\w.-]+/g, "_")
        .slice(0, 60) || "trace";
    return `${title}.${kind}`;
  }

  async exportPng() {
    download(await pngOf(this), this.fileName("png"));
    this.say("Downloaded the view as PNG");
  }

  exportSvg() {
    download(new Blob([svgOf(this)], { type: "image/svg+xml" }), this.fileName("svg"));
    this.say("Downloaded the view as SVG");
  }
}

function hash(values) {
  let h = 0;
  for (let i = 0; i < values.length; i++) h = (Math.imul(h, 31) + values[i]) | 0;
  return h;
}
