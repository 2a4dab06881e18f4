// Draws a chart of curves on any 2D context. Never hides an extreme, a NaN or an infinity.
const RAW_ALPHA = 0.22, PALE_ALPHA = 0.45, DIM_ALPHA = 0.12;
const JOINED_FROM = 500, MAX_MARK_LABELS = 10, MAX_RANGE_LABELS = 40, LABELLED_FROM = 200;
const DASH_PX = { solid: [], dash: [7, 4], dot: [2, 3], dashdot: [7, 3, 2, 3] };
const TONE_ORDER = { critical: 0, warning: 1 };
const FAR_PX = 1e5;
const clampPx = (value) => (value < -FAR_PX ? -FAR_PX : value > FAR_PX ? FAR_PX : value);

function dashOf(name) {
  return DASH_PX[name] || String(name).split(",").map((part) => parseFloat(part)).filter((part) => part > 0);
}

// ---------------------------------------------------------------- lines

// A line through the points, or through the extremes of the buckets: one column for each pixel, so that nothing is
// left out however many there are. A gap where a value is not a number.
function traceParts(g, parts, toX, toY, isApart, floor) {
  let pen = false, piece = null, column = NaN, top = 0, bottom = 0, at = 0, lastX = 0, lastY = 0, wide = 0;
  // A line from or to a point far outside is cut, so that it keeps its slope.
  const join = (y) => {
    const along = (px) => (px === at ? y : px === lastX ? lastY : lastY + ((y - lastY) * (px - lastX)) / (at - lastX)), from = clampPx(lastX), to = clampPx(at);
    if (from !== lastX) g.moveTo(from, along(from));
    g.lineTo(to, along(to));
  };
  const flush = () => {
    if (column !== column) return;
    const isUp = pen && Math.abs(lastY - top) >= Math.abs(lastY - bottom), px = clampPx(at);
    if (pen) join(isUp ? bottom : top); else if (top === bottom) { g.moveTo(px - 0.8, top); g.lineTo(px + 0.8, top); g.moveTo(px, top); } else g.moveTo(px, top);
    lastY = isUp ? top : bottom;
    lastX = top === bottom ? at : at + wide;
    if (top !== bottom) g.lineTo(clampPx(lastX), lastY);
    pen = true;
    column = NaN;
  };
  g.beginPath();
  for (const { tile, first, last, piece: own } of parts) {
    if (own !== piece) { flush(); if (isApart) pen = false; piece = own; }
    const { x, low, high } = tile;
    for (let i = first; i < last; i += 1) {
      const up = high[i], down = low[i];
      if (!(up - down >= 0) || up <= floor) { flush(); pen = false; continue; }
      const px = toX(x[i]);
      if (!Number.isFinite(px)) continue;
      const a = clampPx(toY(up)), b = down === up ? a : clampPx(toY(down <= floor ? Number.MIN_VALUE : down));
      // Within a bucket one extreme comes before the other: a slope, and no stairs.
      const reach = tile.level && i + 1 < tile.count ? Math.min(60, Math.max(-60, 0.7 * (toX(x[i + 1]) - px))) || 0 : 0;
      if (Math.floor(px) === column) { if (a < top) top = a; if (b > bottom) bottom = b; wide = px + reach - at; continue; }
      flush();
      column = Math.floor(px); at = px; top = a; bottom = b; wide = reach;
    }
  }
  flush();
  g.stroke();
}

function traceArrays(g, xs, ys, toX, toY, floor) {
  let pen = false;
  g.beginPath();
  for (let i = 0; i < xs.length; i += 1) {
    if (!Number.isFinite(ys[i]) || ys[i] <= floor) { pen = false; continue; }
    const px = clampPx(toX(xs[i])), py = clampPx(toY(ys[i]));
    if (pen) g.lineTo(px, py); else { g.moveTo(px - 0.8, py); g.lineTo(px, py); }
    pen = true;
  }
  g.stroke();
}

function fillBetween(g, upX, upY, downX, downY) {
  g.beginPath();
  upX.forEach((px, i) => (i ? g.lineTo(px, upY[i]) : g.moveTo(px, upY[i])));
  for (let i = downX.length - 1; i >= 0; i -= 1) g.lineTo(downX[i], downY[i]);
  g.closePath();
  g.fill();
}

function edgeOf(parts, name, frame, toY, floor) {
  const xs = [], ys = [];
  for (const { tile, first, last, piece } of parts) {
    if (piece.superseded) continue;
    for (let i = first; i < last; i += 1) {
      const v = tile[name][i];
      if (!Number.isFinite(v) || !(v > floor)) continue;
      xs.push(clampPx(frame.x.toPx(tile.x[i])));
      ys.push(clampPx(toY(v)));
      // Where in its bucket an extreme is, is not known at this level: it reaches to the next.
      if (tile.level && i + 1 < tile.count) { xs.push(clampPx(frame.x.toPx(tile.x[i + 1]))); ys.push(clampPx(toY(v))); }
    }
  }
  return [xs, ys];
}

function drawCurve(g, curve, frame) {
  const { chart } = frame, scale = frame.y;
  const isDim = chart.lit !== null && chart.lit !== curve.run && chart.curves.some((one) => one.run === chart.lit);
  const shade = (alpha) => withAlpha(curve.colour, alpha * (isDim ? DIM_ALPHA : 1));
  const isApart = frame.axis === "time", toX = frame.x.toPx, toY = scale.toPx;
  const floor = scale.log ? 0 : -Infinity;
  const counted = curve.seen.parts.filter((part) => !part.piece.superseded);
  if (curve.bandSeen) {
    g.fillStyle = shade(0.13);
    fillBetween(g, ...edgeOf(curve.bandSeen[1].parts, "high", frame, toY, floor), ...edgeOf(curve.bandSeen[0].parts, "low", frame, toY, floor));
  }
  // Of a thousand short segments round joins take most of the time, and look the same.
  g.lineJoin = "bevel";
  g.lineCap = "butt";
  for (const piece of new Set(curve.seen.parts.map((part) => part.piece))) {
    if (!piece.superseded) continue;
    g.strokeStyle = shade(PALE_ALPHA);
    g.lineWidth = 1;
    g.setLineDash([1, 3]);
    traceParts(g, curve.seen.parts.filter((part) => part.piece === piece), toX, toY, isApart, floor);
  }
  const smoothed = frame.isSmooth(curve) ? curve.smoothed : null;
  const dash = dashOf(curve.dash);
  const isLit = chart.lit === curve.run && chart.curves.some((one) => one.run !== curve.run);
  if (!curve.spec.pale || !smoothed) {
    g.setLineDash(smoothed ? [] : dash);
    // Until its smoothed line has been computed it is half pale, so that it does not flash.
    g.strokeStyle = shade(smoothed ? RAW_ALPHA : chart.isSmooth(curve) ? 2 * RAW_ALPHA : 1);
    g.lineWidth = smoothed || chart.isSmooth(curve) ? 1 : isLit ? 2.4 : 1.5;
    traceParts(g, counted, toX, toY, isApart, floor);
    // A few points are easier to see with dots.
    if (curve.seen.level === 0 && curve.seen.visible <= FEW_POINTS) {
      g.fillStyle = shade(smoothed ? 0.5 : 1);
      for (const { tile, first, last } of curve.seen.parts) {
        for (let i = first; i < last; i += 1) {
          if (!Number.isFinite(tile.low[i]) || tile.low[i] <= floor) continue;
          g.beginPath();
          g.arc(clampPx(toX(tile.x[i])), clampPx(toY(tile.low[i])), 2.4, 0, 7);
          g.fill();
        }
      }
    }
  }
  if (smoothed) {
    g.setLineDash(dash);
    g.lineJoin = "round";
    g.strokeStyle = shade(1);
    g.lineWidth = isLit ? 2.8 : 2;
    traceArrays(g, smoothed.x, smoothed.y, toX, toY, floor);
  }
  g.setLineDash([]);
}

function drawGroup(g, group, frame) {
  const found = group.result;
  if (!found) return;
  const isDim = frame.chart.lit !== null && frame.chart.lit !== group.label;
  const toX = frame.x.toPx, toY = frame.y.toPx, xs = [], up = [], down = [];
  for (let i = 0; i < found.x.length; i += 1) {
    if (!Number.isFinite(found.low[i]) || !Number.isFinite(found.high[i]) || found.high[i] <= frame.floor) continue;
    xs.push(clampPx(toX(found.x[i])));
    up.push(clampPx(toY(found.high[i])));
    down.push(clampPx(toY(found.low[i] <= frame.floor ? Number.MIN_VALUE : found.low[i])));
  }
  g.fillStyle = withAlpha(group.colour, isDim ? 0.03 : 0.16);
  if (xs.length > 1 && up.some((px, i) => px !== down[i])) fillBetween(g, xs, up, xs, down);
  g.strokeStyle = withAlpha(group.colour, isDim ? DIM_ALPHA : 1);
  g.lineWidth = 2;
  g.lineJoin = g.lineCap = "round";
  g.setLineDash(dashOf(group.dash));
  traceArrays(g, found.x, found.middle, toX, toY, frame.floor);
  g.setLineDash([]);
}

// ---------------------------------------------------------------- marks of what is not on the line

function triangle(g, x, y, size, isUp) {
  const way = isUp ? -1 : 1;
  g.beginPath();
  g.moveTo(x, y + way * size);
  g.lineTo(x - size, y - way * size * 0.8);
  g.lineTo(x + size, y - way * size * 0.8);
  g.closePath();
  g.fill();
}

// Triangles at the edge where a value lies outside the y range; returns how far they reach.
function drawOutside(g, frame) {
  const { plot } = frame, [low, high] = [frame.y.low, frame.y.high], columns = new Set();
  frame.marked = 0;
  let most = -Infinity, least = Infinity;
  g.fillStyle = toneColour("warning", frame.theme.isDark);
  const look = (parts, lowName, highName) => {
    for (const { tile, first, last } of parts) {
      for (let i = first; i < last; i += 1) {
        const up = highName ? tile[highName][i] : NaN, down = lowName ? tile[lowName][i] : NaN;
        if (!(up > high) && !(down < low)) continue;
        const px = frame.x.toPx(tile.x[i]);
        if (!(px >= plot.left - 1 && px <= plot.left + plot.width + 1)) continue;
        frame.marked += 1;
        if (up > high && Number.isFinite(up)) { most = Math.max(most, up); const key = Math.round(px / 7); if (!columns.has(key)) { columns.add(key); triangle(g, px, plot.top + 5, 4, true); } }
        if (down < low && Number.isFinite(down) && !(frame.y.log && down <= 0)) { least = Math.min(least, down); const key = `v${Math.round(px / 7)}`; if (!columns.has(key)) { columns.add(key); triangle(g, px, plot.top + plot.height - 5, 4, false); } }
      }
    }
  };
  for (const { result } of frame.groups) look([{ tile: result, first: 0, last: result.x.length }], "low", "high");
  for (const curve of frame.shown) {
    if (curve.group) continue;
    look(curve.seen.parts, "low", "high");
    if (curve.bandSeen) { look(curve.bandSeen[0].parts, "low", null); look(curve.bandSeen[1].parts, null, "high"); }
  }
  return [least, most];
}

function drawNonFinite(g, frame) {
  const { plot } = frame, heights = { NaN: 0.98, Infinity: 0.03, "-Infinity": 0.94 };
  g.fillStyle = g.strokeStyle = toneColour("critical", frame.theme.isDark);
  g.lineWidth = 1.6;
  const done = new Set();
  const mark = (kind, place) => {
    const px = frame.x.toPx(place);
    if (!(px >= plot.left - 1 && px <= plot.left + plot.width + 1) || done.has(`${kind}${Math.round(px)}`)) return;
    done.add(`${kind}${Math.round(px)}`);
    const py = plot.top + plot.height * heights[kind];
    if (kind !== "NaN") { triangle(g, px, py, 4.5, kind === "Infinity"); return; }
    g.beginPath();
    for (const way of [-1, 1]) { g.moveTo(px - 4, py - 4 * way); g.lineTo(px + 4, py + 4 * way); }
    g.stroke();
  };
  for (const curve of frame.shown) {
    // Of very many the server joins neighbours: between the ends of what it says there may be more.
    for (const { tile, first, last } of curve.feed.nonFinite.length >= JOINED_FROM && !frame.spec.base ? curve.seen.parts : []) {
      for (let i = first; i < last; i += 1) if (tile.level ? tile.bad[i] : !Number.isFinite(tile.low[i])) mark(tile.level ? "NaN" : String(tile.low[i]), tile.x[i]);
    }
    for (const [kind, first, last] of curve.feed.nonFinite) for (const place of [first, last]) mark(kind, place);
  }
  frame.nonFinite = done.size;
}

// Bands where several values in a row are not numbers, with what they are; from the right, so that labels have room.
function drawRanges(g, frame) {
  const { plot } = frame, tone = toneColour("critical", frame.theme.isDark);
  let found = frame.shown.flatMap((curve) => curve.feed.ranges.map((range) => [curve, ...range]));
  found = found.sort((a, b) => b[4] - a[4]).slice(0, MAX_RANGE_LABELS).sort((a, b) => b[2] - a[2]);
  let from = Infinity;
  for (const [curve, kind, first, last, count] of found) {
    const left = Math.max(frame.x.toPx(first), plot.left), right = Math.min(frame.x.toPx(last), plot.left + plot.width);
    if (!(right >= plot.left && left <= plot.left + plot.width)) continue;
    g.fillStyle = withAlpha(tone, 0.12);
    g.fillRect(left, plot.top, Math.max(1, right - left), plot.height);
    g.strokeStyle = withAlpha(tone, 0.5);
    g.lineWidth = 1;
    g.strokeRect(Math.round(left) + 0.5, plot.top + 0.5, Math.max(1, right - left), plot.height - 1);
    if (from - left < 90) continue;
    from = left;
    const text = `${frame.shown.length > 1 ? `${curve.label}: ` : ""}${count.toLocaleString("en-US")} ${kind}`;
    const isRight = left > plot.left + plot.width / 2;
    put(g, text, isRight ? right - 3 : left + 3, plot.top + 12, isRight ? "right" : "left", tone, frame);
  }
}

function put(g, text, x, y, align, colour, frame) {
  g.font = frame.theme.smallFont;
  g.textAlign = align;
  g.textBaseline = "alphabetic";
  // A halo keeps the words readable over a curve.
  g.strokeStyle = frame.theme.background;
  g.lineWidth = 3;
  g.lineJoin = "round";
  if (g.strokeText) g.strokeText(text, x, y);
  g.fillStyle = colour;
  g.fillText(text, x, y);
}

const cutText = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Vertical lines; their labels neither overlap nor leave the chart, and the worst mark of a group names it.
function drawMarks(g, frame) {
  const { plot } = frame, right = plot.left + plot.width;
  const marks = frame.marks.filter((mark) => mark.px >= plot.left - 0.5 && mark.px <= right + 0.5);
  g.lineWidth = 1;
  g.setLineDash([2, 3]);
  for (const mark of marks) {
    g.strokeStyle = withAlpha(toneColour(mark.tone, frame.theme.isDark), 0.8);
    g.beginPath();
    g.moveTo(Math.round(mark.px) + 0.5, plot.top);
    g.lineTo(Math.round(mark.px) + 0.5, plot.top + plot.height);
    g.stroke();
  }
  g.setLineDash([]);
  frame.labels = [];
  frame.taken = [];
  g.font = frame.theme.smallFont;
  let from = plot.left;
  for (const [words, tone] of frame.notes) {
    const width = g.measureText(words).width;
    put(g, words, from, plot.top - 5, "left", tone === "muted" ? frame.theme.muted : toneColour(tone, frame.theme.isDark), frame);
    from += width + 10;
  }
  if (from > plot.left) frame.taken.push({ start: plot.left - 99, end: from, texts: [] });
  const room = right - from, outside = [frame.outside, frame.outside.split(" · double")[0]].find((words) => g.measureText(words).width <= room);
  if (outside) {
    frame.taken.push({ start: right - g.measureText(outside).width - 10, end: right + 99, texts: [] });
    put(g, outside, right, plot.top - 5, "right", frame.theme.muted, frame);
  }
  if (!frame.hasMarkLabels || marks.length > MAX_MARK_LABELS) return;
  g.font = frame.theme.smallFont;
  const placed = [...frame.taken];
  for (const mark of [...marks].sort((a, b) => (TONE_ORDER[a.tone] ?? 9) - (TONE_ORDER[b.tone] ?? 9) || a.px - b.px)) {
    if (!mark.text) continue;
    const text = cutText(mark.text, 40), width = g.measureText(`${text} +9`).width + 8;
    const isRight = mark.px - plot.left > plot.width / 2;
    const start = isRight ? Math.max(plot.left, mark.px - width) : Math.min(mark.px, right - width);
    const near = placed.find((other) => start < other.end && other.start < start + width);
    if (!near) placed.push({ start, end: start + width, text, tone: mark.tone, isRight, px: mark.px, texts: [mark.text] });
    else if (near.text && !near.texts.includes(mark.text)) near.texts.push(mark.text);
  }
  for (const one of placed.slice(frame.taken.length)) {
    const more = one.texts.length > 1 ? ` +${one.texts.length - 1}` : "";
    put(g, one.text + more, one.isRight ? Math.max(one.px, one.end - 4) : one.start, plot.top - 5, one.isRight ? "right" : "left", toneColour(one.tone, frame.theme.isDark), frame);
    frame.labels.push({ start: one.start, end: one.end, texts: one.texts });
  }
}

function drawLevels(g, frame) {
  const { plot } = frame, right = plot.left + plot.width;
  const line = (y, tone, width) => {
    g.strokeStyle = withAlpha(toneColour(tone, frame.theme.isDark), 0.85);
    g.lineWidth = width;
    g.setLineDash([6, 4]);
    g.beginPath();
    g.moveTo(plot.left, clampPx(y));
    g.lineTo(right, clampPx(y));
    g.stroke();
    g.setLineDash([]);
  };
  for (const level of frame.spec.levels || []) {
    const tone = level.tone || "muted", y = frame.y.toPx(level.y);
    line(y, tone, 1.5);
    put(g, cutText(level.text, 40), right - 2, Math.max(plot.top + 10, y - 4), "right", toneColour(tone, frame.theme.isDark), frame);
  }
  for (const [value, text] of frame.spec.limits || []) {
    if (value < frame.y.low || value > frame.y.high) continue;
    const y = frame.y.toPx(value);
    line(y, "warning", 1);
    put(g, cutText(text, 40), right - 2, y - 4 < plot.top + 10 ? y + 12 : y - 4, "right", toneColour("warning", frame.theme.isDark), frame);
  }
}

function drawBands(g, frame) {
  if (frame.axis !== "step") return;
  const { plot } = frame;
  for (const band of frame.spec.bands || []) {
    const left = Math.max(plot.left, frame.x.toPx(band.start)), right = Math.min(plot.left + plot.width, frame.x.toPx(band.end));
    g.fillStyle = withAlpha(toneColour(band.tone || "warning", frame.theme.isDark), 0.12);
    if (right >= left) g.fillRect(left, plot.top, Math.max(1, right - left), plot.height);
  }
}

// ---------------------------------------------------------------- axes

function drawAxes(g, frame) {
  const { plot, theme } = frame, bottom = plot.top + plot.height, right = plot.left + plot.width;
  g.strokeStyle = theme.grid;
  g.lineWidth = 1;
  const lines = (places, isUpright) => {
    g.beginPath();
    for (const place of places) {
      const at = Math.round(place) + 0.5;
      if (isUpright) { g.moveTo(at, plot.top); g.lineTo(at, bottom); } else { g.moveTo(plot.left, at); g.lineTo(right, at); }
    }
    g.stroke();
  };
  if (frame.y.log) { g.globalAlpha = 0.4; lines(logMinor(frame.y.low, frame.y.high).map(frame.y.toPx), false); g.globalAlpha = 1; }
  lines(frame.yTicks.map(([value]) => frame.y.toPx(value)), false);
  g.globalAlpha = 0.55;
  lines(frame.xTicks.map(([value]) => frame.x.toPx(value)), true);
  g.globalAlpha = 1;
  g.strokeStyle = theme.axis;
  lines([bottom], false);
  g.font = theme.font;
  g.fillStyle = theme.muted;
  g.textBaseline = "middle";
  g.textAlign = "right";
  for (const [value, text] of frame.yTicks) g.fillText(text, plot.left - 7, frame.y.toPx(value));
  g.textBaseline = "top";
  g.textAlign = "center";
  let taken = -Infinity;
  g.font = theme.font;
  const title = frame.hasTitle ? axisTitle(frame.axis) : "";
  const titleWidth = title ? g.measureText(title).width + 16 : 0;
  for (const [value, text, day] of frame.xTicks) {
    const label = day ? `${day}, ${text}` : text, half = g.measureText(label).width / 2;
    const px = Math.min(Math.max(frame.x.toPx(value), half + 2), frame.width - half - 2);
    if (px - half < taken + 8 || (title && px + half > right - titleWidth)) continue;
    g.fillText(label, px, bottom + 7);
    taken = px + half;
  }
  if (title) { g.textAlign = "right"; g.globalAlpha = 0.8; g.fillText(cutText(title, 40), right, bottom + 7); g.globalAlpha = 1; }
}

function paintFrame(g, frame) {
  const { plot } = frame;
  drawAxes(g, frame);
  g.save();
  g.beginPath();
  g.rect(plot.left - 0.5, plot.top, plot.width + 1, plot.height + 1);
  g.clip();
  drawBands(g, frame);
  drawForecasts(g, frame);
  drawRanges(g, frame);
  for (const group of frame.groups) drawGroup(g, group, frame);
  // The baseline is below the others, which may be equal to it.
  for (const isBelow of [true, false]) for (const curve of frame.shown) if (!curve.group && !!curve.spec.pale === isBelow) drawCurve(g, curve, frame);
  g.restore();
  drawLevels(g, frame);
  drawNonFinite(g, frame);
  const [least, most] = frame.isFitted ? drawOutside(g, frame) : [Infinity, -Infinity], said = [];
  if (most > -Infinity) said.push(`▲ up to ${shortText(most)}`);
  if (least < Infinity) said.push(`▼ down to ${shortText(least)}`);
  frame.outside = said.join(" · ") + (said.length ? " · double-click shows all" : "");
  drawMarks(g, frame);
}
