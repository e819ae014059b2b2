// The bundle: the widget of a notebook (`render`) and the page of an exported file (`mountPage`).

import { inflate, PageSource, unpack } from "./page.js";
import { Overview } from "./paint.js";
import { KernelSource } from "./source.js";
import { View } from "./view.js";

export { PageSource, unpack };

/** The synced bytes of the overview; null if there are none. */
async function decode(meta, bytes) {
  if (!bytes || bytes.byteLength < 8) return null;
  const view = new DataView(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength);
  const packed = new Uint8Array(view.buffer, view.byteOffset + 8, view.byteLength - 8);
  const planes = new Uint8Array(await inflate(packed));
  return new Overview(view.getUint32(0, true), view.getUint32(4, true), planes, meta);
}

/** Shows a trace in `element`: `source` answers requests, `host` has the traits. */
export async function mount(element, source, host, options = {}) {
  host.decode = (bytes) => decode(host.get("meta"), bytes);
  const overview = await host.decode(host.get("overview"));
  return new View(element, source, host, overview, options);
}

/** Traits of a page without a kernel. */
class PageHost {
  constructor(values) {
    this.values = values;
    this.listeners = new Map();
  }

  get(name) {
    return this.values[name] ?? null;
  }

  /** From the view (`mine`) or from a script of the page. */
  set(name, value, mine = true) {
    this.values[name] = value;
    for (const listener of this.listeners.get(name) ?? []) listener(value, mine);
  }

  on(name, listener) {
    if (!this.listeners.has(name)) this.listeners.set(name, new Set());
    this.listeners.get(name).add(listener);
    return () => this.listeners.get(name).delete(listener);
  }
}

/** Shows what an exported page holds. */
export async function mountPage(element, json, options = {}) {
  const data = await unpack(json);
  const source = new PageSource(data);
  source.state = "ok";
  const host = new PageHost({
    meta: data.meta,
    overview: data.overview,
    selection: json.selection,
    window: json.window,
  });
  return mount(element, source, host, { ...json.options, ...options });
}

class ModelHost {
  /** `written`: what the views of the widget wrote last, by name: no word from outside to any of them. */
  constructor(model, written) {
    this.model = model;
    this.written = written;
  }

  get(name) {
    return this.model.get(name);
  }

  set(name, value) {
    this.written.set(name, JSON.stringify(value));
    try {
      this.model.set(name, value);
      this.model.save_changes();
    } catch {
      // no kernel to tell
    }
  }

  on(name, listener) {
    const heard = () => {
      const value = this.model.get(name);
      listener(value, this.written.get(name) === JSON.stringify(value));
    };
    this.model.on(`change:${name}`, heard);
    return () => this.model.off(`change:${name}`, heard);
  }
}

/** A widget: anywidget calls this once for each, and `render` for each of its views. */
export default () => {
  const written = new Map();
  return {
    async render({ model, el }) {
      const id = Array.from(crypto.getRandomValues(new Uint32Array(2)), (word) => word.toString(36)).join("");
      const source = new KernelSource(model, id);
      const view = await mount(el, source, new ModelHost(model, written), model.get("options") ?? {});
      return () => view.close();
    },
  };
};
