// Lines of output to read and pick from. Text is never interpreted as markup.
function drawOutputLine(line) {
  const row = make("div", `telemetry-output-line telemetry-output-${line.stream}`);
  row.dataset.number = String(line.number);
  const time = make("button", "telemetry-output-time", line.time);
  time.title = line.about;
  time.setAttribute("aria-label", `${line.about}: show what was logged then`);
  row.appendChild(time);
  row.appendChild(make("span", "telemetry-output-text", line.text));
  return row;
}

export function output_lines(component) {
  const { data, parentElement, setStateValue } = component;
  const list = parentElement.querySelector(".telemetry-output");
  if (!list || !data) return undefined;
  list.setAttribute("aria-label", data.label);
  // A refresh must neither move the focus nor scroll, so existing lines keep their elements.
  const before = new Map([...list.children].map((row) => [row.dataset.line, row]));
  const rows = data.lines.map((line) => {
    const text = JSON.stringify(line);
    const row = before.get(text) || drawOutputLine(line);
    row.dataset.line = text;
    row.classList.toggle("telemetry-output-chosen", line.number === data.chosen);
    return row;
  });
  const wasAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 24;
  const isOther = list.dataset.window !== data.window;
  if (rows.length !== list.children.length || rows.some((row, i) => row !== list.children[i])) {
    list.replaceChildren(...rows);
  }
  const chosen = list.querySelector(".telemetry-output-chosen");
  if (isOther && chosen) list.scrollTop = chosen.offsetTop - list.offsetTop - list.clientHeight / 2;
  else if (isOther || (wasAtEnd && data.follows)) list.scrollTop = list.scrollHeight;
  list.dataset.window = data.window;
  list.onclick = (event) => {
    const time = event.target.closest(".telemetry-output-time");
    // With a timestamp, because an unchanged value is not sent.
    if (time) setStateValue("picked", { number: Number(time.parentElement.dataset.number), at: Date.now() });
  };
  list.dataset.drawn = String(Number(list.dataset.drawn || 0) + 1);
  return undefined;
}
