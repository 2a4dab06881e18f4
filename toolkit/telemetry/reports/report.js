"use strict";
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const shown = (y) => (typeof y === "string" ? y : Number(y.toPrecision(5)).toString());

  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  // A spreadsheet takes a text that starts like this for a formula; toolkit/telemetry/runfolder/columns.py has the same pattern.
  const formula = /^[\s\x00-\x1f\x7f-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]*[=+@\t\r\n\uff1d\uff0b\uff0d\uff20-]/;
  const cell = (text) => '"' + (formula.test(text) && Number.isNaN(Number(text)) ? "'" + text : text).replaceAll('"', '""') + '"';
  const table = ({ head, rows }) => [head, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  const csv = () => {
    if (!data.curves.length) return data.tables.map(table).join("\n");
    const lines = ["run,metric,axis,x,value"];
    for (const curve of data.curves)
      for (const part of curve.parts)
        for (const [x, y] of part) lines.push([cell(curve.run), cell(curve.metric), curve.axis, x, y].join(","));
    return lines.join("\n") + "\n";
  };
  document.getElementById("csv").addEventListener("click", () => save(data.name + ".csv", "text/csv", csv()));
  document.getElementById("json").addEventListener("click", () =>
    save(data.name + ".json", "application/json", JSON.stringify(data)));

  const named = (axis, x) =>
    axis === "time" ? new Date(x * 1000).toLocaleString()
      : axis === "progress" ? shown(x) + " %"
        : (axis === "seconds" ? "second" : axis.replace("metric:", "")) + " " + shown(x);
  const nearest = (curve, x) => {
    let best = null;
    for (const part of curve.parts)
      for (const point of part) if (best === null || Math.abs(point[0] - x) <= Math.abs(best[0] - x)) best = point;
    return best;
  };
  for (const figure of document.querySelectorAll("figure[data-curves]")) {
    const [low, high] = figure.dataset.box.split(" ").map(Number);
    const curves = figure.dataset.curves.split(" ").filter(Boolean).map((id) => data.curves[id]);
    const keys = [...figure.querySelectorAll(".legend .key")];
    const [area, cursor, tip] = ["area", "cursor", "tip"].map((name) => figure.querySelector("." + name));
    const isLog = figure.dataset.logx === "1";
    const placeOf = (x) => (isLog ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low));
    const leave = () => (cursor.style.display = tip.style.display = "none");
    const move = (event) => {
      const box = area.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      const at = isLog ? low * (high / low) ** share : low + share * (high - low);
      const found = curves.map((curve, number) => ({ curve, number, point: nearest(curve, at) }))
        .filter((one) => one.point && one.point[0] >= low && one.point[0] <= high);
      if (!found.length) return leave();
      const x = found.reduce((a, b) => (Math.abs(a.point[0] - at) <= Math.abs(b.point[0] - at) ? a : b)).point[0];
      const near = found.filter((one) => Math.abs(placeOf(one.point[0]) - placeOf(x)) <= 1 / 50);
      tip.replaceChildren();
      const line = (text, key) => {
        const row = document.createElement("div");
        if (key) row.append(key.cloneNode());
        row.append(text);
        tip.append(row);
      };
      line(named(found[0].curve.axis, x));
      near.sort((a, b) => (b.point[1] > a.point[1] ? 1 : -1));
      for (const { curve, number, point } of near.slice(0, 12)) {
        const name = curves.length > 1 ? keys[number].parentElement.textContent + "  " : "";
        const other = point[0] === x ? "" : " at " + shown(point[0]);
        line(name + shown(point[1]) + other, keys[number]);
      }
      const left = placeOf(x) * box.width;
      cursor.style.cssText = `display:block;left:${left}px`;
      tip.style.cssText = "display:block";
      tip.style.left = Math.max(0, left + 12 + tip.offsetWidth > box.width ? left - tip.offsetWidth - 12 : left + 12) + "px";
    };
    area.addEventListener("pointermove", move);
    area.addEventListener("pointerdown", move);
    area.addEventListener("pointerleave", leave);
  }
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
}
