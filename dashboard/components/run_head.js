// The head of a run's page in one piece: name, status, progress, and how old what is shown is.
function agoText(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 2) return "updated just now";
  if (seconds < 120) return `updated ${seconds} s ago`;
  return `updated ${Math.round(seconds / 60)} min ago`;
}

// A link of the menu has no run. Set by the script it would be an entry of the history, and Back would need two presses.
function nameRun(run) {
  const asked = new URLSearchParams(location.search);
  if (asked.has("run")) return;
  asked.set("run", run);
  history.replaceState(history.state, "", `?${asked}`);
  // Streamlit reads the address, unless it has a query already.
  if (asked.size > 1) window.dispatchEvent(new PopStateEvent("popstate"));
}

export function run_head(component) {
  const { data, parentElement } = component;
  const head = parentElement.querySelector(".telemetry-markup");
  if (!head || !data) return undefined;
  nameRun(data.run);
  putMarkup(head, data.html);
  head.onclick = (event) => {
    const link = event.target.closest("a");
    if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    follow(link.getAttribute("href"));
  };
  const clock = head.querySelector(".telemetry-head-clock");
  // Curves fetch their own records: what they got is newer than this head.
  if (head.__drawn !== data.at) { head.__drawn = data.at; head.__updated = Date.now(); }
  const tick = () => { if (clock) { const text = agoText(Date.now() - head.__updated); if (clock.textContent !== text) clock.textContent = text; } };
  const heard = (event) => { if (event.detail && event.detail.ok) { head.__updated = event.detail.at; tick(); } };
  tick();
  const timer = clock ? setInterval(tick, 1000) : null;
  document.addEventListener("telemetry-updated", heard);
  const quiet = attention({ data: data.attention, parentElement });
  return () => {
    clearInterval(timer);
    document.removeEventListener("telemetry-updated", heard);
    if (quiet) quiet();
  };
}

export function run_picker({ data, parentElement }) {
  const select = parentElement.querySelector("select");
  select.title = data.help;
  select.replaceChildren(...data.runs.map(([key, text]) => new Option(text, key, false, key === data.run)));
  select.onchange = () => {
    const asked = new URLSearchParams(location.search);
    asked.set("run", select.value);
    // What of the other run was looked at.
    for (const name of ["from", "to", "since", "until"]) asked.delete(name);
    follow(`?${asked}`);
  };
}
