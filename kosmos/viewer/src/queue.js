// The queue view: for each role of a rank its items over time, in the order in which the queue has them.

import { drawBounds, drawMarks } from "./lanes.js";
import { outline } from "./overlay.js";
import { ROLES } from "./page.js";
import { PALETTE } from "./theme.js";
import { count } from "./time.js";
import { GUTTER } from "./view.js";

const colours = ROLES.map((role) => PALETTE[role]);

export function makeQueues(view) {
  const { trace, rank } = view.queueOf;
  view.queues = (view.meta.traces[trace]?.queues ?? [])
    .filter((queue) => queue.rank === rank && queue.items > 0)
    .map(({ role, items }) => ({ trace, rank, role, items, key: `${trace}/${rank}/${role}`, picture: null }));
}

export function drawQueues(view) {
  const [base] = view.prepare(view.base2d);
  const [over, , height] = view.prepare(view.over2d);
  const { theme, ratio, queues, width } = view;
  base.fillStyle = theme.backgroundText;
  base.fillRect(0, 0, view.base2d.width, view.base2d.height);
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
    base.rect(Math.round(GUTTER * ratio), 0, Math.round(width * ratio), view.base2d.height);
    base.clip();
    itemsInView(view, queue);
    if (queue.close) {
      drawItems(view, base, queue);
      sharp &&= picture.t0 === view.t0 && picture.t1 === view.t1;
    } else if (picture) {
      const current = picture.t0 === view.t0 && picture.t1 === view.t1;
      const x = current ? Math.round(GUTTER * ratio) : view.xOf(picture.t0) * ratio;
      const x1 = current ? view.base2d.width : view.xOf(picture.t1) * ratio;
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
    over.textAlign = "left";
    over.fillText("This rank has no queue.", GUTTER + 12, 24);
  }
  over.save();
  over.beginPath();
  over.rect(GUTTER, 0, width, height);
  over.clip();
  drawBounds(view, over, height);
  const span = view.selected;
  if (span && span.trace === view.queueOf.trace && span.rank === view.queueOf.rank) {
    const queue = queues.find((one) => one.role === span.role);
    if (queue) {
      const h = queue.h / (queue.last - queue.first + 1);
      outline(
        over,
        theme,
        view.xOf(span.claim),
        view.xOf(span.end),
        queue.y + (span.item - queue.first) * h,
        Math.max(2, h),
      );
    }
  }
  drawMarks(view, over, height);
  over.restore();
  view.base2d.dataset.sharp = String(sharp);
}

/** The items that a queue's panel shows: all, or from close by those of the window if they are known one by one. */
function itemsInView(view, queue) {
  [queue.first, queue.last, queue.close] = [0, queue.items - 1, false];
  const exact = queue.picture?.exact;
  if (!exact?.length || view.t1 - view.t0 > 0.5 * view.length) return;
  let first = Infinity;
  let last = -Infinity;
  for (let i = 0; i < exact.length; i++) {
    if (exact.low(i) >= view.t1 || exact.high(i) <= view.t0) continue;
    first = Math.min(first, exact.item[i]);
    last = Math.max(last, exact.item[i]);
  }
  if (first > last) return;
  const margin = Math.max(1, Math.round((last - first) * 0.04));
  [queue.first, queue.last, queue.close] = [
    Math.max(0, first - margin),
    Math.min(queue.items - 1, last + margin),
    true,
  ];
}

function drawItems(view, context, queue) {
  const { ratio } = view;
  const exact = queue.picture.exact;
  const tall = (queue.h * ratio) / (queue.last - queue.first + 1);
  const bar = (from, to, item, colour) => {
    const x = view.xOf(from) * ratio;
    const y = queue.y * ratio + (item - queue.first) * tall;
    context.fillStyle = colour;
    if (to > from)
      context.fillRect(x, y, Math.max(0.5, view.xOf(to) * ratio - x), Math.max(1, tall > 4 ? tall - 1 : tall));
  };
  for (let i = 0; i < exact.length; i++) {
    if (exact.low(i) >= view.t1 || exact.high(i) <= view.t0) continue;
    bar(exact.claim[i], exact.start[i], exact.item[i], PALETTE.wait);
    bar(exact.start[i], exact.end[i], exact.item[i], colours[queue.role]);
  }
}
