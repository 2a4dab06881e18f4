// Light, dark, or as the browser has it. Streamlit keeps the theme by the address that was opened first and reads it
// when a page is loaded, so it is kept for every address, and the page is loaded again.
const THEMES = ["System", "Light", "Dark"];
const HIDDEN_PAGES = ["", "sweep", "samples", "system", "timeline", "completions", "output", "settings"];

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

export function theme_switch(component) {
  const box = component.parentElement.querySelector(".telemetry-theme");
  if (!box) return undefined;
  const now = chosenTheme();
  box.replaceChildren(...THEMES.map((name) => {
    const label = make("label", ""), radio = make("input", "");
    radio.type = "radio";
    radio.name = "telemetry-theme";
    radio.checked = name === now;
    radio.onchange = () => {
      for (const key of themeKeys()) store(localStorage, key, JSON.stringify(name));
      location.reload();
    };
    label.append(radio, name);
    return label;
  }));
  return undefined;
}
