// Updates a Plotly figure in place: zoom, hidden curves and hover are kept while the data changes.
// A chart keeps the library that drew it: another page may have loaded one with more kinds of charts.
const libraries = (window.__telemetryPlotly ||= {});
function loadPlotly(src) {
  return (libraries[src] ||= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      delete libraries[src];
      script.remove();
      reject(new Error("plotly.js could not be loaded from " + src));
    };
    script.src = src;
    document.head.appendChild(script);
  }));
}

// "var(--series-0/0.3)" is a colour by its meaning, which the theme defines. Replaced only where a colour is expected: a
// metric may have such a name, or the name of an object property.
function paint(value, palette, isColor = false) {
  if (typeof value === "string") {
    if (!isColor || !value.startsWith("var(--")) return value;
    const [name, opacity] = value.slice(6, -1).split("/");
    const hex = palette[name];
    if (!hex) return value;
    if (opacity === undefined) return hex;
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${opacity})`;
  }
  if (Array.isArray(value)) return value.map((item) => paint(item, palette, isColor));
  if (value && typeof value === "object") {
    for (const key of Object.keys(value)) {
      if (key !== "bdata") value[key] = paint(value[key], palette, isColor || /color/.test(key));
    }
  }
  return value;
}

const onTouch = () => window.matchMedia("(pointer: coarse)").matches;

function dress(figure, element, height, palettes) {
  const style = getComputedStyle(element);
  const read = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const background = read("--st-background-color", "#ffffff");
  const text = read("--st-text-color", style.color);
  const border = read("--st-border-color", "#d9dee4");
  const palette = palettes[standsOnDark(element) ? "dark" : "light"];
  paint(figure.data, palette);
  paint(figure.layout, palette);
  const layout = figure.layout;
  layout.height = height;
  layout.autosize = true;
  layout.font = { family: read("--st-font", style.fontFamily), color: text, size: 12 };
  layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
  // A thumb scrolls the page: it must not draw a box instead.
  if (onTouch()) layout.dragmode = false;
  layout.hoverlabel = { bgcolor: background, bordercolor: border, font: { color: text } };
  layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: palette.muted, activecolor: palette["series-0"] };
  // On a narrow chart there are fewer tick labels, because they would overlap.
  if (layout.xaxis && layout.xaxis.tickangle === 0) layout.xaxis.nticks = Math.max(2, Math.floor(element.clientWidth / 120));
  for (const key of Object.keys(layout)) {
    if (/^[xy]axis/.test(key)) {
      Object.assign(layout[key], { gridcolor: border, linecolor: border, automargin: true, tickfont: { color: text } });
    }
  }
}

function sameRange(a, b) {
  if (!a || !b) return !a && !b;
  const tolerance = Math.abs(a[1] - a[0]) * 1e-6;
  return Math.abs(a[0] - b[0]) <= tolerance && Math.abs(a[1] - b[1]) <= tolerance;
}

function wire(div, Plotly, say) {
  let timer = null;
  const numbers = (range) => range.map((edge) => div._fullLayout.xaxis.r2l(edge));
  div.on("plotly_relayout", (event) => {
    let range;
    if ("xaxis.range[0]" in event) range = numbers([event["xaxis.range[0]"], event["xaxis.range[1]"]]);
    else if ("xaxis.range" in event) range = numbers(event["xaxis.range"]);
    else if (event["xaxis.autorange"]) range = null;
    else return;
    // Until the server has answered, figures for the previous view must not undo this one.
    div.__wanted = { range, until: Date.now() + 6000 };
    clearTimeout(timer);
    timer = setTimeout(() => say(range), 180);
  });

  div.on("plotly_click", (event) => {
    const point = event.points && event.points[0];
    const [picked] = (point && Array.isArray(point.customdata) && point.customdata) || [];
    if (typeof picked === "string") follow(picked);
    else if (div.__pick && picked !== undefined) div.__pick(picked);
  });
  if (onTouch()) {
    // Plotly would keep the page from scrolling; a tap still reaches it as a click.
    for (const kind of ["touchstart", "touchmove"]) div.addEventListener(kind, (event) => event.stopPropagation(), { capture: true, passive: true });
  }
}

const WHOLE_SCREEN = { width: 24, height: 24, path: "M7 14H5v5h5v-2H7v-3zm-2-4h2V7h3V5H5v5zm12 7h-3v2h5v-5h-2v3zM14 5v2h3v3h2V5h-5z" };
const VECTOR = { width: 24, height: 24, path: "M5 20h14v-2H5v2zM19 9h-4V3H9v6H5l7 7 7-7z" };

// A saved picture says which run and which metric it shows.
function save(div, Plotly, data, format) {
  const box = div.getBoundingClientRect();
  const layout = { ...div.layout, title: { text: data.heading, x: 0.01, xanchor: "left", font: { size: 15 } } };
  // In a picture the fonts of the page are missing.
  layout.font = { ...layout.font, family: "sans-serif" };
  // A picture has no tooltip to name its curves.
  if (div.data.filter((trace) => trace.showlegend).length > 1) layout.showlegend = true;
  // Below the labels of the x axis, which can have two lines.
  const below = layout.showlegend ? 44 : 0;
  layout.legend = { ...layout.legend, y: -below / div._fullLayout._size.h, yanchor: "top" };
  layout.margin = { ...layout.margin, t: (layout.margin.t || 10) + 34, l: 50, b: 40 };
  layout.paper_bgcolor = getComputedStyle(div).getPropertyValue("--st-background-color").trim() || "#ffffff";
  const size = { width: Math.max(640, Math.round(box.width)), height: Math.round(box.height) + 40 + below };
  return Plotly.downloadImage({ data: div.data, layout: { ...layout, ...size, autosize: false } }, { format, filename: data.name, scale: format === "png" ? 2 : 1, ...size });
}

export function chart(component) {
  const { data, parentElement, setStateValue } = component;
  const div = parentElement.querySelector(".telemetry-chart");
  if (!div || !data) return;
  div.setAttribute("aria-label", data.label);
  div.style.minHeight = data.height + "px";
  // With a timestamp, because an unchanged value is not sent, and the zoom may have changed elsewhere meanwhile.
  div.__say = (range) => setStateValue("view", { range, at: Date.now() });
  div.__pick = data.pickable ? (number) => setStateValue("picked", { number, at: Date.now() }) : null;

  const draw = (Plotly) => {
    const figure = JSON.parse(data.figure);
    const whole = document.fullscreenElement === div;
    dress(figure, parentElement, whole ? window.innerHeight - 24 : data.height, data.palettes);
    const wanted = div.__wanted;
    if (wanted) {
      const sent = figure.layout.xaxis.range || null;
      if (sameRange(sent, wanted.range) || Date.now() > wanted.until) {
        div.__wanted = null;
      } else if (wanted.range) {
        figure.layout.xaxis.range = wanted.range;
        figure.layout.xaxis.autorange = false;
      } else {
        delete figure.layout.xaxis.range;
      }
    }
    const config = {
      responsive: true,
      displaylogo: false,
      // Plotly's default includes a button that uploads the chart.
      showSendToCloud: false,
      plotlyServerURL: "",
      displayModeBar: onTouch() ? false : "hover",
      // The range that a chart starts with may be a zoom from a link.
      doubleClick: "autosize",
      modeBarButtonsToRemove: ["toImage", "select2d", "lasso2d", "resetScale2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
      modeBarButtonsToAdd: [
        { name: "png", title: "Save as PNG", icon: Plotly.Icons.camera, click: () => save(div, Plotly, data, "png") },
        { name: "svg", title: "Save as SVG", icon: VECTOR, click: () => save(div, Plotly, data, "svg") },
        { name: "full", title: "Full screen", icon: WHOLE_SCREEN, click: () => (document.fullscreenElement ? document.exitFullscreen() : div.requestFullscreen()) },
      ],
    };
    return Plotly.react(div, figure.data, figure.layout, config).then(() => {
      div.dataset.drawn = String(Number(div.dataset.drawn || 0) + 1);
      if (!div.__wired) { div.__wired = true; wire(div, Plotly, (range) => div.__say(range)); }
    });
  };
  div.onfullscreenchange = () => { div.__waiting = true; drawInTurn(div, data.src); };
  div.__draw = draw;
  const wanted = () => {
    div.__waiting = true;
    if (div.__visible) drawInTurn(div, data.src);
  };
  if (!div.__watch) {
    // Charts far below the fold are drawn when scrolled to, not at every refresh. The page scrolls inside
    // a box of its own, so scrollMargin is needed; an older browser draws a chart once it is visible.
    div.__watch = new IntersectionObserver((entries) => {
      div.__visible = entries[entries.length - 1].isIntersecting;
      if (div.__visible && div.__waiting) drawInTurn(div, data.src);
    }, { rootMargin: "1000px 0px", scrollMargin: "1000px 0px" });
    div.__watch.observe(div);
    // The theme can change without a message from the server.
    div.__theme = new MutationObserver(() => { if (div.__plotly) { div.__waiting = true; if (div.__visible) drawInTurn(div, data.src); } });
    div.__theme.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "style", "data-theme"] });
  }
  wanted();
  return () => {
    for (const name of ["__theme", "__watch"]) if (div[name]) { div[name].disconnect(); div[name] = null; }
    if (div.__plotly && div._fullLayout) div.__plotly.purge(div);
    div.__wired = false;
  };
}

// One chart at a time, yielding in between: the first is visible while the last is still being drawn.
let turn = Promise.resolve();
function drawInTurn(div, src) {
  turn = turn
    .then(() => loadPlotly(src))
    .then((Plotly) => {
      if (!div.__waiting || !div.isConnected) return undefined;
      div.__waiting = false;
      div.__plotly = Plotly;
      return div.__draw(Plotly);
    })
    .catch((error) => { div.textContent = "This chart could not be drawn: " + error.message; })
    .then(() => new Promise((resume) => { setTimeout(resume, 0); }));
}
