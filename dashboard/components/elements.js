// Shared helpers. Our scripts are joined into one module. Text is never interpreted as markup.
function make(name, className, text) {
  const made = document.createElement(name);
  if (name === "button") made.type = "button";
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

// Opens a page of ours as one entry of the history: where the script sets a query and switches the page, each is one.
function follow(url) {
  history.pushState(null, "", url);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

function standsOnDark(element) {
  const probe = document.createElement("span");
  probe.style.color = getComputedStyle(element).getPropertyValue("--st-background-color") || "#fff";
  document.body.appendChild(probe);
  const [r, g, b] = (getComputedStyle(probe).color.match(/[\d.]+/g) || [255, 255, 255]).map(Number);
  probe.remove();
  return r * 0.299 + g * 0.587 + b * 0.114 < 128;
}

// A star next to the title pins the metric of the chart.
function drawStar(div, data, click) {
  let star = div.querySelector(".telemetry-star");
  if (data.pinned === null || data.pinned === undefined) { if (star) star.remove(); return; }
  if (!star) {
    star = make("button", "telemetry-star");
    div.prepend(star);
  }
  star.textContent = data.pinned ? "★" : "☆";
  star.setAttribute("aria-pressed", String(data.pinned));
  star.setAttribute("aria-label", "Pin " + data.label.split(",")[0]);
  star.title = data.pinned ? "Pinned: shown first" : "Pin: show first";
  star.onclick = click;
}

// Markup that the server has made from escaped text; nothing else is ever interpreted as markup.
function putMarkup(box, html) {
  if (!box || box.__html === html) return;
  box.__html = html;
  const made = make("template");
  made.innerHTML = html;
  const parts = [...made.content.childNodes], before = [...box.childNodes];
  // What is the same stays, with the focus and the selection in it.
  parts.forEach((part, i) => { if (!before[i]) box.append(part); else if (!before[i].isEqualNode(part)) before[i].replaceWith(part); });
  for (const part of before.slice(parts.length)) part.remove();
}

export function markup({ data, parentElement }) { putMarkup(parentElement.querySelector(".telemetry-markup"), data.html); }
