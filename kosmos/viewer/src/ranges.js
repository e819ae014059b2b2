// Ranges beside the lanes: what the host did and which kernels were dispatched, a strip of their own above the lanes.

const ROW = 15;
const MOST_ROWS = 8;
const FILLS = ["#56B4E9", "#CC79A7", "#E69F00", "#009E73"];

/** Ranges in rows: those of a track that overlap lie below one another. */
export function stack(ranges, compared, titles) {
  const tracks = new Map();
  for (const range of ranges) {
    const key = `${range.trace} ${range.track}`;
    if (!tracks.has(key)) {
      tracks.set(key, {
        title: compared ? `${titles[range.trace]}: ${range.track}` : range.track,
        rows: [],
        ranges: [],
      });
    }
    tracks.get(key).ranges.push(range);
  }
  const rows = [];
  for (const track of tracks.values()) {
    track.ranges.sort((a, b) => a.start - b.start || b.end - a.end);
    for (const range of track.ranges) {
      let row = track.rows.find((one) => one.end <= range.start);
      if (!row) track.rows.push((row = { ranges: [], end: 0, title: track.rows.length ? "" : track.title }));
      row.ranges.push(range);
      row.end = range.end;
    }
    rows.push(...track.rows);
  }
  return rows.slice(0, MOST_ROWS);
}

export const heightOf = (rows) => rows.length * ROW + (rows.length ? 4 : 0);

export function drawRanges(context, theme, rows, { xOf, left, width }) {
  context.font = `10px ${theme.font}`;
  context.textBaseline = "middle";
  rows.forEach((row, r) => {
    const y = 2 + r * ROW;
    if (row.title) {
      context.fillStyle = theme.ink;
      context.save();
      context.beginPath();
      context.rect(0, y, left - 6, ROW);
      context.clip();
      context.fillText(row.title, 10, y + ROW / 2);
      context.restore();
    }
    context.save();
    context.beginPath();
    context.rect(left, y, width, ROW);
    context.clip();
    for (const range of row.ranges) {
      const x0 = Math.max(xOf(range.start), left - 2);
      const x1 = Math.min(Math.max(xOf(range.end), xOf(range.start) + 1), left + width + 2);
      if (x1 < left || x0 > left + width) continue;
      context.fillStyle = FILLS[colourOf(range.name)];
      context.fillRect(x0, y + 1, x1 - x0 - (x1 - x0 > 4 ? 0.75 : 0), ROW - 2);
      const room = x1 - Math.max(x0, left) - 6;
      if (room > 18) {
        const fits = Math.floor(room / 6);
        context.fillStyle = "#000000";
        context.fillText(
          range.name.length > fits ? `${range.name.slice(0, Math.max(1, fits - 1))}…` : range.name,
          Math.max(x0, left) + 3,
          y + ROW / 2 + 0.5,
        );
      }
    }
    context.restore();
  });
}

function colourOf(name) {
  let h = 0;
  for (let i = 0; i < name.length; i++) h = (Math.imul(h, 31) + name.charCodeAt(i)) >>> 0;
  return h % FILLS.length;
}

/** The range at a height and a time, null if there is none. */
export function rangeAt(rows, y, t, near) {
  const row = rows[Math.floor((y - 2) / ROW)];
  return row?.ranges.find((range) => range.start - near <= t && t < range.end + near) ?? null;
}
