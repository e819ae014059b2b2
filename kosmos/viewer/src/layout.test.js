import assert from "node:assert/strict";
import { test } from "node:test";

import { Layout } from "./layout.js";

const meta = (...traces) => {
  let lanes = 0;
  const list = traces.map(([ranks, workgroups]) => {
    const one = { ranks, workgroups, first_lane: lanes };
    lanes += ranks * workgroups;
    return one;
  });
  return { traces: list, lanes };
};

test("every lane has a row, in order, whatever the height and the screen", () => {
  for (const [shape, height, ratio] of [
    [[[8, 256]], 240, 1],
    [[[8, 256]], 240, 2],
    [[[4, 33]], 300, 1.25],
    [[[1, 1]], 60, 1],
    [
      [
        [2, 40],
        [3, 7],
      ],
      500,
      1,
    ],
    [[[1, 5000]], 200, 1],
  ]) {
    const layout = new Layout(meta(...shape));
    layout.arrange(height, ratio);
    if (layout.content <= height + 1)
      assert.ok(
        layout.rowOf.every((row) => row >= 0),
        JSON.stringify(shape),
      );
    let last = -1;
    let block = null;
    layout.rows.forEach((row) => {
      assert.ok(row.y1 > row.y0 && row.y0 >= last, `${row.y0} ${row.y1} ${last}`);
      if (row.block === block) assert.equal(row.y0, last); // no gap within a rank
      [last, block] = [row.y1, row.block];
    });
    for (let lane = 1; lane < layout.lanes; lane++) {
      if (layout.rowOf[lane] >= 0 && layout.rowOf[lane - 1] >= 0)
        assert.ok(layout.rowOf[lane] >= layout.rowOf[lane - 1]);
    }
  }
});

test("what is drawn at a height is what is found there", () => {
  const layout = new Layout(meta([4, 33]));
  layout.pin(40);
  layout.fold(2);
  layout.laneHeight = 12;
  layout.arrange(300, 1);
  layout.scroll = 250;
  layout.arrange(300, 1);
  for (let y = 0.5; y < 300; y++) {
    const found = layout.at(y);
    const row = layout.rows.find(
      (one) => one.y0 <= y && y < one.y1 && (one.block.kind === "pin" || y >= layout.pinned),
    );
    if (!found || !row) continue;
    if (found.block.kind === "fold") assert.equal(row.block, found.block);
    else assert.ok(Math.abs(layout.place(found.lane).y - layout.place(row.lane).y) <= 12, `${y}`);
  }
  assert.equal(layout.at(5).lane, 40);
});

test("folding, pinning and sorting move lanes, lose none", () => {
  const layout = new Layout(meta([2, 10]));
  layout.arrange(400, 1);
  layout.pin(13);
  layout.pin(2);
  layout.fold(0);
  layout.arrange(400, 1);
  assert.equal(layout.rowOf[13], 0);
  assert.equal(layout.rowOf[2], 1);
  assert.equal(new Set([0, 1, 3, 4, 5, 6, 7, 8, 9].map((lane) => layout.rowOf[lane])).size, 1);
  layout.reorder(Int32Array.from([9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10]));
  layout.fold(0);
  layout.pin(2);
  layout.arrange(400, 1);
  assert.ok(layout.rowOf[9] < layout.rowOf[0]);
  assert.ok(layout.rowOf[9] < layout.rowOf[2] && layout.rowOf[2] < layout.rowOf[0]);
  assert.equal(new Set(layout.rowOf).size, 20);
});

test("a zoom of the lanes keeps the lane under the pointer", () => {
  const layout = new Layout(meta([8, 256]));
  layout.arrange(240, 1);
  for (const y of [30, 120, 200]) {
    layout.laneHeight = null;
    layout.scroll = 0;
    layout.arrange(240, 1);
    const { lane } = layout.at(y);
    layout.zoom(4, y);
    const { y: top, h } = layout.place(lane);
    assert.ok(top <= y + 1 && y - 1 <= top + h, `${y}: ${top} ${h}`);
  }
});

test("regions name the lanes between two heights", () => {
  const layout = new Layout(meta([2, 10]));
  layout.arrange(300, 1);
  assert.equal(layout.between(0, 300), null);
  const { y, h } = layout.place(3);
  const { y: y1, h: h1 } = layout.place(5);
  assert.deepEqual(layout.between(y + h / 2, y1 + h1 / 2), [3, 4, 5]);
  layout.reveal(15);
  layout.laneHeight = 30;
  layout.arrange(100, 1);
  layout.reveal(19);
  layout.arrange(100, 1);
  assert.ok(layout.place(19).y >= 0 && layout.place(19).y < 100);
});

test("ranks of few lanes beside ranks of many are as high as their names", () => {
  const layout = new Layout(meta([4, 33], [8, 256], [2, 16]));
  for (const height of [270, 600]) {
    layout.arrange(height, 1);
    for (const block of layout.blocks) if (block.kind === "group") assert.ok(block.h >= 18, `${block.h}`);
    for (let lane = 0; lane < layout.lanes; lane++) {
      const { y, h } = layout.place(lane);
      const block = layout.blocks.find((one) => one.g === layout.groupOf[lane]);
      assert.ok(y >= block.y - 1e-6 && y + h <= block.y + block.h + 1e-6);
      if (y >= 0 && y + h <= height) assert.equal(layout.at(y + h / 2).lane, lane);
    }
  }
  assert.ok(layout.content <= 600 + 1e-6, "all of them fit where there is room");
});
