// A sweep's runs as points, and what each setting explains as bars. Text is never interpreted as markup.
const SWEEP_SVG = "http://www.w3.org/2000/svg";

function sweepMade(name, attributes, parent) {
  const made = document.createElementNS(SWEEP_SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (parent) parent.appendChild(made);
  return made;
}

function sweepText(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

function sweepTicks(low, high, log, most) {
  if (log) {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
    const marks = last - first >= 2 ? [1] : last - first >= 1 ? [1, 3] : [1, 2, 3, 5];
    const every = Math.max(1, Math.ceil((last - first + 1) / most)), found = [];
    for (let power = first - 1; power <= last; power += every)
      for (const mark of marks) found.push(mark * 10 ** power);
    const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    if (inside.length > 1) return inside;
  }
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-9) + 1e-300; at += 1) found.push(at * step);
  return found;
}

// Places of an axis from 0 to 1: texts at equal distances, numbers with a margin.
function sweepAxis(axis, values, most) {
  if (axis.labels) {
    const count = axis.labels.length;
    const every = Math.max(1, Math.ceil(count / most));
    const ticks = axis.labels.map((text, at) => [at, text]).filter(([at]) => at % every === 0);
    return { share: (at) => (at + 0.5) / count, ticks };
  }
  let low = Math.min(...values), high = Math.max(...values);
  const log = axis.log && low > 0;
  if (low === high) { low -= Math.abs(low) * 0.05 || 1; high += Math.abs(high) * 0.05 || 1; }
  const scale = log ? Math.log10 : (value) => value;
  const margin = (scale(high) - scale(low)) * 0.05, from = scale(low) - margin, to = scale(high) + margin;
  const undo = log ? (value) => 10 ** value : (value) => value;
  const ticks = sweepTicks(undo(from), undo(to), log, most).map((value) => [value, sweepText(value)]);
  return { share: (value) => (scale(value) - from) / (to - from), ticks };
}

function sweepShade(palette, shade, rank) {
  if (rank === null || rank === undefined) return palette["series-0"];
  if (!shade.ordered) return rank < 6 ? palette[`series-${rank}`] : palette.muted;
  // By way of green: what is between blue and orange itself is grey.
  const share = shade.values.length > 1 ? (200 * rank) / (shade.values.length - 1) : 0;
  const [from, to] = share <= 100 ? ["series-0", "series-2"] : ["series-2", "series-1"];
  return `color-mix(in oklab, ${palette[to]} ${share <= 100 ? share : share - 100}%, ${palette[from]})`;
}

function sweepLegend(data, palette) {
  const list = make("ul", "telemetry-sweep-legend");
  const { shade } = data;
  if (!shade) return list;
  list.appendChild(make("li", "telemetry-sweep-pale", shade.title));
  const last = shade.values.length - 1;
  const shown = shade.ordered && last > 5 ? [0, Math.floor(last / 2), last] : shade.values.map((_, at) => at).slice(0, 7);
  for (const at of shown) {
    const item = make("li", ""), swatch = make("span", "telemetry-ledger-swatch");
    swatch.style.background = sweepShade(palette, shade, at);
    item.append(swatch, make("span", "", !shade.ordered && at === 6 ? "others" : shade.values[at]));
    list.appendChild(item);
  }
  return list;
}

function drawRuns(box, data, palette) {
  const width = Math.max(box.clientWidth, 260), height = data.height, left = 58, bottom = 40, top = 8, right = 12;
  const x = sweepAxis(data.x, data.points.map((point) => point.x), Math.max(3, Math.floor(width / 110)));
  const y = sweepAxis(data.y, data.points.map((point) => point.y), 6);
  const atX = (value) => left + x.share(value) * (width - left - right);
  const atY = (value) => height - bottom - y.share(value) * (height - top - bottom);
  const svg = sweepMade("svg", { width, height, role: "group", "aria-label": data.label });
  for (const [value, text] of y.ticks) {
    const place = atY(value);
    sweepMade("path", { class: "telemetry-sweep-grid", d: `M${left} ${place}H${width - right}` }, svg);
    sweepMade("text", { x: left - 8, y: place + 4, "text-anchor": "end" }, svg).textContent = text;
  }
  for (const [value, text] of x.ticks) {
    const place = atX(value);
    sweepMade("path", { class: "telemetry-sweep-grid", d: `M${place} ${top}V${height - bottom}` }, svg);
    sweepMade("text", { x: place, y: height - bottom + 17, "text-anchor": "middle" }, svg).textContent = text;
  }
  sweepMade("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, svg).textContent = data.x.title;
  const tip = make("div", "telemetry-sweep-tip"), size = data.points.length > 500 ? 3 : 5;
  tip.style.display = "none";
  for (const point of data.points) {
    const link = sweepMade("a", { href: point.href, "aria-label": point.text.join(", ") }, svg);
    const colour = sweepShade(palette, data.shade, point.shade), cx = atX(point.x), cy = atY(point.y);
    if (point.best) {
      const edges = [...Array(10).keys()].map((at) => {
        const turn = (at * Math.PI) / 5, far = at % 2 ? 4.5 : 10;
        return `${cx + far * Math.sin(turn)} ${cy - far * Math.cos(turn)}`;
      });
      const fill = data.shade ? colour : palette["series-1"];
      sweepMade("path", { d: `M${edges.join("L")}Z`, fill, class: "telemetry-sweep-best" }, link);
    } else {
      const look = point.open ? { fill: "none", stroke: colour, "stroke-width": 1.6 } : { fill: colour, "fill-opacity": 0.8 };
      sweepMade("circle", { cx, cy, r: size, ...look }, link);
    }
    // A larger target than what is seen.
    sweepMade("circle", { cx, cy, r: Math.max(size + 3, 9), fill: "transparent" }, link);
    const show = () => {
      tip.replaceChildren(...point.text.map((line) => make("div", "", line)));
      tip.style.display = "block";
      tip.style.left = `${Math.min(Math.max(cx + 12, 0), Math.max(width - tip.offsetWidth - 4, 0))}px`;
      tip.style.top = `${cy > height / 2 ? cy - tip.offsetHeight - 12 : cy + 12}px`;
    };
    const hide = () => { tip.style.display = "none"; };
    link.addEventListener("pointerenter", show);
    link.addEventListener("focus", show);
    link.addEventListener("pointerleave", hide);
    link.addEventListener("blur", hide);
    link.addEventListener("click", (event) => {
      if (event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      follow(point.href);
    });
  }
  const plot = make("div", "telemetry-sweep-plot");
  plot.append(svg, tip);
  box.replaceChildren(sweepLegend(data, palette), plot);
}

function drawShares(box, data, palette) {
  const table = make("table", "telemetry-sweep-bars");
  for (const bar of data.bars) {
    const line = table.insertRow(), name = make("th", "", bar.name), track = make("div", "telemetry-sweep-track");
    name.scope = "row";
    line.title = bar.title;
    const fill = make("i", ""), range = make("u", "");
    fill.style.width = `${100 * bar.share}%`;
    fill.style.background = bar.named ? palette["series-0"] : palette.muted;
    range.style.left = `${100 * bar.low}%`;
    range.style.width = `${100 * (bar.high - bar.low)}%`;
    track.append(fill, range);
    line.appendChild(name);
    line.insertCell().appendChild(track);
    line.insertCell().textContent = `${Math.round(100 * bar.share)} %`;
  }
  box.replaceChildren(table);
}

export function sweep_chart(component) {
  const { data, parentElement } = component;
  const box = parentElement.querySelector(".telemetry-sweep");
  if (!box || !data) return undefined;
  const draw = () => {
    const palette = data.palettes[standsOnDark(parentElement) ? "dark" : "light"];
    if (data.bars) drawShares(box, data, palette);
    else drawRuns(box, data, palette);
  };
  draw();
  let drawn = box.clientWidth;
  const sizes = new ResizeObserver(() => {
    if (Math.abs(box.clientWidth - drawn) < 2) return;
    drawn = box.clientWidth;
    draw();
  });
  sizes.observe(box);
  const theme = new MutationObserver(draw);
  theme.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "style", "data-theme"] });
  return () => { sizes.disconnect(); theme.disconnect(); };
}
