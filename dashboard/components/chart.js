// Updates a Plotly figure in place: zoom, hidden curves and hover are kept while the data changes.
// A chart keeps the library that drew it: another page may have loaded one with more kinds of charts.
const libraries = (window.__telemetryPlotly ||= {});
function loadPlotly(src) {
  return (libraries[src] ||= new Promise((resolve, reject) => {
    const failed = () => {
      delete libraries[src];
      reject(new Error("plotly.js could not be loaded from " + src));
    };
    // The page may already have loaded it, or be loading it; a second script element would run it twice.
    const begun = document.querySelector(`script[src="${src}"]`);
    if (begun && begun.dataset.loaded) {
      resolve(window.Plotly);
      return;
    }
    const script = begun || document.createElement("script");
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", failed);
    if (!begun) {
      script.src = src;
      document.head.appendChild(script);
    }
  }));
}

function isDark(color) {
  const parts = (color.match(/[\d.]+/g) || []).map(Number);
  if (parts.length < 3) return false;
  return parts[0] * 0.299 + parts[1] * 0.587 + parts[2] * 0.114 < 128;
}

function toRgb(color) {
  const probe = document.createElement("span");
  probe.style.color = color;
  document.body.appendChild(probe);
  const rgb = getComputedStyle(probe).color;
  probe.remove();
  return rgb;
}

// "@series-0/0.3" is a colour by its meaning, which the theme defines. Replaced only where a colour is expected: a
// metric may have such a name, or the name of an object property.
function paint(value, palette, isColor = false) {
  if (typeof value === "string") {
    if (!isColor || value[0] !== "@") return value;
    const [name, opacity] = value.slice(1).split("/");
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

function dress(figure, element, height, palettes) {
  const style = getComputedStyle(element);
  const read = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const background = read("--st-background-color", "#ffffff");
  const text = read("--st-text-color", style.color);
  const border = read("--st-border-color", "#d9dee4");
  const palette = palettes[isDark(toRgb(background)) ? "dark" : "light"];
  paint(figure.data, palette);
  paint(figure.layout, palette);
  const layout = figure.layout;
  layout.height = height;
  layout.autosize = true;
  layout.font = { family: read("--st-font", style.fontFamily), color: text, size: 12 };
  layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
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
  // Samples on the page follow the cursor.
  const sendCursor = (x) => window.dispatchEvent(new CustomEvent("telemetry-cursor", { detail: { x, group: div.dataset.group } }));
  let timer = null;
  const numbers = (range) => range.map((edge) => div._fullLayout.xaxis.r2l(edge));
  const siblings = () => [...document.querySelectorAll(".telemetry-chart")]
    .filter((other) => other !== div && other._fullLayout && other.dataset.group === div.dataset.group);

  div.on("plotly_relayout", (event) => {
    if (div.__following) return;
    let range;
    if ("xaxis.range[0]" in event) range = numbers([event["xaxis.range[0]"], event["xaxis.range[1]"]]);
    else if ("xaxis.range" in event) range = numbers(event["xaxis.range"]);
    else if (event["xaxis.autorange"]) range = null;
    else return;
    // Until the server has answered, figures for the previous view must not undo this one.
    div.__wanted = { range, until: Date.now() + 6000 };
    for (const other of siblings()) {
      other.__following = true;
      other.__wanted = div.__wanted;
      const change = range ? { "xaxis.range": range } : { "xaxis.autorange": true };
      Plotly.relayout(other, change).finally(() => { other.__following = false; });
    }
    clearTimeout(timer);
    timer = setTimeout(() => say(range), 180);
  });

  div.on("plotly_hover", (event) => {
    if (!event.points || !event.points.length || div.__following) return;
    const xval = div._fullLayout.xaxis.d2l(event.points[0].x);
    sendCursor(xval);
    for (const other of siblings()) {
      if (other._fullLayout.xaxis.type !== div._fullLayout.xaxis.type) continue;
      try { other.__following = true; Plotly.Fx.hover(other, { xval }, ["xy"]); } catch (_) { /* nothing drawn there yet */ } finally { other.__following = false; }
    }
  });
  div.on("plotly_click", (event) => {
    const point = event.points && event.points[0];
    if (div.__pick && point && Array.isArray(point.customdata)) div.__pick(point.customdata[0]);
  });
  div.on("plotly_unhover", () => {
    sendCursor(null);
    for (const other of siblings()) { try { Plotly.Fx.unhover(other); } catch (_) { /* nothing drawn there yet */ } }
  });
}

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  const div = parentElement.querySelector(".telemetry-chart");
  if (!div || !data) return;
  div.dataset.group = data.group;
  div.setAttribute("aria-label", data.label);
  div.style.minHeight = data.height + "px";
  // With a timestamp, because an unchanged value is not sent, and the zoom may have changed elsewhere meanwhile.
  div.__say = (range) => setStateValue("view", { range, at: Date.now() });
  div.__pick = data.pickable ? (number) => setStateValue("picked", { number, at: Date.now() }) : null;

  const draw = (Plotly) => {
    const figure = JSON.parse(data.figure);
    dress(figure, parentElement, data.height, data.palettes);
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
      displayModeBar: "hover",
      // Not "reset": that returns to the initial range, which may be a zoom from a link.
      doubleClick: "autosize",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "resetScale2d", "zoomIn2d", "zoomOut2d"],
      toImageButtonOptions: { format: "png", filename: data.name, scale: 2 },
    };
    return Plotly.react(div, figure.data, figure.layout, config).then(() => {
      div.dataset.drawn = String(Number(div.dataset.drawn || 0) + 1);
      if (!div.__wired) { div.__wired = true; wire(div, Plotly, (range) => div.__say(range)); }
    });
  };
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
