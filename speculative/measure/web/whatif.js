// 5. What would make it faster. The formulas are those of speculative/measure/analysis.py, a window's cost a line.

const { run, examples, measured } = data.what_if;
const K_MAX = Math.max(16, run.K);
const ROWS = run.K + 1;
const SLIDERS = [
  ["K", "K", "drafts for each call of the target", 0, K_MAX, 1],
  ["alpha", "α", "the chance that a draft is accepted", 0, 1, "any"],
  ["c", "c", "the cost of a draft, in rows of the target: t_draft / t_target", 0, Math.max(1, 2 * run.c), "any"],
  ["beta", "β", `the cost of a window of ${ROWS} rows, in rows`, 1, Math.max(ROWS, run.beta), "any"],
];
const QUESTIONS = {
  "As this run": run,
  "The draft twice as fast": { ...run, c: run.c / 2 },
  "Every draft accepted": { ...run, alpha: 1 },
  "A window for the cost of a row": { ...run, beta: 1 },
};
const Ks = Array.from({ length: K_MAX + 1 }, (_, k) => k);

/** 1 + α + … + α^K: at most K + 1 */
function tokensPerCall(alpha, K) {
  let tokens = 0;
  for (let i = 0; i <= K; i++) tokens += alpha ** i;
  return tokens;
}

/** In rows of the target: K drafts, and a window of K + 1 rows, on the line through 1 row and the slider's β. */
const cost = ({ c, beta }, K) => K * c + 1 + (K * (beta - 1)) / run.K;
const speedup = (values, K) => tokensPerCall(values.alpha, K) / cost(values, K);

function showWhatIf() {
  for (const [name, symbol, meaning, min, max, step] of SLIDERS) {
    const input = make("input", { type: "range", id: name, min, max, step, input: answer });
    const value = make("span", { id: `${name}-value` });
    byId("sliders").append(make("label", make("b", symbol), " ", value, make("small", meaning), input));
  }
  for (const [question, values] of Object.entries(QUESTIONS)) {
    byId("questions").append(make("button", { type: "button", click: () => setSliders(values) }, question));
  }
  const missing = SLIDERS.filter(([name]) => examples.includes(name)).map(([, symbol]) => symbol);
  if (missing.length)
    byId("if-note").append(`This run could not measure ${missing.join(", ")}: the value is an example.`);
  else byId("if-note").append(`α is a mean over the tested drafts: a short run may have more luck.`);
  setSliders(run);
}

function setSliders(values) {
  for (const [name, value] of Object.entries(values)) byId(name).value = value;
  answer();
}

function answer() {
  const values = Object.fromEntries(Object.keys(run).map((name) => [name, byId(name).valueAsNumber]));
  const { K, alpha, c } = values;
  for (const name of Object.keys(run)) {
    byId(`${name}-value`).textContent = name === "K" ? K : values[name].toFixed(name === "beta" ? 2 : 3);
  }
  const tokens = tokensPerCall(alpha, K);
  const speedups = Ks.map((k) => speedup(values, k));
  const best = speedups.indexOf(Math.max(...speedups));
  byId("answer").textContent =
    `A call of the target gives ${tokens.toFixed(2)} tokens (r = ${(tokens / (K + 1)).toFixed(3)}) in the time of ` +
    `${cost(values, K).toFixed(2)} rows: ${speedups[K].toFixed(2)}x. ` +
    `The best K is ${best}${best ? `, with ${speedups[best].toFixed(2)}x` : ": no speculation"}. ` +
    `With K = ${K} it pays while a window costs less than ${(tokens - K * c).toFixed(2)} rows; ` +
    `here ${many(K + 1, "row")} cost β = ${(cost(values, K) - K * c).toFixed(2)}.`;
  const [here, tokensHere, speedupHere] = measured;
  byId("curves").replaceChildren(
    curve(
      "Tokens for each call of the target",
      Ks.map((k) => tokensPerCall(alpha, k)),
      K,
      best,
      [here, tokensHere],
    ),
    curve("Speedup", speedups, K, best, [here, speedupHere]),
  );
}

/** Values over K = 0, 1, …; K, the best one and the run's point [K, value] are marked. */
function curve(title, values, K, best, [x0, y0]) {
  const top = 1.1 * Math.max(1, ...values, y0 ?? 0);
  const x = (k) => 34 + (356 * k) / K_MAX;
  const y = (value) => 190 - (170 * value) / top;
  const label = `${title} over K: ${values[K].toFixed(2)} at ${K}, ${values[best].toFixed(2)} at ${best}, the best`;
  const picture = svg("svg", { viewBox: "0 0 400 225", role: "img", "aria-label": label });
  for (let k = 0; k <= K_MAX; k += roundStep(K_MAX / 10))
    picture.append(svg("text", { x: x(k), y: 206, "text-anchor": "middle" }, String(k)));
  for (let value = 0; value <= top; value += roundStep(top / 6)) {
    picture.append(
      svg("line", { class: "grid", x1: x(0), x2: x(K_MAX), y1: y(value), y2: y(value) }),
      svg("text", { x: 28, y: y(value) + 4, "text-anchor": "end" }, String(+value.toPrecision(6))),
    );
  }
  picture.append(
    svg("text", { x: x(K_MAX), y: 222, "text-anchor": "end" }, "K"),
    svg("line", { class: "even", x1: x(0), x2: x(K_MAX), y1: y(1), y2: y(1) }),
    svg("polyline", { points: values.map((value, k) => `${x(k)},${y(value)}`).join(" ") }),
    svg("path", { class: "best", d: `M${x(best)} ${y(values[best]) - 9} l9 9 l-9 9 l-9 -9 z` }),
    svg("circle", { cx: x(K), cy: y(values[K]), r: 5 }),
  );
  if (y0 !== null && y0 !== undefined)
    picture.append(svg("path", { class: "run", d: `M${x(x0) - 7} ${y(y0)} h14 m-7 -7 v14` }));
  return make("figure", make("figcaption", title), picture);
}

showWhatIf();
