// ---- The formulas: those of speculative/measure/analysis.py and speculative/costs.py, under their names -------------

function leviathanTokens(alpha, K) {
  let tokens = 0;
  for (let i = 0; i <= K; i++) tokens += alpha ** i;
  return tokens;
}

const leviathanSpeedup = (alpha, K, c, beta) => leviathanTokens(alpha, K) / (K * c + beta);
const blogSpeedup = (r, K, c, beta) => (r * (K + 1)) / (K * c + beta);
const largestBeta = (alpha, K, c) => leviathanTokens(alpha, K) - K * c;

/** acceptance: the chance at each position; beta: rows → cost. → [K, speedup] */
function bestK(acceptance, c, beta) {
  let [tokens, product, best] = [1, 1, [0, 1 / beta(1)]];
  acceptance.forEach((a, i) => {
    product *= a;
    tokens += product;
    const speedup = tokens / ((i + 1) * c + beta(i + 2));
    if (speedup > best[1]) best = [i + 1, speedup];
  });
  return best;
}

/** costs: [[rows, cost], ...], by rising rows → the cost of any: straight between them, and beyond the last on the line
 * from the first to it. */
function lineThrough(costs) {
  return (rows) => {
    const after = costs.findIndex(([n]) => n >= rows);
    if (after === 0 || costs.length === 1) return costs[0][1];
    const [[a, from], [b, to]] = after < 0 ? [costs[0], costs.at(-1)] : costs.slice(after - 1, after + 1);
    const slope = (to - from) / (b - a);
    return after < 0 ? to + Math.max(0, slope) * (rows - b) : from + slope * (rows - a);
  };
}

// ---- 5. What would make it faster -----------------------------------------------------------------------------------

const K_MAX = Math.max(16, figures.usual_K ?? 0); // as measure/figures.py, where the run has no larger K
const windows = Object.entries(figures.beta ?? {})
  .map(([rows, cost]) => [Number(rows), cost])
  .filter(([n]) => n > 1);
const usualK = Math.max(1, figures.usual_K ?? 4);
const ofThisRun = {
  K: usualK,
  alpha: figures.alpha ?? 0.8,
  c: figures.c ?? 0.1,
  beta: lineThrough([[1, 1], ...windows])(usualK + 1),
};
const ROWS = usualK + 1; // that the slider's β is for
const SLIDERS = {
  K: ["K", "drafts in an iteration", 0, K_MAX, 1],
  alpha: ["α", "the chance that a draft is accepted", 0, 1, "any"],
  c: ["c", "what a draft costs, in rows of the target: t_draft / t_target", 0, Math.max(1, 2 * ofThisRun.c), "any"],
  beta: [
    "β",
    `what a window of ${ROWS} rows costs, in rows`,
    Math.min(1, ofThisRun.beta),
    Math.max(ROWS, ofThisRun.beta),
    "any",
  ],
};
const QUESTIONS = {
  "As this run": () => ofThisRun,
  "The draft twice as fast": () => ({ ...ofThisRun, c: ofThisRun.c / 2 }),
  "Every draft accepted": () => ({ ...ofThisRun, alpha: 1 }),
  "A window for the cost of a row": () => ({ ...ofThisRun, beta: 1 }),
};

function showWhatIf() {
  for (const [name, [symbol, meaning, min, max, step]] of Object.entries(SLIDERS)) {
    const input = make("input", { type: "range", id: name, min, max, step, input: answer });
    byId("sliders").append(
      make("label", make("b", symbol), " ", make("span", { id: `${name}-value` }), make("small", meaning), input),
    );
  }
  for (const [question, values] of Object.entries(QUESTIONS))
    byId("questions").append(make("button", { type: "button", click: () => setSliders(values()) }, question));
  const missing = Object.entries({ α: figures.alpha, c: figures.c, β: windows[0] }).filter(([, v]) => v == null);
  if (missing.length)
    byId("if-note").append(
      `Of this run ${missing.map(([symbol]) => symbol).join(", ")} could not be measured: what stands `,
      "here is an example.",
    );
  const [accepted, tested] = [figures.accepted_by_position, figures.met_by_position].map((counts) =>
    counts.reduce((a, b) => a + b, 0),
  );
  if (figures.alpha != null && tested)
    byId("if-note").append(
      `α is a mean over the drafts that were tested, here ${figures.alpha.toFixed(3)}. Of these ${tested} drafts ` +
        `${accepted} were accepted (${share(accepted, tested)}): such luck, and shorter windows at the end, carry a ` +
        "short run off the curve.",
    );
  byId("curve-key").append("● the chosen K; ◇ the best; + this run as measured; dashed: autoregressive decoding.");
  setSliders(ofThisRun);
}

function setSliders(values) {
  for (const [name, value] of Object.entries(values)) byId(name).value = value;
  answer();
}

function answer() {
  const [K, alpha, c, beta] = ["K", "alpha", "c", "beta"].map((name) => byId(name).valueAsNumber);
  for (const name of Object.keys(SLIDERS)) {
    const value = byId(name).valueAsNumber;
    byId(`${name}-value`).textContent = name === "K" ? value : value.toFixed(name === "beta" ? 2 : 3);
  }
  const cost = lineThrough([
    [1, 1],
    [ROWS, beta],
  ]);
  const tokens = leviathanTokens(alpha, K);
  const r = tokens / (K + 1);
  const speedup = times(blogSpeedup(r, K, c, cost(K + 1)));
  const [best, bestSpeedup] = bestK(Array(K_MAX).fill(alpha), c, cost);
  const asItRan = times(leviathanSpeedup(ofThisRun.alpha, ofThisRun.K, ofThisRun.c, ofThisRun.beta));
  byId("answer").textContent =
    `An iteration gives ${tokens.toFixed(2)} tokens (r = ${r.toFixed(3)}) in the time of ` +
    `${(K * c + cost(K + 1)).toFixed(2)} rows: ${speedup}` +
    `${speedup === asItRan ? "" : `, and with this run's values ${asItRan}`}. ` +
    `The best K is ${best}${best ? `, with ${times(bestSpeedup)}` : ": no speculation"}. ` +
    `With K = ${K} it pays while a window costs less than ${largestBeta(alpha, K, c).toFixed(2)} rows; ` +
    `here ${many(K + 1, "row")} cost β = ${cost(K + 1).toFixed(2)}.`;
  const Ks = Array.from({ length: K_MAX + 1 }, (_, k) => k);
  const here = figures.iterations ? figures.drafted / figures.iterations : 0;
  byId("curves").replaceChildren(
    curve(
      "Tokens per iteration",
      Ks.map((k) => leviathanTokens(alpha, k)),
      K,
      best,
      [here, figures.tokens_per_iteration],
    ),
    curve(
      "Speedup",
      Ks.map((k) => leviathanSpeedup(alpha, k, c, cost(k + 1))),
      K,
      best,
      [here, figures.speedup_without_prefill],
    ),
  );
}

/** Values over K = 0, 1, …; K and best are marked, and the point [K, value] of the run. */
function curve(title, values, K, best, [x0, y0]) {
  const top = 1.1 * Math.max(1, ...values, y0 ?? 0);
  const x = (k) => 34 + (356 * k) / K_MAX;
  const y = (value) => 190 - (170 * value) / top;
  const picture = svg("svg", {
    viewBox: "0 0 400 225",
    role: "img",
    "aria-label": `${title} over K: ${values[K].toFixed(2)} at ${K}, ${values[best].toFixed(2)} at ${best}, the best`,
  });
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
  if (y0 != null) picture.append(svg("path", { class: "run", d: `M${x(x0) - 7} ${y(y0)} h14 m-7 -7 v14` }));
  return make("figure", make("figcaption", title), picture);
}

showWhatIf();
