// Smoothed curves and curves of groups, computed in a worker. The functions above `smoothWorker` are sent to it as text,
// so they use nothing but each other.

// The weight of each cell by Tukey: 1 where it is like its neighbours, 0 for a spike of a cell or two.
function trustOfCells(means) {
  const count = means.length, trust = new Float64Array(count).fill(1);
  if (count < 5) return trust;
  const apart = new Float64Array(count), five = new Float64Array(5);
  for (let i = 2; i < count - 2; i += 1) {
    for (let j = 0; j < 5; j += 1) five[j] = means[i - 2 + j];
    apart[i] = Math.abs(means[i] - five.sort()[2]);
  }
  const size = Math.min(51, count), place = Math.floor(0.9 * (size - 1));
  let from = -1, limit = 0;
  for (let i = 0; i < count; i += 1) {
    const start = Math.max(0, Math.min(i - Math.floor(size / 2), count - size));
    // Nine of ten are nearer than this: what a tenth of the values do is noise, whatever its distribution.
    if (start !== from) { from = start; limit = 4 * apart.slice(start, start + size).sort()[place]; }
    const ratio = limit > 0 ? Math.min(1, apart[i] / limit) : 0;
    trust[i] = (1 - ratio * ratio) ** 2;
  }
  return trust;
}

// A local line's value in each cell, never beyond the extremes that it was made from; NaN where nothing counts.
function fitCells(cells, halfWidth, count) {
  const reach = Math.min(Math.max(Math.floor(halfWidth), 1), count), found = new Float64Array(cells.length);
  const kernel = new Float64Array(reach + 1);
  for (let k = 0; k <= reach; k += 1) kernel[k] = (1 - Math.min(k / halfWidth, 1) ** 2) ** 2;
  let first = 0;
  for (let i = 0; i < cells.length; i += 1) {
    const own = cells[i];
    while (cells[first].number < own.number - reach) first += 1;
    let w = 0, s1 = 0, s2 = 0, t0 = 0, t1 = 0, low = Infinity, high = -Infinity;
    for (let j = first; j < cells.length && cells[j].number <= own.number + reach; j += 1) {
      const cell = cells[j];
      if (!(cell.weight > 0)) continue;
      const share = kernel[Math.abs(cell.number - own.number)] * cell.weight, off = cell.place - own.place;
      w += share; s1 += share * off; s2 += share * off * off; t0 += share * cell.mean; t1 += share * off * cell.mean;
      if (cell.low < low) low = cell.low;
      if (cell.high > high) high = cell.high;
    }
    const determinant = w * s2 - s1 * s1;
    const value = determinant > 1e-9 * w * s2 ? (s2 * t0 - s1 * t1) / determinant : t0 / w;
    found[i] = Math.min(Math.max(value, low), high);
  }
  return found;
}

// Finite points with ascending x, from `from` up to `to`; adds the smoothed ones to `into`.
function smoothSegment(x, y, weight, from, to, halfWidth, cell, into) {
  const start = x[from], length = x[to - 1] - start;
  if (to - from < 3 || !(halfWidth > 0) || !(cell > 0) || !(length > 0)) {
    for (let i = from; i < to; i += 1) { into.x.push(x[i]); into.y.push(y[i]); }
    return;
  }
  let size = 0;
  for (let i = from; i < to; i += 1) size = Math.max(size, Math.abs(y[i]));
  const scale = size > 1e200 ? size : 1;
  const count = Math.round((length - (length % cell)) / cell) + 1, cells = [];
  let number = 0, open = null;
  for (let i = from; i < to; i += 1) {
    while (number + 1 < count && start + cell * (number + 1) <= x[i]) number += 1;
    if (!open || open.number !== number) cells.push(open = { number, weight: 0, mean: 0, place: 0, low: Infinity, high: -Infinity });
    const value = y[i] / scale, share = weight && weight[i] > 0 ? weight[i] : 1;
    open.weight += share; open.mean += share * value; open.place += share * (x[i] - start);
    if (value < open.low) open.low = value;
    if (value > open.high) open.high = value;
  }
  for (const one of cells) { one.mean /= one.weight; one.from = one.place / one.weight; one.place = one.from / cell; }
  const trust = trustOfCells(Float64Array.from(cells, (one) => one.mean));
  cells.forEach((one, i) => { one.weight *= trust[i]; });
  const middle = fitCells(cells, halfWidth / cell, count);
  // At an end only one side is known: twice the width keeps the line as calm there as elsewhere.
  const end = fitCells(cells, (2 * halfWidth) / cell, count);
  cells.forEach((one, i) => {
    if (!Number.isFinite(middle[i]) || !Number.isFinite(end[i])) return;
    const share = Math.max(0, Math.min(1, Math.min(one.from, length - one.from) / halfWidth));
    into.x.push(start + one.from);
    into.y.push((share * middle[i] + (1 - share) * end[i]) * scale);
  });
}

// {x, y, weight, breaks (places where a segment begins), halfWidth, cells, from, to}: so many cells between two x.
// Returns {x, y} with NaN between two segments, or null for a curve that goes back or breaks all the time.
function smoothJob(job) {
  const { y } = job, count = y.length;
  let { x } = job, least = Infinity, most = -Infinity, back = 0;
  for (let i = 0; i < count; i += 1) {
    if (x[i] < most) back = Math.max(back, most - x[i]);
    if (x[i] < least) least = x[i];
    if (x[i] > most) most = x[i];
  }
  const low = job.from ?? least, high = job.to ?? most, cell = (high - low) / (job.cells || 400);
  // A clock that was set back a little does not matter.
  if (back > 1e-3 * (high - low)) return null;
  if (back > 0) {
    x = Float64Array.from(x);
    for (let i = 1; i < count; i += 1) if (x[i] < x[i - 1]) x[i] = x[i - 1];
  }
  const into = { x: [], y: [] }, breaks = new Set(job.breaks || []);
  let from = -1, segments = 0;
  for (let i = 0; i <= count; i += 1) {
    const finite = i < count && Number.isFinite(x[i]) && Number.isFinite(y[i]);
    if (from >= 0 && (!finite || breaks.has(i))) {
      if ((segments += 1) > 100) return null;
      if (into.x.length) { into.x.push(x[from]); into.y.push(NaN); }
      smoothSegment(x, y, job.weight, from, i, job.halfWidth, cell, into);
      from = -1;
    }
    if (finite && from < 0) from = i;
  }
  return { x: Float64Array.from(into.x), y: Float64Array.from(into.y) };
}

// A curve's finite points in the order of x.
function orderedPoints(curve) {
  const places = [];
  for (let i = 0; i < curve.x.length; i += 1) if (Number.isFinite(curve.x[i]) && Number.isFinite(curve.y[i])) places.push(i);
  if (places.some((place, i) => i && curve.x[place] < curve.x[places[i - 1]])) places.sort((a, b) => curve.x[a] - curve.x[b]);
  return { x: Float64Array.from(places, (i) => curve.x[i]), y: Float64Array.from(places, (i) => curve.y[i]) };
}

// The values of a curve at ascending places, NaN before its first and after its last point.
function interpolated(curve, places) {
  const { x, y } = curve, found = new Float64Array(places.length).fill(NaN);
  for (let i = 0, j = 0; i < places.length && x.length; i += 1) {
    if (places[i] < x[0] || places[i] > x[x.length - 1]) continue;
    while (j + 1 < x.length - 1 && x[j + 1] < places[i]) j += 1;
    const k = Math.min(j + 1, x.length - 1), width = x[k] - x[j];
    found[i] = width > 0 ? y[j] + (y[k] - y[j]) * Math.min(1, Math.max(0, (places[i] - x[j]) / width)) : y[k];
  }
  return found;
}

function quantileOf(sorted, share) {
  const at = share * (sorted.length - 1), low = Math.floor(at), high = Math.ceil(at);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
}

// {curves: [{x, y}], statistic, from, to, cells}. A run counts from its first to its last x. `lower` and `upper` are where
// most of the runs are, so that one diverged run does not fill a chart.
function groupJob(job) {
  const curves = job.curves.map(orderedPoints).filter((curve) => curve.x.length);
  const first = Math.max(job.from ?? -Infinity, Math.min(...curves.map(({ x }) => x[0])));
  const last = Math.min(job.to ?? Infinity, Math.max(...curves.map(({ x }) => x[x.length - 1])));
  const count = !(first <= last) ? 0 : first < last ? job.cells || 400 : 1, found = { count: new Uint32Array(count) };
  for (const name of ["x", "middle", "low", "high", "lower", "upper"]) found[name] = new Float64Array(count).fill(NaN);
  for (let i = 0; i < count; i += 1) found.x[i] = i === count - 1 ? last : first + ((last - first) * i) / (count - 1);
  const rows = curves.map((curve) => interpolated(curve, found.x));
  for (let i = 0; i < count; i += 1) {
    const values = rows.map((row) => row[i]).filter(Number.isFinite).sort((a, b) => a - b), n = values.length;
    if (!(found.count[i] = n)) continue;
    // Of three runs one may have diverged: their middle is the second.
    found.lower[i] = values[n === 2 ? 0 : Math.ceil((n - 1) / 4)];
    found.upper[i] = values[n === 2 ? 1 : Math.floor((3 * (n - 1)) / 4)];
    const mean = values.reduce((sum, value) => sum + value / n, 0), deviation = Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2 / Math.max(1, n - 1), 0));
    if (job.statistic === "median") [found.middle[i], found.low[i], found.high[i]] = [0.5, 0.25, 0.75].map((share) => quantileOf(values, share));
    else if (job.statistic === "range") [found.middle[i], found.low[i], found.high[i]] = [mean, values[0], values[n - 1]];
    else [found.middle[i], found.low[i], found.high[i]] = [mean, mean - deviation, mean + deviation];
  }
  return found;
}

// The y range that most runs of a group are in, and where they end.
function groupCore({ x, lower, upper }) {
  const sorted = (values) => values.filter(Number.isFinite).sort(), low = sorted(lower), high = sorted(upper);
  if (!low.length) return [];
  const end = x.at(-1) - 0.05 * (x.at(-1) - x[0]), last = x.findIndex((place) => place >= end);
  return [quantileOf(low, 0.02), quantileOf(high, 0.96), ...[lower, upper].flatMap((values) => [...values.slice(last)].filter(Number.isFinite))];
}

let smoothingWorker = null;
function smoothWorker() {
  if (smoothingWorker) return smoothingWorker;
  const parts = [trustOfCells, fitCells, smoothSegment, smoothJob, orderedPoints, interpolated, quantileOf, groupJob];
  const listen = "onmessage = ({ data }) => { try { postMessage({ id: data.id, found: data.kind === 'group' ? groupJob(data.job) : data.job.map(smoothJob) }); } catch (error) { postMessage({ id: data.id, error: String(error) }); } };";
  const url = URL.createObjectURL(new Blob([parts.map(String).join("\n"), "\n", listen], { type: "text/javascript" }));
  const worker = new Worker(url), waiting = new Map();
  let next = 0;
  // Where a policy forbids workers, curves are drawn as they were logged.
  worker.onerror = () => { for (const [, reject] of waiting.values()) reject(new Error("no worker")); waiting.clear(); };
  worker.onmessage = ({ data }) => {
    const [resolve, reject] = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.error) reject(new Error(data.error)); else resolve(data.found);
  };
  smoothingWorker = (kind, job) => new Promise((resolve, reject) => {
    next += 1;
    waiting.set(next, [resolve, reject]);
    worker.postMessage({ id: next, kind, job });
  });
  return smoothingWorker;
}

// A list of jobs, as `smoothJob` takes them; answers with a list of {x, y} or null.
const smoothCurves = (jobs) => smoothWorker()("smooth", jobs);
const groupCurves = (job) => smoothWorker()("group", job);
