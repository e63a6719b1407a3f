// 4. Why it was this fast

byId("reasons").append(...data.reasons.map((line) => make("li", line)));
for (const [caption, columns, rows] of data.charts) {
  const lines = rows.map((row) => [...row, bar(columns[1] === "calls" ? "q" : "accepted", parseInt(row[2]) / 100)]);
  byId("charts").append(table(caption, [...columns, ""], lines));
}
for (const [name, ...cells] of data.table) {
  byId("figures").tBodies[0].append(
    make("tr", make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", cell))),
  );
}

// 5. What would be faster

function showGrid({ drafters, rows, best: [bestDrafter, bestK], run: [K, measured] }) {
  const curves = drafters.map((_, i) => rows.slice(0, -1).map((row) => [+row[0], row[2 + i]]));
  const largest = Math.max(...rows.flatMap((row) => row.slice(2)));
  const kinds = drafters.map((_, i) => `drafter-${i}`);
  const cell = (speedup, name, k) => {
    const isBest = name === bestDrafter && k === bestK;
    const number = make(isBest ? "strong" : "span", `${speedup.toFixed(2)}x ${isBest ? "◇" : ""}`);
    return make("div", number, bar(kinds[drafters.indexOf(name)], speedup / largest));
  };
  const lines = rows.map(([k, beta, ...speedups]) => [
    k,
    beta ? beta.toFixed(2) : "",
    ...speedups.map((speedup, i) => cell(speedup, drafters[i], k)),
  ]);
  const parts = (name) => name.split(/(?<=[_+/])/).flatMap((part) => [part, make("wbr")]);
  const heads = drafters.map((name, i) => make(`b.${kinds[i]}`, ...parts(name)));
  byId("grid").append(
    table("Predicted speedup, by K and drafter", ["K", "β", ...heads], lines),
    picture(curves, kinds, Math.max(largest, measured), [bestK, largest], [K, measured]),
  );
}

/** The [K, speedup]s of each drafter; the largest and the run's own are marked. */
function picture(curves, kinds, top, [bestK, best], [runK, measured]) {
  const K_MAX = curves[0].at(-1)[0];
  const x = (k) => 34 + (356 * (k - 1)) / Math.max(1, K_MAX - 1);
  const y = (value) => 190 - (160 * value) / Math.max(1, top);
  const label = `Predicted speedup over K: the largest is ${best.toFixed(2)} at K = ${bestK}`;
  const drawn = svg("svg", { viewBox: "0 0 400 225", role: "img", "aria-label": label });
  const step = roundStep(K_MAX / 10);
  for (let k = 1; k <= K_MAX; k += k === 1 && step > 1 ? step - 1 : step)
    drawn.append(svg("text", { x: x(k), y: 206, "text-anchor": "middle" }, String(k)));
  for (let value = 0; y(value) > 10; value += roundStep(top / 6)) {
    drawn.append(
      svg("line", { class: "grid", x1: x(1), x2: x(K_MAX), y1: y(value), y2: y(value) }),
      svg("text", { x: 28, y: y(value) + 4, "text-anchor": "end" }, String(+value.toPrecision(6))),
    );
  }
  const points = (curve) => curve.map(([k, value]) => `${x(k)},${y(value)}`).join(" ");
  drawn.append(
    svg("text", { x: x(K_MAX), y: 222, "text-anchor": "end" }, "K"),
    svg("line", { class: "even", x1: x(1), x2: x(K_MAX), y1: y(1), y2: y(1) }),
    ...curves.map((curve, i) => svg("polyline", { class: kinds[i], points: points(curve) })),
  );
  if (bestK !== "auto") drawn.append(svg("path", { d: `M${x(+bestK)} ${y(best) - 9} l9 9 l-9 9 l-9 -9 z` }));
  if (runK >= 1) drawn.append(svg("path", { class: "run", d: `M${x(runK) - 7} ${y(measured)} h14 m-7 -7 v14` }));
  return make("figure", make("figcaption", "The same over K"), drawn);
}

byId("advice").append(data.advice ?? "");
byId("faster").hidden = !data.grid && !data.advice;
if (data.grid) showGrid(data.grid);
