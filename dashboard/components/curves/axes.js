// Scales, ticks and number formats of the charts of curves; wall time is the server's local time.
const TONES = {
  muted: ["#6B6F76", "#A6ADB5"], info: ["#0072B2", "#56B4E9"], good: ["#00795B", "#3CCBA3"],
  warning: ["#B35900", "#F0A93B"], critical: ["#C0341D", "#FF8A70"],
};
const toneColour = (tone, isDark) => (TONES[tone] || TONES.muted)[isDark ? 1 : 0];

function withAlpha(hex, alpha) {
  const n = parseInt(hex.slice(1, 7), 16);
  return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${alpha})`;
}

// `low` at `start` and `high` at `end`, in pixels. Halved, so that the range of two huge numbers is not infinite.
function makeScale(low, high, start, end, log = false) {
  const f = log ? Math.log10 : (v) => v / 2, back = log ? (v) => 10 ** v : (v) => v * 2;
  const a = f(low), span = f(high) - a || 1;
  return {
    low, high, log, start, end,
    toPx: (v) => start + ((f(v) - a) / span) * (end - start),
    toValue: (px) => back(a + ((px - start) / (end - start)) * span),
  };
}

// ---------------------------------------------------------------- time

// Seconds of the server's local time, as if they were UTC.
function serverTime(unix) {
  let ahead = 0;
  for (const [from, seconds] of SERVER_ZONE) if (unix >= from) ahead = seconds;
  return unix + ahead;
}

function clockOf(unix, form) {
  const date = new Date(serverTime(unix) * 1000);
  if (Number.isNaN(date.getTime())) return "";
  const text = date.toISOString();
  const day = `${date.getUTCDate()} ${["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][date.getUTCMonth()]}`;
  if (form === "day") return day;
  if (form === "year") return `${day} ${text.slice(0, 4)}`;
  if (form === "minutes") return text.slice(11, 16);
  if (form === "fine") return text.slice(11, 23).replace(/0+$/, "").replace(/\.$/, "");
  return form === "full" ? `${text.slice(0, 10)} ${text.slice(11, 19)}` : text.slice(11, 19);
}

const NICE_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 345600, 604800, 1209600, 2592000, 7776000, 31536000];
const LOG_SECONDS = [1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000];

function niceSeconds(span, most) {
  return NICE_SECONDS.find((size) => span / size <= most) || niceStep(span / 31536000, most) * 31536000;
}

function timeTicks(low, high, most) {
  const span = high - low;
  if (span < most) return stepTicks(low, high, niceStep(span, most)).map((at) => [at, clockOf(at, "fine")]);
  const step = niceSeconds(span, most), offset = serverTime(low) - low, found = [];
  let day = null;
  for (let at = Math.ceil((low + offset) / step) * step - offset; at <= high && found.length < 50; at += step) {
    const own = clockOf(at, span > 300 * 86400 ? "year" : "day");
    const text = step >= 86400 ? own : clockOf(at, step < 60 ? "seconds" : "minutes");
    // The day is said where it changes, and at the first label.
    found.push([at, text, step < 86400 && own !== day ? own : ""]);
    day = own;
  }
  return found;
}

function elapsedText(seconds, step) {
  const sign = seconds < 0 ? "−" : "";
  let rest = Math.abs(seconds);
  if (rest < 60 && step < 60) return `${sign}${plainNumber(step < 1 ? rest : Math.round(rest * 10) / 10)} s`;
  rest = Math.round(rest);
  const days = Math.floor(rest / 86400), hours = Math.floor((rest % 86400) / 3600), minutes = Math.floor((rest % 3600) / 60);
  const parts = [days && `${days} d`, hours && `${hours} h`, minutes && step < 86400 && `${minutes} m`, step < 60 && rest % 60 && `${rest % 60} s`].filter(Boolean);
  return sign + (parts.slice(0, 2).join(" ") || "0");
}

// ---------------------------------------------------------------- numbers

function niceStep(span, most) {
  const raw = span / Math.max(1, most), size = 10 ** Math.floor(Math.log10(raw));
  for (const factor of [1, 2, 5]) if (size * factor >= raw * 0.999) return size * factor;
  return size * 10;
}

function stepTicks(low, high, step) {
  if (!(step > 0) || !(Math.abs(high / step) < 1e15) || !(Math.abs(low / step) < 1e15)) return [low, high];
  const digits = Math.max(0, Math.min(100, -Math.floor(Math.log10(step) + 1e-9)));
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9 && found.length < 100; n += 1) found.push(Number((n * step).toFixed(digits)) || 0);
  return found;
}

const plainNumber = (value) => String(Number(value.toPrecision(12)));

// 20k, but 8e-5 and never 80µ, which is no way to write a learning rate.
function tickNumber(value, step, isLarge) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (isLarge && size >= 10000) {
    for (const [unit, from] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (size >= from && size < 1e15) return minus(plainNumber(value / from) + unit);
  }
  if (size >= 1e15 || size < 1e-3) {
    const digits = Math.max(0, Math.min(12, Math.floor(Math.log10(size) + 1e-9) - Math.floor(Math.log10(step || size) + 1e-9)));
    return minus(value.toExponential(digits).replace(/(\.\d*?)0+e/, "$1e").replace(".e", "e").replace("e+", "e"));
  }
  return minus(plainNumber(value));
}
const minus = (text) => text.replace(/^-/, "−");

// As the rest of the page writes a number: four digits.
function shortText(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "—";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  if (Number.isInteger(value) && size >= 1000) return value.toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

function linearTicks(low, high, most) {
  const step = niceStep(high - low, most), isLarge = Math.max(Math.abs(low), Math.abs(high)) >= 1;
  return stepTicks(low, high, step).map((at) => [at, tickNumber(at, step, isLarge)]);
}

const SUPER = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

function logTicks(low, high, most) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), decades = Math.log10(high / low);
  const power = (n) => (n >= -2 && n <= 3 ? plainNumber(10 ** n) : `10${String(n).replace(/./g, (sign) => SUPER[sign])}`);
  if (decades < 1) return linearTicks(low, high, most);
  const every = Math.max(1, Math.ceil((last - first) / Math.max(2, most)));
  const found = [];
  const between = decades <= 2 ? [1, 2, 5] : [1];
  for (let n = first; n <= last; n += every) {
    for (const factor of every === 1 ? between : [1]) {
      const at = factor * 10 ** n;
      if (at >= low * 0.9999 && at <= high * 1.0001) found.push([at, factor === 1 ? power(n) : tickNumber(at, at, false)]);
    }
  }
  return found.length > 1 ? found : linearTicks(low, high, most);
}

// Fine lines between the decades.
function logMinor(low, high) {
  const found = [];
  if (Math.log10(high / low) > 8) return found;
  for (let n = Math.floor(Math.log10(low)); 10 ** n <= high; n += 1) for (let k = 2; k < 10; k += 1) { const at = k * 10 ** n; if (at > low && at < high) found.push(at); }
  return found;
}

function xTicks(scale, axis, most) {
  const { low, high } = scale;
  if (scale.log && axis === "elapsed" && high / low > 20) return LOG_SECONDS.filter((at) => at >= low && at <= high).map((at) => [at, elapsedText(at, at / 100)]);
  if (scale.log) return logTicks(low, high, most).map(([at, text]) => [at, axis === "elapsed" ? elapsedText(at, at / 100) : text]);
  if (axis === "time") return timeTicks(low, high, most);
  if (axis === "elapsed") {
    const step = high - low < most ? niceStep(high - low, most) : niceSeconds(high - low, most);
    return stepTicks(low, high, step).map((at) => [at, elapsedText(at, step)]);
  }
  const step = niceStep(high - low, most);
  return stepTicks(low, high, axis === "step" ? Math.max(1, step) : step).map((at) => [at, tickNumber(at, step, true) + (axis === "progress" ? " %" : "")]);
}

const yTicks = (scale, most) => (scale.log ? logTicks(scale.low, scale.high, most) : linearTicks(scale.low, scale.high, most));

const axisTitle = (axis) => ({ step: "step", time: "", elapsed: "time", epoch: "epoch", progress: "progress" }[axis] ?? axis.replace(/^metric:/, "").replace(/^= */, ""));

// An x value in words, for the tooltip and for screen readers.
function xText(x, axis) {
  if (axis === "time") return clockOf(x, "full");
  if (axis === "elapsed") return `${elapsedText(x, 1)} since the start`;
  if (axis === "progress") return `${shortText(x)} %`;
  if (axis === "step") return `step ${Math.round(x).toLocaleString("en-US")}`;
  return `${axisTitle(axis)} ${shortText(x)}`;
}

// ---------------------------------------------------------------- the y range

const NOISE = 1e-9, ROOM_AROUND = 0.2, MUCH = 2, END = 0.05, FEW_POINTS = 40;

// The range of a constant; null if `low` and `high` differ by more than rounding: the average of equal numbers can
// differ in its last digit, and a chart would show only that.
function frameAround(low, high, fromZero = false) {
  const size = Math.max(Math.abs(low), Math.abs(high)), room = size * ROOM_AROUND || 1;
  if (high - low > size * NOISE || !Number.isFinite(size + room)) return null;
  if (!fromZero) return [low - room, high + room];
  return high < 0 ? [low - room, 0] : [0, high + room];
}

function withRoom(low, high, share) {
  const frame = frameAround(low, high);
  if (frame) return frame;
  const room = (high - low) * share;
  return Number.isFinite(room) && Math.abs(high) < 1e307 && Math.abs(low) < 1e307 ? [low - room, high + room] : [low, high];
}

function quantile(sorted, share) {
  const at = (sorted.length - 1) * share, low = Math.floor(at);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (at - low);
}

// The y range that most of some curves is in, if a few extremes would fill the chart; null otherwise. `cores` has the
// ends of the range that most of each curve is in, and its end always; `values` is everything that is drawn.
function fittedRange(cores, values, lowest, highest, fromZero) {
  let low = Math.min(...cores), high = Math.max(...cores);
  if (fromZero) { low = Math.min(low, 0); high = Math.max(high, 0); }
  const size = high - low;
  if (!(size > 0) || !Number.isFinite(size) || highest - lowest <= MUCH * size) return null;
  // What is not far away stays inside.
  let bottom = low, top = high;
  for (const value of values) if (low - value <= size && value < bottom) bottom = value; else if (value - high <= size && value > top) top = value;
  const room = 0.08 * (top - bottom);
  return [fromZero && bottom >= 0 ? 0 : bottom - room, top + room];
}
