// Where the time went: stacked bars, a legend and a table. Text is never interpreted as markup.
// "var(--series-0/0.3)" is a colour by its meaning, which the theme defines.
function paintBar(element, part, palette) {
  if (!part.color) return;
  const [name, opacity] = part.color.slice(6, -1).split("/");
  const n = parseInt((palette[name] || palette.muted).slice(1), 16);
  const color = `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${opacity || 1})`;
  element.style.background = part.hatched
    ? `repeating-linear-gradient(135deg, ${color} 0 5px, color-mix(in srgb, ${color} 45%, transparent) 5px 9px)`
    : color;
  if (opacity || part.hatched) element.classList.add("telemetry-ledger-pale");
}

function drawBar(bar, palette) {
  const box = make("div", "telemetry-ledger-box");
  if (bar.left || bar.right) {
    const line = make("div", "telemetry-ledger-line");
    line.appendChild(make("span", bar.small ? "" : "telemetry-ledger-strong", bar.left));
    line.appendChild(make("span", "", bar.right));
    box.appendChild(line);
  }
  const strip = make("div", "telemetry-ledger-strip");
  if (bar.small || bar.slim) strip.classList.add("telemetry-ledger-small");
  strip.setAttribute("role", "img");
  strip.setAttribute("aria-label", bar.parts.map((part) => part.title).join("; "));
  for (const part of bar.parts) {
    const piece = make("div", "telemetry-ledger-part", bar.small || bar.slim ? "" : part.text);
    piece.style.flexGrow = String(part.share);
    piece.title = part.title;
    paintBar(piece, part, palette);
    strip.appendChild(piece);
  }
  box.appendChild(strip);
  return box;
}

function drawNames(parts, palette) {
  const list = make("ul", "telemetry-ledger-names");
  for (const part of parts) {
    const item = make("li", "");
    const swatch = make("span", "telemetry-ledger-swatch");
    paintBar(swatch, part, palette);
    item.appendChild(swatch);
    item.appendChild(make("span", "", part.words));
    item.appendChild(make("span", "telemetry-ledger-about", part.about));
    list.appendChild(item);
  }
  return list;
}

function drawTable(table, palette) {
  const made = make("table", "telemetry-ledger-table");
  const head = made.createTHead().insertRow();
  for (const cell of table.head) head.appendChild(make("th", "", cell));
  const body = made.createTBody();
  for (const row of table.rows) {
    const line = body.insertRow();
    row.cells.forEach((cell, number) => {
      const place = line.insertCell();
      if (number === 0 && row.color) {
        const swatch = make("span", "telemetry-ledger-swatch");
        paintBar(swatch, row, palette);
        place.appendChild(swatch);
      }
      place.appendChild(make("span", "", cell));
    });
  }
  return made;
}

export function ledger_bar(component) {
  const { data, parentElement } = component;
  const box = parentElement.querySelector(".telemetry-ledger");
  if (!box || !data) return undefined;
  const draw = () => {
    const palette = data.palettes[standsOnDark(parentElement) ? "dark" : "light"];
    const parts = data.bars.map((bar) => drawBar(bar, palette));
    if (data.names) parts.push(drawNames(data.names, palette));
    if (data.table) parts.push(drawTable(data.table, palette));
    box.replaceChildren(...parts);
    box.dataset.drawn = String(Number(box.dataset.drawn || 0) + 1);
  };
  draw();
  if (box.__theme) box.__theme.disconnect();
  box.__theme = new MutationObserver(draw);
  box.__theme.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "style", "data-theme"] });
  return () => { if (box.__theme) { box.__theme.disconnect(); box.__theme = null; } };
}
