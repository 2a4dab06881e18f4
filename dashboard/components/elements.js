// Shared helpers. Our scripts are joined into one module. Text is never interpreted as markup.
function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

function standsOnDark(element) {
  const probe = document.createElement("span");
  probe.style.color = getComputedStyle(element).getPropertyValue("--st-background-color") || "#fff";
  document.body.appendChild(probe);
  const [r, g, b] = (getComputedStyle(probe).color.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
  probe.remove();
  return r * 0.299 + g * 0.587 + b * 0.114 < 128;
}
