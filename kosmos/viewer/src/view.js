// One view of one or several traces: what it shows (state), how that comes onto the screen (draw), what it asks.

import { drawChart, charts, CHART, SMALL } from "./counters.js";
import { svgOf, pngOf, download } from "./export.js";
import { Input } from "./input.js";
import { Layout, MOST_LANE } from "./layout.js";
import { drawArrow, drawMeasure, drawSpans, outline } from "./overlay.js";
import { ROLES } from "./page.js";
import { Picture } from "./paint.js";
import {
  briefSpan, closable, el, helpPanel, hoverCard, icon, legend, nameOfSpan, problemsOf, problemsPanel, spanPanel, sumsPanel, swatch, tool,
} from "./panels.js";
import { drawRanges, heightOf, rangeAt, stack } from "./ranges.js";
import { Desk } from "./source.js";
import style from "./style.css";
import { isDark, PALETTE, readTheme, watchTheme } from "./theme.js";
import { count, duration, moment, percent, timeTicks } from "./time.js";

export const GUTTER = 128; // px, as in the style sheet
const LEAST_WINDOW = 10; // ns; windows begin and end at whole ones
const HEIGHT = 460;
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
    this.build(element, options);
    this.input = new Input(this);
    this.follow();
    this.retheme();
    this.say(this.idleSentence());
  }

  // ---- the page

  build(element, options) {
    const shell = (this.shell = el("div", { class: "kosmos-viewer" }));
    const shadow = shell.attachShadow({ mode: "open" });
    const titles = this.meta.traces.map((trace) => trace.title);
    const first = this.meta.traces[0];
    const [makespan, facts] = this.factsOf();

    this.badge = el("button.badge", { type: "button", "aria-expanded": "false", click: () => this.toggle("problems") });
    this.judge();
    const pressed = (name, label, key, click) => tool(name, label, key, click, { "aria-pressed": "false" });
    const opens = (name, label, key, click) => tool(name, label, key, click, { "aria-expanded": "false" });
    this.buttons = {
      select: pressed("select", "Select a region by dragging", "Shift+drag", () => this.setSelecting(!this.selecting)),
      measure: pressed("measure", "Measure between two clicks", "M", () => this.setMeasuring(!this.measuring)),
      chain: pressed("chain", "Critical chain of the selected span", "C", () => this.toggleChain()),
      find: opens("search", "Search", "/", () => this.toggle("find")),
      menu: opens("lines", "Counters", "L: all", () => this.toggle("menu")),
      help: opens("help", "Keys and mouse", "?", () => this.toggle("help")),
    };
    this.tools = el(
      "div.tools",
      { role: "toolbar", "aria-label": "Trace viewer tools" },
      this.buttons.select, this.buttons.measure, this.buttons.chain, this.buttons.find,
      el("span.bar"),
      tool("out", "Zoom out", "S", () => this.zoom(1.6)),
      tool("in", "Zoom in", "W", () => this.zoom(1 / 1.6)),
      tool("all", "Show the whole run", "0", () => this.all()),
      tool("low", "Lower lanes", "−", () => this.laneZoom(1 / 1.5)),
      tool("tall", "Taller lanes", "+", () => this.laneZoom(1.5)),
      el("span.bar"),
      this.buttons.menu,
      tool("picture", "Download this view as PNG", "", () => this.exportPng()),
      tool("vector", "Download this view as SVG", "", () => this.exportSvg()),
      this.buttons.help,
    );
    const header = el(
      "header",
      {},
      el("div.title", { title: titles.join(" · ") }, titles.length > 1 ? `${titles.length} traces compared` : (titles[0] ?? "no trace")),
      el("div.makespan", {}, makespan),
      el("div.facts", {}, facts),
      this.badge,
      this.tools,
    );

    const tab = (name, label) =>
      el("button", { type: "button", role: "tab", "aria-selected": String(name === this.tab), click: () => this.setTab(name) }, label);
    this.tabs = { lanes: tab("lanes", "Lanes"), queue: tab("queue", "Queue") };
    this.mini = el("canvas", { "aria-hidden": "true" });
    this.miniPlot = el("div.plot", { class: "plot", title: "Overview: drag the window, or drag beside it for a new one" }, this.mini);
    this.axis = el("canvas", { "aria-hidden": "true" });
    this.axisPlot = el("div.plot", { title: "Drag to select a stretch of time" }, this.axis);
    this.sorter = el(
      "select",
      { "aria-label": "Sort the lanes of each rank", title: "Sort the lanes of each rank", change: () => this.setSort(this.sorter.value) },
      ...[
        ["workgroup", "by workgroup"],
        ["unit", `by ${first?.unit_name ?? "unit"}`],
        ["role", "by role at cursor"],
        ["switch", "by first switch"],
        ["idle", "by idle share"],
      ].map(([value, label]) => el("option", { value }, label)),
    );
    this.ranker = el(
      "select",
      { "aria-label": "Queues of which rank", hidden: true, change: () => this.setQueue(this.ranker.value) },
      ...this.meta.traces.flatMap((trace, t) =>
        Array.from({ length: trace.ranks }, (_, rank) =>
          el("option", { value: `${t}/${rank}` }, titles.length > 1 ? `${trace.title}: rank ${rank}` : `rank ${rank}`),
        ),
      ),
    );

    this.base2d = el("canvas.base", { "aria-hidden": "true" });
    this.over2d = el("canvas.over", { "aria-hidden": "true" });
    this.groupsNode = el("div.groups");
    this.heads = el("div.heads");
    this.lanesNode = el(
      "div.lanes",
      { tabindex: "0", role: "application", "aria-roledescription": "trace viewer", "aria-label": this.described() },
      this.base2d, this.over2d, this.heads, this.groupsNode,
    );
    this.charts2d = el("canvas", { "aria-hidden": "true" });
    this.ranges2d = el("canvas", { "aria-hidden": "true" });
    this.rangesNode = el("div.ranges", { hidden: true }, this.ranges2d);
    this.countersNode = el("div.counters", { hidden: true }, this.charts2d);
    this.said = el("div.said", { role: "status", "aria-live": "polite" });
    this.legendNode = el("ul.legend", { "aria-label": "Shares of the time of all workgroups" }, ...legend(first?.summary.shares ?? {}));
    this.details = el(
      "button.details",
      { type: "button", hidden: true, title: "What is known of the selected span (Enter)", click: () => this.hide("span") || this.showSpan() },
      "details",
    );
    this.note = el("div.note", { role: "alert", hidden: true });
    this.busyNode = el("div.busy", { role: "progressbar", "aria-label": "Waiting for an answer" });
    this.card = el("div.card", { hidden: true, "aria-hidden": "true" });
    this.root = el(
      "div.kosmos",
      { style: `height:${options.height ?? Math.min(HEIGHT + 140 * (this.meta.traces.length - 1), 760)}px` },
      header,
      el("div.strip.mini", {}, el("div.gutter", {}, el("div.tabs", { role: "tablist", "aria-label": "View" }, this.tabs.lanes, this.tabs.queue)), this.miniPlot),
      el("div.strip.axis", {}, el("div.gutter", {}, this.sorter, this.ranker), this.axisPlot),
      this.rangesNode,
      this.lanesNode,
      this.countersNode,
      el("footer", {}, this.said, this.details, this.legendNode),
      this.note, this.busyNode, this.card,
    );
    shadow.append(el("style", {}, style), this.root);
    element.append(shell);
  }

  /** The badge says how good the recording is. */
  judge() {
    const problems = problemsOf(this.meta);
    const says = problems === null ? "checking" : `${problems || "no"} problem${problems === 1 ? "" : "s"}`;
    this.badge.textContent = says;
    this.badge.setAttribute("aria-label", `Quality of the recording: ${says}`);
    this.badge.classList.toggle("amber", problems > 0);
    this.badge.classList.toggle("unknown", problems === null);
    if (this.shown("problems")) problemsPanel(this.panels.problems, this.meta, () => this.hide("problems"));
  }

  /** The makespan, and what else is said about the run. */
  factsOf() {
    const [first, ...others] = this.meta.traces;
    if (!first) return ["", ""];
    if (others.length) return [this.meta.traces.map((trace) => duration(trace.summary.makespan_ns)).join(" vs "), ""];
    const facts = [`${count(first.ranks)} × ${count(first.workgroups)} workgroups`, `${count(first.spans)} spans`];
    for (const more of [first.machine, first.place]) if (more && !first.title.includes(more)) facts.push(more);
    return [`makespan ${duration(first.summary.makespan_ns)}`, facts.join("  ·  ")];
  }

  described() {
    const parts = this.meta.traces.map(
      (trace) =>
        `${trace.title}: ${trace.ranks} ranks of ${trace.workgroups} workgroups, ${count(trace.spans)} spans, makespan ${duration(trace.summary.makespan_ns)}`,
    );
    return `Trace viewer. ${parts.join(". ")}. Press question mark for the keys, Escape to leave.`;
  }

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
      ["meta", (meta) => ((this.meta = meta), this.judge())],
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
      this.drawLanes();
      this.drawOver();
    } else {
      this.drawQueues();
    }
    this.drawGroups();
    this.drawAxis();
    this.drawMini();
    this.drawRanges();
    this.drawCounters();
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
    const rows = stack(ranges, this.meta.traces.length > 1, this.meta.traces.map((trace) => trace.title));
    this.ranges = { t0: request.t0, t1: request.t1, rows, whole: first && total <= ranges.length };
    this.redraw();
  }

  drawRanges() {
    const rows = this.ranges?.rows ?? [];
    const height = heightOf(rows);
    this.rangesNode.hidden = !height;
    if (!height) return;
    this.rangesNode.style.height = `${height}px`;
    const [context] = this.prepare(this.ranges2d);
    context.scale(this.ratio, this.ratio);
    drawRanges(context, this.theme, rows, { xOf: (t) => this.xOf(t), left: GUTTER, width: this.width });
    if (this.cursor && this.cursor.x >= GUTTER) {
      context.globalAlpha = 0.55;
      this.line(context, this.cursor.x, height, this.theme.ink);
    }
  }

  hoverRange(x, y) {
    this.cursor = { ...this.hit(x, -1), lane: null };
    const range = x < GUTTER ? null : rangeAt(this.ranges?.rows ?? [], y, this.cursor.t, (2 * (this.t1 - this.t0)) / this.width);
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

  drawLanes() {
    const [context] = this.prepare(this.base2d);
    const { ratio, layout, theme } = this;
    const left = Math.round(GUTTER * ratio);
    const right = this.base2d.width;
    context.imageSmoothingEnabled = false;
    context.fillStyle = theme.backgroundText;
    context.fillRect(0, 0, right, this.base2d.height);
    context.save();
    context.beginPath();
    context.rect(left, 0, right - left, this.base2d.height);
    context.clip();
    const picture = this.picture;
    const same = picture && sameRows(picture.rowOf, layout.rowOf);
    const covers = picture && picture.t0 <= this.t0 && picture.t1 >= this.t1;
    if (this.overview && !(same && covers)) {
      // what is known of the whole run, under what is known of this window
      const { rows } = this.overview;
      this.blit(context, this.overview.canvas, 0, this.overview.length, (row) =>
        row.block.kind === "fold" ? rows + row.block.g : this.overview.rowOf(row.first),
      );
    }
    if (picture) {
      this.blit(context, picture.canvas, picture.t0, picture.t1, same ? (_, i) => i : (row) => this.oldRow(picture, row));
    }
    context.restore();
    this.sharp = same && picture.t0 === this.t0 && picture.t1 === this.t1;
    this.base2d.dataset.sharp = String(!!this.sharp);
  }

  oldRow(picture, row) {
    const old = picture.rowOf[row.first];
    if (row.block.kind !== "fold" && row.lane < 0) return old;
    // a folded rank is the mixture of its lanes: only a row of just these will do
    const shared = (picture.shared ??= sharedRows(picture.rowOf));
    return old >= 0 && shared[old] === row.block.lanes.length ? old : row.lane >= 0 && old >= 0 && shared[old] === 1 ? old : -1;
  }

  /** Draws rows of a canvas that shows [t0, t1) to where they are now; neighbours of equal height together. */
  blit(context, canvas, t0, t1, sourceOf) {
    const { ratio, layout } = this;
    const left = Math.round(GUTTER * ratio);
    const width = this.base2d.width - left;
    const size = this.t1 - this.t0;
    const exact = t0 === this.t0 && t1 === this.t1;
    const x = exact ? left : left + ((t0 - this.t0) / size) * width;
    const w = exact ? width : ((t1 - t0) / size) * width;
    // Only what is in view: a canvas does not like to be drawn a million pixels wide.
    const from = Math.max(0, Math.floor(((left - x) / w) * canvas.width) - 1);
    const to = Math.min(canvas.width, Math.ceil(((left + width - x) / w) * canvas.width) + 1);
    if (to <= from) return;
    const dx = x + (from / canvas.width) * w;
    const dw = ((to - from) / canvas.width) * w;
    const rows = layout.rows;
    const top = Math.round(layout.pinned * ratio);
    let run = null;
    const flush = () => {
      if (run && run.source >= 0) {
        context.drawImage(canvas, from, run.source, to - from, run.stretch ? 1 : run.count, dx, run.y0, dw, run.y1 - run.y0);
      }
    };
    for (let i = 0; i < rows.length; i++) {
      const row = rows[i];
      const source = sourceOf(row, i);
      const cut = row.block.kind !== "pin" && row.y0 < top;
      if (run && !cut && run.y1 === row.y0) {
        if (source === run.source && run.count === 1) {
          run.y1 = row.y1;
          run.stretch = true;
          continue;
        }
        if (!run.stretch && source === run.source + run.count && row.y1 - row.y0 === run.tall && run.source >= 0) {
          run.y1 = row.y1;
          run.count++;
          continue;
        }
      }
      flush();
      // a row that scrolls under the pinned lanes keeps only its lower part
      run = { y0: cut ? Math.min(top, row.y1) : row.y0, y1: row.y1, source, count: 1, tall: cut ? -1 : row.y1 - row.y0, stretch: false };
    }
    flush();
  }

  rowsOnScreen() {
    const { layout, ratio } = this;
    return (lane) => {
      const row = layout.rows[layout.rowOf[lane]];
      return row && row.lane === lane ? { y0: Math.max(row.y0 / ratio, row.block.kind === "pin" ? 0 : layout.pinned), y1: row.y1 / ratio } : null;
    };
  }

  drawOver() {
    const [context, , height] = this.prepare(this.over2d);
    const { ratio, layout, theme, width } = this;
    context.scale(ratio, ratio);
    const xOf = (t) => this.xOf(t);
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, width, height);
    context.clip();
    this.drawBounds(context, height);
    if (layout.lane >= 6) {
      context.fillStyle = theme.backgroundText;
      for (const row of layout.rows) {
        if (row.block.kind === "group") context.fillRect(GUTTER, row.y1 / ratio - 1, width, 1);
      }
    }
    const exact = this.picture?.exact;
    if (exact) {
      drawSpans(context, theme, { exact, place: this.rowsOnScreen(), xOf, width, left: GUTTER, top: 0 });
    }
    this.drawChain(context, height);
    this.drawMatches(context);
    this.drawSelected(context, height);
    this.drawRegion(context, height);
    this.drawMarks(context, height);
    context.restore();
    this.drawLaneNames(context);
  }

  /** Time before the launch and after the end is no part of the run. */
  drawBounds(context, height) {
    const { theme } = this;
    context.fillStyle = theme.faint;
    const a = this.xOf(0);
    const b = this.xOf(this.length);
    if (a > GUTTER) context.fillRect(GUTTER, 0, a - GUTTER, height);
    if (b < GUTTER + this.width) context.fillRect(b, 0, GUTTER + this.width - b, height);
  }

  drawLaneNames(context) {
    const { layout, theme, ratio } = this;
    context.font = `10px ${theme.font}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = layout.lane >= 11 ? 1 : 0;
    for (const row of layout.rows) {
      const pin = row.block.kind === "pin";
      if (!pin && (!every || row.lane < 0)) continue;
      const y = (row.y0 + row.y1) / 2 / ratio;
      if (!pin && y < layout.pinned) continue;
      const trace = this.traceOf(row.lane);
      const lane = row.lane - trace.first_lane;
      const active = row.lane === this.selected?.lane || row.lane === this.cursor?.lane;
      context.fillStyle = active ? theme.ink : theme.soft;
      const text = pin ? `rank ${Math.floor(lane / trace.workgroups)} · wg ${lane % trace.workgroups}` : String(lane % trace.workgroups);
      context.fillText(text, GUTTER - 6, y + 0.5);
    }
    if (layout.pins.length) {
      context.fillStyle = theme.line;
      context.fillRect(0, layout.pinned - 2, GUTTER + this.width, 1);
    }
  }

  traceOf(lane) {
    return this.meta.traces.findLast((trace) => lane >= trace.first_lane) ?? this.meta.traces[0];
  }

  rectOf(span) {
    const { y, h } = this.layout.place(span.lane);
    return { x0: this.xOf(Math.min(span.claim ?? span.start, span.start)), x1: this.xOf(span.end), xs: this.xOf(span.start), y, h: Math.max(2, h - (h >= 6 ? 1 : 0)) };
  }

  inView({ y, h }) {
    return y + h > this.layout.pinned && y < this.height;
  }

  frame2d(height) {
    return { left: GUTTER, right: GUTTER + this.width, top: this.layout.pinned, bottom: height };
  }

  drawChain(context, height) {
    if (!this.chain) return;
    const { theme } = this;
    context.fillStyle = theme.veil;
    context.fillRect(GUTTER, 0, this.width, height);
    const byIndex = new Map(this.chain.spans.map((span) => [span.index, span]));
    for (const span of this.chain.spans) {
      const rect = this.rectOf(span);
      const { x0, x1, xs } = rect;
      const h = Math.max(5, rect.h); // thin lanes or not, the chain is to be seen
      const y = rect.y + (rect.h - h) / 2;
      if (!this.inView({ y, h }) || x1 < GUTTER || x0 > GUTTER + this.width) continue;
      context.fillStyle = PALETTE_WAIT;
      context.fillRect(x0, y, xs - x0, h);
      context.fillStyle = colours[span.role];
      context.fillRect(xs, y, Math.max(1, x1 - xs), h);
      context.strokeStyle = theme.ink;
      context.lineWidth = 1;
      if (x1 - x0 > 3) context.strokeRect(x0, y, x1 - x0, h);
    }
    const frame = this.frame2d(height);
    for (const [from, to, kind] of this.chain.edges) {
      const a = byIndex.get(from);
      const b = byIndex.get(to);
      if (!a || !b) continue;
      const ra = this.rectOf(a);
      const rb = this.rectOf(b);
      const ya = ra.y + ra.h / 2;
      const yb = rb.y + rb.h / 2;
      if (kind === "wait") {
        drawArrow(context, theme.ink, { x: this.xOf(a.end), y: ya }, { x: rb.xs, y: yb }, frame);
      } else {
        context.strokeStyle = theme.ink;
        context.lineWidth = 2;
        context.beginPath();
        context.moveTo(this.xOf(a.end), ya);
        context.lineTo(rb.x0, yb);
        context.stroke();
      }
    }
  }

  drawMatches(context) {
    if (!this.found?.matches.length) return;
    const { theme } = this;
    context.strokeStyle = context.fillStyle = theme.warn;
    this.found.matches.forEach((span, i) => {
      const { x0, x1, y, h } = this.rectOf(span);
      if (!this.inView({ y, h }) || x1 < GUTTER || x0 > GUTTER + this.width) return;
      context.lineWidth = i === this.found.at ? 2.5 : 1;
      if (h >= 5) context.strokeRect(x0, y, Math.max(2, x1 - x0), h);
      else context.fillRect(x0, y - 0.5, 1.5, Math.max(2, h));
    });
  }

  drawSelected(context, height) {
    const span = this.selected;
    if (!span) return;
    const { theme } = this;
    const rect = this.rectOf(span);
    if (!this.chain && span.waits_for) {
      const frame = this.frame2d(height);
      const me = rect.y + rect.h / 2;
      const middle = (one) => {
        const { y, h } = this.layout.place(one.lane);
        return y + h / 2;
      };
      for (const one of span.signals.slice(0, 300)) {
        drawArrow(context, theme.soft, { x: this.xOf(span.end), y: me }, { x: this.xOf(one.start), y: middle(one) }, frame);
      }
      for (const one of span.waits_for.slice(0, 300)) {
        const last = one.index === span.released?.index;
        if (!last) drawArrow(context, theme.soft, { x: this.xOf(one.end), y: middle(one) }, { x: rect.xs, y: me }, frame);
      }
      if (span.released) {
        drawArrow(context, theme.warn, { x: this.xOf(span.released.end), y: middle(span.released) }, { x: rect.xs, y: me }, frame);
      }
    }
    if (this.inView(rect)) outline(context, theme, rect.x0, rect.x1, Math.max(rect.y, this.layout.pins.includes(span.lane) ? 0 : this.layout.pinned), rect.h);
  }

  drawRegion(context, height) {
    const region = this.dragged ?? this.region;
    if (!region) return;
    const { theme, layout } = this;
    const x0 = this.xOf(region.t0);
    const x1 = this.xOf(region.t1);
    context.fillStyle = theme.accent;
    context.strokeStyle = theme.accent;
    context.lineWidth = 1;
    const strips = [];
    if (!region.lanes) {
      strips.push([0, height]);
    } else {
      const set = (region.set ??= new Set(region.lanes));
      for (const row of layout.rows) {
        const chosen = row.block.kind === "fold" ? row.block.lanes.some((lane) => set.has(lane)) : set.has(row.first);
        if (!chosen) continue;
        const last = strips.at(-1);
        const y0 = row.y0 / this.ratio;
        if (last && y0 - last[1] <= 4) last[1] = row.y1 / this.ratio;
        else strips.push([y0, row.y1 / this.ratio]);
      }
    }
    for (const [a, b] of strips) {
      context.globalAlpha = 0.14;
      context.fillRect(x0, a, x1 - x0, b - a);
      context.globalAlpha = 1;
      context.strokeRect(Math.round(x0) + 0.5, Math.round(a) + 0.5, Math.max(1, Math.round(x1 - x0) - 1), Math.max(1, Math.round(b - a) - 1));
    }
  }

  drawMarks(context, height) {
    const { theme } = this;
    if (this.sort === "role" && this.sortTime !== undefined) {
      context.setLineDash([2, 3]);
      this.line(context, this.xOf(this.sortTime), height, theme.soft);
      context.setLineDash([]);
    }
    const cursor = this.cursor;
    if (cursor && cursor.x >= GUTTER) {
      context.globalAlpha = 0.55;
      this.line(context, cursor.x, height, theme.ink);
      context.globalAlpha = 1;
    }
    const measure = this.measure;
    if (measure) {
      const b = measure.b ?? cursor?.t ?? measure.a;
      drawMeasure(context, theme, this.xOf(measure.a), this.xOf(b), measure.a, b, Math.min(height - 14, Math.max(14, measure.y ?? 30)), height);
    }
  }

  line(context, x, height, colour) {
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(x) + 0.5, 0);
    context.lineTo(Math.round(x) + 0.5, height);
    context.stroke();
  }

  drawAxis() {
    const [context, width, height] = this.prepare(this.axis);
    const { ratio, theme } = this;
    context.scale(ratio, ratio);
    context.font = `10.5px ${theme.font}`;
    context.textBaseline = "middle";
    const xOf = (t) => ((t - this.t0) / (this.t1 - this.t0)) * width;
    const region = this.dragged ?? this.region;
    if (region) {
      context.fillStyle = theme.accent;
      context.globalAlpha = 0.25;
      context.fillRect(xOf(region.t0), 0, xOf(region.t1) - xOf(region.t0), height);
      context.globalAlpha = 1;
    }
    const { offset, ticks, minor } = timeTicks(this.t0, this.t1, width / 95);
    context.strokeStyle = theme.line;
    context.beginPath();
    for (const t of minor) {
      context.moveTo(Math.round(xOf(t)) + 0.5, height);
      context.lineTo(Math.round(xOf(t)) + 0.5, height - 3);
    }
    for (const { t } of ticks) {
      context.moveTo(Math.round(xOf(t)) + 0.5, height);
      context.lineTo(Math.round(xOf(t)) + 0.5, height - 7);
    }
    context.stroke();
    context.fillStyle = theme.soft;
    context.textAlign = "left";
    let free = 0;
    if (offset) {
      context.fillStyle = theme.ink;
      context.fillText(offset, 4, height / 2 - 1);
      free = context.measureText(offset).width + 12;
      context.fillStyle = theme.soft;
    }
    for (const { t, label } of ticks) {
      const x = xOf(t) + 4;
      const w = context.measureText(label).width;
      if (x < free || x + w > width) continue;
      context.fillText(label, x, height / 2 - 1);
      free = x + w + 8;
    }
    if (this.cursor && this.cursor.x >= GUTTER) {
      const text = moment(Math.round(this.tOf(this.cursor.x)));
      const w = context.measureText(text).width + 8;
      const x = Math.max(0, Math.min(width - w, this.cursor.x - GUTTER - w / 2));
      context.fillStyle = theme.ink;
      context.fillRect(x, 2, w, height - 5);
      context.fillStyle = theme.backgroundText;
      context.textAlign = "left";
      context.fillText(text, x + 4, height / 2 - 0.5);
    }
  }

  drawMini() {
    const [context, width, height] = this.prepare(this.mini);
    const { ratio, theme, overview } = this;
    context.scale(ratio, ratio);
    if (overview) {
      context.imageSmoothingEnabled = true;
      context.imageSmoothingQuality = "high";
      context.drawImage(overview.canvas, 0, 0, overview.width, overview.rows, 0, 0, width, height);
    }
    const x0 = Math.max(0, (this.t0 / this.length) * width);
    const x1 = Math.min(width, (this.t1 / this.length) * width);
    context.fillStyle = theme.veil;
    context.fillRect(0, 0, x0, height);
    context.fillRect(x1, 0, width - x1, height);
    if (this.region) {
      context.fillStyle = theme.accent;
      context.fillRect((this.region.t0 / this.length) * width, height - 3, Math.max(2, ((this.region.t1 - this.region.t0) / this.length) * width), 3);
    }
    context.strokeStyle = theme.ink;
    context.lineWidth = 1;
    const w = Math.max(3, x1 - x0);
    context.strokeRect(Math.round(x0) + 0.5, 0.5, Math.round(w) - 1, height - 1);
    if (x1 - x0 > 12 && x1 - x0 < width - 1) {
      context.fillStyle = theme.ink;
      context.fillRect(x0 - 1, height / 2 - 6, 3, 12);
      context.fillRect(x1 - 2, height / 2 - 6, 3, 12);
    }
  }

  drawGroups() {
    const shown = [];
    const heads = [];
    const { layout } = this;
    if (this.tab === "lanes") {
      for (const block of layout.blocks) {
        if (block.kind === "head") heads.push([block.trace, block.y]);
        if (block.g === undefined) continue;
        const top = Math.max(block.y, layout.pinned);
        const bottom = Math.min(block.y + block.h, this.height);
        if (bottom - top >= Math.min(12, block.h)) shown.push([block, top, Math.min(bottom - top, block.h)]);
      }
    }
    this.groupNodes ??= this.layout.groups.map((group, g) => {
      const small = el("small");
      const node = el("button.group", { type: "button", "aria-expanded": "true", click: () => this.fold(g) }, icon("right"), `rank ${group.rank}`, small);
      node.querySelector("svg").style.cssText = "fill:none;stroke:currentColor;stroke-width:2";
      this.groupsNode.append(node);
      return node;
    });
    this.headNodes ??= this.meta.traces.length > 1 ? this.meta.traces.map((trace, t) => this.headOf(trace, t)) : [];
    const seen = new Set();
    for (const [block, top, room] of shown) {
      seen.add(block.g);
      const node = this.groupNodes[block.g];
      const group = layout.groups[block.g];
      node.hidden = false;
      node.style.top = `${top + Math.min(1, Math.max(0, (room - 18) / 2))}px`;
      node.setAttribute("aria-expanded", String(!group.folded));
      node.title = `${group.folded ? "Unfold" : "Fold"} rank ${group.rank}: ${count(group.lanes.length)} workgroups (G)`;
      const wide = layout.lane < 11 || group.folded;
      node.querySelector("small").textContent = wide ? `${count(group.lanes.length)}` : "";
    }
    this.groupNodes.forEach((node, g) => seen.has(g) || (node.hidden = true));
    this.headNodes.forEach((node) => (node.hidden = true));
    for (const [t, y] of heads) {
      this.headNodes[t].hidden = y + 26 < layout.pinned || y > this.height;
      this.headNodes[t].style.top = `${y}px`;
    }
  }

  headOf(trace, t) {
    const shares = Object.entries(trace.summary.shares);
    const first = this.meta.traces[0].summary;
    const delta = trace.summary.makespan_ns - first.makespan_ns;
    const change = first.makespan_ns ? delta / first.makespan_ns : 0;
    const sign = (value, text) => (value > 0 ? `+${text}` : text);
    const node = el(
      "div.head",
      {},
      el("b", {}, trace.title),
      el("span", {}, `makespan ${duration(trace.summary.makespan_ns)}`),
      t ? el("span.delta", {}, `${sign(delta, duration(delta))} (${sign(change, percent(change))})`) : el("span", {}, "compared with:"),
      ...shares.map(([kind, share]) => {
        const points = share - (first.shares[kind] ?? 0);
        return el("span", {}, swatch(kind), ` ${kind} ${percent(share)}${t ? ` (${sign(points, (100 * points).toFixed(1).replace("-", "−"))})` : ""}`);
      }),
    );
    for (const one of node.querySelectorAll("i")) one.style.cssText += ";display:inline-block;width:9px;height:9px;border-radius:2px";
    this.heads.append(node);
    return node;
  }

  get chartsShown() {
    return this.countersShown ? this.charts.filter((chart) => !this.hidden.has(chart.key)) : [];
  }

  drawCounters() {
    const shown = this.chartsShown;
    const height = shown.reduce((sum, chart) => sum + (chart.unit === "workgroups" ? CHART : SMALL), 0);
    const most = Math.round(0.45 * this.root.clientHeight);
    const wanted = this.countersShown && !this.charts.length ? CHART + SMALL : Math.min(height, most);
    this.countersNode.hidden = !wanted;
    if (this.countersNode.dataset.h !== String(wanted)) {
      this.countersNode.dataset.h = wanted;
      this.countersNode.style.height = `${wanted}px`;
      this.redraw();
    }
    if (!wanted) return;
    const [context, width] = this.prepare(this.charts2d);
    const { ratio, theme } = this;
    context.scale(ratio, ratio);
    let y = 0;
    for (const chart of shown) {
      const full = chart.unit === "workgroups" ? CHART : SMALL;
      const h = (full * wanted) / height;
      drawChart(context, theme, chart, {
        x: GUTTER,
        width: width - GUTTER,
        y,
        h,
        map: (n) => {
          const step = ((this.counters.t1 - this.counters.t0) / n / (this.t1 - this.t0)) * (width - GUTTER);
          return [this.xOf(this.counters.t0), step];
        },
        cursor: this.cursor && this.cursor.x >= GUTTER ? this.cursor.x : null,
      });
      y += h;
      if (y < wanted - 1) {
        context.fillStyle = theme.line;
        context.fillRect(0, Math.round(y) - 1, width, 1);
      }
    }
    if (this.cursor && this.cursor.x >= GUTTER) {
      context.globalAlpha = 0.55;
      this.line(context, this.cursor.x, wanted, theme.ink);
      context.globalAlpha = 1;
    }
  }

  // ---- the queue view: item index over time

  setTab(tab) {
    this.tab = tab;
    for (const [name, node] of Object.entries(this.tabs)) node.setAttribute("aria-selected", String(name === tab));
    this.sorter.hidden = tab !== "lanes";
    this.ranker.hidden = tab !== "queue";
    if (tab === "queue") this.makeQueues();
    this.hoverOff();
    this.say(tab === "queue" ? "Queue: every item of each role over time, the first on top" : "Lanes: every workgroup over time");
    this.redraw();
  }

  setQueue(value) {
    const [trace, rank] = value.split("/").map(Number);
    this.queueOf = { trace, rank };
    this.ranker.value = value;
    this.makeQueues();
    this.redraw();
  }

  makeQueues() {
    const { trace, rank } = this.queueOf;
    this.queues = (this.meta.traces[trace]?.queues ?? [])
      .filter((queue) => queue.rank === rank && queue.items > 0)
      .map(({ role, items }) => ({ trace, rank, role, items, key: `${trace}/${rank}/${role}`, picture: null }));
  }

  drawQueues() {
    const [base] = this.prepare(this.base2d);
    const [over, , height] = this.prepare(this.over2d);
    const { theme, ratio, queues, width } = this;
    base.fillStyle = theme.backgroundText;
    base.fillRect(0, 0, this.base2d.width, this.base2d.height);
    base.imageSmoothingEnabled = false;
    over.scale(ratio, ratio);
    const gap = 6;
    const each = (height - gap * (queues.length - 1)) / Math.max(1, queues.length);
    let sharp = queues.length > 0;
    queues.forEach((queue, q) => {
      queue.y = Math.round(q * (each + gap));
      queue.h = Math.floor(each);
      const picture = queue.picture;
      base.save();
      base.beginPath();
      base.rect(Math.round(GUTTER * ratio), 0, Math.round(width * ratio), this.base2d.height);
      base.clip();
      this.itemsInView(queue);
      if (queue.close) {
        this.drawItems(base, queue);
        sharp &&= picture.t0 === this.t0 && picture.t1 === this.t1;
      } else if (picture) {
        const current = picture.t0 === this.t0 && picture.t1 === this.t1;
        const x = current ? Math.round(GUTTER * ratio) : this.xOf(picture.t0) * ratio;
        const x1 = current ? this.base2d.width : this.xOf(picture.t1) * ratio;
        base.drawImage(picture.canvas, x, Math.round(queue.y * ratio), x1 - x, Math.round(queue.h * ratio));
        sharp &&= current;
      } else sharp = false;
      base.restore();
      over.font = `11px ${theme.font}`;
      over.textBaseline = "top";
      over.textAlign = "left";
      over.fillStyle = colours[queue.role];
      over.fillRect(10, queue.y + 4, 10, 10);
      over.fillStyle = theme.ink;
      over.fillText(ROLES[queue.role], 25, queue.y + 3);
      over.fillStyle = theme.soft;
      over.font = `10px ${theme.font}`;
      over.fillText(`${count(queue.items)} items`, 25, queue.y + 17);
      over.textAlign = "right";
      over.fillText(count(queue.first), GUTTER - 5, queue.y + 1);
      over.textBaseline = "bottom";
      over.fillText(count(queue.last), GUTTER - 5, queue.y + queue.h);
      over.strokeStyle = theme.line;
      over.lineWidth = 1;
      over.strokeRect(GUTTER - 0.5, queue.y + 0.5, width + 1, queue.h - 1);
    });
    if (!queues.length) {
      over.fillStyle = theme.soft;
      over.font = `12px ${theme.font}`;
      over.fillText("This rank has no queue.", GUTTER + 12, 24);
    }
    over.save();
    over.beginPath();
    over.rect(GUTTER, 0, width, height);
    over.clip();
    this.drawBounds(over, height);
    const span = this.selected;
    if (span && span.trace === this.queueOf.trace && span.rank === this.queueOf.rank) {
      const queue = queues.find((one) => one.role === span.role);
      if (queue) {
        const h = queue.h / (queue.last - queue.first + 1);
        outline(over, theme, this.xOf(span.claim), this.xOf(span.end), queue.y + (span.item - queue.first) * h, Math.max(2, h));
      }
    }
    this.drawMarks(over, height);
    over.restore();
    this.base2d.dataset.sharp = String(sharp);
  }

  /** The items that a queue's panel shows: all, or from close by those of the window if they are known one by one. */
  itemsInView(queue) {
    [queue.first, queue.last, queue.close] = [0, queue.items - 1, false];
    const exact = queue.picture?.exact;
    if (!exact?.length || this.t1 - this.t0 > 0.5 * this.length) return;
    let first = Infinity;
    let last = -Infinity;
    for (let i = 0; i < exact.length; i++) {
      if (exact.low(i) >= this.t1 || exact.high(i) <= this.t0) continue;
      first = Math.min(first, exact.item[i]);
      last = Math.max(last, exact.item[i]);
    }
    if (first > last) return;
    const margin = Math.max(1, Math.round((last - first) * 0.04));
    [queue.first, queue.last, queue.close] = [Math.max(0, first - margin), Math.min(queue.items - 1, last + margin), true];
  }

  drawItems(context, queue) {
    const { ratio } = this;
    const exact = queue.picture.exact;
    const tall = (queue.h * ratio) / (queue.last - queue.first + 1);
    const bar = (from, to, item, colour) => {
      const x = this.xOf(from) * ratio;
      const y = queue.y * ratio + (item - queue.first) * tall;
      context.fillStyle = colour;
      if (to > from) context.fillRect(x, y, Math.max(0.5, this.xOf(to) * ratio - x), Math.max(1, tall > 4 ? tall - 1 : tall));
    };
    for (let i = 0; i < exact.length; i++) {
      if (exact.low(i) >= this.t1 || exact.high(i) <= this.t0) continue;
      bar(exact.claim[i], exact.start[i], exact.item[i], PALETTE_WAIT);
      bar(exact.start[i], exact.end[i], exact.item[i], colours[queue.role]);
    }
  }

  // ---- pointing and choosing

  /** What is under a point of the lanes: {x, y, t, lane, queue, item}. */
  hit(x, y) {
    const t = this.tOf(x);
    if (this.tab === "queue") {
      const queue = this.queues.find((one) => y >= one.y && y < one.y + one.h);
      return { x, y, t, lane: null, queue, item: queue ? queue.first + Math.floor(((y - queue.y) / queue.h) * (queue.last - queue.first + 1)) : null };
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
        if (Math.abs(exact.item[i] - point.item) <= several && exact.low(i) - near <= point.t && point.t < exact.high(i) + near) {
          if (best === null || Math.abs(exact.item[i] - point.item) < Math.abs(exact.item[best] - point.item)) best = i;
        }
      }
      return best === null ? null : exact.get(best);
    }
    if (point.lane === null || point.lane < 0) return null;
    const exact = this.picture?.exact;
    const picture = this.picture;
    if (exact && picture.t0 <= point.t && point.t < picture.t1 && picture.rowOf[point.lane] >= 0) return exact.at(point.lane, point.t, near);
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
      const request = span ? { ask: "span", index: span.index } : { ask: "span", lane: mine.lane, t: Math.floor(mine.t) };
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
    const lane = this.cursor?.lane >= 0 && this.cursor.lane !== null ? this.cursor.lane : (this.layout.rows[0]?.first ?? 0);
    const t = this.cursor && this.cursor.x >= GUTTER ? Math.floor(this.cursor.t) : by > 0 ? Math.floor(this.t0) - 1 : Math.ceil(this.t1);
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
    if (this.region && !this.selected) {
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
    this.say(`rank ${Math.floor(local / trace.workgroups)} workgroup ${local % trace.workgroups} ${this.layout.pins.includes(lane) ? "pinned on top" : "no longer pinned"}`);
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
    this.say(`sorted ${this.sorter.selectedOptions[0].textContent}${by === "role" ? `: ${moment(this.sortTime)}` : ""}`);
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
      this.say(`${duration(Math.abs(at - this.measure.a))} from ${moment(Math.min(at, this.measure.a))} to ${moment(Math.max(at, this.measure.a))}`);
    }
    this.redraw();
  }

  async toggleChain() {
    if (this.chain) {
      this.dropChain();
      this.redraw();
      return;
    }
    if (!this.selected) return this.say("Select a span first: its critical chain is what it waited for, back to the launch");
    const answer = await this.ask("chain", { ask: "chain", index: this.selected.index });
    if (!answer) return;
    this.chain = answer[0];
    this.buttons.chain.setAttribute("aria-pressed", "true");
    const { spans, edges } = this.chain;
    const work = spans.reduce((sum, span) => sum + Math.max(0, span.end - span.start), 0);
    const total = Math.max(1, spans.at(-1).end - spans[0].claim);
    const waits = edges.filter(([, , kind]) => kind === "wait").length;
    this.say(`Critical chain: ${count(spans.length)} spans over ${duration(total)}, ${percent(Math.min(1, work / total))} at work, ${count(waits)} waits for another workgroup`);
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
    this.dragged = null;
    if (!region) {
      this.hide("sums");
      if (tell) this.host.set("selection", null);
      this.redraw();
      return;
    }
    if (tell) this.host.set("selection", { t0: this.absolute(region.t0), t1: this.absolute(region.t1), lanes: region.lanes });
    this.sumsOf(region);
    this.redraw();
  }

  async sumsOf(region) {
    const answer = await this.ask("sums", { ask: "sums", t0: region.t0, t1: region.t1, lanes: region.lanes });
    if (!answer || (this.region !== region && this.dragged !== region)) return;
    const sums = answer[0];
    this.sums = sums;
    const panel = this.panel("sums", "Sums of the region");
    sumsPanel(panel, region, sums, () => this.setRegion(null), () => this.fitRegion());
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
      el("label", {}, el("input", { type: "checkbox", checked: on, change: (event) => change(event.target.checked) }), label);
    for (const chart of this.charts) {
      const trace = this.meta.traces.length > 1 && chart.derived && chart.unit === "workgroups" ? `${this.meta.traces[chart.trace].title}: ` : "";
      const unit = chart.unit && chart.unit !== chart.title ? ` (${chart.unit})` : "";
      panel.append(
        check(`${trace}${chart.title === "workgroups" ? "workgroups in each role" : chart.title}${unit}`, this.countersShown && !this.hidden.has(chart.key), (on) => {
          this.countersShown = true;
          if (on) this.hidden.delete(chart.key);
          else this.hidden.add(chart.key);
          this.redraw();
        }),
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
    this.foundText.textContent = total > matches.length ? `${count(total)} spans, the first ${count(matches.length)} listed` : `${count(total)} span${total === 1 ? "" : "s"}`;
    this.foundList.replaceChildren(
      ...matches.slice(0, 200).map((span, i) =>
        el("button", { type: "button", role: "option", click: () => this.showMatch(i) }, swatch(ROLES[span.role]), briefSpan(this.meta, span), el("span", {}, moment(span.start))),
      ),
    );
    this.redraw();
  }

  nextMatch(by) {
    if (!this.found?.matches.length) return this.say("Nothing is found: / opens the search");
    const n = this.found.matches.length;
    let at = this.found.at + by;
    if (this.found.at < 0) at = by > 0 ? Math.max(0, this.found.matches.findIndex((span) => span.end > this.t0)) : n - 1;
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
    put("span", `${away ? `left:${GUTTER + 8}px` : beside ? "right:336px" : "right:8px"};top:${top + 6}px;max-height:${room}px`);
    put("sums", `left:${away && this.shown("span") ? "auto;right:8px" : `${GUTTER + 8}px`};bottom:${bottom + 6}px;max-height:${room}px`);
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

  clear() {
    if (this.selected) this.unselect();
    if (this.region) this.setRegion(null);
  }

  // ---- files

  fileName(kind) {
    const title = this.meta.traces.map((trace) => trace.title).join("_vs_").replace(/[^\w.-]+/g, "_").slice(0, 60) || "trace";
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

const colours = ROLES.map((role) => PALETTE[role]);
const PALETTE_WAIT = PALETTE.wait;

function sameRows(a, b) {
  if (!a || a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

function sharedRows(rowOf) {
  const shared = [];
  for (const row of rowOf) if (row >= 0) shared[row] = (shared[row] ?? 0) + 1;
  return shared;
}

function hash(values) {
  let h = 0;
  for (let i = 0; i < values.length; i++) h = (Math.imul(h, 31) + values[i]) | 0;
  return h;
}
