// A text field that saves itself. What could not be saved yet is kept in this browser until it is.
const PAUSE_MS = 600, LEAVING_MS = 3000;

export function notes(component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".telemetry-notes");
  if (!root || !data) return undefined;
  const [label, status] = [root.querySelector("label"), root.querySelector("[role=status]")];
  const area = root.querySelector("textarea"), button = root.querySelector("button");
  const draftKey = `telemetry-notes ${data.run}`;
  const draft = (text) => {
    try {
      if (text === undefined) return localStorage.getItem(draftKey);
      if (text === null) localStorage.removeItem(draftKey); else localStorage.setItem(draftKey, text);
    } catch (_) { /* a browser may have no storage, and then there is no draft */ }
    return null;
  };
  label.firstChild.textContent = data.label;
  area.placeholder = data.placeholder;
  area.maxLength = data.max;
  area.readOnly = data.disabled;
  button.hidden = data.disabled;

  const send = () => {
    clearTimeout(root.__timer);
    if (area.value === root.__sent || data.disabled) return;
    root.__sent = area.value;
    status.textContent = "Saving…";
    setStateValue("notes", { text: area.value, at: Date.now() });
  };
  if (data.problem) {
    status.textContent = data.problem;
  } else if (root.__sent === undefined) {
    // The first drawing, or the page was opened again.
    const kept = data.disabled ? null : draft();
    area.value = kept ?? data.text;
    root.__sent = data.text;
    status.textContent = "";
    if (kept !== null && kept !== data.text) send(); else draft(null);
  } else if (data.text === root.__sent) {
    if (area.value === data.text) {
      draft(null);
      if (status.textContent === "Saving…") status.textContent = "Saved";
    }
  } else if (area.value === root.__sent && document.activeElement !== area && status.textContent !== "Saving…") {
    // Changed elsewhere.
    area.value = root.__sent = data.text;
  }
  const sendIn = (milliseconds) => {
    clearTimeout(root.__timer);
    if (area.value !== root.__sent) root.__timer = setTimeout(send, milliseconds);
  };
  area.oninput = () => {
    draft(area.value);
    status.textContent = "Not saved yet";
    sendIn(PAUSE_MS);
  };
  area.onblur = () => sendIn(100);
  button.onclick = send;
  // A message of this page that follows a click on a link would undo the change of page: the draft is saved on return.
  if (root.__leave) document.removeEventListener("pointerdown", root.__leave, true);
  root.__leave = (event) => { if (event.target.closest?.("a")) setTimeout(() => sendIn(LEAVING_MS), 0); };
  document.addEventListener("pointerdown", root.__leave, true);
  sendIn(PAUSE_MS);
  area.onkeydown = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(); };
  root.dataset.drawn = "1";
  return () => {
    clearTimeout(root.__timer);
    document.removeEventListener("pointerdown", root.__leave, true);
  };
}
