// Reaches a person who is elsewhere: a count next to Alerts, a live region, a notification if asked for.
// Text is never interpreted as markup, and nothing is sent anywhere.
const CHOICE = "telemetry-notify", SHOWN = "telemetry-notified";

function stored(area, name) {
  try { return area.getItem(name); } catch { return null; }
}

function store(area, name, value) {
  try { area.setItem(name, value); } catch { /* Private windows may refuse: then it lasts until the page is left. */ }
}

function mayNotify() {
  return "Notification" in window && Notification.permission === "granted" && stored(localStorage, CHOICE) === "on";
}

function alertsLinks() {
  return [...document.querySelectorAll('[data-testid="stSidebarNavLink"]')]
    .filter((link) => new URL(link.href, window.location.href).pathname.endsWith("/alerts"));
}

function showCount(data) {
  for (const link of alertsLinks()) {
    if (!data.count) { delete link.dataset.telemetryCount; delete link.dataset.telemetryCritical; continue; }
    link.dataset.telemetryCount = String(data.count);
    link.dataset.telemetryCritical = data.critical ? "yes" : "no";
  }
}

function notify(data) {
  if (!data.critical || !data.live) return;
  const shown = (stored(sessionStorage, SHOWN) || "").split("\n");
  if (shown.includes(data.about)) return;
  store(sessionStorage, SHOWN, [...shown.slice(-50), data.about].join("\n"));
  const isElsewhere = document.hidden || !document.hasFocus();
  if (!isElsewhere || !mayNotify()) return;
  // With a tag, several tabs of one run show it once.
  const note = new Notification(data.title, { body: data.message, tag: data.about });
  note.onclick = () => { window.focus(); note.close(); };
}

function drawChoice(box) {
  const draw = () => drawChoice(box);
  if (!("Notification" in window) || !window.isSecureContext) {
    box.replaceChildren(make("span", "", "Browser notifications need https, or a dashboard on this computer."));
    return;
  }
  if (Notification.permission === "denied") {
    box.replaceChildren(make("span", "", "This browser blocks notifications of this site."));
    return;
  }
  const isOn = mayNotify();
  const button = make("button", "", isOn ? "Turn notifications off" : "Notify me of critical alerts");
  button.onclick = async () => {
    if (isOn) store(localStorage, CHOICE, "off");
    else if (await Notification.requestPermission() === "granted") store(localStorage, CHOICE, "on");
    draw();
  };
  const about = isOn ? "On in this browser, while a page of a run is open." : "In this browser, while a page of a run is open.";
  box.replaceChildren(button, make("span", "", about));
}

export function attention(component) {
  const { data, parentElement } = component;
  const region = parentElement.querySelector(".telemetry-live");
  const box = parentElement.querySelector(".telemetry-notify");
  if (box) drawChoice(box);
  if (!region || !data) return undefined;
  // The numbers in the text change all the time: only another alert is worth interrupting for.
  if (region.dataset.about !== data.about) { region.dataset.about = data.about; region.textContent = data.say; }
  showCount(data);
  notify(data);
  // Streamlit draws the links again when the page or the run changes.
  const sidebar = document.querySelector('[data-testid="stSidebar"]');
  const watch = sidebar ? new MutationObserver(() => showCount(data)) : null;
  if (watch) watch.observe(sidebar, { childList: true, subtree: true });
  return () => { if (watch) watch.disconnect(); showCount({ count: 0 }); };
}

export const notification_choice = attention;
