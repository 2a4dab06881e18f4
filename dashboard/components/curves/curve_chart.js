// A chart of curves: what Streamlit sent says what to draw, the feed has the values, and all charts share one frame.
const FINEST_SMOOTHING = 0.0025, AUTO_SMOOTHING = 0.03, FEWEST_SMOOTHED = 200, GROUP_CELLS = 400;
const openCharts = (window.__telemetryOpenCharts ||= new Set());
const dueCharts = new Set();
let frameAsked = 0;

function askFrame(chart) {
  dueCharts.add(chart);
  if (frameAsked) return;
  frameAsked = requestAnimationFrame(() => {
    frameAsked = 0;
    curveStore.clock += 1;
    const charts = [...dueCharts];
    dueCharts.clear();
    for (const one of charts) one.draw();
  });
}

const groupWindows = new Map();

// Keys of runs and labels of groups that the table below a chart hides, for all charts of the page.
let hiddenByTable = new Set();

function hideCurves(keys) {
  if (keys.size === hiddenByTable.size && [...keys].every((key) => hiddenByTable.has(key))) return;
  hiddenByTable = new Set(keys);
  for (const chart of openCharts) if (chart.isAttached) { chart.smoothKey = ""; chart.hide("", false); }
}

class CurveChart {
  constructor(root) {
    Object.assign(this, { root, spec: null, curves: [], groups: [], lit: null, afterPaint: [], yWindow: null, showsAll: false, hiddenLabels: new Set(), isVisible: false, isAttached: false, ownWindow: null, smoothKey: "", drawn: 0, lastFrame: null, version: 0 });
    this.legend = make("div", "telemetry-curves-legend");
    this.box = make("div", "telemetry-curves-box");
    this.canvas = make("canvas");
    this.overlay = make("canvas", "telemetry-curves-over");
    this.bar = make("div", "telemetry-curves-bar");
    this.message = make("div", "telemetry-curves-message");
    for (const one of [this.canvas, this.overlay]) one.setAttribute("aria-hidden", "true");
    this.box.append(this.canvas, this.overlay, this.message);
    this.picture = make("div", "telemetry-curves-picture");
    root.append(this.legend, this.box, this.bar, this.picture);
    const full = make("button");
    // Drawn, because not every font has a sign for it.
    full.append(make("span", "telemetry-curves-full"));
    full.title = "Full screen";
    full.setAttribute("aria-label", "Full screen");
    full.onclick = () => (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen());
    this.bar.append(full);
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.box);
    root.onfullscreenchange = () => this.resize();
    // The theme can change without a message from the server; the style sheet gives the colour a transition.
    root.addEventListener("transitionend", (event) => { if (event.target === root && this.spec) { this.readTheme(); this.drawLegend(); this.redraw(); } });
    this.seenBy = new IntersectionObserver((entries) => this.setVisible(entries[entries.length - 1].isIntersecting), { rootMargin: "600px 0px", scrollMargin: "600px 0px" });
    this.seenBy.observe(root);
    this.forgetView = curveView.on((changes) => this.viewChanged(changes));
    openCharts.add(this);
  }

  close() {
    this.sizes.disconnect();
    this.seenBy.disconnect();
    this.forgetView();
    openCharts.delete(this);
    for (const feed of this.feeds()) curveStore.leave(feed, this);
    this.isAttached = false;
    this.curves = [];
    this.groups = [];
    this.root.replaceChildren();
    clearTimeout(this.saying);
    clearTimeout(this.thinking);
    delete this.root.__chart;
  }

  // ------------------------------------------------------------ what is drawn

  update(spec, component) {
    const text = JSON.stringify(spec);
    this.component = component;
    // The one place where markup is taken as such: the server has made it from escaped text.
    if (spec.picture) this.picture.innerHTML = spec.picture; else this.picture.replaceChildren();
    drawStar(this.root, { pinned: spec.star, label: spec.title }, () => component.setTriggerValue("pin", true));
    this.bar.classList.toggle("telemetry-curves-next-to-star", spec.star !== undefined && spec.star !== null);
    if (text === this.specText) return;
    this.specText = text;
    // The last records of a run may have come after the last request.
    if (this.spec && this.spec.live && !spec.live) { for (const feed of this.feeds()) feed.again = true; curveStore.hurry(); }
    this.spec = spec;
    this.root.setAttribute("aria-label", `${spec.title}, loading`);
    this.root.style.height = `${spec.height || 260}px`;
    // Streamlit would cut off the buttons next to the title.
    const holder = this.root.closest('[data-testid="stElementContainer"]');
    if (holder) holder.style.overflow = "visible";
    this.readTheme();
    if (this.isAttached) this.attach();
    const { top, bottom } = this.root.getBoundingClientRect();
    if (top < window.innerHeight + 600 && bottom > -600) this.setVisible(true);
    curveStore.schedulePoll();
    this.redraw();
  }

  axis() { return this.spec.axis || curveView.axis; }

  attach() {
    const before = this.feeds(), axis = this.axis();
    const curveOf = (spec, group = null) => {
      const feed = curveStore.feed(spec.run, spec.metric, spec.rank || 0, axis, this);
      const band = spec.band ? spec.band.map((metric) => curveStore.feed(spec.run, metric, spec.rank || 0, axis, this)) : null;
      return { spec, label: spec.label, colours: spec.colour, colour: spec.colour[this.theme.isDark ? 1 : 0], dash: spec.dash || "solid", run: spec.run, metric: spec.metric, hidden: false, feed, band, group, smoothed: null, seen: { parts: [], level: 0, visible: 0 } };
    };
    const old = new Map(this.curves.map((curve) => [JSON.stringify([curve.label, curve.run, curve.metric, curve.spec.rank, curve.feed.axis]), curve.smoothed]));
    // A baseline of another day would move the run to the edge of the chart.
    this.curves = (this.spec.curves || []).filter((spec) => !spec.pale || axis !== "time").map((spec) => curveOf(spec));
    this.groups = (this.spec.groups || []).map((spec) => ({ spec, label: spec.label, colours: spec.colour, colour: spec.colour[this.theme.isDark ? 1 : 0], dash: spec.dash || "solid", hidden: false, result: null }));
    this.groups.forEach((group) => { group.curves = group.spec.curves.map((spec) => curveOf(spec, group)); });
    this.members = this.groups.flatMap((group) => group.curves);
    for (const curve of this.curves) curve.smoothed = old.get(JSON.stringify([curve.label, curve.run, curve.metric, curve.spec.rank, axis])) || null;
    for (const one of [...this.curves, ...this.groups]) one.hidden = this.hiddenLabels.has(this.keyOf(one)) || hiddenByTable.has(one.run || one.label);
    this.isAttached = true;
    const now = new Set(this.feeds());
    for (const feed of before) if (!now.has(feed)) curveStore.leave(feed, this);
    this.smoothKey = "";
    this.drawLegend();
    curveStore.schedulePoll();
  }

  feeds() { return [...this.curves, ...(this.members || [])].flatMap((curve) => [curve.feed, ...(curve.band || [])]); }

  setVisible(isVisible) {
    this.isVisible = isVisible;
    if (!isVisible || !this.spec) return;
    if (!this.isAttached) this.attach();
    if (this.isStale) this.redraw();
  }

  isLive() { return !!(this.spec && this.spec.live && this.spec.refresh && this.root.isConnected && this.isAttached); }

  viewChanged(changes) {
    if (!this.spec) return;
    if (changes.axis !== undefined && this.isAttached && !this.spec.axis && this.feeds().some((feed) => feed.axis !== curveView.axis)) { this.yWindow = null; this.attach(); }
    if (changes.forecast !== undefined && this.isAttached) this.drawLegend();
    if (changes.logY !== undefined || changes.logX !== undefined) { this.yWindow = null; this.smoothKey = ""; }
    if (changes.window !== undefined) this.yWindow = null;
    this.redraw();
  }

  dataChanged() {
    this.version += 1;
    this.redraw();
    this.fallBack();
  }

  // ------------------------------------------------------------ zoom, hidden curves, highlight

  whole() {
    let low = Infinity, high = -Infinity;
    const take = (x) => { if (Number.isFinite(x) && (!this.logX() || x > 0)) { if (x < low) low = x; if (x > high) high = x; } };
    const shown = this.groups.length ? this.members.filter((curve) => !curve.group.hidden) : this.curves.filter((curve) => !curve.hidden);
    const own = shown.filter((curve) => !curve.spec.pale);
    for (const { feed } of own.length ? own : this.curves) {
      for (const piece of feed.pieces) {
        if (!piece.points) continue;
        take(piece.first);
        take(piece.last);
        if (this.logX() && !(piece.first > 0)) take(piece.firstPositive());
        if (!piece.isAscending) for (const { tile, first, last } of piece.coarse()) for (let i = first; i < last; i += 1) take(tile.x[i]);
      }
      for (const [, first, last] of feed.nonFinite) { take(first); take(last); }
    }
    for (const [, band] of forecastsIn(this)) take(band.steps.at(-1));
    if (!(low <= high)) return [0, 1];
    if (low < high) return [low, high];
    return this.logX() ? [low / 2, low * 2] : [low - (Math.abs(low) < 1e15 ? 1 : Math.abs(low)), high + (Math.abs(low) < 1e15 ? 1 : Math.abs(low))];
  }

  windowKey() { return this.spec.window ? null : this.axis() === curveView.axis ? "page" : `${this.spec.zoom_group || "page"} ${this.axis()}`; }

  window() {
    const key = this.windowKey();
    if (key === null) return this.ownWindow || this.spec.window;
    return (key === "page" ? curveView.window : groupWindows.get(key)) || null;
  }

  setWindow(range, settled = true) {
    const key = this.windowKey();
    if (key === "page") { curveView.set({ window: range }, settled); return; }
    if (key === null) { this.ownWindow = range; this.redraw(); return; }
    if (range) groupWindows.set(key, range); else groupWindows.delete(key);
    for (const chart of openCharts) if (chart.spec && chart.windowKey() === key) { chart.yWindow = null; chart.redraw(); }
  }

  setYWindow(range) {
    this.yWindow = range;
    this.redraw();
  }

  // Back to the whole run; from there to every value, and back.
  reset() {
    if (this.window() && this.window() !== this.spec.window) { this.yWindow = null; this.setWindow(null, true); }
    else if (this.yWindow) this.yWindow = null;
    else this.showsAll = !this.showsAll && !!(this.lastFrame && this.lastFrame.isFitted);
    this.redraw();
  }

  keyOf(one) { return this.hidesRuns() && one.run ? `run ${one.run}` : `label ${one.label}`; }
  hidesRuns() { return new Set(this.curves.map((curve) => curve.run)).size > 1; }

  hide(key, hidden) {
    for (const chart of key.startsWith("run ") ? openCharts : [this]) {
      if (hidden) chart.hiddenLabels.add(key); else chart.hiddenLabels.delete(key);
      for (const one of [...chart.curves, ...chart.groups]) one.hidden = chart.hiddenLabels.has(`run ${one.run}`) || chart.hiddenLabels.has(`label ${one.label}`) || hiddenByTable.has(one.run || one.label);
      chart.drawLegend();
      chart.redraw();
    }
  }

  highlight(run) {
    for (const chart of openCharts) {
      if (chart.lit === run) continue;
      chart.lit = run;
      chart.redraw();
    }
    for (const line of document.querySelectorAll(".trt tr[data-key]")) line.classList.toggle("trt-lit", line.dataset.key === run);
  }

  redraw() {
    if (!this.isVisible) { this.isStale = true; return; }
    askFrame(this);
  }

  // ------------------------------------------------------------ the frame

  // A difference may be negative.
  logY() { return curveView.logY && !this.spec.base; }

  logX() { return curveView.logX && this.axis() !== "time"; }

  // On a log axis the left of the chart has few points for many pixels: each part of it has tiles of its own level.
  cuts(x0, x1) {
    if (!this.logX()) return [x0, x1];
    const parts = 6;
    return Array.from({ length: parts + 1 }, (_, i) => (i === parts ? x1 : x0 * (x1 / x0) ** (i / parts)));
  }

  isSmooth(curve) {
    if (curve.spec.smooth === false || !curve.feed.smooth || curveView.smoothing === 0) return false;
    return curveView.smoothing !== "auto" || curve.seen.visible >= FEWEST_SMOOTHED;
  }

  readTheme() {
    const style = getComputedStyle(this.root);
    const rgb = (style.color.match(/[\d.]+/g) || [0, 0, 0]).slice(0, 3).join(",");
    const family = style.fontFamily || "sans-serif";
    this.theme = { isDark: standsOnDark(this.root), text: style.color, muted: `rgba(${rgb},0.78)`, grid: `rgba(${rgb},0.13)`, axis: `rgba(${rgb},0.4)`, background: style.getPropertyValue("--st-background-color").trim() || "#fff", font: `12px ${family}`, smallFont: `11px ${family}` };
    for (const one of [...this.curves, ...this.groups]) one.colour = one.colours[this.theme.isDark ? 1 : 0];
  }

  // Everything that one drawing needs: what is in view, the ranges, the scales, the place of the plot.
  frame(g, width, height, isAsking = true) {
    const { spec, theme } = this, axis = this.axis(), log = this.logX();
    let [x0, x1] = this.window() || this.whole();
    if (log && !(x0 > 0)) x0 = Math.min(this.whole()[0], x1 / 10);
    const most = this.curves.length + (this.members || []).length > 4 ? 1 : 2;
    const cuts = this.cuts(x0, x1), part = width / (cuts.length - 1);
    for (const curve of [...this.curves, ...this.members]) {
      curve.feed.need(Math.min(4096, Math.ceil((most * width) / 256) * 256));
      if (curve.band) for (const feed of curve.band) feed.need(Math.ceil(width / 512) * 256);
      if (curve.hidden || (curve.group && curve.group.hidden)) { curve.seen = { parts: [], level: 0, visible: 0 }; curve.bandSeen = null; continue; }
      curve.seen = curve.feed.seen(cuts, part, most, isAsking);
      curve.bandSeen = curve.band && curve.band.every((feed) => feed.points) ? curve.band.map((feed) => feed.seen(cuts, part, most / 2, isAsking)) : null;
    }
    const shown = this.groups.length ? this.members.filter((curve) => !curve.group.hidden) : this.curves.filter((curve) => !curve.hidden);
    if (spec.base) this.subtract(shown);
    const frame = { chart: this, spec, theme, axis, width, height, shown, groups: this.groups.filter((group) => !group.hidden && group.result), isSmooth: (curve) => this.isSmooth(curve) && curve.smoothed };
    Object.assign(frame, this.chooseRange(shown, [x0, x1], this.logY()));
    frame.floor = this.logY() ? 0 : -Infinity;
    frame.marks = curveView.marks || spec.window ? (spec.marks || []).map((mark) => ({ ...mark, tone: mark.tone || "muted", x: this.markPlace(mark, axis) })).filter((mark) => Number.isFinite(mark.x)) : [];
    frame.hasMarkLabels = height >= LABELLED_FROM;
    frame.hasTitle = height >= 180;
    frame.notes = this.notesOf(frame);
    const top = frame.notes.length || frame.isFitted || (frame.marks.length && frame.hasMarkLabels) ? 20 : 8, bottom = 26;
    frame.y = makeScale(frame.range[0], frame.range[1], height - bottom, top, this.logY());
    frame.yTicks = yTicks(frame.y, Math.max(2, Math.floor((height - top - bottom) / 34)));
    g.font = theme.font;
    const widest = (ticks) => Math.max(0, ...ticks.map(([, text]) => g.measureText(text).width));
    const left = Math.ceil(Math.max(28, widest(frame.yTicks) + 10)), ticks = 10;
    frame.plot = { left, top, width: Math.max(20, width - left - ticks), height: Math.max(20, height - top - bottom) };
    frame.x = makeScale(x0, x1, left, left + frame.plot.width, log);
    frame.xTicks = xTicks(frame.x, axis, Math.max(2, Math.floor(frame.plot.width / 90)));
    for (const mark of frame.marks) mark.px = frame.x.toPx(mark.x);
    return frame;
  }

  // ------------------------------------------------------------ the y range

  // The extremes of everything that is drawn inside the window.
  extremes(curves, [x0, x1], isLog) {
    let low = Infinity, high = -Infinity, hidden = 0, isExact = true;
    const take = (value) => { if (Number.isFinite(value) && (!isLog || value > 0)) { if (value < low) low = value; if (value > high) high = value; } };
    const look = (parts, lowName, highName, isCounted) => {
      for (const { tile, first, last } of parts) {
        for (let i = first; i < last; i += 1) {
          const from = tile.x[i], to = tile.level ? (i + 1 < tile.count ? tile.x[i + 1] : from) : from;
          if (to < x0 || from > x1) continue;
          const down = tile[lowName][i], up = tile[highName][i];
          if (isLog && isCounted && down <= 0) { hidden += up <= 0 && tile.level ? 4 ** tile.level : 1; if (tile.level) isExact = false; }
          take(down);
          take(up);
        }
      }
    };
    for (const curve of curves) {
      look(curve.seen.parts, "low", "high", true);
      if (curve.bandSeen) { look(curve.bandSeen[0].parts, "low", "low", false); look(curve.bandSeen[1].parts, "high", "high", false); }
    }
    for (const group of this.groups) if (!group.hidden && group.result) for (let i = 0; i < group.result.x.length; i += 1) if (group.result.x[i] >= x0 && group.result.x[i] <= x1) {
      for (const name of ["low", "middle", "high"]) take(group.result[name][i]);
      if (isLog && group.result.middle[i] <= 0) { hidden += 1; isExact = false; }
    }
    return [low, high, hidden, isExact];
  }

  chooseRange(shown, window, isLog) {
    const { spec } = this, left = this.groups.length ? [] : shown, isZoomed = !!this.window();
    let [low, high, hidden, isExact] = this.extremes(left, window, isLog);
    // Between two points there is only the line from one to the other.
    if (!(low <= high)) [low, high] = this.extremes(left, [-Infinity, Infinity], isLog);
    const found = { hidden, isExact, isFitted: false, range: [0, 1] };
    const levels = (spec.levels || []).map((level) => level.y), limits = isZoomed ? [] : (spec.limits || []).map(([value]) => value);
    const ahead = forecastRange(this, window, isLog);
    const known = (low <= high ? [low, high, ...levels, ...limits, ...ahead] : [...levels, ...limits]).filter((value) => Number.isFinite(value) && (!isLog || value > 0));
    if (this.yWindow) { found.range = this.yWindow; found.isFitted = true; return found; }
    if (!known.length) { found.range = isLog ? [0.1, 10] : [0, 1]; return found; }
    const least = Math.min(...known), most = Math.max(...known);
    if (isLog) {
      const ratio = most / least;
      found.range = ratio > 1 + NOISE ? [least / ratio ** 0.05, most * ratio ** 0.05] : [least / 10, most * 10];
      if (!(found.range[0] > 0)) found.range[0] = least;
      if (!(found.range[1] < Infinity)) found.range[1] = most;
      return found;
    }
    if (!isZoomed && !this.showsAll && spec.fit && !levels.length && !limits.length) {
      const values = [], groups = this.groups.filter((group) => !group.hidden && group.result);
      for (const { result } of groups) for (const name of ["low", "high"]) for (const value of result[name]) if (Number.isFinite(value)) values.push(value);
      const cores = [...left.flatMap((curve) => this.core(curve, values)), ...groups.flatMap((group) => groupCore(group.result))];
      const fitted = fittedRange(cores, values, least, most, spec.from_zero);
      if (fitted) { const [bottom, top] = ahead.length ? withRoom(Math.min(...ahead), Math.max(...ahead), 0.1) : fitted; found.range = [Math.min(fitted[0], bottom), Math.max(fitted[1], top)]; found.isFitted = true; return found; }
    }
    const frame = frameAround(least, most, spec.from_zero && !isZoomed);
    if (frame) { found.range = frame; return found; }
    found.range = withRoom(least, most, isZoomed ? 0.06 : 0.05);
    if (spec.from_zero && !isZoomed) { if (least >= 0) found.range[0] = 0; if (most <= 0) found.range[1] = 0; }
    return found;
  }

  // The ends of the y range that most of a curve is in, and its end always.
  core(curve, all) {
    const values = [], found = [];
    let last = -Infinity, first = Infinity, count = 0;
    const parts = curve.seen.parts.filter((part) => !part.piece.superseded);
    for (const { tile, first: a, last: b } of parts) for (let i = a; i < b; i += 1) if (Number.isFinite(tile.low[i])) { values.push(tile.low[i]); if (tile.level) values.push(tile.high[i]); last = Math.max(last, tile.x[i]); first = Math.min(first, tile.x[i]); count += 1; }
    if (!count) return found;
    values.sort((a, b) => a - b);
    for (const value of values) all.push(value);
    // Of a few points each one matters.
    const isMany = curve.feed.points > FEW_POINTS;
    found.push(quantile(values, isMany ? 0.02 : 0), quantile(values, isMany ? 0.96 : 1));
    const end = last - END * (last - first);
    if (this.isSmooth(curve) && curve.smoothed) {
      const { x, y } = curve.smoothed;
      const line = Array.from(y).filter(Number.isFinite).sort((a, b) => a - b);
      if (line.length) found.push(quantile(line, isMany ? 0.02 : 0), quantile(line, isMany ? 0.96 : 1));
      for (let i = 0; i < x.length; i += 1) if (x[i] >= end && Number.isFinite(y[i])) found.push(y[i]);
    } else for (const { tile, first: a, last: b } of parts) for (let i = a; i < b; i += 1) if (tile.x[i] >= end && Number.isFinite(tile.low[i])) found.push(tile.low[i], tile.high[i]);
    return found;
  }

  // ------------------------------------------------------------ marks, differences, smoothing, groups

  // Where a mark is on this axis; between two records it is estimated. NaN if that is not known.
  markPlace(mark, axis) {
    if (axis === "step") return mark.step ?? NaN;
    if (axis === "time") return mark.time ?? NaN;
    const feed = [...this.curves].map((curve) => [...curveStore.feeds.values()].find((one) => one.isTimed && one.run === curve.run && one.axis === axis && one.points)).find(Boolean);
    if (!feed || !Number.isFinite(mark.time)) return NaN;
    let before = null;
    for (const { tile, first, last, piece } of feed.everything()) {
      if (piece.superseded || !tile.time) continue;
      for (let i = first; i < last; i += 1) {
        if (tile.time[i] < mark.time) { before = [tile.time[i], tile.x[i]]; continue; }
        return before === null ? tile.x[i] : before[1] + ((tile.x[i] - before[1]) * (mark.time - before[0])) / (tile.time[i] - before[0] || 1);
      }
    }
    return before === null ? NaN : before[1];
  }

  // Every curve minus the base at the same x, where the base has a value.
  subtract(shown) {
    const base = shown.find((curve) => curve.run === this.spec.base && !curve.group);
    if (!base) return;
    const xs = [], ys = [];
    for (const { tile, first, last, piece } of base.seen.parts) if (!piece.superseded) for (let i = first; i < last; i += 1) if (Number.isFinite(tile.mean[i])) { xs.push(tile.x[i]); ys.push(tile.mean[i]); }
    for (const curve of shown) {
      curve.seen.parts = curve.seen.parts.map((part) => {
        const { tile, first, last } = part, low = new Float64Array(last - first), high = low.slice(), mean = low.slice();
        for (let i = first; i < last; i += 1) {
          const level = interpolate(xs, ys, tile.x[i]), to = i - first;
          low[to] = curve === base ? level - level : tile.low[i] - level;
          high[to] = curve === base ? level - level : tile.high[i] - level;
          mean[to] = curve === base ? level - level : tile.mean[i] - level;
        }
        const cut = (list) => list && list.subarray(first, last);
        return { ...part, first: 0, last: last - first, tile: { ...tile, first: tile.first + first, x: cut(tile.x), weight: cut(tile.weight), bad: cut(tile.bad), time: cut(tile.time), low, high, mean, count: last - first } };
      });
    }
  }

  // Asks the worker for smoothed curves and for groups; an answer to an older question is dropped.
  think(frame) {
    const [x0, x1] = [frame.x.low, frame.x.high], key = JSON.stringify([x0, x1, curveView.smoothing, curveView.statistic, this.version, frame.width, frame.x.log, frame.shown.map((curve) => curve.label)]);
    if (key === this.smoothKey || this.isThinking) return;
    // While a chart moves, some answers a second are enough.
    const wait = this.smoothKey ? 60 - (performance.now() - this.thoughtAt) : 0;
    if (wait > 0) { clearTimeout(this.thinking); this.thinking = setTimeout(() => this.redraw(), wait); return; }
    this.thoughtAt = performance.now();
    this.smoothKey = key;
    const isLog = frame.x.log, to = (x) => (isLog ? Math.log10(x) : x);
    const a = to(x0), b = to(x1), width = curveView.smoothing === "auto" ? AUTO_SMOOTHING : curveView.smoothing;
    const job = (curve, half) => {
      const x = [], y = [], weight = [], breaks = [];
      let isBroken = true, session = null;
      // Outside of the view as much is needed as the average reaches.
      const reach = (v) => (isLog ? 10 ** v : v);
      const parts = this.spec.base && !curve.group ? curve.seen.parts : curve.feed.seen(this.cuts(reach(a - 2 * half), reach(b + 2 * half)), frame.width, 2, false).parts;
      for (const { tile, first, last, piece } of parts) {
        if (piece.superseded) continue;
        if (piece !== session) { isBroken = true; session = piece; }
        for (let i = first; i < last; i += 1) {
          const value = tile.mean[i], place = to(tile.x[i]);
          if (!Number.isFinite(value) || !Number.isFinite(place)) { isBroken = true; continue; }
          if (isBroken && x.length) breaks.push(x.length);
          isBroken = false;
          x.push(place); y.push(value); weight.push(tile.weight[i]);
          if (tile.bad && tile.bad[i]) isBroken = true;
        }
      }
      return { x: Float64Array.from(x), y: Float64Array.from(y), weight: Float64Array.from(weight), breaks, halfWidth: half, cells: Math.min(600, Math.ceil(frame.width / 2)), from: a, to: b };
    };
    const back = (found) => (found && isLog ? { ...found, x: found.x.map((v) => 10 ** v) } : found);
    const alone = frame.shown.filter((curve) => !curve.group && this.isSmooth(curve));
    for (const curve of this.curves) if (!alone.includes(curve)) curve.smoothed = null;
    const work = [];
    if (alone.length) work.push(smoothCurves(alone.map((curve) => job(curve, width * (b - a)))).then((found) => alone.forEach((curve, i) => { curve.smoothed = back(found[i]); })));
    const groups = this.groups.filter((group) => !group.hidden);
    if (groups.length) work.push(this.thinkGroups(groups, job, back, { from: a, to: b, isLog, width: width * (b - a) }));
    if (!work.length) return;
    this.isThinking = true;
    Promise.all(work).catch(() => {}).then(() => { this.isThinking = false; this.redraw(); });
  }

  async thinkGroups(groups, job, back, { from, to, isLog, width }) {
    const members = groups.flatMap((group) => group.curves);
    // What is drawn of a long run are means of buckets; the least smoothing is the mean of one pixel or two.
    const jobs = members.map((curve) => job(curve, curve.feed.smooth && curve.spec.smooth !== false ? Math.max(width, FINEST_SMOOTHING * (to - from)) : 0));
    const lines = new Map();
    const smooth = members.filter((_, i) => jobs[i].halfWidth > 0);
    const found = smooth.length ? await smoothCurves(jobs.filter((one) => one.halfWidth > 0)) : [];
    members.forEach((curve, i) => {
      const one = (jobs[i].halfWidth > 0 && found[smooth.indexOf(curve)]) || jobs[i];
      const keep = [...one.x.keys()].filter((at) => Number.isFinite(one.y[at])).sort((p, q) => one.x[p] - one.x[q]);
      lines.set(curve, { x: Float64Array.from(keep, (at) => one.x[at]), y: Float64Array.from(keep, (at) => one.y[at]) });
    });
    const results = await Promise.all(groups.map((group) => groupCurves({ curves: group.curves.map((curve) => lines.get(curve)).filter((line) => line.x.length), statistic: curveView.statistic, from, to, cells: GROUP_CELLS })));
    const base = groups.findIndex((group) => group.label === this.spec.base);
    const line = lines.get(members.find((curve) => curve.run === this.spec.base));
    const level = base >= 0 ? [results[base].x, results[base].middle.slice()] : line ? [line.x, line.y] : null;
    groups.forEach((group, i) => {
      const one = results[i];
      if (level) for (const name of ["middle", "low", "high", "lower", "upper"]) one[name] = one[name].map((value, at) => value - interpolate(level[0], level[1], one.x[at]));
      group.result = back(one);
    });
  }

  // ------------------------------------------------------------ drawing

  resize() {
    if (!this.spec) return;
    const isFull = document.fullscreenElement === this.root;
    this.root.style.height = isFull ? "100vh" : `${this.spec.height || 260}px`;
    this.size = null;
    this.redraw();
  }

  draw() {
    if (!this.root.isConnected || !this.spec || !this.isAttached) return;
    this.isStale = false;
    // Kept, because asking for it makes the browser lay out the page.
    this.size ||= [this.box.clientWidth, this.box.clientHeight];
    const [width, height] = this.size, ratio = window.devicePixelRatio || 1;
    if (width < 40 || height < 30) { this.size = null; return; }
    const g = this.canvas.getContext && this.canvas.getContext("2d");
    if (!g) { this.askPicture("This browser draws no charts."); return; }
    for (const one of [this.canvas, this.overlay]) {
      if (one.width !== Math.round(width * ratio) || one.height !== Math.round(height * ratio)) { one.width = Math.round(width * ratio); one.height = Math.round(height * ratio); }
    }
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    const frame = this.frame(g, width, height);
    Object.assign(this, { lastFrame: frame, plot: frame.plot, xScale: frame.x, yScale: frame.y, xRange: [frame.x.low, frame.x.high], yRange: frame.range });
    const isKnown = frame.shown.some((curve) => curve.feed.version !== null) || !this.feeds().length;
    if (isKnown && frame.shown.some((curve) => curve.feed.isPlaced)) { paintFrame(g, frame); this.think(frame); }
    // Words follow when the chart has come to rest.
    clearTimeout(this.saying);
    if (this.drawn < 2 || !isKnown) this.say(frame, isKnown); else this.saying = setTimeout(() => { if (this.spec && this.root.isConnected) this.say(this.lastFrame, true); }, 150);
    this.drawn += 1;
    if (isKnown) this.root.dataset.drawn = String(this.drawn);
    for (const after of this.afterPaint) after(frame);
  }

  // On any 2D context of this size, for a saved picture.
  paint(context, width, height) {
    const frame = this.frame(context, width, height, false);
    paintFrame(context, frame);
    return frame;
  }

  // What is not on the lines, and how much of the run was read.
  notesOf(frame) {
    const kinds = {};
    for (const curve of frame.shown) for (const [kind, , , count] of curve.feed.nonFinite) kinds[kind] = (kinds[kind] || 0) + count;
    const bad = Object.entries(kinds).map(([kind, count]) => `${count.toLocaleString("en-US")} ${kind}`).join(", ");
    const isOne = frame.hidden === 1, hidden = `${frame.isExact ? "" : "at least "}${frame.hidden.toLocaleString("en-US")} ${isOne ? "value" : "values"} ≤ 0 ${isOne ? "is" : "are"} not shown on a log axis`;
    frame.read = Math.min(1, ...frame.shown.map((curve) => (curve.feed.version === null ? 1 : curve.feed.whole)));
    return [[bad, "critical"], [frame.hidden ? hidden : "", "warning"], [frame.read < 1 ? `${Math.floor(100 * frame.read)} % read` : "", "muted"]].filter(([words]) => words);
  }

  say(frame, isKnown) {
    const problems = new Set(frame.shown.map((curve) => curve.feed.problem).filter(Boolean)), { read } = frame;
    const empty = isKnown && read >= 1 && frame.shown.length && !frame.shown.some((curve) => curve.feed.isPlaced);
    const none = frame.shown.some((curve) => curve.feed.points) ? `This run has logged no ${frame.axis === "epoch" ? "epochs" : axisTitle(frame.axis)}.` : "Nothing has been logged here yet.";
    const words = [...problems][0] || (empty ? none : "");
    if (!this.isBroken && this.message.textContent !== words) this.message.textContent = words;
    const label = this.label();
    if (this.root.getAttribute("aria-label") !== label) this.root.setAttribute("aria-label", label);
  }

  // What the chart shows, in words, for screen readers.
  label() {
    const parts = [this.spec.title];
    for (const one of this.describe().curves.slice(0, 4)) {
      const words = [`${one.points.toLocaleString("en-US")} points`];
      if (one.last !== null) words.push(`last ${one.isLastExact ? "" : "about "}${shortText(one.last)}`);
      if (one.low !== null && one.high !== null) words.push(`from ${shortText(one.low)} to ${shortText(one.high)}`);
      if (one.nonFinite) words.push(`${one.nonFinite.toLocaleString("en-US")} NaN or infinite`);
      parts.push((this.curves.length > 1 ? `${one.label}: ` : "") + words.join(", "));
    }
    return [...parts, ...forecastText(this)].join(", ");
  }

  // For tests, and for the words above.
  describe() {
    const frame = this.lastFrame;
    const last = (curve) => {
      const pieces = curve.feed.pieces.filter((piece) => !piece.superseded && piece.points);
      const piece = pieces[pieces.length - 1];
      if (!piece) return [null, true];
      const [part] = piece.parts(piece.points - 1, piece.points, 0);
      const value = part ? part.tile.mean[part.last - 1] : NaN;
      return [Number.isFinite(value) ? value : null, !!part && part.tile.level === 0];
    };
    const curves = this.groups.length ? this.members : this.curves;
    return {
      title: this.spec.title,
      curves: curves.map((curve) => {
        const [value, isLastExact] = last(curve);
        return { label: curve.label, run: curve.run, metric: curve.metric, points: curve.feed.points, drawn: curve.seen.parts.reduce((sum, part) => sum + part.last - part.first, 0), level: curve.seen.level, hidden: curve.hidden, low: curve.feed.low, high: curve.feed.high, last: value, isLastExact, nonFinite: curve.feed.nonFinite.reduce((sum, one) => sum + one[3], 0), isSmoothed: !!(this.isSmooth(curve) && curve.smoothed), pieces: curve.feed.pieces.map((piece) => [piece.session, piece.superseded, piece.points]), problem: curve.feed.problem };
      }),
      groups: this.groups.map((group) => ({ label: group.label, points: group.result ? group.result.x.length : 0 })),
      xRange: frame ? [frame.x.low, frame.x.high] : null,
      yRange: frame ? frame.range : null,
      isFitted: !!(frame && frame.isFitted),
      outside: frame && frame.outside ? frame.outside : "",
      marked: frame ? frame.marked || 0 : 0,
      markedNonFinite: frame ? frame.nonFinite || 0 : 0,
      axis: this.spec ? this.axis() : null,
      level: Math.max(0, ...curves.map((curve) => curve.seen.level)),
      logX: this.logX(), logY: this.logY(), smoothing: curveView.smoothing,
      marks: frame ? frame.marks.map((mark) => ({ x: mark.x, text: mark.text })) : [],
      labels: frame ? frame.labels || [] : [],
      notes: frame ? frame.notes.map(([words]) => words) : [],
      problem: this.isBroken ? this.message.textContent : null,
      forecasts: forecastText(this),
    };
  }

  // The nearest point or bucket of each visible curve.
  near(x) {
    const found = [];
    for (const curve of this.groups.length ? [] : this.curves) {
      if (curve.hidden) continue;
      for (const isOld of [false, true]) {
        let best = null, gap = Infinity;
        for (const { tile, first, last, piece } of curve.seen.parts) {
          if (piece.superseded !== isOld) continue;
          const look = (i) => { if (i < first || i >= last) return; const far = Math.abs(tile.x[i] - x); if (far < gap || (far === gap && Number.isFinite(tile.mean[i]))) { gap = far; best = [tile, i, piece]; } };
          if (piece.isAscending) { const at = upper(tile.x, x, tile.count); look(at - 1); look(at); look(first); look(last - 1); } else for (let i = first; i < last; i += 1) look(i);
        }
        if (!best) continue;
        const [tile, i, piece] = best, exact = tile.level === 0, smoothed = !isOld && this.isSmooth(curve) && curve.smoothed ? interpolate(curve.smoothed.x, curve.smoothed.y, tile.x[i]) : NaN;
        const size = 4 ** tile.level, count = exact ? 1 : Math.min(size, tile.end - (tile.first + i) * size);
        found.push({ curve, x: tile.x[i], y: tile.mean[i], low: tile.low[i], high: tile.high[i], count, bad: tile.bad ? tile.bad[i] : 0, time: tile.time ? tile.time[i] : NaN, smoothed, exact, superseded: isOld, session: piece.session });
      }
    }
    for (const group of this.groups) {
      if (group.hidden || !group.result || !group.result.x.length) continue;
      const { x: xs, middle, low, high, count } = group.result, at = upper(xs, x, xs.length);
      const i = at >= xs.length ? xs.length - 1 : at > 0 && x - xs[at - 1] < xs[at] - x ? at - 1 : at;
      found.push({ curve: group, x: xs[i], y: middle[i], low: low[i], high: high[i], count: count ? count[i] : group.curves.length, time: NaN, smoothed: NaN, exact: false, isGroup: true });
    }
    return found;
  }

  // ------------------------------------------------------------ legend, and what to do without values

  drawLegend() {
    const entries = this.groups.length ? this.groups : this.curves, isShown = this.spec.legend && entries.length > 1;
    this.legend.replaceChildren(...(isShown ? entries : []).map((one) => {
      const entry = make("button", "telemetry-curves-entry"), line = make("span", "telemetry-curves-line");
      line.style.borderTopColor = one.colour;
      line.style.borderTopStyle = { solid: "solid", dash: "dashed" }[one.dash] || "dotted";
      entry.append(line, make("span", "", one.label));
      entry.setAttribute("aria-pressed", String(!one.hidden));
      entry.title = one.hidden ? "Show" : "Hide";
      entry.onclick = () => this.hide(this.keyOf(one), !one.hidden);
      entry.onpointerenter = () => this.highlight(one.run || one.label);
      entry.onpointerleave = () => this.highlight(null);
      return entry;
    }));
    for (const [curve] of forecastsIn(this)) {
      const entry = make("span", "telemetry-curves-entry"), line = make("span", "telemetry-curves-line");
      line.style.borderTop = `2px dashed ${curve.colour}`;
      entry.append(line, make("span", "", `${curve.label}, forecast`));
      this.legend.append(entry);
    }
  }

  fallBack() {
    const isLost = curveStore.failures >= 2 && this.isAttached && !this.feeds().some((feed) => feed.version !== null);
    if (isLost) this.askPicture(`The curves could not be loaded: ${curveStore.problem}.`);
    else if (this.isBroken && !curveStore.failures) {
      this.isBroken = false;
      this.root.classList.remove("telemetry-curves-broken");
      this.component.setStateValue("picture", null);
      this.redraw();
    }
  }

  askPicture(why) {
    if (this.isBroken) return;
    this.isBroken = true;
    this.root.classList.add("telemetry-curves-broken");
    this.message.textContent = `${why} A picture is shown instead.`;
    this.root.dataset.drawn = "picture";
    this.component.setStateValue("picture", { at: Date.now() });
  }
}

function interpolate(xs, ys, x) {
  const count = xs.length;
  if (!count || x < xs[0] || x > xs[count - 1]) return NaN;
  const at = Math.min(upper(xs, x, count), count - 1), before = Math.max(0, at - 1);
  if (xs[at] === xs[before]) return ys[at];
  return ys[before] + ((ys[at] - ys[before]) * (x - xs[before])) / (xs[at] - xs[before]);
}

if (!window.__telemetryCurvesLit) {
  window.__telemetryCurvesLit = true;
  window.addEventListener("telemetry-highlight", (event) => { for (const chart of openCharts) { chart.highlight(typeof event.detail.run === "string" ? event.detail.run : null); break; } });
}

export function curve_chart(component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".telemetry-curves");
  if (!root || !data) return undefined;
  if (!root.__chart) {
    root.__chart = new CurveChart(root);
    for (const attach of [attachGestures, attachKeys, attachTip, attachSave]) attach(root.__chart);
  }
  root.__chart.update(data, component);
  return () => { if (root.__chart) root.__chart.close(); };
}

// What the server has drawn covers the page until its charts and tables are drawn, or there are none.
function uncover(until) {
  const cover = document.querySelector(".telemetry-first");
  if (!cover) return;
  const charts = [...openCharts].filter((chart) => chart.isVisible);
  const app = document.querySelector('[data-testid="stApp"]'), tables = cover.querySelectorAll(".trt").length;
  const areCharts = charts.every((chart) => chart.root.dataset.drawn && !chart.isThinking) && (charts.length || !cover.querySelector(".telemetry-curves-picture"));
  const isDrawn = app && areCharts && document.querySelectorAll("#root .trt[data-drawn]").length >= tables && (charts.length || tables || app.dataset.testScriptState === "notRunning");
  if (!isDrawn && performance.now() < until) { requestAnimationFrame(() => uncover(until)); return; }
  cover.remove();
  keepLook();
}

// The next first screen of this browser has its theme, and its content where this page has it.
function keepLook() {
  const main = document.querySelector('[data-testid="stMain"]');
  if (!main) requestAnimationFrame(keepLook);
  else if (innerWidth > 768) document.cookie = `telemetry-look=${chosenTheme().toLowerCase()}.${Math.round(main.getBoundingClientRect().left)}; path=/; max-age=31536000; samesite=strict`;
}
uncover(8000);
