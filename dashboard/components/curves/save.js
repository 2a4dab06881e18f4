// Saves a chart: as PNG and SVG with title and legend, or every logged value of what is shown as CSV.
const SAVE_SCALE = 2;
// What XML cannot hold at all, escaped or not.
const NOT_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const xmlText = (text) => String(text).replace(NOT_XML, "�").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

// Takes what a 2D context takes, as far as charts use it, and writes SVG.
class SvgContext {
  constructor(width, height) {
    Object.assign(this, { width, height, parts: [], path: "", clips: 0, stack: [], probe: document.createElement("canvas").getContext("2d") });
    this.state = { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, globalAlpha: 1, font: "12px sans-serif", textAlign: "left", textBaseline: "alphabetic", lineJoin: "miter", lineCap: "butt", dash: [], open: 0 };
    for (const name of ["fillStyle", "strokeStyle", "lineWidth", "globalAlpha", "font", "textAlign", "textBaseline", "lineJoin", "lineCap"]) Object.defineProperty(this, name, { get: () => this.state[name], set: (value) => { this.state[name] = value; } });
  }

  number(value) { return Number.isFinite(value) ? String(Math.round(value * 100) / 100) : "0"; }
  translate(x, y) { this.state.open += 1; this.parts.push(`<g transform="translate(${x} ${y})">`); }
  save() { this.stack.push(this.state); this.state = { ...this.state, open: 0 }; }
  restore() { if (!this.stack.length) return; this.parts.push("</g>".repeat(this.state.open)); this.state = this.stack.pop(); }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${this.number(x)} ${this.number(y)}`; }
  lineTo(x, y) { this.path += `${this.path ? "L" : "M"}${this.number(x)} ${this.number(y)}`; }
  closePath() { this.path += "Z"; }
  rect(x, y, w, h) { this.path += `M${this.number(x)} ${this.number(y)}h${this.number(w)}v${this.number(h)}h${this.number(-w)}Z`; }
  // Charts draw whole circles.
  arc(x, y, r) { const n = this.number; this.path += `M${n(x - r)} ${n(y)}a${n(r)} ${n(r)} 0 1 1 ${n(2 * r)} 0a${n(r)} ${n(r)} 0 1 1 ${n(-2 * r)} 0`; }
  // "rgba(1,2,3,0.4)" as two attributes: not every program reads it as one.
  paint(name, colour) {
    const parts = /^rgba?\(([^)]*)\)$/.exec(String(colour)), numbers = parts ? parts[1].split(/[ ,/]+/).map(Number) : null;
    const alpha = (numbers && numbers.length > 3 ? numbers[3] : 1) * this.state.globalAlpha;
    return ` ${name}="${xmlText(numbers ? `rgb(${numbers.slice(0, 3).join(",")})` : colour)}"${alpha < 1 ? ` ${name}-opacity="${this.number(alpha)}"` : ""}`;
  }
  pen() {
    const { dash, lineWidth, lineJoin, lineCap } = this.state;
    return `${this.paint("stroke", this.state.strokeStyle)} stroke-width="${this.number(lineWidth)}" stroke-linejoin="${lineJoin}" stroke-linecap="${lineCap}"${dash.length ? ` stroke-dasharray="${dash.map((one) => this.number(one)).join(" ")}"` : ""}`;
  }
  setLineDash(dash) { this.state.dash = [...dash]; }
  stroke() { if (this.path) this.parts.push(`<path d="${this.path}" fill="none"${this.pen()}/>`); }
  fill() { if (this.path) this.parts.push(`<path d="${this.path}"${this.paint("fill", this.state.fillStyle)}/>`); }
  clip() { this.clips += 1; this.state.open += 1; this.parts.push(`<clipPath id="c${this.clips}"><path d="${this.path}"/></clipPath><g clip-path="url(#c${this.clips})">`); }
  fillRect(x, y, w, h) { this.box(x, y, w, h, this.paint("fill", this.state.fillStyle)); }
  strokeRect(x, y, w, h) { this.box(x, y, w, h, ` fill="none"${this.pen()}`); }
  box(x, y, w, h, look) { const [n, left, top] = [this.number, Math.min(x, x + w), Math.min(y, y + h)]; this.parts.push(`<rect x="${n(left)}" y="${n(top)}" width="${n(Math.abs(w))}" height="${n(Math.abs(h))}"${look}/>`); }
  measureText(text) { this.probe.font = this.state.font; return this.probe.measureText(text); }
  fillText(text, x, y) { this.words(text, x, y, this.paint("fill", this.state.fillStyle)); }
  strokeText(text, x, y) { this.words(text, x, y, ` fill="none"${this.pen()}`); }
  words(text, x, y, look) {
    const { font, textAlign, textBaseline } = this.state, size = parseFloat((/([\d.]+)px/.exec(font) || [0, 12])[1]);
    const down = { top: 0.8, hanging: 0.8, middle: 0.35, bottom: -0.2 }[textBaseline] || 0;
    const anchor = { center: "middle", right: "end", end: "end" }[textAlign] || "start";
    const bold = /\b(bold|[6-9]00)\b/.test(font) ? ' font-weight="600"' : "";
    this.parts.push(`<text x="${this.number(x)}" y="${this.number(y + down * size)}" font-size="${this.number(size)}" text-anchor="${anchor}"${bold}${look}>${xmlText(text)}</text>`);
  }
  text() {
    return `<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}" font-family="sans-serif">${this.parts.join("\n")}${"</g>".repeat(this.state.open)}</svg>\n`;
  }
}

// Title, the chart and a legend below it.
function paintPicture(chart, g, width, height, rows) {
  const style = getComputedStyle(chart.root), ink = style.getPropertyValue("--st-text-color").trim() || style.color;
  g.fillStyle = style.getPropertyValue("--st-background-color").trim() || "#ffffff";
  g.fillRect(0, 0, width, height);
  g.fillStyle = ink;
  g.font = "600 15px sans-serif";
  g.textAlign = "left";
  g.textBaseline = "alphabetic";
  g.fillText(cutText(chart.spec.heading || chart.spec.title || "", Math.floor(width / 8)), 10, 23);
  g.save();
  g.translate(0, 34);
  chart.paint(g, width, height - 34 - rows.height);
  g.restore();
  g.font = "12px sans-serif";
  g.textAlign = "left";
  g.textBaseline = "middle";
  for (const { x, y, label, colour } of rows.entries) {
    g.fillStyle = colour;
    g.fillRect(x, height - rows.height + y - 2, 16, 4);
    g.fillStyle = ink;
    g.fillText(label, x + 22, height - rows.height + y);
  }
}

function legendRows(chart, width) {
  const seen = new Set(), entries = [], g = document.createElement("canvas").getContext("2d");
  g.font = "12px sans-serif";
  let x = 10, y = 16;
  const shown = (chart.groups.length ? chart.groups : chart.curves).filter((curve) => !curve.hidden);
  for (const { label, colour } of shown.length > 1 ? shown : []) {
    if (seen.has(`${label}${colour}`)) continue;
    seen.add(`${label}${colour}`);
    const text = cutText(String(label), 60), wide = g.measureText(text).width + 40;
    if (x + wide > width - 10 && x > 10) { x = 10; y += 20; }
    entries.push({ x, y, label: text, colour });
    x += wide;
  }
  return { entries, height: entries.length ? y + 14 : 0 };
}

const fileStem = (chart) => (chart.spec.heading || chart.spec.title || "chart").replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|[-.]+$/g, "").slice(0, 80) || "chart";

function saveBlob(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function chartAsSvg(chart) {
  const width = Math.max(640, Math.round(chart.root.clientWidth)), rows = legendRows(chart, width);
  const height = Math.round((chart.spec.height || 260) + 34 + rows.height), svg = new SvgContext(width, height);
  paintPicture(chart, svg, width, height, rows);
  return svg.text();
}

function saveChart(chart, kind) {
  if (kind === "svg") { saveBlob(`${fileStem(chart)}.svg`, new Blob([chartAsSvg(chart)], { type: "image/svg+xml" })); return; }
  const width = Math.max(640, Math.round(chart.root.clientWidth)), rows = legendRows(chart, width);
  const height = Math.round((chart.spec.height || 260) + 34 + rows.height), canvas = document.createElement("canvas");
  canvas.width = width * SAVE_SCALE;
  canvas.height = height * SAVE_SCALE;
  const g = canvas.getContext("2d");
  g.scale(SAVE_SCALE, SAVE_SCALE);
  paintPicture(chart, g, width, height, rows);
  canvas.toBlob((blob) => { if (blob) saveBlob(`${fileStem(chart)}.png`, blob); });
}

// Every logged value of the window comes from the server: what is drawn are buckets.
function csvUrl(chart) {
  const range = chart.window(), curves = [], seen = new Set();
  for (const { spec } of chart.groups.length ? chart.members.filter((curve) => !curve.group.hidden) : chart.curves.filter((curve) => !curve.hidden)) {
    for (const metric of [spec.metric, ...(spec.band || [])]) {
      const one = [spec.run, metric, spec.rank || 0, { fit: 1 }], key = JSON.stringify(one);
      if (!seen.has(key)) { seen.add(key); curves.push(one); }
    }
  }
  const asked = new URLSearchParams({ x: axisFor(chart), c: JSON.stringify(curves) });
  if (range) { asked.set("from", String(range[0])); asked.set("to", String(range[1])); }
  return `${window.location.origin}/curves.csv?${asked}`;
}

async function saveCsv(chart, say) {
  const answer = await fetch(csvUrl(chart), { cache: "no-store" }).catch((error) => ({ ok: false, text: async () => error.message }));
  if (!answer.ok) { say((await answer.text()).slice(0, 300) || "The server did not answer."); return; }
  saveBlob(`${fileStem(chart)}.csv`, await answer.blob());
}

function attachSave(chart) {
  const { root } = chart, box = make("div", "telemetry-save"), button = make("button", "telemetry-save-button", "Save…");
  const menu = make("div", "telemetry-save-menu"), note = make("div", "telemetry-save-note");
  // A chart is one stop of the Tab key; from there the key s opens this menu.
  button.tabIndex = -1;
  button.setAttribute("aria-haspopup", "menu");
  button.title = "Save as a picture or as CSV (s)";
  menu.setAttribute("role", "menu");
  note.setAttribute("role", "status");
  menu.hidden = true;
  const close = (isBack) => { menu.hidden = true; button.setAttribute("aria-expanded", "false"); if (isBack) root.focus({ preventScroll: true }); };
  const open = (byKey) => { note.textContent = ""; menu.hidden = false; button.setAttribute("aria-expanded", "true"); if (byKey) menu.firstChild.focus(); };
  const item = (label, act) => {
    const one = make("button", "telemetry-save-item", label);
    one.tabIndex = -1;
    one.setAttribute("role", "menuitem");
    one.onclick = () => act();
    menu.appendChild(one);
  };
  item("PNG picture", () => { saveChart(chart, "png"); close(true); });
  item("SVG picture", () => { saveChart(chart, "svg"); close(true); });
  item("CSV: all logged values", () => saveCsv(chart, (text) => { note.textContent = text; }).then(() => { if (!note.textContent) close(true); }));
  menu.appendChild(note);
  button.onclick = () => (menu.hidden ? open(false) : close(false));
  chart.openSave = () => open(true);
  menu.addEventListener("keydown", (event) => {
    const items = [...menu.querySelectorAll("button")], i = items.indexOf(document.activeElement);
    if (event.key === "Escape") close(true);
    else if (event.key === "ArrowDown") items[(i + 1) % items.length].focus();
    else if (event.key === "ArrowUp") items[(i + items.length - 1) % items.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  box.addEventListener("focusout", (event) => { if (!box.contains(event.relatedTarget)) close(false); });
  box.append(button, menu);
  for (const one of chart.bar.children) one.tabIndex = -1;
  chart.bar.insertBefore(box, chart.bar.lastElementChild);
}
