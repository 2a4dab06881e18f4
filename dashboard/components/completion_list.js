// A list of completions to pick from. Text is never interpreted as markup.
function drawCompletionRow(row) {
  const button = make("button", "telemetry-completion");
  button.dataset.place = String(row.place);
  const top = make("span", "telemetry-completion-top");
  top.appendChild(make("span", "telemetry-completion-step", row.step));
  top.appendChild(make("span", "telemetry-completion-kind", row.kind));
  top.appendChild(make("span", "telemetry-completion-reward", row.reward));
  button.appendChild(top);
  button.appendChild(make("span", "telemetry-completion-prompt", row.prompt));
  button.appendChild(make("span", "telemetry-completion-answer", row.answer));
  return button;
}

function mark(list, place) {
  for (const button of list.children) {
    const chosen = button.dataset.place === String(place);
    button.classList.toggle("telemetry-completion-chosen", chosen);
    if (chosen) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

export function completion_list(component) {
  const { data, parentElement, setStateValue } = component;
  const list = parentElement.querySelector(".telemetry-completions");
  if (!list || !data) return undefined;
  list.setAttribute("aria-label", data.label);
  // A refresh must neither move the focus nor scroll, so existing rows keep their elements.
  const before = new Map([...list.children].map((button) => [button.dataset.place + button.dataset.text, button]));
  const rows = data.rows.map((row) => {
    const text = JSON.stringify(row);
    const kept = before.get(String(row.place) + text);
    if (kept) return kept;
    const made = drawCompletionRow(row);
    made.dataset.text = text;
    return made;
  });
  const same = rows.length === list.children.length && rows.every((row, i) => row === list.children[i]);
  if (!same) {
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.place : null;
    const top = list.getBoundingClientRect().top;
    const seen = list.scrollTop > 0
      && [...list.children].find((button) => button.getBoundingClientRect().bottom > top);
    const was = seen ? seen.getBoundingClientRect().top : 0;
    list.replaceChildren(...rows);
    if (seen && seen.isConnected) list.scrollTop += seen.getBoundingClientRect().top - was;
    const again = focused && list.querySelector(`[data-place="${focused}"]`);
    if (again) again.focus({ preventScroll: true });
  }
  // Until the server has answered, data for the previous selection must not undo this one.
  const picked = list.__picked;
  if (picked && (picked.place === data.chosen || Date.now() > picked.until)) list.__picked = null;
  mark(list, list.__picked ? list.__picked.place : data.chosen);
  list.onclick = (event) => {
    const button = event.target.closest(".telemetry-completion");
    if (!button) return;
    const place = Number(button.dataset.place);
    list.__picked = { place, until: Date.now() + 6000 };
    mark(list, place);
    // With a timestamp, because an unchanged value is not sent.
    setStateValue("picked", { place, at: Date.now() });
  };
  list.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const button = event.target.closest(".telemetry-completion");
    if (!step || !button) return;
    const next = list.children[[...list.children].indexOf(button) + step];
    if (next) { event.preventDefault(); next.focus(); next.click(); }
  };
  list.dataset.drawn = String(Number(list.dataset.drawn || 0) + 1);
  return undefined;
}
