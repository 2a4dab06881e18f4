// Values of curves for all charts of a page: tiles by level, what is new of a live run, and how the charts are drawn.
// One request carries what all charts lack. Drawing never waits: a coarse tile is drawn until the fine one is there.
const TILE = 512;
const MAX_ASKED = 64;
const MAX_QUERY = 6000;
const MAX_TAIL = 2000;
const MAX_BYTES = 96e6;
const MAX_IN_FLIGHT = 3;
const widthOf = (level) => 4 ** level;

// ---------------------------------------------------------------- one curve

// Points of one session, or of a part of it that a later session repeated. `levels` has tiles by level and number;
// `tail` has the points that came after them, as logged.
class CurvePiece {
  constructor([session, superseded, points, first, last]) {
    Object.assign(this, { session, superseded: !!superseded, levels: new Map(), tail: null, isAscending: true });
    this.reach(points, first, last);
  }

  // An end without a place on this axis, such as a metric that was not logged yet, says nothing about the others.
  reach(points, first, last) {
    Object.assign(this, { points, first, last });
    if (points && !(Number.isFinite(first) && Number.isFinite(last))) this.isAscending = false;
  }

  tile(level, number) {
    const tiles = this.levels.get(level);
    return tiles && tiles.get(number);
  }

  put(tile) {
    if (!this.levels.has(tile.level)) this.levels.set(tile.level, new Map());
    this.levels.get(tile.level).set(tile.number, tile);
    for (let i = 1; i < tile.count && this.isAscending; i += 1) if (!(tile.x[i] >= tile.x[i - 1])) this.isAscending = false;
  }

  // The tile with point `at`: of `level`, else up to two levels finer, else coarser.
  best(at, level) {
    for (const other of [level, level - 1, level - 2]) if (other >= 0) { const found = this.covering(at, other); if (found) return found; }
    for (let other = level + 1; other < 16; other += 1) { const found = this.covering(at, other); if (found) return found; }
    return null;
  }

  covering(at, level) {
    const found = this.tile(level, Math.floor(at / widthOf(level) / TILE));
    return found && at < found.end ? found : null;
  }

  // Parts of tiles that hold the points from `from` to `to`: [{tile, first, last}], in their order. `lack` is called
  // for each tile of this level that is missing.
  parts(from, to, level, lack) {
    const found = [], step = TILE * widthOf(level), end = Math.min(to, this.points);
    let at = Math.max(0, from);
    while (at < end) {
      const number = Math.floor(at / step), border = Math.min((number + 1) * step, end);
      const own = this.tile(level, number), tail = this.tail;
      const reach = own ? own.end : number * step;
      if (lack && reach < Math.min((number + 1) * step, this.points) && !(tail && tail.from <= reach)) lack(number);
      const tile = this.best(at, level);
      if (tile) {
        const size = widthOf(tile.level), stop = Math.min(border, tile.end);
        const first = Math.floor(at / size) - tile.first, last = Math.min(tile.count, Math.ceil(stop / size) - tile.first);
        const before = found[found.length - 1];
        if (before && before.tile === tile && before.last >= first) before.last = Math.max(before.last, last);
        else if (last > first) found.push({ tile, first, last });
        at = Math.max(stop, at + 1);
      } else if (tail && at >= tail.from) {
        const first = at - tail.from, last = Math.min(end - tail.from, tail.count);
        if (last > first) found.push({ tile: tail, first, last });
        break;
      } else at = Math.max(at + 1, border);
    }
    return found;
  }

  coarse() { return this.parts(0, this.points, Math.max(0, ...this.levels.keys())); }

  // Of a piece that goes back: from which to which point something lies between `x0` and `x1`, as far as it is known.
  hull(x0, x1) {
    let from = this.points, to = 0, before = NaN, start = 0;
    const look = (x, end) => {
      // A bucket without a place may end at one that has; where the last one ends is known or not.
      const [a, b] = [before, x].map(Number.isFinite), low = a && b ? Math.min(before, x) : a ? before : -Infinity, high = a && b ? Math.max(before, x) : b ? x : Infinity;
      if ((a || b) && high >= x0 && low <= x1) { from = Math.min(from, start); to = Math.max(to, end + 1); }
      before = x;
    };
    for (const { tile, first, last } of this.coarse()) {
      const size = widthOf(tile.level);
      for (let i = first; i < last; i += 1) { const end = tile.isTail ? tile.from + i : (tile.first + i) * size; look(tile.x[i], end); start = end; }
    }
    look(this.last === null ? NaN : this.last, this.points);
    return [Math.max(0, from - 1), Math.min(this.points, to + 1)];
  }

  // The first x above zero that is known, for a log axis.
  firstPositive() {
    for (let level = 0; level < 16; level += 1) {
      const tile = this.tile(level, 0);
      if (tile) for (let i = 0; i < tile.count; i += 1) if (tile.x[i] > 0) return tile.x[i];
    }
    return this.last;
  }

  // Between which points `x` lies, as far as it is known, and where about: [low, high, estimate].
  place(x) {
    if (!(x > this.first)) return [0, 0, 0];
    if (!(x < this.last)) return [this.points, this.points, this.points];
    let low = 0, high = this.points, left = this.first, right = this.last;
    const tail = this.tail;
    if (tail && tail.count && x >= tail.x[0]) { const at = tail.from + upper(tail.x, x, tail.count); return [at - 1, at, at]; }
    for (let level = 15; level >= 0; level -= 1) {
      if (!this.levels.has(level)) continue;
      const size = widthOf(level);
      for (let number = Math.floor(low / size / TILE); number <= Math.floor((high - 1) / size / TILE); number += 1) {
        const tile = this.tile(level, number);
        if (!tile || tile.x[0] > x) continue;
        const place = upper(tile.x, x, tile.count) - 1;
        const start = (tile.first + place) * size;
        if (start > low) { low = start; left = tile.x[place]; }
        if (place + 1 < tile.count && (tile.first + place + 1) * size < high) { high = (tile.first + place + 1) * size; right = tile.x[place + 1]; }
      }
    }
    return [low, high, right > left ? low + ((x - left) / (right - left)) * (high - low) : low];
  }
}

// The number of values in an ascending list that are not above `x`.
function upper(list, x, count) {
  let low = 0, high = count;
  while (low < high) { const middle = (low + high) >> 1; if (list[middle] <= x) low = middle + 1; else high = middle; }
  return low;
}

class CurveFeed {
  constructor(store, run, metric, rank, axis) {
    Object.assign(this, { store, run, metric, rank, axis, version: null, pieces: [], smooth: false, low: null, high: null, nonFinite: [], ranges: [], whole: 0, problem: null, charts: new Set(), wanted: new Map(), asked: new Set(), fit: 0, isWaiting: false, isTimed: false, changed: 0 });
  }

  get points() { return this.pieces.reduce((sum, piece) => sum + piece.points, 0); }

  // Whether there is a point with a place on this axis.
  get isPlaced() { return this.pieces.some((piece) => piece.points && (piece.isAscending || piece.coarse().some(({ tile, first, last }) => tile.x.subarray(first, last).some(Number.isFinite)))); }

  // Asks for all of the curve in at most `buckets`; again only if a wider chart needs more.
  need(buckets) {
    if (this.fit && buckets <= this.fit) return;
    this.fit = buckets;
    this.again = true;
    this.store.hurry();
  }

  lack(piece, level, number) {
    const key = `${piece},${level},${number}`;
    if (this.asked.has(key) || this.wanted.has(key)) return;
    this.wanted.set(key, [piece, level, number]);
    this.store.hurry();
  }

  // The parts of tiles to draw between the first and the last of `cuts`, each with its piece: between two of them
  // `width` pixels, and for each pixel at most `most` buckets.
  seen(cuts, width, most, isAsking = true) {
    const x0 = cuts[0], x1 = cuts[cuts.length - 1], found = [];
    const places = this.pieces.map((piece) => {
      if (!piece.isAscending) { const [from, to] = piece.hull(x0, x1); return from < to ? cuts.map((_, i) => (i < cuts.length - 1 ? from : to)) : null; }
      if (piece.last < x0 || piece.first > x1) return null;
      return cuts.map((x) => piece.place(x)[2]);
    });
    const levels = cuts.slice(1).map((_, i) => {
      const visible = places.reduce((sum, at) => sum + (at ? Math.max(at[i + 1] - at[i], 0) : 0), 0);
      let level = 0;
      while (visible / widthOf(level) > most * width) level += 1;
      return [level, visible];
    });
    this.pieces.forEach((piece, number) => {
      const at = places[number];
      if (!at) return;
      levels.forEach(([level], i) => {
        // A line goes on to the next point outside; where that is, is only estimated until its neighbours are known.
        const from = i ? Math.floor(at[i]) : Math.max(0, piece.place(x0)[0] - 1), to = i < levels.length - 1 ? Math.floor(at[i + 1]) : Math.min(piece.points, piece.place(x1)[1] + 1);
        const step = TILE * widthOf(level), margin = widthOf(level) * 2;
        const lack = isAsking ? (tile) => { if ((tile + 1) * step > at[i] - margin && tile * step < at[i + 1] + margin) this.lack(number, level, tile); } : null;
        const range = piece.isAscending ? [from, to] : i < levels.length - 1 ? [0, 0] : [at[i], at[i + 1]];
        for (const part of piece.parts(range[0], range[1], level, lack)) { part.piece = piece; part.tile.used = this.store.clock; found.push(part); }
      });
    });
    return { parts: found, level: Math.max(...levels.map(([level]) => level)), visible: levels.reduce((sum, [, visible]) => sum + visible, 0) };
  }

  // Everything that is known, coarse: for the y range of the whole curve.
  everything() { return this.pieces.flatMap((piece) => piece.coarse().map((part) => ({ ...part, piece }))); }

  take(answer, arrays, ask) {
    const isNew = answer.version !== this.version;
    const pieces = answer.pieces || [];
    // Of very much that is new, all comes again, in buckets.
    if (ask.after && (answer.blocks || []).some((block) => block.level || block.first < (ask.after[block.piece] || 0))) ask = { fit: 800 };
    if (isNew || pieces.length < this.pieces.length) {
      this.version = answer.version;
      this.pieces = pieces.map((piece) => new CurvePiece(piece));
      this.wanted.clear();
      this.asked.clear();
    }
    // A session that has begun meanwhile.
    for (let number = this.pieces.length; number < pieces.length; number += 1) this.pieces.push(Object.assign(new CurvePiece(pieces[number]), { points: 0 }));
    // Of points that came meanwhile tiles say nothing: the next poll asks for them.
    if (ask.fit) pieces.forEach(([, , points, first, last], number) => this.pieces[number].reach(points, first, last));
    for (const block of answer.blocks || []) this.put(block, arrays, pieces[block.piece] ? pieces[block.piece][2] : 0, ask);
    for (const name of ["smooth", "low", "high", "problem", "whole"]) if (answer[name] !== undefined) this[name] = answer[name];
    // Without a place on this axis, such as an epoch that was not logged, there is none to mark.
    const isPlaced = ([, first, last]) => first !== null && last !== null;
    if (answer.non_finite) this.nonFinite = answer.non_finite.filter(isPlaced);
    if (answer.ranges) this.ranges = answer.ranges.filter(isPlaced);
    if (isNew || (answer.blocks || []).length) this.changed += 1;
  }

  put(block, arrays, points, ask) {
    const piece = this.pieces[block.piece], { level, count } = block;
    if (!piece) return;
    const got = readBlock(block, arrays, this.isTimed);
    // Very many new points come as the whole curve.
    if (ask.after && level === 0) { this.append(piece, got, block.first); return; }
    const size = widthOf(level);
    for (let number = Math.floor(block.first / TILE); number * TILE < block.first + count; number += 1) {
      const from = Math.max(block.first, number * TILE), to = Math.min(block.first + count, (number + 1) * TILE);
      // Copied: a part of the answer would keep all of it in memory.
      const cut = (list) => list && list.slice(from - block.first, to - block.first);
      const tile = { level, number, first: from, count: to - from, end: Math.min(to * size, points), used: this.store.clock };
      for (const name of ["x", "low", "high", "mean", "weight", "bad", "time"]) tile[name] = cut(got[name]);
      piece.put(tile);
    }
    // The points after all tiles stay as the tail.
    const tail = piece.tail;
    if (tail && ask.fit) piece.tail = points >= tail.from + tail.count ? null : tail;
  }

  append(piece, got, first) {
    const end = piece.tail ? piece.tail.from + piece.tail.count : first;
    if (first > end) { this.again = true; return; }
    const skip = end - first, tail = piece.tail || { level: 0, from: first, first, count: 0, room: 0, isTail: true };
    const more = got.x.length - skip;
    if (more <= 0) return;
    if (tail.count + more > tail.room) {
      tail.room = Math.max(1024, 2 * (tail.count + more));
      for (const name of ["x", "low", "weight", "time"]) {
        if (!got[name]) continue;
        const bigger = new Float64Array(tail.room);
        if (tail[name]) bigger.set(tail[name].subarray(0, tail.count));
        tail[name] = bigger;
      }
      tail.high = tail.mean = tail.low;
    }
    for (const name of ["x", "low", "weight", "time"]) if (got[name] && tail[name]) tail[name].set(got[name].subarray(skip), tail.count);
    let before = first ? piece.last : -Infinity;
    for (let i = tail.count; i < tail.count + more; i += 1) { if (!(tail.x[i] >= before)) piece.isAscending = false; before = tail.x[i]; }
    tail.count += more;
    piece.tail = tail;
    piece.reach(tail.from + tail.count, piece.points ? piece.first : tail.x[0], before);
  }

  // What to ask for now; null if nothing is missing.
  nextAsk(isPolling) {
    if (this.isWaiting) return null;
    const tail = this.pieces.reduce((sum, piece) => sum + (piece.tail ? piece.tail.count : 0), 0);
    if (this.again || this.version === null || (isPolling && (tail > MAX_TAIL || this.whole < 1))) return { fit: this.fit || 800 };
    if (isPolling) return { after: this.pieces.map((piece) => piece.points), version: this.version };
    if (!this.wanted.size) return null;
    const tiles = [...this.wanted.values()].slice(0, 32);
    return { tiles, version: this.version };
  }
}

// The arrays of a block, one after the other, each at a multiple of eight bytes.
function readBlock(block, arrays, isTimed) {
  const { count, level } = block, kinds = { f4: Float32Array, f8: Float64Array, u4: Uint32Array };
  let at = arrays.start + block.at;
  const next = (kind) => { const list = new kinds[kind](arrays.buffer, at, count); at += Math.ceil(list.byteLength / 8) * 8; return list; };
  const got = { x: next("f8") };
  if (level === 0) { got.low = got.high = got.mean = next("f8"); got.weight = next("f4"); }
  else { for (const name of ["low", "high", "mean"]) got[name] = next(block.type); got.weight = next("f4"); got.bad = next("u4"); }
  if (isTimed) got.time = next("f8");
  return got;
}

// ---------------------------------------------------------------- all curves of a page

class CurveStore {
  constructor() {
    Object.assign(this, { feeds: new Map(), clock: 0, inFlight: 0, failures: 0, problem: null, pausedUntil: 0, timer: 0, poll: 0, lastPoll: 0, bytes: 0, requests: 0, polledAt: 0 });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.schedulePoll(0); });
  }

  // The feed of a curve; it calls `chart.dataChanged` when there is more.
  feed(run, metric, rank, axis, chart) {
    const key = JSON.stringify([run, metric, rank, axis]);
    let feed = this.feeds.get(key);
    if (!feed) {
      feed = new CurveFeed(this, run, metric, rank, axis);
      // One curve of each run says when its steps were; the others are looked up there.
      feed.isTimed = axis !== "time" && ![...this.feeds.values()].some((other) => other.isTimed && other.run === run && other.axis === axis && other.charts.size);
      this.feeds.set(key, feed);
    } else if (!feed.charts.size) {
      // Back on a page: what is known is drawn, and what is new is asked for.
      feed.again = true;
      this.hurry();
    }
    feed.charts.add(chart);
    return feed;
  }

  leave(feed, chart) {
    feed.charts.delete(chart);
    this.forget();
  }

  // Curves that no chart shows any more are kept for the way back to a page, as far as memory allows.
  forget() {
    let bytes = 0;
    const tiles = [];
    for (const [key, feed] of this.feeds) {
      let own = 0;
      for (const piece of feed.pieces) for (const [level, byNumber] of piece.levels) for (const [number, tile] of byNumber) { own += tile.count * (tile.level ? 36 : 24); tiles.push([tile, byNumber, number, level, feed, piece]); }
      bytes += own;
      if (!feed.charts.size && (bytes > MAX_BYTES / 2 || this.feeds.size > 400)) this.feeds.delete(key);
    }
    if (bytes < MAX_BYTES) return;
    tiles.sort((a, b) => a[0].used - b[0].used);
    for (const [tile, byNumber, number, level, feed, piece] of tiles.slice(0, tiles.length >> 1)) {
      // The coarsest tiles stay: they are drawn until others are there.
      if (level === Math.max(...piece.levels.keys())) continue;
      byNumber.delete(number);
      feed.asked.delete(`${feed.pieces.indexOf(piece)},${level},${number}`);
    }
  }

  hurry() {
    if (this.timer) return;
    this.timer = setTimeout(() => { this.timer = 0; this.flush(false); }, this.failures ? Math.max(0, this.pausedUntil - Date.now()) : 0);
  }

  flush(isPolling) {
    if (this.inFlight >= MAX_IN_FLIGHT && !isPolling) return;
    const byAxis = new Map();
    for (const feed of this.feeds.values()) {
      if (!feed.charts.size) continue;
      const isLive = isPolling && [...feed.charts].some((chart) => chart.isLive());
      if (isPolling && !isLive) continue;
      const ask = feed.nextAsk(isPolling);
      if (!ask) continue;
      if (!byAxis.has(feed.axis)) byAxis.set(feed.axis, []);
      byAxis.get(feed.axis).push([feed, ask]);
    }
    for (const [axis, asks] of byAxis) {
      let batch = [], size = 0;
      const send = () => { if (batch.length) this.send(axis, batch, isPolling); batch = []; size = 0; };
      for (const [feed, ask] of asks) {
        const text = encodeURIComponent(JSON.stringify([feed.run, feed.metric, feed.rank, ask, feed.isTimed ? 1 : 0]));
        if (batch.length >= MAX_ASKED || (batch.length && size + text.length > MAX_QUERY)) send();
        batch.push([feed, ask, text]);
        size += text.length + 3;
      }
      send();
    }
  }

  async send(axis, batch, isPolling) {
    this.inFlight += 1;
    for (const [feed, ask] of batch) {
      feed.isWaiting = true;
      if (ask.fit) feed.again = false;
      for (const tile of ask.tiles || []) { feed.wanted.delete(tile.join()); feed.asked.add(tile.join()); }
    }
    try {
      const answer = await fetch(`${window.location.origin}/curves?x=${encodeURIComponent(axis)}&c=[${batch.map((one) => one[2]).join(",")}]`, { cache: "no-store" });
      if (!answer.ok) throw Object.assign(new Error(`the server answered ${answer.status}`), { status: answer.status });
      const buffer = await answer.arrayBuffer();
      this.requests += 1;
      this.bytes += buffer.byteLength;
      const length = new DataView(buffer).getUint32(0, true);
      const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
      const arrays = { buffer, start: 8 + length };
      header.curves.forEach((curve, number) => {
        const [feed, ask] = batch[number];
        const known = feed.version;
        feed.take(curve, arrays, known === curve.version ? ask : { fit: 800 });
        for (const tile of ask.tiles || []) feed.asked.delete(tile.join());
        if (curve.whole !== undefined && curve.whole < 1) setTimeout(() => { feed.again = true; this.hurry(); }, 500);
      });
      this.failures = 0;
      this.problem = null;
      if (isPolling) this.polledAt = Date.now();
      if (batch.some(([, ask]) => !ask.tiles)) document.dispatchEvent(new CustomEvent("telemetry-updated", { detail: { at: Date.now(), ok: true } }));
    } catch (error) {
      this.failures += 1;
      this.problem = error.status ? error.message : "the server did not answer";
      const pause = error.status ? 5000 : 500;
      this.pausedUntil = Date.now() + Math.min(30000, pause * 2 ** (this.failures - 1));
      for (const [feed, ask] of batch) {
        if (ask.fit) feed.again = true;
        for (const tile of ask.tiles || []) feed.asked.delete(tile.join());
      }
      document.dispatchEvent(new CustomEvent("telemetry-updated", { detail: { at: this.polledAt, ok: false } }));
    }
    for (const [feed] of batch) feed.isWaiting = false;
    this.inFlight -= 1;
    const charts = new Set(batch.flatMap(([feed]) => [...feed.charts]));
    for (const chart of charts) chart.dataChanged();
    if ([...this.feeds.values()].some((feed) => feed.charts.size && feed.nextAsk(false))) this.hurry();
    this.forget();
  }

  // One timer for all live charts; nothing is asked for while the page is hidden.
  schedulePoll(wait) {
    clearTimeout(this.poll);
    let seconds = Infinity;
    for (const feed of this.feeds.values()) for (const chart of feed.charts) if (chart.isLive()) seconds = Math.min(seconds, chart.spec.refresh);
    if (!Number.isFinite(seconds)) { this.poll = 0; return; }
    this.poll = setTimeout(() => {
      if (document.hidden) { this.poll = 0; return; }
      if (Date.now() >= this.pausedUntil || !this.failures) {
        // After a long time the new points are many.
        if (this.polledAt && Date.now() - this.polledAt > 20 * seconds * 1000) for (const feed of this.feeds.values()) feed.again = true;
        this.flush(true);
      }
      this.schedulePoll();
    }, wait === undefined ? seconds * 1000 : wait);
  }
}
const curveStore = (window.__telemetryCurves ||= new CurveStore());

// ---------------------------------------------------------------- how all charts of a page are drawn

const PLAIN_VIEW = { axis: "step", smoothing: "auto", logX: false, logY: false, marks: true, forecast: false, window: null, statistic: "mean" };
const curveView = (window.__telemetryView ||= {
  ...PLAIN_VIEW,
  listeners: new Set(),
  owner: null,
  received: "",
  sent: "",
  changed: 0,
  state() { return Object.fromEntries(Object.keys(PLAIN_VIEW).map((name) => [name, this[name]])); },
  // Changes what all charts show; `settled` says that it also goes into the address.
  set(changes, settled = true) {
    Object.assign(this, changes);
    if (changes.axis !== undefined && changes.window === undefined) this.window = null;
    if (settled) { this.sent = JSON.stringify(this.state()); this.changed = Math.max(Date.now(), this.changed + 1); }
    for (const listener of [...this.listeners]) listener(changes, settled);
  },
  on(listener) { this.listeners.add(listener); return () => this.listeners.delete(listener); },
  // What the server says counts when a page opens, and when it differs from what was sent to it. `answered` is the
  // change that it answers: an answer to an older one must not undo a newer one.
  receive(view, answered, component) {
    const owner = component.parentElement;
    const text = JSON.stringify({ ...PLAIN_VIEW, ...view }), isFirst = this.owner !== owner;
    const known = isFirst ? "" : this.received;
    if (isFirst) this.changed = 0;
    if ((answered || 0) < this.changed) return;
    this.owner = owner;
    this.received = text;
    if (text === known || (!isFirst && text === this.sent)) return;
    Object.assign(this, PLAIN_VIEW, view);
    this.sent = text;
    for (const listener of [...this.listeners]) listener(this.state(), false);
  },
  leave(component) { if (this.owner === component.parentElement) { this.owner = null; Object.assign(this, PLAIN_VIEW); } },
});
