// ---- 4. Why it was this fast ----------------------------------------------------------------------------------------

/** rows: [[cells, value, kind], ...]: each with a bar as long as its value. */
function chart(caption, columns, rows) {
  const longest = Math.max(...rows.map(([, value]) => value));
  const withBars = rows.map(([cells, value, kind]) => [...cells, bars({ [kind]: value / longest })]);
  return table(caption, [...columns, ""], withBars);
}

const share = (part, whole) => `${Math.round((100 * part) / whole)} %`;

function showWhy() {
  byId("summary").append(...run.summary.filter(Boolean).map((line) => make("li", line)));
  for (const [name, value, formula] of report.table)
    byId("figures").tBodies[0].append(
      make("tr", make("th", { scope: "row" }, name), make("td", value), make("td", formula)),
    );

  const accepted = figures.accepted_by_position;
  const positions = figures.met_by_position.map((met, j) => [
    [String(j + 1), `${accepted[j]} of ${met}`, share(accepted[j], met)],
    accepted[j] / met,
    "accepted",
  ]);
  const counts = Object.entries(figures.tokens_per_iteration_histogram).map(([tokens, n]) => [
    [tokens, String(n), share(n, figures.iterations)],
    n,
    "q",
  ]);
  const speedups = [
    ["measured", figures.speedup_without_prefill, "q"],
    ["predicted, blog", figures.predicted_blog, "p"],
    ["predicted, Leviathan", figures.predicted_leviathan, "p"],
    ["predicted, by position", figures.predicted_leviathan === null ? figures.predicted_by_position : null, "p"],
    [`predicted for K = ${figures.best_K}, the best`, figures.predicted_best, "p"],
  ].flatMap(([name, value, kind]) => (value === null ? [] : [[[name, times(value)], value, kind]]));

  const charts = [
    ["Accepted, by position in the window", ["position", "accepted", "share"], positions],
    ["Tokens that an iteration gave", ["tokens", "iterations", "share"], counts],
    ["Speedup, without the prefill", ["figure", "speedup"], speedups],
  ];
  byId("charts").append(...charts.filter(([, , rows]) => rows.length).map((parts) => chart(...parts)));
}

showWhy();
