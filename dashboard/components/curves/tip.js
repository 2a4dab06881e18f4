// The tooltip of curves: every curve at the cursor, sorted by value, with what was logged there; a line at the same
// place in all charts of the page. Text is never markup.
const TIP_ROWS = 12, TIP_WORDS = 4, TIP_ROOM = 14;

// Where the cursor is: `chart` is the one below it; `isKept` for one that keys or a long press have put there.
const curveCursor = (window.__telemetryCurveCursor ||= { chart: null, x: null, y: null, isKept: false });
const liveCharts = () => [...openCharts].filter((chart) => chart.root.isConnected && chart.plot);

// A logged number with all digits that say something.
function digitsText(value, digits = 9) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Infinity" : "-Infinity";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  const text = size < 1e-4 || size >= 1e15 ? value.toExponential(digits - 1) : value.toPrecision(digits);
  if (text.includes("e")) return text.replace(/\.?0+e/, "e").replace("e+", "e");
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

// "logged 9.75 · smoothed 2.31", or what a bucket of several records holds.
function readingText(row, isFull) {
  const smoothed = Number.isFinite(row.smoothed) ? digitsText(row.smoothed, 4) : "";
  if (row.isGroup) {
    const spread = Number.isFinite(row.low) && row.low !== row.high ? ` (${digitsText(row.low, 4)} to ${digitsText(row.high, 4)})` : "";
    return `${digitsText(row.y, row.isForecast ? 4 : 6)}${spread}${isFull && row.count ? ` · ${row.count} ${row.count === 1 ? "run" : "runs"}` : ""}`;
  }
  const isRange = !row.exact && row.count > 1 && Number.isFinite(row.low);
  // A bucket's extremes may come as single floats: of a large number not every digit is the logged one.
  const rough = (value) => (Math.abs(value) < 2 ** 24 ? digitsText(value, 4) : shortText(value));
  const ends = isRange ? [...new Set([rough(row.low), rough(row.high)])] : [row.exact ? digitsText(row.y) : Number.isNaN(row.y) ? "NaN or infinite" : rough(row.y)], said = ends.join(" to ");
  if (!isFull) return smoothed ? `${said} · ${smoothed}` : said;
  const logged = isRange ? `${said} in ${row.count.toLocaleString("en-US")} records${row.bad ? `, ${row.bad.toLocaleString("en-US")} NaN or infinite` : ""}` : smoothed ? `${row.word} ${said}` : said;
  return smoothed ? `${logged} · smoothed ${smoothed}` : logged;
}

const rowHeight = (row) => (Number.isFinite(row.smoothed) ? row.smoothed : row.y);
const runOf = (curve) => curve.run || curve.label;

// Whether a curve reaches `x`; of what a later session has repeated only a point close by counts.
function isReached(chart, row, x) {
  const room = Math.abs(chart.xScale.toValue(chart.plot.left + 10) - chart.xScale.toValue(chart.plot.left));
  if (row.superseded) return Math.abs(row.x - x) <= room;
  if (row.isGroup) return Math.abs(row.x - x) <= room || (x >= row.curve.result.x[0] && x <= row.curve.result.x.at(-1));
  return row.curve.feed.pieces.some((piece) => piece.isAscending === false || (x >= Math.min(piece.first, piece.last) - room && x <= Math.max(piece.first, piece.last) + room)) || Math.abs(row.x - x) <= room;
}

// What is at `x`: rows from top to bottom, the nearest of them, and x of its record. `py` is the cursor's height, or null.
function readChart(chart, x, py) {
  const rows = [...chart.near(x).filter((row) => isReached(chart, row, x)), ...forecastRows(chart, x)];
  if (!rows.length) return null;
  // What is left after a subtraction was not logged.
  for (const row of rows) row.word = chart.spec.base ? "difference" : "logged";
  rows.sort((a, b) => Number.isFinite(rowHeight(b)) - Number.isFinite(rowHeight(a)) || rowHeight(b) - rowHeight(a) || 0);
  let nearest = null, least = Infinity;
  for (const row of rows) {
    const far = py === null ? Infinity : Math.abs(chart.yScale.toPx(rowHeight(row)) - py);
    if (far < least) { least = far; nearest = row; }
  }
  const closest = rows.reduce((best, row) => (Math.abs(row.x - x) < Math.abs(best.x - x) ? row : best));
  return { x: closest.x, rows, nearest };
}

const axisFor = (chart) => chart.axis();

// The wall time of a place in a run, and how long its session has run; from the one curve of a run that has times.
function whenText(chart, row, x) {
  const axis = axisFor(chart), run = row.curve.run;
  if (!run || axis === "time") return [];
  for (const feed of curveStore.feeds.values()) {
    if (!feed.isTimed || feed.run !== run || feed.axis !== axis) continue;
    for (const piece of feed.pieces) {
      if (piece.session !== row.session || piece.superseded !== row.superseded || !piece.points) continue;
      const [low, high] = piece.place(x), [from] = piece.parts(0, 1, 0);
      const [part] = piece.parts(Math.max(0, Math.min(low, piece.points - 1)), Math.min(piece.points, high + 1), 0).slice(-1);
      if (!part || !part.tile.time) continue;
      let i = part.first;
      for (let j = part.first; j < part.last; j += 1) if (Math.abs(part.tile.x[j] - x) < Math.abs(part.tile.x[i] - x)) i = j;
      const seconds = part.tile.time[i], isExact = part.tile.x[i] === x && part.tile.level === 0;
      if (!Number.isFinite(seconds)) continue;
      const start = from && from.tile.time ? from.tile.time[from.first] : NaN, about = isExact ? "" : "about ";
      return [about + clockOf(seconds, "full"), ...(Number.isFinite(start) && axis !== "elapsed" ? [`${elapsedText(Math.max(0, seconds - start), 1)} since the start`] : [])];
    }
  }
  return [];
}

function tipHead(chart, found) {
  const row = found.nearest && found.nearest.x === found.x ? found.nearest : found.rows.find((one) => one.x === found.x);
  return [xText(found.x, axisFor(chart)), ...(row ? whenText(chart, row, found.x) : [])].join(" · ");
}

// The rows that fit, with the nearest one among them.
function rowsAround(rows, nearest, most) {
  if (rows.length <= most) return [0, rows.length];
  const first = Math.min(Math.max(0, Math.max(0, rows.indexOf(nearest)) - Math.floor(most / 2)), rows.length - most);
  return [first, first + most];
}

let curveTip = null;
function hideCurveTip() {
  if (curveTip) curveTip.remove();
  curveTip = null;
}

function showCurveTip(chart, found, place) {
  const { rows, nearest } = found, isFull = rows.length <= TIP_WORDS;
  const [first, last] = rowsAround(rows, nearest, TIP_ROWS);
  const box = make("div", "telemetry-tip");
  box.setAttribute("aria-hidden", "true");
  box.appendChild(make("div", "telemetry-tip-head", tipHead(chart, found)));
  const list = make("div", "telemetry-tip-rows");
  if (!isFull && rows.some((row) => Number.isFinite(row.smoothed))) list.append(make("span"), make("span"), make("span", "telemetry-tip-value telemetry-tip-pale", `${rows[0].word} · smoothed`));
  for (const row of rows.slice(first, last)) {
    const dot = make("span", "telemetry-tip-dot"), bold = row === nearest && rows.length > 1 ? " telemetry-tip-nearest" : "";
    dot.style.background = row.curve.colour;
    const value = make("span", `telemetry-tip-value${bold}`, readingText(row, isFull));
    if (!row.isGroup && Math.abs(chart.xScale.toPx(row.x) - chart.xScale.toPx(found.x)) > 3) value.appendChild(make("span", "telemetry-tip-pale", ` at ${xText(row.x, axisFor(chart)).replace(/^step /, "")}`));
    list.append(dot, make("span", `telemetry-tip-name${bold}`, `${row.curve.label}${row.superseded ? " (repeated later)" : row.isForecast ? ", forecast" : ""}`), value);
  }
  if (rows.length > last - first) list.appendChild(make("span", "telemetry-tip-more", `and ${(rows.length - (last - first)).toLocaleString("en-US")} more`));
  box.appendChild(list);
  // The theme's colours are not those of the whole document.
  const style = getComputedStyle(chart.root);
  for (const name of ["--st-background-color", "--st-text-color", "--st-border-color", "--st-base-radius", "--st-font"]) box.style.setProperty(name, style.getPropertyValue(name));
  box.style.fontFamily = style.fontFamily;
  hideCurveTip();
  (document.fullscreenElement || document.body).appendChild(box);
  curveTip = box;
  // Next to the cursor's line; on a narrow screen above or below the chart.
  const { width, height } = box.getBoundingClientRect(), frame = chart.root.getBoundingClientRect();
  const inside = (value, size, whole) => Math.max(4, Math.min(value, whole - size - 4));
  let left = place.right + TIP_ROOM, top = place.y - height / 2;
  if (left + width > window.innerWidth - 4) left = place.left - TIP_ROOM - width;
  if (left < 4) {
    left = (place.left + place.right - width) / 2;
    top = frame.top - height - 4 >= 4 ? frame.top - height - 4 : frame.bottom + 4;
  }
  box.style.left = `${inside(left, width, window.innerWidth)}px`;
  box.style.top = `${inside(top, height, window.innerHeight)}px`;
}

// ---------------------------------------------------------------- the canvas on top: line, dots and the box of a drag

function drawCurveOverlay(chart) {
  const { overlay, plot } = chart;
  if (!plot || !(chart.dragBox || chart.pointed || chart.isMarked)) return;
  const g = overlay.getContext("2d"), ratio = window.devicePixelRatio || 1;
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, overlay.width, overlay.height);
  chart.isMarked = Boolean(chart.dragBox || chart.pointed);
  const ink = chart.theme.text, bottom = plot.top + plot.height;
  if (chart.dragBox) {
    const { left, top, width, height } = chart.dragBox;
    g.fillStyle = ink;
    g.globalAlpha = 0.12;
    g.fillRect(left, top, width, height);
    g.globalAlpha = 0.6;
    g.strokeStyle = ink;
    g.lineWidth = 1;
    g.strokeRect(left + 0.5, top + 0.5, width, height);
    g.globalAlpha = 1;
  }
  const found = chart.pointed;
  if (!found) return;
  const px = chart.xScale.toPx(found.x);
  if (!(px >= plot.left - 1 && px <= plot.left + plot.width + 1)) return;
  g.strokeStyle = ink;
  g.globalAlpha = 0.45;
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(Math.round(px) + 0.5, plot.top);
  g.lineTo(Math.round(px) + 0.5, bottom);
  g.stroke();
  g.globalAlpha = 1;
  for (const row of found.rows.length > TIP_ROWS ? found.rows.filter((one) => one === found.nearest) : found.rows) {
    const py = chart.yScale.toPx(rowHeight(row)), at = chart.xScale.toPx(row.x);
    if (!(py >= plot.top && py <= bottom) || !(at >= plot.left && at <= plot.left + plot.width)) continue;
    g.beginPath();
    g.arc(at, py, row === found.nearest ? 4.5 : 3, 0, 7);
    g.fillStyle = row.curve.colour;
    g.fill();
  }
}

// ---------------------------------------------------------------- the cursor in all charts of a page

// Samples on the page follow the cursor.
function sendCurveCursor(chart, x) {
  if (axisFor(chart) === "step") window.dispatchEvent(new CustomEvent("telemetry-cursor", { detail: { x, group: chart.spec.zoom_group || "page" } }));
}

function clearCurveCursor() {
  const before = curveCursor.chart;
  if (!before) return;
  Object.assign(curveCursor, { chart: null, x: null, y: null, isKept: false });
  hideCurveTip();
  for (const chart of liveCharts()) showCursorIn(chart, null);
  sendCurveCursor(before, null);
}

function showCursorIn(chart, found) {
  chart.pointed = found;
  drawCurveOverlay(chart);
  const chip = chart.cursorChip;
  if (chip) chip.textContent = found && chart !== curveCursor.chart ? found.rows.filter((row) => Number.isFinite(rowHeight(row))).slice(0, 4).map((row) => digitsText(row.y, 6)).join(" · ") : "";
}

// Puts the cursor at `x` of `chart`: its tooltip, and the same place in the charts next to it.
function pointCurves(chart, x, py, isKept = false) {
  const found = chart.xScale && chart.plot ? readChart(chart, x, py) : null;
  if (!found) { clearCurveCursor(); return null; }
  Object.assign(curveCursor, { chart, x, y: py, isKept });
  const axis = axisFor(chart);
  for (const other of liveCharts()) {
    if (other === chart) showCursorIn(chart, found);
    else showCursorIn(other, other.xScale && axisFor(other) === axis && other.near(found.x).length ? readChart(other, found.x, null) : null);
  }
  const frame = chart.root.getBoundingClientRect(), line = chart.overlay.getBoundingClientRect();
  const at = line.left + chart.xScale.toPx(found.x), cursor = line.left + chart.xScale.toPx(x);
  const height = py === null ? line.top + chart.plot.top + chart.plot.height / 3 : line.top + py;
  if (frame.bottom > 0 && frame.top < window.innerHeight) showCurveTip(chart, found, { left: Math.min(at, cursor), right: Math.max(at, cursor), y: height });
  sendCurveCursor(chart, found.x);
  return found;
}

// After new values or another zoom the same place says what is there now.
function refreshCurveTip(chart) {
  if (curveCursor.chart === chart && !chart.dragBox) pointCurves(chart, curveCursor.x, curveCursor.y, curveCursor.isKept);
  else drawCurveOverlay(chart);
}

function attachTip(chart) {
  const { overlay } = chart;
  chart.afterPaint.push(() => { if (chart.redrawDrag) chart.redrawDrag(); refreshCurveTip(chart); });
  chart.cursorChip = make("div", "telemetry-chip");
  chart.cursorChip.setAttribute("aria-hidden", "true");
  chart.box.appendChild(chart.cursorChip);
  const close = chart.close.bind(chart);
  chart.close = () => { if (curveCursor.chart === chart) clearCurveCursor(); close(); };
  let pending = 0, place = null, pressed = 0, lit = null;
  const light = (run) => { if (run !== lit) { lit = run; chart.highlight(run); } };
  const look = () => {
    pending = 0;
    if (!place || !chart.root.isConnected || chart.dragBox || !chart.plot) return;
    const frame = overlay.getBoundingClientRect(), { plot } = chart, px = place.x - frame.left, py = place.y - frame.top;
    if (px < plot.left || px > plot.left + plot.width || py < plot.top || py > plot.top + plot.height) { if (!curveCursor.isKept) clearCurveCursor(); light(null); return; }
    const found = pointCurves(chart, chart.xScale.toValue(px), py);
    // One curve among many is found again by its colour alone.
    light(found && found.rows.length > 1 && found.nearest && Math.abs(chart.yScale.toPx(rowHeight(found.nearest)) - py) < 12 ? runOf(found.nearest.curve) : null);
  };
  const move = (event) => {
    place = { x: event.clientX, y: event.clientY };
    if (!pending) pending = requestAnimationFrame(look);
  };
  const stopPress = () => { clearTimeout(pressed); pressed = 0; chart.isHeld = false; };
  overlay.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse") { if (event.buttons) { hideCurveTip(); place = null; } else move(event); return; }
    if (chart.isHeld && !chart.isPinched) { place = { x: event.clientX, y: event.clientY }; pointFinger(); }
    else if (pressed && place && Math.hypot(event.clientX - place.x, event.clientY - place.y) > 10) stopPress();
  });
  const pointFinger = () => {
    const frame = overlay.getBoundingClientRect();
    if (chart.xScale) pointCurves(chart, chart.xScale.toValue(place.x - frame.left), place.y - frame.top, true);
  };
  // A finger that rests shows the values below it; a tap does so too, a finger that moves on scrolls the page.
  overlay.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") return;
    stopPress();
    place = { x: event.clientX, y: event.clientY };
    if (event.isPrimary) pressed = setTimeout(() => { pressed = 0; if (!chart.isPinched) { chart.isHeld = true; pointFinger(); } }, 350);
  });
  overlay.addEventListener("pointerup", (event) => {
    if (event.pointerType === "mouse") return;
    const isTap = pressed !== 0;
    stopPress();
    if (isTap && !chart.isPinched && chart.tappedTwice !== event.timeStamp) pointFinger();
  });
  overlay.addEventListener("pointercancel", () => { stopPress(); clearCurveCursor(); });
  overlay.addEventListener("contextmenu", (event) => { if (curveCursor.isKept) event.preventDefault(); });
  overlay.addEventListener("pointerleave", (event) => {
    place = null;
    light(null);
    if (event.pointerType === "mouse" && !curveCursor.isKept && curveCursor.chart === chart) clearCurveCursor();
  });
}

// A tap outside a chart, or a page that moves under the tooltip, takes it away.
if (!window.__telemetryCurveTipClears) {
  window.__telemetryCurveTipClears = true;
  const clear = (event) => { if (curveCursor.chart && !(event.type === "pointerdown" && curveCursor.chart.root.contains(event.target))) clearCurveCursor(); };
  window.addEventListener("scroll", clear, { capture: true, passive: true });
  window.addEventListener("pointerdown", clear, { capture: true, passive: true });
}
