// Zoom and pan with the mouse, the wheel, fingers and keys. A zoom is kept as values of x: new data in the middle of a
// drag changes where its box is drawn, and nothing else.
const DRAG_PX = 6, TALL_PX = 24, WHEEL_SPEED = 0.0022, LEAST_ZOOM = 1e-7;

const scaled = (chart, value) => (chart.xScale.log ? Math.log10(value) : value);
const unscaled = (chart, value) => (chart.xScale.log ? 10 ** value : value);
// Not as drawn: a second key may come before the next frame.
const shownRange = (chart) => chart.window() || chart.whole();

// Shows `low` to `high`, in the units of the scale, inside the whole run; all of it where nothing is left out.
function zoomTo(chart, low, high, isSettled) {
  const [first, last] = chart.whole().map((edge) => scaled(chart, edge)), size = last - first;
  if (!(size > 0) || !Number.isFinite(low) || !Number.isFinite(high)) return;
  const width = Math.min(size, Math.max(high - low, size * LEAST_ZOOM));
  const middle = (low + high) / 2, left = Math.min(Math.max(width < high - low || width > high - low ? middle - width / 2 : low, first), last - width);
  chart.setWindow(width >= size * 0.9999 ? null : [unscaled(chart, left), unscaled(chart, left + width)], isSettled);
}

// `factor` below 1 zooms in; what is at this share of the width stays there.
function zoomAt(chart, share, factor, isSettled) {
  const [low, high] = shownRange(chart).map((edge) => scaled(chart, edge));
  const at = low + share * (high - low), width = (high - low) * factor;
  zoomTo(chart, at - share * width, at + (1 - share) * width, isSettled);
}

function panBy(chart, share, isSettled) {
  const [low, high] = shownRange(chart).map((edge) => scaled(chart, edge)), by = share * (high - low);
  zoomTo(chart, low + by, high + by, isSettled);
}

function attachGestures(chart) {
  const { overlay, root } = chart;
  overlay.style.touchAction = "pan-y";
  const at = (event) => { const frame = overlay.getBoundingClientRect(); return { x: event.clientX - frame.left, y: event.clientY - frame.top }; };
  const isInside = ({ x, y }) => chart.plot && x >= chart.plot.left - 4 && x <= chart.plot.left + chart.plot.width + 4 && y >= chart.plot.top && y <= chart.plot.top + chart.plot.height + 30;
  let drag = null, settling = 0;
  const settleSoon = () => { clearTimeout(settling); settling = setTimeout(() => chart.setWindow(chart.window(), true), 250); };

  // ---------------- mouse
  const boxOf = () => {
    const { plot } = chart, x0 = chart.xScale.toPx(drag.from), dy = Math.abs(drag.now.y - drag.y), dx = Math.abs(drag.now.x - drag.start.x);
    if (Math.max(dx, dy) < DRAG_PX) return null;
    const cut = (value, low, high) => Math.min(Math.max(value, low), high), right = plot.left + plot.width, bottom = plot.top + plot.height;
    drag.isTall = dy > TALL_PX && dx < dy / 3;
    if (drag.isTall) {
      const top = cut(Math.min(drag.y, drag.now.y), plot.top, bottom);
      return { left: plot.left, top, width: plot.width, height: cut(Math.max(drag.y, drag.now.y), plot.top, bottom) - top };
    }
    const left = cut(Math.min(x0, drag.now.x), plot.left, right);
    return { left, top: plot.top, width: cut(Math.max(x0, drag.now.x), plot.left, right) - left, height: plot.height };
  };
  const stopDrag = () => { drag = null; chart.dragBox = null; overlay.style.cursor = ""; drawCurveOverlay(chart); };
  chart.redrawDrag = () => { if (drag && drag.kind === "zoom") { chart.dragBox = boxOf(); drawCurveOverlay(chart); } };
  overlay.addEventListener("mousedown", (event) => { if (event.button === 1) event.preventDefault(); });
  overlay.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button > 1 || !isInside(at(event)) || !chart.xScale) return;
    const start = at(event);
    overlay.setPointerCapture(event.pointerId);
    clearCurveCursor();
    const isPan = event.shiftKey || event.button === 1;
    drag = { kind: isPan ? "pan" : "zoom", start, y: start.y, now: start, from: chart.xScale.toValue(start.x), range: chart.xRange.map((edge) => scaled(chart, edge)) };
    if (isPan) overlay.style.cursor = "grabbing";
  });
  overlay.addEventListener("pointermove", (event) => {
    if (!drag || event.pointerType !== "mouse") return;
    drag.now = at(event);
    if (drag.kind === "zoom") { chart.redrawDrag(); return; }
    const by = ((drag.start.x - drag.now.x) / chart.plot.width) * (drag.range[1] - drag.range[0]);
    zoomTo(chart, drag.range[0] + by, drag.range[1] + by, false);
  });
  overlay.addEventListener("pointerup", (event) => {
    if (!drag || event.pointerType !== "mouse") return;
    const done = drag, box = done.kind === "zoom" ? boxOf() : null;
    stopDrag();
    if (done.kind === "pan") { if (Math.abs(done.now.x - done.start.x) > 1) chart.setWindow(chart.window(), true); return; }
    if (!box) return;
    if (done.isTall) {
      const edges = [chart.yScale.toValue(box.top + box.height), chart.yScale.toValue(box.top)];
      if (edges[1] > edges[0]) chart.setYWindow(edges);
      return;
    }
    const edges = [box.left, box.left + box.width].map((px) => scaled(chart, chart.xScale.toValue(px)));
    zoomTo(chart, edges[0], edges[1], true);
  });
  overlay.addEventListener("pointercancel", stopDrag);
  root.addEventListener("keydown", (event) => { if (event.key === "Escape" && drag) { event.stopImmediatePropagation(); stopDrag(); } }, { capture: true });
  overlay.addEventListener("dblclick", (event) => { if (isInside(at(event))) chart.reset(); });
  overlay.addEventListener("wheel", (event) => {
    // Without focus the wheel scrolls the page.
    if (!(event.ctrlKey || event.metaKey || document.activeElement === root) || !isInside(at(event))) return;
    event.preventDefault();
    const size = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) panBy(chart, ((event.deltaX || event.deltaY) * size) / chart.plot.width, false);
    else zoomAt(chart, (at(event).x - chart.plot.left) / chart.plot.width, Math.exp(Math.max(-400, Math.min(400, event.deltaY * size)) * WHEEL_SPEED), false);
    settleSoon();
  }, { passive: false });

  // ---------------- a button while something is left out: it takes no room from what is below
  const whole = make("button", "telemetry-curves-whole", "Whole run");
  whole.hidden = true;
  whole.title = "Show all of it again (double-click, or Escape)";
  whole.onclick = () => { chart.setYWindow(null); chart.setWindow(null, true); };
  chart.bar.prepend(whole);
  chart.afterPaint.push(() => {
    whole.hidden = !(chart.yWindow || (chart.window() && chart.window() !== chart.spec.window));
    chart.bar.classList.toggle("telemetry-curves-zoomed", !whole.hidden);
  });

  // ---------------- fingers: one scrolls the page, two zoom and pan
  const fingers = new Map();
  let pinch = null, tapped = { when: 0, x: 0, y: 0 };
  const hold = () => { const [a, b] = [...fingers.values()]; return { middle: (a.x + b.x) / 2, apart: Math.max(20, Math.hypot(a.x - b.x, a.y - b.y)) }; };
  overlay.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") return;
    fingers.set(event.pointerId, at(event));
    if (fingers.size === 2 && chart.xScale) {
      chart.isPinched = true;
      clearCurveCursor();
      pinch = { ...hold(), range: chart.xRange.map((edge) => scaled(chart, edge)), hasMoved: false };
    }
  });
  // Two fingers, and one that rested before, must not scroll the page meanwhile.
  overlay.addEventListener("touchmove", (event) => { if (event.touches.length > 1 || chart.isHeld) event.preventDefault(); }, { passive: false });
  overlay.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, at(event));
    if (!pinch || fingers.size < 2) return;
    const now = hold(), [low, high] = pinch.range, width = ((high - low) * pinch.apart) / now.apart;
    const held = low + ((pinch.middle - chart.plot.left) / chart.plot.width) * (high - low);
    const left = held - ((now.middle - chart.plot.left) / chart.plot.width) * width;
    pinch.hasMoved = true;
    zoomTo(chart, left, left + width, false);
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (pinch && fingers.size < 2) { const { hasMoved } = pinch; pinch = null; if (hasMoved) chart.setWindow(chart.window(), true); }
    if (!fingers.size) setTimeout(() => { chart.isPinched = false; }, 0);
    if (event.type !== "pointerup" || chart.isPinched) return;
    const place = at(event), isTwice = event.timeStamp - tapped.when < 350 && Math.hypot(place.x - tapped.x, place.y - tapped.y) < 30;
    tapped = isTwice ? { when: 0, x: 0, y: 0 } : { when: event.timeStamp, ...place };
    if (isTwice && isInside(place)) { chart.tappedTwice = event.timeStamp; clearCurveCursor(); chart.reset(); }
  };
  overlay.addEventListener("pointerup", lift);
  overlay.addEventListener("pointercancel", lift);
}

// ---------------------------------------------------------------- keys

// All x of a curve that are drawn, ascending.
function drawnPlaces(chart, curve) {
  const [low, high] = chart.xRange, found = new Set(), take = (x) => { if (x >= low && x <= high) found.add(x); };
  if (curve.result) curve.result.x.forEach(take);
  else for (const { tile, first, last, piece } of curve.seen.parts) if (!piece.superseded) for (let i = first; i < last; i += 1) take(tile.x[i]);
  return Float64Array.from(found).sort();
}

function attachKeys(chart) {
  const { root } = chart;
  root.tabIndex = 0;
  const said = make("div", "telemetry-said");
  said.setAttribute("aria-live", "polite");
  root.appendChild(said);
  const state = { x: null, curve: null };
  const share = () => {
    if (state.x === null) return 0.5;
    const [low, high, x] = [...shownRange(chart), state.x].map((value) => scaled(chart, value));
    return Math.min(1, Math.max(0, (x - low) / (high - low)));
  };
  const reachable = () => { const rows = state.x === null ? [] : chart.near(state.x); return rows.length ? rows : chart.near(chart.xScale.toValue(chart.plot.left + chart.plot.width / 2)); };
  const chosen = () => { const rows = reachable(); return (rows.find((row) => row.curve === state.curve) || rows[0] || {}).curve; };
  const speak = (text) => { said.textContent = text; };
  // The cursor on the chosen curve, its values in the tooltip and for a screen reader.
  const show = () => {
    const row = chart.near(state.x).find((one) => one.curve === state.curve);
    const py = row ? chart.yScale.toPx(rowHeight(row)) : null;
    const found = pointCurves(chart, state.x, py, true);
    if (chart.curves.length + chart.groups.length > 1 && state.curve) chart.highlight(runOf(state.curve));
    if (!found) return;
    const own = found.rows.find((one) => one.curve === state.curve) || found.rows[0];
    speak(`${own.curve.label}, ${xText(own.x, axisFor(chart))}: ${readingText(own, true)}`);
  };
  const move = (by) => {
    state.curve = chosen();
    if (!state.curve) return;
    const places = drawnPlaces(chart, state.curve);
    if (!places.length) return;
    let i = by === -Infinity ? 0 : by === Infinity ? places.length - 1 : -1;
    if (i < 0) {
      if (state.x === null) i = by > 0 ? 0 : places.length - 1;
      else {
        i = places.findIndex((x) => x >= state.x);
        if (i < 0) i = places.length - 1;
        const to = i + by;
        // At an edge of a zoomed chart the next part of the run comes into view.
        if ((to < 0 || to >= places.length) && chart.window()) { state.x = places[to < 0 ? 0 : places.length - 1]; panBy(chart, to < 0 ? -0.5 : 0.5, true); requestAnimationFrame(() => requestAnimationFrame(show)); return; }
        i = Math.min(Math.max(to, 0), places.length - 1);
      }
    }
    state.x = places[i];
    show();
  };
  const choose = (by) => {
    const rows = state.x === null ? [] : (readChart(chart, state.x, null) || { rows: [] }).rows;
    if (!rows.length) { move(0); return; }
    const i = rows.findIndex((row) => row.curve === state.curve);
    state.curve = rows[Math.min(Math.max(i + by, 0), rows.length - 1)].curve;
    show();
  };
  const describeRange = () => requestAnimationFrame(() => { if (chart.xScale) { const [low, high] = shownRange(chart), axis = axisFor(chart); speak(`${xText(low, axis)} to ${xText(high, axis)}`); } });
  const zoom = (factor) => { zoomAt(chart, share(), factor, true); describeRange(); };
  const whole = () => { if (chart.window() || chart.yWindow) { chart.setYWindow(null); chart.setWindow(null, true); describeRange(); } else clearCurveCursor(); };
  const hide = () => {
    const curve = state.curve || chosen();
    if (!curve) return;
    speak(`${curve.label} hidden`);
    chart.hide(chart.keyOf(curve), true);
    chart.highlight(null);
    state.curve = null;
    clearCurveCursor();
  };
  const keys = {
    ArrowLeft: (event) => move(event.shiftKey ? -10 : -1), ArrowRight: (event) => move(event.shiftKey ? 10 : 1),
    ArrowUp: () => choose(-1), ArrowDown: () => choose(1), Home: () => move(-Infinity), End: () => move(Infinity),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), _: () => zoom(2), 0: whole, Escape: whole, h: hide,
    s: () => chart.openSave(), f: () => (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen()),
  };
  root.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.target !== root || event.ctrlKey || event.metaKey || event.altKey || !chart.xScale || !chart.plot) return;
    event.preventDefault();
    // Keys of the page must not act too.
    event.stopPropagation();
    act(event);
  });
  root.addEventListener("focus", () => { if (root.matches(":focus-visible")) speak("Arrow keys read values, plus and minus zoom, s saves."); });
  root.addEventListener("blur", () => { if (curveCursor.chart === chart && curveCursor.isKept) { clearCurveCursor(); chart.highlight(null); } state.x = null; });
}
