// Answers from the kernel, and the desk that asks: one question of each sort at a time, the newest next.

import { inflate } from "./page.js";

export const PATIENCE = 3000; // ms without an answer, after which the view says so

const DEFLATED = new Set(["picture", "counters"]);

export class KernelSource {
  constructor(model, view) {
    this.model = model;
    this.view = view;
    this.next = 0;
    this.heard = 0; // answers
    this.pending = new Map();
    this.state = "ok"; // "silent": no answer for a while; "gone": there is no kernel
    this.changed = () => {};
    this.receive = (message, buffers) => this.answered(message, buffers ?? []);
    this.lost = () => this.become("gone");
    model.on("msg:custom", this.receive);
    model.on("comm_live_update", this.lost); // Jupyter's managers tell that the kernel has left
  }

  close() {
    this.model.off("msg:custom", this.receive);
    this.model.off("comm_live_update", this.lost);
    for (const { timer } of this.pending.values()) clearTimeout(timer);
  }

  become(state) {
    if (this.state === state) return;
    this.state = state;
    this.changed(state);
  }

  ask(request, buffers = [], panel = "") {
    const id = ++this.next;
    return new Promise((resolve, reject) => {
      // A kernel that has answered something since is alive: it may drop a question that a newer one outdates.
      const heard = this.heard;
      const timer = setTimeout(() => this.state === "ok" && this.heard === heard && this.become("silent"), PATIENCE);
      this.pending.set(id, { ask: request.ask, resolve, reject, timer });
      try {
        this.model.send({ ...request, id, view: panel ? `${this.view}/${panel}` : this.view }, undefined, buffers);
      } catch {
        this.become("gone");
      }
    });
  }

  async answered(message, buffers) {
    const waiting = this.pending.get(message.id);
    // Every view of a widget hears every answer.
    if (!waiting || (message.view && message.view.split("/")[0] !== this.view)) return;
    this.pending.delete(message.id);
    clearTimeout(waiting.timer);
    this.heard++;
    this.become("ok");
    if (message.error) {
      waiting.reject(new Error(message.error));
      return;
    }
    const plain = buffers.map((view) =>
      view instanceof ArrayBuffer ? view : view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength),
    );
    try {
      waiting.resolve([message, DEFLATED.has(waiting.ask) ? await Promise.all(plain.map(inflate)) : plain]);
    } catch (error) {
      waiting.reject(error);
    }
  }
}

/** Asks a source without flooding it: of each slot one question is on its way, and the newest waits behind it. */
export class Desk {
  constructor(source) {
    this.source = source;
    this.slots = new Map();
    this.busy = () => {};
  }

  /** The answer as [answer, buffers], null if a newer question of the slot took its place. */
  ask(slot, request, buffers = []) {
    return new Promise((resolve, reject) => {
      const line = this.slots.get(slot) ?? { sent: null, next: null, timer: null };
      this.slots.set(slot, line);
      line.next?.resolve(null);
      line.next = { request, buffers, resolve, reject };
      this.send(slot, line);
    });
  }

  async send(slot, line) {
    if (!line.next) return;
    const left = line.sent ? line.sent.when + PATIENCE - performance.now() : 0;
    if (left > 0) {
      // an answer that never comes must not hold up the next question
      line.timer ??= setTimeout(() => {
        line.timer = null;
        this.send(slot, line);
      }, left + 1);
      return;
    }
    const mine = line.next;
    line.next = null;
    mine.when = performance.now();
    line.sent = mine;
    this.busy(this.waiting());
    try {
      const panel = slot.includes("/") ? slot.slice(slot.indexOf("/") + 1) : "";
      mine.resolve(await this.source.ask(mine.request, mine.buffers, panel));
    } catch (error) {
      mine.reject(error);
    }
    if (line.sent === mine) line.sent = null;
    this.busy(this.waiting());
    this.send(slot, line);
  }

  waiting() {
    return [...this.slots.values()].some((line) => line.sent);
  }
}
