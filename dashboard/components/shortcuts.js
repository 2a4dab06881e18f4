// Keyboard shortcuts: never while someone types, and but for Ctrl+K never with Ctrl, Alt or Cmd, which belong to the browser.
const SECOND_KEY_MS = 1500;

function isTyping(target) {
  return target.isContentEditable || /^(input|textarea|select)$/i.test(target.tagName)
    || target.closest('[role="textbox"], [role="combobox"], [role="slider"], [role="spinbutton"], [role="listbox"], [role="menu"]');
}

function goTo(path) {
  const links = [...document.querySelectorAll('[data-testid="stSidebarNavLink"]')];
  const link = links.find((one) => (new URL(one.href, location.href).pathname.replace(/\/$/, "") || "/") === path);
  if (link) link.click();
  // A view of a page is not in the menu.
  else location.assign(path);
}

function search() {
  const field = document.querySelector('[data-testid="stMain"] [data-testid="stTextInput"] input:not(:disabled)');
  if (!field) return false;
  field.focus();
  field.select();
  return true;
}

// Once the server has sent it, its field takes what is typed: `r` alone would draw the page again, without the dialog.
function focusDialog(tries) {
  const field = document.querySelector('[role="dialog"] input');
  if (field) field.focus();
  if (tries > 0 && document.activeElement !== field) setTimeout(() => focusDialog(tries - 1), 100);
}

// In the table of runs the link of a row gets the focus: Enter and a middle click open it.
function moveInTable(by) {
  const links = [...document.querySelectorAll(".trt tbody tr a[href]")];
  if (!links.length) return false;
  const at = links.indexOf(document.activeElement);
  const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  return true;
}

function pickInTable() {
  const box = document.activeElement?.closest(".trt tbody tr")?.querySelector("input[type=checkbox]");
  if (box) box.click();
  return Boolean(box);
}

function compareSelected() {
  const button = document.querySelector(".st-key-_compare a:not([disabled])");
  if (button) button.click();
  return Boolean(button);
}

function list(shortcuts, host) {
  let box = document.querySelector(".telemetry-keys");
  if (box && box.open) return;
  if (box) box.remove();
  box = make("dialog", "telemetry-keys");
  box.setAttribute("aria-labelledby", "telemetry-keys-title");
  const title = make("h2", "", "Keyboard shortcuts");
  title.id = "telemetry-keys-title";
  const table = make("table");
  for (const { keys, what, path } of shortcuts) {
    const row = table.insertRow();
    const head = make("th");
    head.scope = "row";
    for (const key of keys.split(" ")) head.appendChild(make("kbd", "", key));
    row.appendChild(head);
    row.appendChild(make("td", "", path ? `Go to ${what}` : what.replaceAll("`", "")));
  }
  const close = make("button", "", "Close");
  close.onclick = () => box.close();
  box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
  box.addEventListener("close", () => box.remove());
  box.append(title, table, close);
  // Next to the button: there the theme's colours are defined.
  host.appendChild(box);
  box.showModal();
  close.focus();
}

export function shortcuts(component) {
  const { data, parentElement, setTriggerValue } = component;
  const open = parentElement.querySelector(".telemetry-keys-open");
  if (!open || !data) return undefined;
  followTheme();
  let first = null, timer = null;
  const forget = () => { first = null; clearTimeout(timer); };
  const paths = Object.fromEntries(data.shortcuts.filter((one) => one.path).map((one) => [one.keys, one.path]));
  open.onclick = () => list(data.shortcuts, parentElement);
  const press = (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      event.stopPropagation();
      if (!document.querySelector('dialog[open], [role="dialog"]')) { setTriggerValue("find", 1); focusDialog(100); }
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || event.repeat) return;
    const target = event.target instanceof Element ? event.target : document.body;
    if (event.key === "Escape") { if (isTyping(target)) target.blur(); forget(); return; }
    if (isTyping(target) || document.querySelector('dialog[open], [role="dialog"]')) { forget(); return; }
    const before = first;
    forget();
    let isDone = true;
    if (before) {
      const path = paths[`${before} ${event.key}`];
      if (path) goTo(path);
      else if (event.key === "e") document.querySelector(".st-key-_settings button")?.click();
      else isDone = false;
    } else if (event.key === "g") {
      first = "g";
      timer = setTimeout(forget, SECOND_KEY_MS);
    } else if (event.key === "x") isDone = pickInTable();
    else if (event.key === "c") isDone = compareSelected();
    else if (event.key === "?") list(data.shortcuts, parentElement);
    else if (event.key === "/") isDone = search();
    else if (event.key === "j" || event.key === "k") {
      const by = event.key === "j" ? 1 : -1;
      if (!moveInTable(by)) setTriggerValue("move", by);
    } else isDone = false;
    // Streamlit has shortcuts of its own, such as `c` and `r`: the second key of ours is not one of them.
    if (isDone || before) { event.preventDefault(); event.stopPropagation(); }
  };
  // Capturing on the window: earlier than the page's own.
  window.addEventListener("keydown", press, true);
  return () => { forget(); window.removeEventListener("keydown", press, true); };
}
