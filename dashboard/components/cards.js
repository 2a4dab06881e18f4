// Cards with a number and a sparkline. Text is never interpreted as markup.
function sparkline(values, color) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 100 30");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const known = values.filter((value) => value !== null);
  const low = Math.min(...known), high = Math.max(...known), span = high - low;
  const flat = span <= 1e-9 * Math.max(Math.abs(low), Math.abs(high));
  // Straight lines between the points, and none where nothing was logged.
  const lines = [[]];
  values.forEach((value, i) => {
    if (value === null) { lines.push([]); return; }
    const x = (i / (values.length - 1)) * 100;
    const y = flat ? 15 : 28 - ((value - low) / span) * 26;
    lines[lines.length - 1].push(`${x.toFixed(2)},${y.toFixed(2)}`);
  });
  for (const points of lines.filter((one) => one.length > 1)) {
    const line = document.createElementNS(space, "polyline");
    line.setAttribute("points", points.join(" "));
    line.setAttribute("fill", "none");
    line.setAttribute("stroke", color);
    line.setAttribute("stroke-width", "2");
    line.setAttribute("vector-effect", "non-scaling-stroke");
    line.setAttribute("stroke-linejoin", "round");
    svg.appendChild(line);
  }
  return svg;
}

function drawCard(card, palette) {
  const box = make("div", "telemetry-card");
  const label = make("div", "telemetry-card-label", card.label);
  if (card.help) { label.title = card.help; box.title = card.help; }
  box.appendChild(label);
  const value = make("div", "telemetry-card-value", card.value);
  // What does not fit can be read.
  value.title = card.value;
  box.appendChild(value);
  const about = make("div", "telemetry-card-about");
  if (card.delta) {
    const delta = make("span", "telemetry-card-delta", card.delta);
    delta.style.color = palette[card.tone] || palette.muted;
    about.appendChild(delta);
  }
  if (card.about) about.appendChild(make("span", "", card.about));
  box.appendChild(about);
  if (card.spark.length > 1) box.appendChild(sparkline(card.spark, palette[card.tone] || palette.muted));
  return box;
}

export function cards(component) {
  const { data, parentElement } = component;
  const grid = parentElement.querySelector(".telemetry-cards");
  if (!grid || !data) return undefined;
  const draw = () => {
    const palette = data.palettes[standsOnDark(parentElement) ? "dark" : "light"];
    // As many in each row, so that none is alone in the last one; a long value, such as the name of a model, gets room.
    const number = data.cards.length, rows = Math.ceil(number / 8);
    grid.style.setProperty("--columns", Math.ceil(number / rows));
    grid.style.setProperty("--half", Math.ceil(number / Math.ceil(number / 4)));
    grid.replaceChildren(...data.cards.map((card) => drawCard(card, palette)));
  };
  draw();
  if (grid.__theme) grid.__theme.disconnect();
  grid.__theme = new MutationObserver(draw);
  grid.__theme.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "style", "data-theme"] });
  return () => { if (grid.__theme) { grid.__theme.disconnect(); grid.__theme = null; } };
}
