// The tooltip of curves: every curve at the cursor, sorted by value, with what was logged there. Text is never markup.
const TIP_SPACE = 14;
const TIP_LINE = 20;
const FULL_WORDS = 4;
const NEAR_PX = 10;

// A figure has no markup in any of its texts; here they are text again.
const plainText = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

// Six digits, which is what survives the way to the browser; whole numbers as they are.
function exactText(value, isRounded) {
  if (Number.isInteger(value) && Math.abs(value) < (isRounded ? 1e6 : 1e15)) return value.toLocaleString("en-US");
  const text = Math.abs(value) < 1e-4 ? value.toExponential(5) : value.toPrecision(6);
  if (text.includes("e")) return text.replace(/\.?0+e/, "e").replace("e+", "e");
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function spanText(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const at = Math.max(0, units.findIndex(([size]) => whole >= size));
  if (whole === 0) return "0 s";
  const parts = [];
  let rest = whole;
  for (const [size, word] of units.slice(at, at + 2)) {
    const times = Math.floor(rest / size);
    rest -= times * size;
    if (times) parts.push(`${times} ${word}`);
  }
  return parts.join(" ");
}

// Seconds of the server's local time, as if they were UTC.
function clockText(seconds, withDate) {
  const text = new Date(seconds * 1000).toISOString();
  return withDate ? `${text.slice(0, 10)} ${text.slice(11, 19)}` : text.slice(11, 19);
}

function timesOf(tip) {
  if (!tip.when) return null;
  if (!tip.times) {
    const bytes = Uint8Array.from(atob(tip.when.steps), (sign) => sign.charCodeAt(0));
    const kind = { 8: Int8Array, 16: Int16Array, 32: Int32Array }[tip.when.bits];
    tip.times = [tip.when.from];
    for (const step of new kind(bytes.buffer)) tip.times.push(tip.times[tip.times.length - 1] + step);
  }
  return tip.times;
}

function startOf(tip, place) {
  const found = (tip.when && tip.when.starts || []).filter(([first]) => first <= place);
  return found.length ? found[found.length - 1][1] : null;
}

const tipsOf = (div) => (div._fullData || []).filter((trace) => trace.visible === true && trace.meta && trace.meta.tip);
const axisOf = (div, trace) => div._fullLayout[`yaxis${(trace.yaxis || "y").slice(1)}`];

// The point with the nearest x; of several with one x the last that has a value. -1 where the curve does not reach.
function pointAt(trace, x, room) {
  const xs = trace.x || [], ys = trace.y || [];
  let best = -1, gap = Infinity, low = Infinity, high = -Infinity;
  for (let i = 0; i < xs.length; i += 1) {
    const distance = Math.abs(xs[i] - x);
    if (distance < gap || (distance === gap && xs[i] === xs[best] && Number.isFinite(ys[i]))) { best = i; gap = distance; }
    if (xs[i] < low) low = xs[i];
    if (xs[i] > high) high = xs[i];
  }
  return best < 0 || x < low - room || x > high + room ? -1 : best;
}

// What is at the cursor: x of the nearest record, and a row for each curve. `y` is a place in pixels, or null.
function readAt(div, x, y) {
  const room = NEAR_PX * Math.abs(div._fullLayout.xaxis.p2l(1) - div._fullLayout.xaxis.p2l(0));
  const rows = [], missing = new Set();
  let at = null;
  for (const trace of tipsOf(div)) {
    const { tip } = trace.meta, place = pointAt(trace, x, room);
    if (place < 0) { if (tip.kind !== "band") missing.add(tip.label); continue; }
    const value = trace.y[place], own = trace.x[place];
    const beside = trace.customdata ? trace.customdata[place] : NaN;
    const smoothed = tip.kind === "mean" ? NaN : beside;
    const axis = axisOf(div, trace);
    const heights = y === null || tip.kind === "band" ? [] : [smoothed, value].filter(Number.isFinite).slice(0, 1)
      .map((height) => Math.abs(axis.d2p(height) + axis._offset - y)).filter(Number.isFinite);
    rows.push({ trace, tip, place, x: own, value, smoothed, spread: tip.kind === "mean" ? beside : NaN, far: heights.length ? heights[0] : Infinity, isRounded: trace.y instanceof Float32Array });
    if (tip.kind !== "band" && (at === null || Math.abs(own - x) < Math.abs(at - x))) at = own;
  }
  if (at === null) return null;
  // In the order of the curves from top to bottom; behind them what has no number, and bands.
  const height = (row) => (Number.isFinite(row.smoothed) ? row.smoothed : row.value);
  rows.sort((a, b) => (a.tip.kind === "band") - (b.tip.kind === "band")
    || Number.isFinite(height(b)) - Number.isFinite(height(a)) || height(b) - height(a) || 0);
  let nearest = null;
  for (const row of rows) if (row.far < Infinity && (!nearest || row.far < nearest.far)) nearest = row;
  return { x: at, rows, nearest, missing: missing.size };
}

// The wall time of a step: of this chart, else of another one of the page. Between two records it is an estimate.
function whenOf(charts, x, run) {
  for (const chart of charts) {
    for (const trace of tipsOf(chart)) {
      const times = timesOf(trace.meta.tip);
      if (!times || (run && trace.meta.run !== run && chart !== charts[0])) continue;
      const place = pointAt(trace, x, 0);
      if (place < 0) continue;
      const exact = trace.x[place] === x;
      let seconds = times[place];
      if (!exact) {
        const other = place + (trace.x[place] < x ? 1 : -1);
        if (other < 0 || other >= times.length || trace.x[other] === trace.x[place]) continue;
        seconds += (times[other] - times[place]) * (x - trace.x[place]) / (trace.x[other] - trace.x[place]);
      }
      const start = startOf(trace.meta.tip, place);
      const isLong = Math.floor(times[0] / 86400) !== Math.floor(times[times.length - 1] / 86400);
      return (exact ? "" : "about ") + clockText(Math.round(seconds), isLong) + (start === null ? "" : ` · ${spanText(seconds - start)} since the start`);
    }
  }
  return "";
}

function headText(div, found, siblings) {
  const axis = div._fullLayout.xaxis, kind = div.dataset.axis;
  if (axis.type === "date") return clockText(found.x / 1000, true);
  if (kind === "elapsed") return `${spanText(found.x)} since the start`;
  const name = kind === "epoch" ? `epoch ${exactText(found.x)}` : `step ${Math.round(found.x).toLocaleString("en-US")}`;
  const run = found.nearest ? found.nearest.trace.meta.run : null;
  return [name, whenOf([div, ...siblings], found.x, tipsOf(div).length > 1 ? run : null)].filter(Boolean).join(" · ");
}

function valueText(row, inFull) {
  if (!Number.isFinite(row.value)) return "NaN or infinite";
  const unit = row.tip.unit && inFull ? ` ${plainText(row.tip.unit)}` : "";
  const said = exactText(row.value, row.isRounded) + unit;
  if (row.tip.kind === "mean") return Number.isFinite(row.spread) ? `${said} ± ${exactText(Number(row.spread.toPrecision(3)))}` : said;
  if (!inFull) return Number.isFinite(row.smoothed) ? `${said} · ${exactText(Number(row.smoothed.toPrecision(4)))}` : said;
  if (row.tip.kind !== "logged") return row.tip.kind === "smoothed" ? `smoothed ${said}` : said;
  return Number.isFinite(row.smoothed) ? `logged ${said} · smoothed ${exactText(Number(row.smoothed.toPrecision(4)))}${unit}` : `logged ${said}`;
}

let tipBox = null;

function hideTip() {
  if (tipBox) tipBox.remove();
  tipBox = null;
}

// The rows that fit, with the nearest one among them.
function fitting(rows, nearest, most) {
  if (rows.length <= most) return [0, rows.length];
  const middle = Math.max(0, rows.indexOf(nearest));
  const first = Math.min(Math.max(0, middle - Math.floor(most / 2)), rows.length - most);
  return [first, first + most];
}

function showTip(div, found, siblings, place) {
  const { rows, nearest } = found;
  const inFull = rows.length <= FULL_WORDS;
  const most = Math.max(3, Math.floor((window.innerHeight * 0.7) / TIP_LINE) - 3);
  const [first, last] = fitting(rows, nearest, most);
  const box = make("div", "telemetry-tip");
  box.setAttribute("aria-hidden", "true");
  box.appendChild(make("div", "telemetry-tip-head", headText(div, found, siblings)));
  const list = make("div", "telemetry-tip-rows");
  if (!inFull && rows.some((row) => Number.isFinite(row.smoothed))) list.append(make("span"), make("span"), make("span", "telemetry-tip-value telemetry-tip-pale", "logged · smoothed"));
  const more = (count) => { if (count) list.appendChild(make("span", "telemetry-tip-more", `+ ${count} more`)); };
  more(first);
  for (const row of rows.slice(first, last)) {
    const dot = make("span", "telemetry-tip-dot");
    dot.style.background = row.tip.color;
    const isNearest = row === nearest && rows.length > 1;
    const name = make("span", `telemetry-tip-name${isNearest ? " telemetry-tip-nearest" : ""}`, plainText(row.tip.label));
    if (row.tip.kind === "band") { dot.style.visibility = "hidden"; name.classList.add("telemetry-tip-pale"); }
    const value = make("span", `telemetry-tip-value${isNearest ? " telemetry-tip-nearest" : ""}`, valueText(row, inFull));
    if (row.x !== found.x && row.tip.kind !== "mean") value.appendChild(make("span", "telemetry-tip-pale", ` at ${whereText(div, row.x)}`));
    list.append(dot, name, value);
  }
  more(rows.length - last);
  box.appendChild(list);
  if (found.missing) box.appendChild(make("div", "telemetry-tip-pale", found.missing === 1 ? "1 curve has no value here" : `${found.missing} curves have no value here`));
  // The theme's colours are not those of the whole document.
  const style = getComputedStyle(div);
  for (const name of ["--st-background-color", "--st-text-color", "--st-border-color", "--st-base-radius", "--st-font"]) box.style.setProperty(name, style.getPropertyValue(name));
  box.style.fontFamily = style.fontFamily;
  hideTip();
  (document.fullscreenElement === div ? div : document.body).appendChild(box);
  tipBox = box;
  putBeside(box, div, place);
}

function whereText(div, x) {
  if (div._fullLayout.xaxis.type === "date") return clockText(x / 1000, false);
  if (div.dataset.axis === "elapsed") return spanText(x);
  return div.dataset.axis === "epoch" ? exactText(x) : Math.round(x).toLocaleString("en-US");
}

// Beside the line at the cursor; on a narrow screen above or below the chart.
function putBeside(box, div, { left, right, y }) {
  const { width, height } = box.getBoundingClientRect();
  const chart = div.getBoundingClientRect();
  const inside = (value, size, whole) => Math.max(4, Math.min(value, whole - size - 4));
  let x = right + TIP_SPACE, top = y - height / 2;
  if (x + width > window.innerWidth - 4) x = left - TIP_SPACE - width;
  if (x < 4) {
    x = (left + right - width) / 2;
    top = chart.top - height - 4 >= 4 ? chart.top - height - 4 : chart.bottom + 4;
  }
  box.style.left = `${inside(x, width, window.innerWidth)}px`;
  box.style.top = `${inside(top, height, window.innerHeight)}px`;
}

// ---------------------------------------------------------------- the line, and the dot on the nearest curve

function drawCross(div, x, nearest) {
  const { xaxis, yaxis } = div._fullLayout;
  const place = xaxis.l2p(x);
  if (!(place >= -1 && place <= xaxis._length + 1)) { clearCross(div); return; }
  if (!div.__cross) {
    div.__cross = make("div", "telemetry-cross");
    div.__cross.appendChild(make("div", "telemetry-cross-dot"));
  }
  if (div.__cross.parentElement !== div) div.appendChild(div.__cross);
  Object.assign(div.__cross.style, { left: `${xaxis._offset + place}px`, top: `${yaxis._offset}px`, height: `${yaxis._length}px` });
  const dot = div.__cross.firstChild;
  const value = nearest && (Number.isFinite(nearest.smoothed) ? nearest.smoothed : nearest.value);
  const axis = nearest && axisOf(div, nearest.trace);
  const height = nearest ? axis.d2p(value) : NaN;
  const isInside = nearest && nearest.x === x && height >= 0 && height <= axis._length;
  dot.style.display = isInside ? "" : "none";
  if (isInside) { dot.style.top = `${height}px`; dot.style.background = nearest.tip.color; }
}

function clearCross(div) {
  if (div.__cross) div.__cross.remove();
}

// ---------------------------------------------------------------- one run among many

function highlightRun(run) {
  for (const div of document.querySelectorAll(".telemetry-chart")) {
    const traces = [...div.querySelectorAll(".scatterlayer .trace")];
    const runOf = (node) => node.__data__ && node.__data__[0] && node.__data__[0].trace.meta ? node.__data__[0].trace.meta.run : undefined;
    const isHere = run !== null && traces.some((node) => runOf(node) === run);
    for (const node of traces) node.style.opacity = isHere && runOf(node) !== run ? "0.12" : "";
  }
}
window.removeEventListener("telemetry-highlight", window.__telemetryHighlight);
// As the figures write a key.
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
window.__telemetryHighlight = (event) => highlightRun(typeof event.detail.run === "string" ? escaped(event.detail.run) : null);
window.addEventListener("telemetry-highlight", window.__telemetryHighlight);

// ---------------------------------------------------------------- the pointer

function wireTip(div, siblings, sendCursor) {
  if (div.__clearTip) return;
  let pending = 0, place = null, lit = null;
  const clear = () => {
    place = null;
    if (!div.__hovers) return;
    div.__hovers = false;
    hideTip();
    sendCursor(null);
    for (const one of [div, ...siblings()]) {
      clearCross(one);
      one.classList.remove("telemetry-follows");
      if (one.__chip) one.__chip.textContent = "";
    }
  };
  const look = () => {
    pending = 0;
    if (!place || !div.isConnected || !div._fullLayout || !div._fullLayout.xaxis) return;
    const frame = div.getBoundingClientRect(), { xaxis, yaxis } = div._fullLayout;
    const px = place.x - frame.left - xaxis._offset, py = place.y - frame.top - yaxis._offset;
    const isInside = px >= 0 && px <= xaxis._length && py >= 0 && py <= yaxis._length;
    const found = isInside ? readAt(div, xaxis.p2l(px), place.y - frame.top) : null;
    if (!found) { const kept = place; clear(); place = kept; return; }
    div.__hovers = true;
    const others = siblings().filter((other) => other._fullLayout.xaxis && other._fullLayout.xaxis.type === xaxis.type);
    drawCross(div, found.x, found.nearest);
    const line = frame.left + xaxis._offset + xaxis.l2p(found.x);
    showTip(div, found, others, { left: Math.min(line, place.x), right: Math.max(line, place.x), y: place.y });
    sendCursor(found.x);
    for (const other of others) {
      const there = tipsOf(other).length ? readAt(other, found.x, null) : null;
      if (!there) continue;
      // The other charts show a line and their values in a corner: a box would cover what they draw.
      other.classList.add("telemetry-follows");
      drawCross(other, found.x, null);
      if (other.__chip) other.__chip.textContent = there.rows.filter((row) => row.tip.kind !== "band" && Number.isFinite(row.value)).slice(0, 4)
        .map((row) => exactText(row.value, row.isRounded)).join(" · ");
    }
  };
  const light = (run) => {
    if (run === lit) return;
    lit = run;
    highlightRun(run);
  };
  const move = (event) => {
    const entry = event.target.closest && event.target.closest(".legend .traces");
    const trace = entry && entry.__data__ && entry.__data__[0] && entry.__data__[0].trace;
    light(trace && trace.meta && trace.meta.run !== undefined ? trace.meta.run : null);
    if (event.buttons && event.pointerType === "mouse") { clear(); return; }
    place = { x: event.clientX, y: event.clientY };
    if (!pending) pending = requestAnimationFrame(look);
  };
  div.addEventListener("pointermove", move);
  div.addEventListener("pointerdown", (event) => { if (event.pointerType !== "mouse") move(event); });
  div.addEventListener("pointerleave", (event) => { light(null); if (event.pointerType === "mouse") clear(); });
  // A thumb that scrolls the page takes the tooltip away.
  div.addEventListener("pointercancel", clear);
  div.__clearTip = clear;
  div.__lookAgain = () => { if (place && div.__hovers) look(); };
}

// A tap beside a chart, or a page that moves under the tooltip, takes it away.
function clearOthers(event) {
  for (const div of document.querySelectorAll(".telemetry-chart")) {
    if (div.__hovers && div.__clearTip && !(event.type === "pointerdown" && div.contains(event.target))) div.__clearTip();
  }
}
if (!window.__telemetryTipClears) {
  window.__telemetryTipClears = true;
  window.addEventListener("scroll", clearOthers, { capture: true, passive: true });
  window.addEventListener("pointerdown", clearOthers, { capture: true, passive: true });
}
