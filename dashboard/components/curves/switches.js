// One row of switches for all charts of a page. They act at once; the address follows when they have settled.
const SWITCH_SETTLE_MS = 400;
// By strength: "auto" is 3 %.
const SMOOTH_STEPS = [[0, "off"], [0.01, "1 %"], [0.02, "2 %"], ["auto", "auto"], [0.05, "5 %"], [0.1, "10 %"], [0.2, "20 %"]];
const STATISTIC_LABELS = { mean: "Mean ± deviation", median: "Median, quartiles", range: "Mean, min–max" };
const OTHER_METRIC = "other metric";

function switchField(label, control) {
  const field = make("label", "telemetry-switch");
  field.append(make("span", "telemetry-switch-label", label), control);
  return field;
}

function switchSelect(options, act) {
  const select = make("select", "telemetry-switch-select");
  for (const [value, label] of options) {
    const option = make("option", "", label);
    option.value = value;
    select.appendChild(option);
  }
  select.onchange = () => act(select.value);
  return select;
}

function switchBox(label, act) {
  const field = make("label", "telemetry-switch"), box = make("input");
  box.type = "checkbox";
  box.onchange = () => act(box.checked);
  field.append(box, make("span", "", label));
  return [field, box];
}

// The usual axes are in a list; any other metric is found by its name.
function axisSwitch(axes, change) {
  const holder = make("span", "telemetry-switch-axis"), names = make("datalist"), find = make("input", "telemetry-switch-find");
  const usual = axes.filter(([value]) => !value.startsWith("metric:")), metrics = axes.filter(([value]) => value.startsWith("metric:"));
  const few = metrics.slice(0, 6);
  names.id = `telemetry-axes-${Math.random().toString(36).slice(2)}`;
  for (const [, label] of metrics) { const option = make("option"); option.value = label; names.appendChild(option); }
  find.setAttribute("list", names.id);
  find.setAttribute("aria-label", "Metric for the x axis");
  find.placeholder = "metric or formula";
  find.hidden = true;
  const done = () => {
    const text = find.value.trim(), known = metrics.find(([value, label]) => label === text || value === `metric:${text}`);
    find.hidden = true;
    if (text) change(known ? known[0] : `metric:${text}`); else show(curveView.axis);
  };
  find.onchange = done;
  find.onkeydown = (event) => { if (event.key === "Escape") { find.value = ""; done(); } };
  const select = switchSelect([...usual, ...few, [OTHER_METRIC, "Another metric…"]], (value) => {
    if (value !== OTHER_METRIC) { change(value); return; }
    find.hidden = false;
    find.value = "";
    find.focus();
  });
  const show = (axis) => {
    if (![...select.options].some((option) => option.value === axis)) {
      const option = make("option", "", axis.replace(/^metric:/, ""));
      option.value = axis;
      select.insertBefore(option, select.lastChild);
    }
    select.value = axis;
    select.title = axis.replace(/^metric:/, "");
  };
  select.setAttribute("aria-label", "X axis");
  holder.append(select, find, names);
  return [holder, show];
}

function buildSwitches(root, data) {
  const row = make("div", "telemetry-switch-row"), more = make("button", "telemetry-switch-more", "View");
  const set = (changes) => curveView.set(changes, true);
  root.replaceChildren();
  if (!data.axes.length) return () => {};
  more.setAttribute("aria-expanded", "false");
  // On a phone the row is a sheet over the page; a tap outside it, or Escape, closes it.
  const open = (isOpen) => { more.setAttribute("aria-expanded", String(isOpen)); row.classList.toggle("telemetry-switch-open", isOpen); };
  more.onclick = () => open(more.getAttribute("aria-expanded") !== "true");
  root.onkeydown = (event) => { if (event.key === "Escape" && event.target.type !== "text") { open(false); more.focus(); } };
  document.removeEventListener("pointerdown", root.__onPressOutside);
  root.__onPressOutside = (event) => { if (!root.contains(event.target)) open(false); };
  document.addEventListener("pointerdown", root.__onPressOutside, { passive: true });
  const [axis, showAxis] = axisSwitch(data.axes, (value) => set({ axis: value }));
  const slider = make("input", "telemetry-switch-slider"), strength = make("output", "telemetry-switch-strength");
  Object.assign(slider, { type: "range", min: 0, max: SMOOTH_STEPS.length - 1, step: 1 });
  // While it moves the charts follow; the address waits for its end.
  slider.oninput = () => { curveView.set({ smoothing: SMOOTH_STEPS[slider.value][0] }, false); };
  slider.onchange = () => set({ smoothing: SMOOTH_STEPS[slider.value][0] });
  const smoothing = switchField("Smoothing", slider);
  smoothing.appendChild(strength);
  const [logX, logXBox] = switchBox("Log x", (value) => set({ logX: value })), [logY, logYBox] = switchBox("Log y", (value) => set({ logY: value }));
  const [marks, marksBox] = switchBox("Marks", (value) => set({ marks: value }));
  const [ahead, aheadBox] = switchBox("Forecast", (value) => set({ forecast: value }));
  ahead.title = "Where the loss will end, on the step axis; never among the logged values";
  const statistic = data.statistics.length ? switchSelect(data.statistics.map((name) => [name, STATISTIC_LABELS[name] || name]), (value) => set({ statistic: value })) : null;
  row.append(switchField("X", axis), smoothing, logX, logY, marks);
  if (data.forecast) row.appendChild(ahead);
  if (statistic) row.appendChild(switchField("Group", statistic));
  root.append(more, row);
  return () => {
    const at = Math.max(0, SMOOTH_STEPS.findIndex(([value]) => value === curveView.smoothing));
    showAxis(curveView.axis);
    slider.value = String(at);
    strength.textContent = SMOOTH_STEPS[at][1];
    slider.setAttribute("aria-valuetext", SMOOTH_STEPS[at][1]);
    // A time has no logarithm that says anything.
    logXBox.disabled = curveView.axis === "time";
    logXBox.checked = curveView.logX && !logXBox.disabled;
    logYBox.checked = curveView.logY;
    marksBox.checked = curveView.marks;
    aheadBox.disabled = curveView.axis !== "step";
    aheadBox.checked = curveView.forecast && !aheadBox.disabled;
    if (statistic) statistic.value = curveView.statistic;
  };
}

export function curve_switches(component) {
  const { data, parentElement, setStateValue } = component;
  const root = parentElement.querySelector(".telemetry-switches");
  if (!root || !data) return undefined;
  curveView.receive(data.view, data.answered, component);
  const made = JSON.stringify([data.axes, data.statistics, data.forecast]);
  if (root.__made !== made) { root.__made = made; root.__show = buildSwitches(root, { axes: data.axes || [], statistics: data.statistics || [], forecast: data.forecast }); }
  root.__show();
  // With its time, because an unchanged value is not sent, and the address may have changed elsewhere meanwhile.
  root.__send = () => setStateValue("view", { ...curveView.state(), at: curveView.changed });
  if (root.__stop) return root.__end;
  let waiting = 0;
  root.__stop = curveView.on((changes, isSettled) => {
    root.__show();
    if (!isSettled) return;
    clearTimeout(waiting);
    waiting = setTimeout(() => root.__send(), SWITCH_SETTLE_MS);
  });
  root.__end = () => {
    if (!root.__stop) return;
    clearTimeout(waiting);
    document.removeEventListener("pointerdown", root.__onPressOutside);
    root.__stop();
    root.__stop = null;
    curveView.leave(component);
  };
  return root.__end;
}
