import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateRawSync } from "node:zlib";

import { Desk, KernelSource, PATIENCE } from "./source.js";

class Model {
  listeners = {};
  sent = [];

  on(name, listener) {
    (this.listeners[name] ??= new Set()).add(listener);
  }

  off(name, listener) {
    this.listeners[name].delete(listener);
  }

  send(message) {
    this.sent.push(message);
  }

  answer(message, more = {}, buffers = []) {
    for (const listener of this.listeners["msg:custom"])
      listener({ id: message.id, ask: message.ask, view: message.view, ...more }, buffers);
  }
}

const soon = () => new Promise((resolve) => setTimeout(resolve, 5));

test("a view takes no answer of another", async () => {
  const model = new Model();
  const [a, b] = [new KernelSource(model, "a"), new KernelSource(model, "b")];
  const got = [];
  a.ask({ ask: "span" }).then(([answer]) => got.push(["a", answer.n]));
  b.ask({ ask: "span" }).then(([answer]) => got.push(["b", answer.n]));
  assert.equal(model.sent[0].id, model.sent[1].id);
  model.answer(model.sent[1], { n: 2 });
  await soon();
  assert.deepEqual(got, [["b", 2]]);
  model.answer(model.sent[0], { n: 1 });
  await soon();
  assert.deepEqual(got, [
    ["b", 2],
    ["a", 1],
  ]);
  a.close();
  b.close();
});

test("buffers arrive as views, deflated for pictures only", async () => {
  const model = new Model();
  const source = new KernelSource(model, "a");
  const bytes = Uint8Array.from([1, 2, 3, 4]);
  const picture = source.ask({ ask: "picture" });
  const padded = new Uint8Array([9, 9, ...deflateRawSync(bytes)]);
  model.answer(model.sent[0], {}, [new DataView(padded.buffer, 2)]);
  assert.deepEqual(new Uint8Array((await picture)[1][0]), bytes);
  const order = source.ask({ ask: "order" });
  model.answer(model.sent[1], {}, [new DataView(bytes.buffer)]);
  assert.deepEqual(new Uint8Array((await order)[1][0]), bytes);
  const wrong = source.ask({ ask: "search" });
  model.answer(model.sent[2], { error: "text is no search" });
  await assert.rejects(wrong, /text is no search/);
  source.close();
});

test("of a slot one question is on its way, and the newest waits", async () => {
  const asked = [];
  const desk = new Desk({ ask: (request) => new Promise((resolve) => asked.push([request.n, resolve])) });
  const answers = [0, 1, 2, 3].map((n) => desk.ask("picture", { n }));
  const other = desk.ask("span", { n: 9 });
  assert.deepEqual(
    asked.map(([n]) => n),
    [0, 9],
  );
  asked[0][1]("zero");
  asked[1][1]("nine");
  assert.equal(await other, "nine");
  assert.deepEqual([await answers[0], await answers[1], await answers[2]], ["zero", null, null]);
  await soon();
  assert.deepEqual(
    asked.map(([n]) => n),
    [0, 9, 3],
  );
  asked[2][1]("three");
  assert.equal(await answers[3], "three");
  assert.equal(desk.waiting(), false);
});

test("a kernel that does not answer is told of, and asked again", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let now = 0;
  t.mock.method(performance, "now", () => now);
  const model = new Model();
  const source = new KernelSource(model, "a");
  const states = [];
  source.changed = (state) => states.push(state);
  const desk = new Desk(source);
  desk.ask("picture", { ask: "picture", n: 0 });
  desk.ask("picture", { ask: "picture", n: 1 });
  assert.equal(model.sent.length, 1);
  now = PATIENCE + 2;
  t.mock.timers.tick(PATIENCE + 2);
  assert.deepEqual(states, ["silent"]);
  assert.deepEqual(
    model.sent.map((message) => message.n),
    [0, 1],
  );
  model.answer(model.sent[1], {}, []);
  assert.deepEqual(states, ["silent", "ok"]);
  // one that was dropped says nothing about a kernel that answers others
  source.ask({ ask: "span" });
  source.ask({ ask: "order" });
  model.answer(model.sent.at(-1), {}, []);
  t.mock.timers.tick(PATIENCE + 2);
  assert.deepEqual(states, ["silent", "ok"]);
  for (const lost of model.listeners.comm_live_update) lost();
  assert.deepEqual(states, ["silent", "ok", "gone"]);
  source.close();
});
