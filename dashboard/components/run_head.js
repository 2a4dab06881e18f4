// The head of a run's page in one piece: name, status, progress, and how old what is shown is.
// Text is never interpreted as markup.
function agoText(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 2) return "updated just now";
  if (seconds < 120) return `updated ${seconds} s ago`;
  return `updated ${Math.round(seconds / 60)} min ago`;
}

function drawRunHead(head, data) {
  const line = make("div", "telemetry-head-line");
  line.appendChild(make("h1", "", data.name));
  for (const [text, tone, hint] of data.badges) {
    const badge = make("span", `telemetry-badge telemetry-badge-${tone}`, text);
    if (hint) badge.title = hint;
    line.appendChild(badge);
  }
  if (data.steps.length) {
    const steps = make("span", "telemetry-head-steps");
    data.steps.forEach(([text, isStrong], number) => {
      if (number) steps.append(" · ");
      steps.appendChild(make(isStrong ? "strong" : "span", "", text));
    });
    line.appendChild(steps);
  }
  const parts = [line];
  if (data.progress !== null) {
    const bar = make("div", "telemetry-head-bar");
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", "Progress of the run");
    bar.setAttribute("aria-valuenow", String(Math.round(100 * data.progress)));
    const done = make("span", "");
    done.style.width = `${100 * data.progress}%`;
    bar.appendChild(done);
    parts.push(bar);
  }
  const about = make("div", "telemetry-head-about");
  const clock = data.live ? make("span", "telemetry-head-clock") : null;
  if (clock) about.appendChild(clock);
  if (data.about) about.appendChild(make("span", "telemetry-head-more", (clock ? " · " : "") + data.about));
  head.replaceChildren(...parts, about);
  return clock;
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
  const head = parentElement.querySelector(".telemetry-head");
  if (!head || !data) return undefined;
  nameRun(data.run);
  const clock = drawRunHead(head, data);
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
