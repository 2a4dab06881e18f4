// Texts side by side with their differences highlighted. Text is never interpreted as markup.
function drawPane(pane) {
  const box = make("section", "telemetry-side");
  const head = make("div", "telemetry-side-head");
  head.appendChild(make("span", "telemetry-side-title", pane.title));
  head.appendChild(make("span", "telemetry-side-about", pane.about));
  box.appendChild(head);
  const text = make("div", "telemetry-side-text");
  text.dir = "auto";
  text.tabIndex = 0;
  for (const [words, mark] of pane.parts) {
    text.appendChild(mark ? make(mark === "del" ? "del" : "ins", "", words) : document.createTextNode(words));
  }
  box.appendChild(text);
  return box;
}

export function side_by_side(component) {
  const { data, parentElement } = component;
  const row = parentElement.querySelector(".telemetry-sides");
  if (!row || !data) return undefined;
  const drawn = JSON.stringify(data.panes);
  // A refresh without changes keeps the selection and the scroll positions.
  if (row.__drawn !== drawn) {
    row.__drawn = drawn;
    row.replaceChildren(...data.panes.map(drawPane));
  }
  return undefined;
}
