// Light, dark, or as the browser has it. Streamlit keeps the theme by the address that was opened first and reads it
// when a page is loaded, so it is kept for every address, and the page is loaded again.
const THEMES = ["System", "Light", "Dark"];
const HIDDEN_PAGES = ["", "samples"];

function themeKeys() {
  const paths = [...document.querySelectorAll('[data-testid="stSidebarNavLink"]')]
    .map((link) => new URL(link.href, location.href).pathname);
  const base = location.pathname.replace(/[^/]*$/, "");
  const every = new Set([location.pathname, ...paths, ...HIDDEN_PAGES.map((page) => base + page)]);
  return [...every].map((path) => `stActiveTheme-${path}-v2`);
}

function chosenTheme() {
  try {
    return JSON.parse(stored(localStorage, `stActiveTheme-${location.pathname}-v2`)) || "System";
  } catch { return "System"; }
}

// Colours of ours that CSS chooses between light and dark follow the chosen theme, too.
function followTheme() {
  const theme = chosenTheme();
  document.documentElement.style.colorScheme = theme === "System" ? "" : theme.toLowerCase();
}

function drawChoices(box, names, now, choose) {
  box.querySelectorAll("label").forEach((label) => label.remove());
  box.append(...names.map((name) => {
    const label = make("label", ""), radio = make("input", "");
    radio.type = "radio";
    radio.name = box.className;
    radio.checked = name === now;
    radio.onchange = () => choose(name);
    label.append(radio, name);
    return label;
  }));
}

export function theme_switch({ parentElement }) {
  drawChoices(parentElement.querySelector(".telemetry-choices"), THEMES, chosenTheme(), (name) => {
    for (const key of themeKeys()) store(localStorage, key, JSON.stringify(name));
    location.reload();
  });
}

export function choices({ data, parentElement, setStateValue }) {
  const box = parentElement.querySelector(".telemetry-choices");
  if (!box.firstChild) box.append(make("div", "", data.label));
  box.setAttribute("aria-label", data.label);
  drawChoices(box, data.options, data.chosen, (name) => setStateValue("chosen", { name, at: Date.now() }));
}

// A native list, drawn as a button: it opens on a phone as on a desk, and loads nothing.
export function menu({ data, parentElement, setStateValue }) {
  const list = parentElement.querySelector("select");
  if (list.options.length === data.entries.length + 1) return;
  list.replaceChildren(new Option(data.label, ""), ...data.entries.map((entry) => new Option(entry)));
  list.options[0].hidden = true;
  list.onchange = () => { setStateValue("chosen", { entry: list.value, at: Date.now() }); list.value = ""; };
}
