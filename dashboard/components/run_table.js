// The table of runs: links, colours, sorting, columns that are moved, resized and pinned. Text is never markup.
const SPACE = "http://www.w3.org/2000/svg";

function drawingOf(viewBox, shapes) {
  const drawing = document.createElementNS(SPACE, "svg");
  drawing.setAttribute("viewBox", viewBox);
  drawing.setAttribute("aria-hidden", "true");
  for (const [name, attributes] of shapes) {
    const shape = drawing.appendChild(document.createElementNS(SPACE, name));
    for (const [attribute, value] of Object.entries(attributes)) shape.setAttribute(attribute, value);
  }
  return drawing;
}

function sparkOf(values) {
  const low = Math.min(...values), span = Math.max(...values) - low;
  const points = values.map((value, i) =>
    `${((i / (values.length - 1)) * 100).toFixed(1)},${(span > 0 ? 22 - ((value - low) / span) * 20 : 12).toFixed(1)}`).join(" ");
  const drawing = drawingOf("0 0 100 24", [["polyline", { points, "vector-effect": "non-scaling-stroke" }]]);
  drawing.setAttribute("preserveAspectRatio", "none");
  return drawing;
}

function fillCell(cell, column, value) {
  if (value === null || value === "" || value === undefined) return;
  if (column.kind === "progress" && typeof value !== "string") {
    const [part, text] = Array.isArray(value) ? value : [value, null];
    const share = Math.round(Math.min(1, Math.max(0, part)) * 100);
    const bar = make("span", "trt-bar");
    bar.appendChild(make("span", "")).style.width = `${share}%`;
    cell.append(bar, make("span", "trt-share", text ?? `${share} %`));
  } else if (column.kind === "spark") {
    if (value.length > 1) cell.appendChild(sparkOf(value));
  } else if (column.kind === "badge") {
    const [text, tone] = value;
    cell.appendChild(make("span", `telemetry-badge telemetry-badge-${tone}`, text));
    cell.title = text;
  } else if (column.kind === "tags") {
    for (const tag of value) cell.appendChild(make("span", "trt-tag", tag));
  } else {
    cell.textContent = value;
    cell.title = value;
  }
}

// An eye, open or crossed out, that hides the curve of a row in all charts of the page.
function eyeOf(row) {
  const button = make("button", "trt-eye");
  button.setAttribute("aria-label", `Show ${row.name} in the charts`);
  const eye = "M2 12s4-7 10-7 10 7 10 7-4 7-10 7S2 12 2 12zM12 9a3 3 0 1 1 0 6 3 3 0 0 1 0-6z";
  button.appendChild(drawingOf("0 0 24 24", [["path", { d: eye }], ["path", { class: "trt-cross", d: "M4 20 20 4" }]]));
  return button;
}

// A dot in the colour of the curve, or for one that is not solid a piece of its line.
function lookOf(row) {
  if (!row.dash || row.dash === "solid") {
    const dot = make("span", "trt-dot");
    dot.dataset.colour = row.colour;
    return dot;
  }
  const dashes = { dash: "6 3", dot: "2 3", dashdot: "7 2 2 2" }[row.dash] || row.dash.replaceAll("px", "").replaceAll(",", " ");
  const drawing = drawingOf("0 0 22 4", [["path", { d: "M0 2H22", "stroke-dasharray": dashes }]]);
  drawing.classList.add("trt-line");
  drawing.dataset.colour = row.colour;
  return drawing;
}

function nameCell(cell, row, send) {
  if (typeof row.hidden === "boolean") cell.appendChild(eyeOf(row));
  if (row.colour) cell.appendChild(lookOf(row));
  if (!row.href) {
    cell.appendChild(make("span", "", row.name));
    return;
  }
  const link = make("a", "trt-link", row.name);
  link.href = row.href;
  link.title = row.folder || row.name;
  link.onclick = (event) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    // Within the tab the page is only exchanged; a new tab loads the address.
    event.preventDefault();
    if (row.href.startsWith("?")) send("opened", { key: row.key });
    else follow(row.href);
  };
  cell.appendChild(link);
  if (typeof row.star === "boolean") {
    const star = make("button", "trt-star", row.star ? "★" : "☆");
    star.title = row.star ? "The baseline of its project" : "Make it the baseline of its project";
    star.setAttribute("aria-label", `${row.name} as the baseline`);
    star.setAttribute("aria-pressed", String(row.star));
    star.onclick = () => send("starred", { key: row.key });
    cell.appendChild(star);
  }
  if (row.also) cell.appendChild(make("span", "trt-also", row.also));
}

function drawRow(row, columns, selectable, send) {
  const line = make("tr", row.best ? "trt-best" : "");
  line.dataset.key = row.key;
  if (selectable) {
    const cell = make("td", "trt-pick");
    const box = make("input");
    box.type = "checkbox";
    box.setAttribute("aria-label", `Select ${row.name}`);
    cell.appendChild(box);
    line.appendChild(cell);
  }
  columns.forEach((column, i) => {
    const cell = make("td", `trt-${column.kind}`);
    if (column.phone) cell.classList.add("trt-phone");
    cell.dataset.label = column.label;
    if (column.kind === "name") nameCell(cell, row, send);
    else fillCell(cell, column, row.cells[i]);
    if (column.main) cell.classList.add("trt-main");
    line.appendChild(cell);
  });
  return line;
}

function drawHead(data, table, send) {
  const head = make("tr");
  if (data.selectable) {
    const cell = make("th", "trt-pick");
    cell.scope = "col";
    const box = make("input");
    box.type = "checkbox";
    box.className = "trt-all";
    box.setAttribute("aria-label", "Select all rows shown");
    cell.appendChild(box);
    head.appendChild(cell);
  }
  for (const column of data.columns) {
    const cell = make("th", `trt-${column.kind}`);
    cell.scope = "col";
    cell.dataset.id = column.id;
    if (column.help) cell.title = column.help;
    const isUp = column.sorts && data.sort === column.sorts[0], isDown = column.sorts && data.sort === column.sorts[1];
    if (column.sorts) {
      const button = make("button", "trt-sort", column.label);
      button.onclick = () => send("sorted", { by: isUp ? column.sorts[1] : column.sorts[0] });
      if (isUp || isDown) {
        button.appendChild(make("span", "trt-arrow", (isUp ? column.sorts[0] : column.sorts[1]).startsWith("-") ? "▾" : "▴"));
        cell.setAttribute("aria-sort", (isUp ? column.sorts[0] : column.sorts[1]).startsWith("-") ? "descending" : "ascending");
      }
      cell.appendChild(button);
    } else cell.appendChild(make("span", "", column.label));
    if (data.selectable && column.kind !== "name") {
      const pin = make("button", "trt-pin", column.pinned ? "◧" : "◫");
      pin.title = column.pinned ? "Unpin this column" : "Pin this column to the left";
      pin.setAttribute("aria-label", `${pin.title}: ${column.label}`);
      pin.setAttribute("aria-pressed", String(Boolean(column.pinned)));
      pin.onclick = () => send("columns", { pin: column.id });
      cell.appendChild(pin);
      cell.draggable = true;
      cell.ondragstart = (event) => { event.dataTransfer.setData("text/plain", column.id); table.__moving = column.id; };
      cell.ondragover = (event) => { if (table.__moving) event.preventDefault(); };
      cell.ondrop = (event) => {
        event.preventDefault();
        if (table.__moving && table.__moving !== column.id) send("columns", { move: table.__moving, before: column.id });
        table.__moving = null;
      };
    }
    head.appendChild(cell);
  }
  return head;
}

// Pinned columns stay at the left: each after those before it.
function place(table) {
  const head = table.tHead.rows[0];
  if (!head) return;
  const pinned = Number(table.dataset.pinned);
  const lefts = [];
  let left = 0;
  for (let i = 0; i < pinned && i < head.cells.length; i += 1) { lefts.push(left); left += head.cells[i].offsetWidth; }
  const narrow = left > table.parentElement.clientWidth * 0.6;
  table.classList.toggle("trt-no-pins", narrow);
  lefts.forEach((value, i) => table.style.setProperty(`--trt-left-${i}`, `${value}px`));
}

export function run_table(component) {
  const { data, parentElement, setStateValue } = component;
  const frame = parentElement.querySelector(".trt");
  if (!frame || !data) return undefined;
  const send = (name, value) => setStateValue(name, { ...value, at: Date.now() });
  const table = frame.querySelector("table");
  table.setAttribute("aria-label", data.label);
  frame.classList.toggle("trt-facts", Boolean(data.facts));
  frame.classList.toggle("trt-runs", !data.facts);
  frame.classList.toggle("trt-compact", Boolean(data.compact));
  const shape = JSON.stringify([data.columns, data.sort, data.selectable]);
  const isSame = table.dataset.shape === shape;
  if (!isSame) {
    table.dataset.shape = shape;
    table.tHead.replaceChildren(drawHead(data, table, send));
    const first = data.selectable ? 1 : 0;
    const pinned = first + data.columns.filter((column) => column.pinned).length;
    table.dataset.pinned = String(pinned);
    let style = "";
    for (let i = 1; i <= pinned; i += 1) {
      style += `.trt table:not(.trt-no-pins) tr > :nth-child(${i}) { position: sticky; left: var(--trt-left-${i - 1}, 0); z-index: 1; } .trt table:not(.trt-no-pins) tr > th:nth-child(${i}) { z-index: 3 !important; }`;
    }
    frame.querySelector("style").textContent = `@media (min-width: 641px) { ${style} }`;
  }
  const body = table.tBodies[0];
  const before = new Map(isSame ? [...body.rows].map((line) => [line.dataset.text, line]) : []);
  const lines = data.rows.map((row) => {
    const text = JSON.stringify(row);
    const line = before.get(text) || drawRow(row, data.columns, data.selectable, send);
    line.dataset.text = text;
    return line;
  });
  const isUnchanged = lines.length === body.rows.length && lines.every((line, i) => line === body.rows[i]);
  if (!isUnchanged) {
    const active = document.activeElement, key = body.contains(active) ? active.closest("tr").dataset.key : null;
    const part = key && active.tagName;
    const top = frame.scrollTop;
    body.replaceChildren(...lines);
    frame.scrollTop = top;
    const again = key && [...body.rows].find((line) => line.dataset.key === key);
    if (again) { const focus = again.querySelector(part.toLowerCase()); if (focus) focus.focus({ preventScroll: true }); }
  }
  const paint = () => {
    const palette = data.palettes[standsOnDark(parentElement) ? "dark" : "light"];
    for (const dot of body.querySelectorAll(".trt-dot, .trt-line")) {
      dot.style.color = dot.dataset.colour.startsWith("#") ? dot.dataset.colour : palette[dot.dataset.colour] || palette.muted;
    }
  };
  paint();
  if (frame.__theme) frame.__theme.disconnect();
  frame.__theme = new MutationObserver(paint);
  frame.__theme.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "style", "data-theme"] });

  // Until the server has answered, an older selection must not undo this one.
  const waiting = frame.__picked;
  const isAnswered = waiting && (waiting.at <= data.picked_at || Date.now() > waiting.at + 6000);
  if (isAnswered) frame.__picked = null;
  let picked = new Set(frame.__picked ? frame.__picked.keys : data.picked);
  const mark = () => {
    let here = 0;
    for (const line of body.rows) {
      const box = line.querySelector("input");
      if (!box) continue;
      box.checked = picked.has(line.dataset.key);
      here += box.checked;
      line.classList.toggle("trt-picked", box.checked);
    }
    const all = table.tHead.querySelector(".trt-all");
    if (all) { all.checked = here > 0 && here === body.rows.length; all.indeterminate = here > 0 && here < body.rows.length; }
  };
  mark();
  const choose = () => {
    const keys = [...picked], at = Date.now();
    frame.__picked = { keys, at };
    mark();
    setStateValue("picked", { keys, at });
  };
  // Curves are hidden at once; the server keeps them in the link and for reports.
  const eyes = data.rows.filter((row) => typeof row.hidden === "boolean");
  if (eyes.length && (!frame.__hidden || Date.now() > frame.__hidden.until)) frame.__hidden = { keys: new Set(eyes.filter((row) => row.hidden).map((row) => row.key)), until: 0 };
  const look = () => {
    for (const line of body.rows) {
      const eye = line.querySelector(".trt-eye"), isHidden = frame.__hidden.keys.has(line.dataset.key);
      if (!eye) continue;
      eye.setAttribute("aria-pressed", String(!isHidden));
      eye.title = isHidden ? "Show this curve" : "Hide this curve; with Shift, all others";
      line.classList.toggle("trt-hidden", isHidden);
    }
    hideCurves(frame.__hidden.keys);
  };
  if (eyes.length) look();
  const toggle = (eye, isAlone) => {
    const key = eye.closest("tr").dataset.key, keys = frame.__hidden.keys;
    const others = eyes.map((row) => row.key).filter((other) => other !== key);
    if (isAlone) {
      const isDone = !keys.has(key) && others.every((other) => keys.has(other));
      keys.clear();
      if (!isDone) for (const other of others) keys.add(other);
    } else if (!keys.delete(key)) keys.add(key);
    frame.__hidden.until = Date.now() + 4000;
    look();
    send("hidden", { keys: [...keys] });
  };
  body.onclick = (event) => {
    const eye = event.target.closest(".trt-eye");
    if (eye) { toggle(eye, event.shiftKey); return; }
    const cell = event.target.closest("td.trt-pick");
    if (!cell) return;
    const line = cell.closest("tr"), box = cell.querySelector("input");
    if (event.target !== box) box.checked = !box.checked;
    const lineNumber = [...body.rows].indexOf(line);
    const from = event.shiftKey && frame.__last !== undefined ? Math.min(frame.__last, lineNumber) : lineNumber;
    const to = event.shiftKey && frame.__last !== undefined ? Math.max(frame.__last, lineNumber) : lineNumber;
    for (const one of [...body.rows].slice(from, to + 1)) {
      if (box.checked) picked.add(one.dataset.key); else picked.delete(one.dataset.key);
    }
    frame.__last = lineNumber;
    choose();
  };
  // Charts on the page highlight the curve of the run.
  const highlight = (run) => window.dispatchEvent(new CustomEvent("telemetry-highlight", { detail: { run } }));
  body.onpointerover = (event) => highlight(event.target.closest("tr")?.dataset.key ?? null);
  body.onpointerleave = () => highlight(null);
  const all = table.tHead.querySelector(".trt-all");
  if (all) all.onclick = () => {
    picked = new Set(all.checked ? [...picked, ...[...body.rows].map((line) => line.dataset.key)] : []);
    choose();
  };
  frame.onscroll = () => {
    const isNearEnd = frame.scrollTop + frame.clientHeight > frame.scrollHeight - 400;
    if (data.rows.length < data.total && isNearEnd && frame.__asked !== data.rows.length) {
      frame.__asked = data.rows.length;
      send("more", { rows: data.rows.length });
    }
  };
  const more = frame.querySelector(".trt-more");
  more.hidden = data.rows.length >= data.total;
  more.textContent = `Show more (${data.total - data.rows.length})`;
  more.onclick = () => send("more", { rows: data.rows.length });
  place(table);
  frame.dataset.drawn = String(Number(frame.dataset.drawn || 0) + 1);
  return () => {
    if (frame.__theme) { frame.__theme.disconnect(); frame.__theme = null; }
    // Without its table, a page hides nothing.
    if (eyes.length && !frame.isConnected) hideCurves(new Set());
  };
}

// What the server has put into a first screen is drawn by the same code as the table that follows; its links load a page.
for (const box of document.querySelectorAll(".telemetry-first [data-table]")) {
  run_table({ data: JSON.parse(box.dataset.table), parentElement: box, setStateValue() {} });
  for (const link of box.querySelectorAll("a")) link.onclick = null;
}
