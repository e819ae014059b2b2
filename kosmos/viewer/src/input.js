// Pointer, wheel and keys. None of the keys may reach the notebook around the view; those with Ctrl or Cmd all do.

import { GUTTER } from "./view.js";

const CLICK = 4; // px that a pointer may move in a click

export class Input {
  constructor(view) {
    this.view = view;
    this.dragging = null;
    this.pointers = new Map();
    this.ends = [];
    const { lanesNode, axisPlot, miniPlot, root, countersNode, rangesNode } = view;
    this.on(lanesNode, "pointerdown", (event) => this.down(event));
    this.on(lanesNode, "pointermove", (event) => this.move(event));
    this.on(lanesNode, "pointerup", (event) => this.up(event));
    this.on(lanesNode, "pointercancel", (event) => this.cancel(event));
    this.on(lanesNode, "pointerleave", () => !this.dragging && view.hoverOff());
    this.on(lanesNode, "dblclick", (event) => this.double(event));
    this.on(countersNode, "pointermove", (event) => {
      const { x } = this.at(event);
      view.cursor = { ...view.hit(x, -1), lane: null };
      view.card.hidden = true;
      view.redraw();
    });
    this.on(countersNode, "pointerleave", () => view.hoverOff());
    this.on(rangesNode, "pointermove", (event) =>
      this.view.hoverRange(this.at(event).x, event.clientY - rangesNode.getBoundingClientRect().top),
    );
    this.on(rangesNode, "pointerleave", () => view.hoverOff());
    for (const node of [lanesNode, axisPlot, miniPlot, countersNode, rangesNode])
      this.on(node, "wheel", (event) => this.wheel(event), { passive: false });
    this.on(axisPlot, "pointerdown", (event) => this.axisDown(event));
    this.on(miniPlot, "pointerdown", (event) => this.miniDown(event));
    this.on(root, "keydown", (event) => this.key(event));
    this.guard();
  }

  on(node, type, listener, options) {
    node.addEventListener(type, listener, options);
    this.ends.push(() => node.removeEventListener(type, listener, options));
  }

  close() {
    for (const end of this.ends) end();
  }

  /** Lumino, under JupyterLab, listens on the document, before the view hears a key: it lets be what this attribute marks. */
  guard() {
    const { shell } = this.view;
    const guard = (on) =>
      on
        ? shell.setAttribute("data-lm-suppress-shortcuts", "true")
        : shell.removeAttribute("data-lm-suppress-shortcuts");
    this.on(shell, "focusin", () => guard(true));
    this.on(shell, "focusout", () => guard(false));
    const keyed = (event) => {
      if (event.composedPath().includes(shell)) guard(!(event.ctrlKey || event.metaKey));
    };
    // the window hears it first of all
    this.on(window, "keydown", keyed, true);
    this.on(window, "keyup", keyed, true);
  }

  at(event) {
    const box = this.view.lanesNode.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  // ---- pointer over the lanes

  down(event) {
    if (event.button !== 0 || event.target.closest?.("button")) return;
    const { view } = this;
    view.lanesNode.focus({ preventScroll: true });
    const { x, y } = this.at(event);
    this.pointers.set(event.pointerId, { x, y });
    view.lanesNode.setPointerCapture(event.pointerId);
    if (this.pointers.size === 2) {
      this.pinch = this.spread();
      this.dragging = { kind: "pinch" };
      return;
    }
    const select = (event.shiftKey || view.selecting) && x >= GUTTER && view.tab === "lanes";
    this.dragging = {
      kind: select ? "select" : "pan",
      x,
      y,
      t0: view.t0,
      t1: view.t1,
      scroll: view.layout.scroll,
      moved: false,
    };
  }

  spread() {
    const [a, b] = [...this.pointers.values()];
    return { x: (a.x + b.x) / 2, size: Math.max(8, Math.hypot(a.x - b.x, a.y - b.y)) };
  }

  move(event) {
    const { view, dragging } = this;
    const { x, y } = this.at(event);
    if (this.pointers.has(event.pointerId)) this.pointers.set(event.pointerId, { x, y });
    if (!dragging) {
      if (event.target.closest?.("button")) view.hoverOff();
      else view.hover(x, y);
      return;
    }
    if (dragging.kind === "pinch") {
      if (this.pointers.size < 2) return;
      const now = this.spread();
      view.pan((this.pinch.x - now.x) / view.width, false);
      view.zoom(this.pinch.size / now.size, now.x, false);
      this.pinch = now;
      return;
    }
    if (!dragging.moved && Math.hypot(x - dragging.x, y - dragging.y) < CLICK) return;
    dragging.moved = true;
    view.card.hidden = true;
    if (dragging.kind === "pan") {
      view.lanesNode.classList.add("dragging");
      // whole device pixels: what is drawn already stays as sharp as it is
      const pixels = Math.round((x - dragging.x) * view.ratio) / view.ratio;
      const by = (pixels / view.width) * (dragging.t1 - dragging.t0);
      view.layout.scroll = dragging.scroll - (y - dragging.y);
      view.cursor = view.hit(x, y);
      view.go(dragging.t0 - by, dragging.t1 - by);
    } else {
      view.cursor = null;
      view.dragged = this.regionOf(dragging, x, y);
      view.sumsOf(view.dragged);
      view.redraw();
    }
  }

  regionOf({ x: x0, y: y0 }, x, y) {
    const { view } = this;
    const times = [view.tOf(x0), view.tOf(Math.max(GUTTER, Math.min(GUTTER + view.width, x)))].sort((a, b) => a - b);
    const t0 = Math.max(0, Math.round(times[0]));
    const t1 = Math.max(t0 + 1, Math.min(Math.round(times[1]), view.length));
    return { t0, t1, lanes: view.layout.between(Math.min(y0, y), Math.max(y0, y, Math.min(y0, y) + 1)) };
  }

  up(event) {
    const { view, dragging } = this;
    this.pointers.delete(event.pointerId);
    view.lanesNode.classList.remove("dragging");
    if (!dragging) return;
    if (dragging.kind === "pinch") {
      if (!this.pointers.size) this.dragging = null;
      return;
    }
    this.dragging = null;
    const { x, y } = this.at(event);
    if (!dragging.moved) {
      view.mark = view.tOf(x);
      view.click(x, y);
    } else if (dragging.kind === "select") {
      view.setRegion(this.regionOf(dragging, x, y));
    } else {
      view.hover(x, y);
    }
  }

  cancel(event) {
    this.pointers.delete(event.pointerId);
    this.dragging = null;
    this.view.dragged = null;
    this.view.lanesNode.classList.remove("dragging");
    this.view.redraw();
  }

  double(event) {
    const { x } = this.at(event);
    if (x >= GUTTER && this.view.selected && !this.view.measuring) this.view.fitSelection();
  }

  wheel(event) {
    const { view } = this;
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 240 : 1;
    const dx = event.deltaX * unit;
    const dy = event.deltaY * unit;
    const { x, y } = this.at(event);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      view.zoom(Math.exp(Math.max(-120, Math.min(120, dy)) * 0.0035), Math.max(GUTTER, x), false);
    } else if (event.altKey) {
      event.preventDefault();
      view.laneZoom(Math.exp(-dy * 0.003), y);
    } else if (event.shiftKey || Math.abs(dx) > Math.abs(dy)) {
      event.preventDefault();
      view.pan((event.shiftKey && !dx ? dy : dx) / view.width, false);
    } else if (view.tab === "lanes" && view.shell.shadowRoot.activeElement && view.scrollBy(dy)) {
      // The page scrolls on where the lanes cannot, and as long as the view is not the one in use.
      event.preventDefault();
    }
    if (view.cursor) view.hover(x, y);
  }

  // ---- axis and overview

  follow(event, use, done) {
    const node = event.currentTarget;
    node.setPointerCapture(event.pointerId);
    this.view.lanesNode.focus({ preventScroll: true });
    const move = (now) => use(now);
    const end = (now) => {
      node.removeEventListener("pointermove", move);
      node.removeEventListener("pointerup", end);
      node.removeEventListener("pointercancel", end);
      done?.(now);
    };
    node.addEventListener("pointermove", move);
    node.addEventListener("pointerup", end);
    node.addEventListener("pointercancel", end);
    event.preventDefault();
  }

  axisDown(event) {
    if (event.button !== 0) return;
    const { view } = this;
    const from = this.at(event).x;
    let moved = false;
    const region = (now) => ({ ...this.regionOf({ x: from, y: 0 }, this.at(now).x, 0), lanes: null });
    this.follow(
      event,
      (now) => {
        moved ||= Math.abs(this.at(now).x - from) >= CLICK;
        if (!moved) return;
        view.dragged = region(now);
        view.sumsOf(view.dragged);
        view.redraw();
      },
      (now) => {
        if (moved) view.setRegion(region(now));
        else view.setRegion(null);
      },
    );
  }

  miniDown(event) {
    if (event.button !== 0) return;
    const { view } = this;
    const width = view.miniPlot.clientWidth;
    const at = (now) => ((now.clientX - view.miniPlot.getBoundingClientRect().left) / width) * view.length;
    const from = at(event);
    const { t0, t1 } = view;
    const near = (7 / width) * view.length;
    const whole = t1 - t0 > view.length * 0.98;
    const grip =
      Math.abs(from - t0) < near && !whole
        ? "left"
        : Math.abs(from - t1) < near && !whole
          ? "right"
          : from > t0 && from < t1 && !whole
            ? "window"
            : "new";
    this.follow(
      event,
      (now) => {
        const t = at(now);
        if (grip === "window") view.go(t0 + t - from, t1 + t - from);
        else if (grip === "left") view.go(Math.min(t, t1 - 8), t1);
        else if (grip === "right") view.go(t0, Math.max(t, t0 + 8));
        else if (Math.abs(t - from) > near / 3)
          view.go(Math.max(0, Math.min(t, from)), Math.min(view.length, Math.max(t, from)));
      },
      (now) => {
        // a click beside the window brings it there
        if (grip === "new" && !whole && Math.abs(at(now) - from) <= near / 3)
          view.go(from - (t1 - t0) / 2, from + (t1 - t0) / 2, { glide: true });
      },
    );
  }

  /** Lets a panel be dragged by its heading. */
  movable(panel) {
    this.on(panel, "pointerdown", (event) => {
      if (event.button !== 0 || !event.target.closest("h4")) return;
      const box = panel.getBoundingClientRect();
      const root = this.view.root.getBoundingClientRect();
      const from = [event.clientX - box.left + root.left, event.clientY - box.top + root.top];
      panel.moved = true;
      this.follow(event, (now) => {
        const x = Math.max(0, Math.min(now.clientX - from[0], root.width - box.width));
        const y = Math.max(0, Math.min(now.clientY - from[1], root.height - 24));
        panel.style.cssText = `left:${x}px;top:${y}px;max-height:${root.height - y - 8}px`;
      });
    });
  }

  // ---- keys

  key(event) {
    const { view } = this;
    if (event.isComposing) return;
    const target = event.composedPath()[0];
    if (event.key === "Escape") {
      this.stop(event);
      if (!view.escape()) this.leave();
      return;
    }
    if (target.matches?.("input[type=search]")) {
      if (event.key === "Enter") {
        this.stop(event);
        view.nextMatch(event.shiftKey ? -1 : 1);
      }
      if (!event.ctrlKey && !event.metaKey) event.stopPropagation();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.stopPropagation();
    if (event.key === "Tab") return;
    if (target.matches?.("select, input")) return;
    if (target.matches?.("button") && (event.key === "Enter" || event.key === " ")) return;
    const act = this.actions()[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (act) {
      event.preventDefault();
      act(event);
    }
  }

  stop(event) {
    event.preventDefault();
    event.stopPropagation();
  }

  actions() {
    const { view } = this;
    return {
      w: () => view.zoom(1 / 1.5),
      s: () => view.zoom(1.5),
      a: () => view.pan(-0.25),
      d: () => view.pan(0.25),
      ArrowLeft: () => view.pan(-0.1),
      ArrowRight: () => view.pan(0.1),
      ArrowUp: () => view.lane(-1),
      ArrowDown: () => view.lane(1),
      PageUp: () => view.scrollBy(-0.8 * view.height),
      PageDown: () => view.scrollBy(0.8 * view.height),
      Home: () => view.go(0, view.t1 - view.t0, { glide: true }),
      End: () => view.go(view.length - (view.t1 - view.t0), view.length, { glide: true }),
      "+": () => view.laneZoom(1.5),
      "=": () => view.laneZoom(1.5),
      "-": () => view.laneZoom(1 / 1.5),
      f: () => view.fitSelection(),
      0: () => view.all(),
      ",": () => view.step(-1),
      ".": () => view.step(1),
      m: () => this.measure(),
      "/": () => (view.shown("find") ? view.finder.focus() : view.toggle("find")),
      n: (event) => view.nextMatch(event.shiftKey ? -1 : 1),
      p: () => view.pin(),
      c: () => view.toggleChain(),
      g: (event) => (event.shiftKey ? view.foldAll() : view.foldHere()),
      o: () => view.setSort("role", view.cursor && view.cursor.x >= GUTTER ? view.cursor.t : null),
      v: () => view.setTab(view.tab === "lanes" ? "queue" : "lanes"),
      l: () => view.toggleCounters(),
      "?": () => view.toggle("help"),
      Enter: () => view.showSpan(),
      " ": () => {},
    };
  }

  /** M with a span selected and no pointer over the lanes measures from and to its start. */
  measure() {
    const { view } = this;
    if (!view.measuring) view.setMeasuring(true);
    else if (view.selected && !view.cursor) view.setMeasurePoint(view.selected.start, view.rectOf(view.selected).y);
    else view.setMeasuring(false);
  }

  /** Gives the keyboard back to the notebook; what is selected stays, for Python to have. */
  leave() {
    const { view } = this;
    view.shell.removeAttribute("data-lm-suppress-shortcuts");
    view.shell.shadowRoot.activeElement?.blur();
    let node = view.shell.parentElement;
    while (node && !(node.tabIndex >= 0 || node.hasAttribute("tabindex"))) node = node.parentElement;
    node?.focus({ preventScroll: true });
    view.say("The keyboard is the notebook's again");
  }
}
