// Forecasts: one line of words, and a band in the charts of the metric. They are no values: no file, no tile has them.
const forecastBands = new Map();

// The curves of a chart that have a forecast to draw, with it.
function forecastsIn(chart) {
  if (!chart.spec || !chart.spec.forecast || !curveView.forecast || chart.axis() !== "step" || chart.spec.base) return [];
  return chart.curves.filter((curve) => !curve.hidden).map((curve) => [curve, (forecastBands.get(curve.run) || {})[curve.metric]]).filter(([, band]) => band);
}

// The extremes of the bands inside a range of steps, for the y range.
function forecastRange(chart, [x0, x1], isLog) {
  const values = forecastsIn(chart).flatMap(([, band]) => band.steps.flatMap((step, i) => (step >= x0 && step <= x1 ? [band.low[i], band.high[i]] : [])));
  return values.filter((value) => Number.isFinite(value) && (!isLog || value > 0));
}

function drawForecasts(g, frame) {
  const { plot } = frame, floor = frame.y.log ? Number.MIN_VALUE : -Infinity;
  let label = null;
  for (const [curve, band] of forecastsIn(frame.chart)) {
    const xs = band.steps.map((step) => clampPx(frame.x.toPx(step))), place = (values) => values.map((value) => clampPx(frame.y.toPx(Math.max(value, floor))));
    const up = place(band.high), down = place(band.low);
    g.fillStyle = withAlpha(curve.colour, 0.1);
    fillBetween(g, xs, up, xs, down);
    g.strokeStyle = withAlpha(curve.colour, 0.75);
    g.lineWidth = 1.5;
    g.setLineDash([5, 4]);
    traceArrays(g, band.steps, band.middle, frame.x.toPx, frame.y.toPx, floor);
    g.setLineDash([]);
    const at = Math.floor(0.6 * xs.length), left = Math.min(xs[at], plot.left + plot.width - 45);
    if (xs[at] > plot.left && xs[0] < plot.left + plot.width && !(label && label[1] < up[at])) label = [left, up[at]];
  }
  if (label) put(g, "forecast, 90 %", label[0], Math.max(plot.top + 12, label[1] - 6), "center", frame.theme.muted, frame);
}

// What the tooltip says where nothing is logged yet.
function forecastRows(chart, x) {
  return forecastsIn(chart).filter(([, band]) => x > band.steps[0] && x <= band.steps.at(-1)).map(([curve, band]) => {
    const [y, low, high] = [band.middle, band.low, band.high].map((values) => interpolate(band.steps, values, x));
    return { curve, x, y, low, high, isForecast: true, isGroup: true, count: 0, time: NaN, smoothed: NaN };
  });
}

const forecastText = (chart) => forecastsIn(chart).map(([curve, band]) => `forecast of ${curve.label} at step ${band.steps.at(-1).toLocaleString("en-US")}: ${shortText(band.middle.at(-1))}, 90 % from ${shortText(band.low.at(-1))} to ${shortText(band.high.at(-1))}`);

export function forecast(component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".telemetry-forecast");
  if (!root || !data) return undefined;
  const text = JSON.stringify([data.said, data.head]);
  if (root.__text !== text) {
    root.__text = text;
    const parts = data.said.map(([what, words, why]) => {
      const part = make("span", "telemetry-forecast-part");
      const [, first, rest] = /^(.*?)((?: \(|, |: ).*)?$/s.exec(words);
      part.append(make("span", "telemetry-forecast-what", `${what} `), make("b", "", first), rest || "");
      if (why) part.title = why;
      return part;
    });
    root.replaceChildren(...(parts.length ? [make("span", "telemetry-forecast-head", data.head), ...parts] : []));
  }
  const bands = JSON.stringify(data.bands);
  if (root.__bands !== bands) {
    root.__bands = bands;
    if (data.bands) forecastBands.set(data.run, data.bands);
    for (const chart of openCharts) if (chart.isAttached && chart.spec.forecast) { chart.drawLegend(); chart.redraw(); }
  }
  // Asked for when the switch is on and they are not there yet: they take some time.
  const ask = () => { if (curveView.forecast && !data.bands) setTriggerValue("wanted", true); };
  ask();
  return curveView.on((changes) => { if (changes.forecast) ask(); });
}
