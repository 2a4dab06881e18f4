// Samples over the steps, in one of three layouts: of one run, of several runs side by side, or as a small strip.
// Text is never interpreted as markup; files come from our own server, which checks what they are.
const STEP = 0, PATH = 1, KIND = 2, CAPTION = 3, ABOUT = 4;
const PLAY_MS = 400, PLAY_FRAMES = 150, MAX_WAIT_MS = 4000, FIRST_SHOWN = 120;

const count = (number) => number.toLocaleString("en-US");
const stepText = (step) => (step === null ? "no step" : `step ${count(step)}`);

function urlOf(column, item, small) {
  return `${column.url}&path=${encodeURIComponent(item[PATH])}${small && item[KIND] === "image" ? "&small=1" : ""}`;
}

// ---------------------------------------------------------------- one file in a frame

function explain(frame, text) {
  frame.removeAttribute("aria-label");
  frame.replaceChildren(make("span", "telemetry-picture-problem", text));
}

async function fetchReason(frame, url) {
  let text = "This file could not be loaded.";
  try {
    const answer = await fetch(url);
    text = answer.ok ? "The browser cannot show this file." : (await answer.text()).trim().slice(0, 300) || text;
  } catch (_) { /* the server is gone, which the page says itself */ }
  if (frame.__url === url) explain(frame, text);
}

// The picture before stays until the new one has been decoded, so that nothing flickers while a slider moves.
function fill(frame, column, item, alt, { small = true, lazy = false, otherwise = "no sample yet" } = {}) {
  if (!item) {
    frame.__url = "";
    explain(frame, otherwise);
    return;
  }
  const url = urlOf(column, item, small);
  if (frame.__url === url) {
    const shown = frame.querySelector("img");
    if (shown) shown.alt = alt;
    return;
  }
  frame.__url = url;
  frame.__busy = null;
  if (item[KIND] === "image") {
    const image = new Image();
    image.alt = alt;
    image.decoding = "async";
    image.draggable = false;
    frame.__busy = url;
    // Until the image is there, which has the same name.
    frame.setAttribute("aria-label", alt);
    image.onload = () => {
      if (frame.__url !== url) return;
      frame.__busy = null;
      frame.removeAttribute("aria-label");
      // Small images are enlarged without blur.
      image.classList.toggle("telemetry-picture-pixels", image.naturalWidth < 256);
      if (!lazy) frame.replaceChildren(image);
    };
    image.onerror = () => {
      if (frame.__busy === url) frame.__busy = null;
      fetchReason(frame, url);
    };
    if (lazy) { image.loading = "lazy"; frame.replaceChildren(image); }
    image.src = url;
  } else if (item[KIND] === "audio" || item[KIND] === "video") {
    const media = document.createElement(item[KIND]);
    media.controls = true;
    media.preload = "metadata";
    media.setAttribute("aria-label", alt);
    media.onerror = () => fetchReason(frame, url);
    media.src = url;
    frame.replaceChildren(media);
  } else if (item[KIND] === "text") {
    fetch(url).then(async (answer) => {
      const text = await answer.text();
      if (frame.__url !== url) return;
      if (!answer.ok) { explain(frame, text.trim().slice(0, 300)); return; }
      const shown = make("pre", "", text);
      shown.tabIndex = 0;
      shown.dir = "auto";
      shown.setAttribute("aria-label", alt);
      frame.replaceChildren(shown);
    }).catch(() => explain(frame, "This file could not be loaded."));
  } else {
    explain(frame, item[PATH]);
  }
}

// ---------------------------------------------------------------- which sample belongs to a step

function allSteps(rows) {
  const found = new Set();
  for (const row of rows) for (const cell of row.cells) for (const item of cell) if (item[STEP] !== null) found.add(item[STEP]);
  return [...found].sort((a, b) => a - b);
}

// The newest one logged at or before the step; of equal steps the later one.
function placeAt(cell, step) {
  let best = -1;
  for (let place = 0; place < cell.length; place += 1) {
    const its = cell[place][STEP];
    if (step === null || its === null || its <= step) {
      if (best < 0 || its === null || cell[best][STEP] === null || its >= cell[best][STEP]) best = place;
    }
  }
  return best;
}

const altOf = (row, column, item) => [row.title, column.name, item ? stepText(item[STEP]) : ""].filter(Boolean).join(", ");

function pressable(text, label, act) {
  const button = make("button", "", text);
  button.setAttribute("aria-label", label);
  button.onclick = act;
  return button;
}

// ---------------------------------------------------------------- the large view

function openBox(root, state, rowAt, columnAt, placeNow) {
  const { data } = state;
  let box = root.querySelector("dialog");
  if (!box) {
    box = make("dialog", "telemetry-picture-box");
    const bar = make("div", "telemetry-picture-box-bar");
    const now = make("span", "telemetry-picture-box-now");
    now.setAttribute("aria-live", "polite");
    const previous = pressable("←", "Previous step", () => box.__move(0, -1)), next = pressable("→", "Next step", () => box.__move(0, 1));
    bar.append(now, previous, next, pressable("Close", "Close", () => box.close()));
    const frame = make("div", "telemetry-picture-frame");
    const text = make("p", "telemetry-picture-box-text");
    text.dir = "auto";
    box.append(bar, frame, text, make("p", "telemetry-picture-box-about"));
    box.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] }[event.key];
      // Keys in a player move inside it.
      if (!move || event.target.closest("audio, video")) return;
      event.preventDefault();
      event.stopPropagation();
      box.__move(...move);
    });
    box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
    root.appendChild(box);
  }
  let [row, column, place] = [rowAt, columnAt, placeNow];
  const show = () => {
    const cell = data.rows[row].cells[column], item = cell[place];
    const [now, previous, next] = box.firstChild.children;
    fill(box.children[1], data.columns[column], item, altOf(data.rows[row], data.columns[column], item), { small: false });
    now.textContent = [data.columns[column].name, stepText(item[STEP]), `${count(place + 1)} of ${count(cell.length)}`].filter(Boolean).join(" · ");
    previous.disabled = place === 0;
    next.disabled = place === cell.length - 1;
    box.children[2].textContent = [data.rows[row].title, data.rows[row].name, item[CAPTION]].filter(Boolean).join("\n");
    box.children[3].textContent = [item[ABOUT], item[PATH]].filter(Boolean).join(" · ");
    box.setAttribute("aria-label", `Sample, ${altOf(data.rows[row], data.columns[column], item)}`);
    const ahead = cell[place + 1];
    if (ahead && ahead[KIND] === "image") new Image().src = urlOf(data.columns[column], ahead, false);
  };
  box.__move = (rows, places) => {
    if (rows) {
      const step = data.rows[row].cells[column][place][STEP];
      // Up and down change the prompt, and in a comparison first the run.
      const order = data.rows.flatMap((one, r) => one.cells.map((cell, c) => [r, c, cell])).filter((one) => one[2].length);
      const at = order.findIndex((one) => one[0] === row && one[1] === column) + rows;
      if (at < 0 || at >= order.length) return;
      [row, column] = order[at];
      place = Math.max(0, placeAt(order[at][2], step));
    } else {
      place = Math.min(Math.max(0, place + places), data.rows[row].cells[column].length - 1);
    }
    show();
  };
  show();
  if (!box.open) box.showModal();
}

// ---------------------------------------------------------------- tiles

function tile(root, state, rowAt, columnAt, { small = true } = {}) {
  const { data } = state;
  const row = data.rows[rowAt], cell = row.cells[columnAt];
  const box = make("figure", "telemetry-picture");
  // A player or a text has its own keys; a picture opens the large view.
  const opens = cell.every((item) => item[KIND] === "image");
  const frame = make(opens ? "button" : "div", `telemetry-picture-frame${opens ? " telemetry-picture-open" : ""}`);
  const caption = make("figcaption", "telemetry-picture-caption");
  caption.dir = "auto";
  box.append(frame, caption);
  return { box, frame, caption, row, cell, rowAt, columnAt, small, opens, place: -1 };
}

function setTile(root, state, shown, place, words) {
  const { data } = state;
  shown.place = place;
  const item = place < 0 ? null : shown.cell[place];
  const column = data.columns[shown.columnAt];
  const otherwise = shown.cell.length ? `no sample yet, the first is at ${stepText(shown.cell[0][STEP])}` : "no sample";
  fill(shown.frame, column, item, altOf(shown.row, column, item), { small: shown.small, otherwise });
  shown.caption.replaceChildren(...words(item));
  if (shown.opens) {
    shown.frame.disabled = !item;
    shown.frame.onclick = () => openBox(root, state, shown.rowAt, shown.columnAt, shown.place);
  }
}

function bold(text) { return make("b", "", text); }

// ---------------------------------------------------------------- the slider and play

function bar(root, state) {
  const { steps } = state;
  const line = make("div", "telemetry-pictures-bar");
  line.setAttribute("role", "group");
  line.setAttribute("aria-label", "Step of the samples");
  const go = (at) => { stop(state); state.moveTo(at); root.__keep(state); };
  const play = make("button", "telemetry-pictures-play", "▶ Play");
  const previous = pressable("‹", "Previous step", () => go(state.at - 1)), next = pressable("›", "Next step", () => go(state.at + 1));
  const slider = make("input");
  slider.type = "range";
  slider.min = 0;
  slider.max = Math.max(0, steps.length - 1);
  slider.step = 1;
  slider.setAttribute("aria-label", "Step");
  const now = make("output", "telemetry-pictures-now");
  line.append(play, previous, slider, next, now);
  const many = steps.length > 1;
  for (const part of [play, previous, next, slider]) part.hidden = !many;

  state.onStep.push(() => {
    slider.value = state.at;
    slider.setAttribute("aria-valuetext", stepText(steps[state.at] ?? null));
    now.textContent = steps.length ? `${stepText(steps[state.at])} · ${count(state.at + 1)} of ${count(steps.length)}` : "logged without a step";
    previous.disabled = state.at <= 0;
    next.disabled = state.at >= steps.length - 1;
    play.textContent = state.timer ? "⏸ Pause" : "▶ Play";
    play.setAttribute("aria-pressed", String(Boolean(state.timer)));
  });
  slider.oninput = () => go(Number(slider.value));
  play.onclick = () => {
    if (state.timer) { go(state.at); return; }
    let waited = 0;
    const tick = () => {
      const busy = [...root.querySelectorAll(".telemetry-picture-frame")].some((frame) => frame.__busy);
      if (busy && waited < MAX_WAIT_MS) { waited += PLAY_MS; state.timer = setTimeout(tick, PLAY_MS); return; }
      waited = 0;
      if (state.at >= steps.length - 1 || !root.isConnected) { go(state.at); return; }
      state.timer = setTimeout(tick, PLAY_MS);
      // Of thousands of steps not every one is shown: a minute is long enough.
      state.moveTo(state.at + Math.ceil(steps.length / PLAY_FRAMES));
    };
    const from = state.at >= steps.length - 1 ? 0 : state.at;
    state.timer = setTimeout(tick, PLAY_MS);
    state.moveTo(from);
  };
  return line;
}

function stop(state) {
  clearTimeout(state.timer);
  state.timer = null;
}

// ---------------------------------------------------------------- layouts

function drawRun(root, state) {
  const { data, steps } = state;
  if (data.view === "all") return data.rows.map((row, rowAt) => drawAll(root, state, row, rowAt));
  const grid = make("div", `telemetry-pictures-grid${data.rows.length < 3 ? " telemetry-pictures-few" : ""}`);
  const tiles = data.rows.map((_, rowAt) => tile(root, state, rowAt, 0));
  grid.append(...tiles.map((shown) => shown.box));
  state.onStep.push(() => {
    const step = steps[state.at] ?? null;
    for (const shown of tiles) {
      setTile(root, state, shown, placeAt(shown.cell, step), (item) => {
        const words = [bold(shown.row.title)];
        if (item && item[CAPTION]) words.push(document.createTextNode(` ${item[CAPTION]}`));
        if (item && item[STEP] !== step) words.push(document.createTextNode(` · ${stepText(item[STEP])}`));
        if (item && item[ABOUT]) words.push(make("span", "telemetry-picture-about", item[ABOUT]));
        return words;
      });
    }
  });
  return [bar(root, state), grid];
}

// Evenly spaced ones first; the rest at a click.
function spread(cell) {
  const places = cell.map((_, place) => place);
  if (cell.length <= FIRST_SHOWN) return places;
  return [...Array(FIRST_SHOWN)].map((_, turn) => Math.round(turn * (cell.length - 1) / (FIRST_SHOWN - 1)));
}

function drawAll(root, state, row, rowAt) {
  const cell = row.cells[0], column = state.data.columns[0];
  const section = make("section", "telemetry-pictures-row");
  const title = make("h2", "telemetry-pictures-title", `${row.title} `);
  title.dir = "auto";
  const number = cell.length === 1 ? "1 sample" : `${count(cell.length)} samples`;
  const isPart = cell.length > FIRST_SHOWN && !state.whole.has(row.title);
  title.appendChild(make("span", "", isPart ? `${FIRST_SHOWN} of ${number}, evenly spread` : number));
  const grid = make("div", "telemetry-pictures-grid telemetry-pictures-all");
  for (const place of isPart ? spread(cell) : cell.map((_, at) => at)) {
    const item = cell[place];
    const shown = tile(root, state, rowAt, 0);
    fill(shown.frame, column, item, altOf(row, column, item), { lazy: true });
    shown.caption.append([stepText(item[STEP]), item[CAPTION]].filter(Boolean).join(" · "));
    if (shown.opens) shown.frame.onclick = () => openBox(root, state, rowAt, 0, place);
    grid.appendChild(shown.box);
  }
  section.append(title, grid);
  if (isPart) {
    const more = make("button", "", `Show all ${number}`);
    more.style.alignSelf = "start";
    more.onclick = () => {
      state.whole.add(row.title);
      section.replaceWith(drawAll(root, state, row, rowAt));
    };
    section.appendChild(more);
  }
  return section;
}

function drawStrip(root, state) {
  const { data, steps } = state;
  const now = make("div", "telemetry-pictures-now");
  const grid = make("div", "telemetry-pictures-grid telemetry-pictures-strip");
  const tiles = data.rows.map((_, rowAt) => tile(root, state, rowAt, 0));
  grid.append(...tiles.map((shown) => shown.box));
  state.onStep.push(() => {
    const step = steps[state.at] ?? null;
    now.textContent = step === null ? "logged without a step" : `at ${stepText(step)}`;
    for (const shown of tiles) {
      setTile(root, state, shown, placeAt(shown.cell, step), (item) => [
        document.createTextNode(shown.row.title + (item && item[STEP] !== step ? ` · ${stepText(item[STEP])}` : ""))]);
    }
  });
  return [now, grid];
}

function drawCompare(root, state) {
  const { data, steps } = state;
  const line = bar(root, state);
  const wipe = make("button", "", "Wipe A | B");
  wipe.setAttribute("aria-pressed", String(state.isWipe));
  wipe.onclick = () => { state.isWipe = !state.isWipe; draw(root, state); root.querySelector("[data-wipe]").focus(); };
  wipe.dataset.wipe = "1";
  if (data.columns.length > 1) line.appendChild(wipe);
  return state.isWipe ? [line, ...drawWipe(root, state)] : [line, ...drawSides(root, state, steps)];
}

function drawSides(root, state, steps) {
  const { data } = state;
  const tiles = [];
  const rows = data.rows.map((row, rowAt) => {
    const section = make("section", "telemetry-pictures-row");
    const title = make("h3", "telemetry-pictures-title", row.title);
    title.dir = "auto";
    const grid = make("div", "telemetry-pictures-grid telemetry-pictures-runs");
    grid.style.setProperty("--columns", data.columns.length);
    data.columns.forEach((_, columnAt) => {
      const shown = tile(root, state, rowAt, columnAt);
      tiles.push(shown);
      grid.appendChild(shown.box);
    });
    section.append(title, grid);
    return section;
  });
  state.onStep.push(() => {
    const step = steps[state.at] ?? null;
    for (const shown of tiles) {
      setTile(root, state, shown, placeAt(shown.cell, step), (item) => [
        bold(data.columns[shown.columnAt].name), document.createTextNode(item ? ` · ${stepText(item[STEP])}` : "")]);
    }
  });
  return rows;
}

function drawWipe(root, state) {
  const { data, steps } = state;
  const choose = make("div", "telemetry-pictures-bar");
  const sides = ["A", "B"].map((side, number) => {
    const label = make("label", "", `${side} `);
    const select = make("select");
    data.columns.forEach((column, at) => {
      const option = make("option", "", column.name);
      option.value = at;
      select.appendChild(option);
    });
    select.value = state.sides[number];
    select.onchange = () => { state.sides[number] = Number(select.value); draw(root, state); };
    label.appendChild(select);
    return label;
  });
  const edge = make("input");
  edge.type = "range";
  edge.min = 0;
  edge.max = 100;
  edge.setAttribute("aria-label", "Edge between A and B, in percent of the width");
  choose.append(...sides, edge);
  const grid = make("div", "telemetry-pictures-grid");
  const move = (percent) => {
    state.edge = Math.min(100, Math.max(0, percent));
    edge.value = state.edge;
    grid.style.setProperty("--wipe", `${state.edge}%`);
  };
  edge.oninput = () => move(Number(edge.value));
  const shared = data.rows.filter((row) => state.sides.every((column) => row.cells[column].length));
  if (!shared.length) return [choose, make("p", "telemetry-picture-caption", "These two runs have no prompt in common.")];
  const pairs = shared.map((row) => {
    const box = make("figure", "telemetry-picture");
    const frame = make("div", "telemetry-picture-frame telemetry-picture-wipe");
    const layers = state.sides.map(() => make("div", "telemetry-picture-frame"));
    const marks = ["A", "B"].map((side, number) => {
      const mark = make("span", "telemetry-picture-side", side);
      mark.style[number ? "right" : "left"] = "0.3rem";
      return mark;
    });
    frame.append(...layers, ...marks);
    frame.onpointermove = (event) => {
      const place = frame.getBoundingClientRect();
      if (event.pointerType === "mouse" || event.buttons) move(100 * (event.clientX - place.left) / place.width);
    };
    const caption = make("figcaption", "telemetry-picture-caption");
    caption.dir = "auto";
    box.append(frame, caption);
    grid.appendChild(box);
    return { row, layers, caption };
  });
  move(state.edge);
  state.onStep.push(() => {
    const step = steps[state.at] ?? null;
    for (const { row, layers, caption } of pairs) {
      const items = state.sides.map((column) => row.cells[column][placeAt(row.cells[column], step)]);
      layers.forEach((layer, number) => {
        const column = data.columns[state.sides[number]];
        fill(layer, column, items[number], altOf(row, column, items[number]), { small: false });
      });
      const when = items.map((item, number) => `${"AB"[number]} ${item ? stepText(item[STEP]) : "no sample"}`);
      caption.replaceChildren(bold(row.title), document.createTextNode(` · ${when.join(", ")}`));
    }
  });
  return [choose, grid];
}

// ---------------------------------------------------------------- everything

function draw(root, state) {
  const { data } = state;
  state.onStep = [];
  const box = root.querySelector("dialog");
  const parts = { run: drawRun, compare: drawCompare, strip: drawStrip }[data.layout](root, state);
  root.replaceChildren(...parts, ...(box ? [box] : []));
  state.moveTo(state.at);
}

export function pictures(component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".telemetry-pictures");
  if (!root || !data) return undefined;
  const before = root.__state;
  // The link has the step at which a user has stopped, not those on the way; the newest one is not named.
  root.__keep = (state) => {
    clearTimeout(root.__keeping);
    root.__keeping = setTimeout(() => {
      const step = state.at >= state.steps.length - 1 ? null : state.steps[state.at];
      if (state.timer || step === root.__kept) return;
      root.__kept = step;
      setStateValue("step", { at: step, moved: Date.now() });
    }, 400);
  };
  if (root.__kept === undefined) root.__kept = data.at ?? null;
  const drawn = data.revision;
  if (!before || before.drawn !== drawn) {
    const steps = allSteps(data.rows);
    // At the newest step it follows the run; elsewhere it stays at its step.
    const linked = !before && typeof data.at === "number";
    const follows = !linked && (!before || before.at >= before.steps.length - 1);
    const kept = linked ? data.at : before && before.steps[before.at];
    const found = follows ? steps.length - 1 : steps.findLastIndex((step) => step <= kept);
    const state = {
      data, drawn, steps, at: Math.max(0, found), timer: null, onStep: [], whole: before ? before.whole : new Set(),
      isWipe: Boolean(before && before.isWipe), edge: before ? before.edge : 50,
      sides: (before ? before.sides : [0, 1]).map((side) => Math.min(side, data.columns.length - 1)),
    };
    state.moveTo = (at) => {
      state.at = Math.min(Math.max(0, at), Math.max(0, steps.length - 1));
      for (const act of state.onStep) act();
      root.dataset.step = String(steps[state.at] ?? "");
    };
    const wasPlaying = Boolean(before && before.timer);
    if (before) stop(before);
    root.__state = state;
    // A large view that is open keeps its picture; its keys know the new samples once it is opened again.
    draw(root, state);
    if (wasPlaying && !follows) root.querySelector(".telemetry-pictures-play")?.click();
    root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1);
  }
  if (data.layout === "strip" && !root.__cursor) {
    root.__cursor = (event) => {
      const { data: now, steps, moveTo } = root.__state, { x, group } = event.detail;
      if (!root.isConnected || (typeof x === "number" && (group !== now.follows || curveView.axis !== "step"))) return;
      moveTo(typeof x === "number" ? steps.findLastIndex((step) => step <= x) : steps.length - 1);
    };
    window.addEventListener("telemetry-cursor", root.__cursor);
  }
  return () => {
    if (root.__state) stop(root.__state);
    if (root.__cursor) { window.removeEventListener("telemetry-cursor", root.__cursor); root.__cursor = null; }
  };
}
