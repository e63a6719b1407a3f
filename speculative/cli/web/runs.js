// The table of the runs

const LOOK = 2000; // milliseconds between two looks at the runs: another tab may have added one
let runs = []; // as summary() of workbench.py
let shownRun = null; // number of the run whose result is shown
let order = ["Run", -1]; // column by which the table is sorted, and 1 for rising, -1 for falling

// Each column: run → [text, note]; nothing if the run lacks it. The options follow the results.
const COLUMNS = {
  "Times as fast": ({ figures: f }) => [f.speedup.toFixed(2), f.doubt && "doubtful"],
  "Tokens per call": ({ figures: f }) => f.drafted && [f.tokens_per_iteration.toFixed(2)],
  Accepted: ({ figures: f }) => f.drafted && [`${Math.round(100 * f.accepted_share)} %`],
  r: ({ figures: f }) => f.drafted && [f.r.toFixed(3)],
  Autoregressive: ({ figures: f }) => pace(f.seconds.autoregressive, f.tokens / f.seconds.speculative / f.speedup),
  Speculative: ({ figures: f }) => pace(f.seconds.speculative, f.tokens / f.seconds.speculative),
};
const RESULTS = Object.keys(COLUMNS);
COLUMNS.Prompt = ({ values }) => [values.prompt || "<|endoftext|>"];
for (const { name, label } of data.fields) COLUMNS[label] = ({ values }) => [values[name]];

const pace = (time, rate) => [seconds(time), `${rate.toFixed(1)} tokens/s`];

// The value by which a run is sorted; a number if its text begins with one.
const KEYS = {
  Run: ({ number }) => number,
  Autoregressive: ({ figures }) => figures.seconds.autoregressive,
  Speculative: ({ figures }) => figures.seconds.speculative,
};

function sortKey(run, column) {
  if (KEYS[column]) return KEYS[column](run);
  const [text] = COLUMNS[column](run) || [""];
  return /^[\d.]+( %)?$/.test(text) ? parseFloat(text) : text;
}

/** Numbers before texts, in either direction. */
function compare(a, b, direction) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return direction * (a < b ? -1 : Number(a > b));
}

/** The names of the columns: results that a run has, and options that differ between the runs. */
function columnsOf(runs) {
  return Object.keys(COLUMNS).filter((name) => {
    const texts = new Set(runs.map((run) => COLUMNS[name](run)?.[0] ?? ""));
    return RESULTS.includes(name) ? texts.size > 1 || !texts.has("") : texts.size > 1;
  });
}

function showRuns() {
  byId("runs-section").hidden = runs.length === 0;
  const [by, direction] = order;
  const columns = columnsOf(runs);
  const sorted = [...runs].sort((a, b) => compare(sortKey(a, by), sortKey(b, by), direction));
  const head = make("tr", ...["Run", ...columns].map(heading), make("td"));
  const body = sorted.map((run) => runRow(run, columns));
  byId("runs").replaceChildren(make("table", make("thead", head), make("tbody", ...body)));
}

/** The name of a column, a button that sorts by it: falling, then rising. */
function heading(name) {
  const [by, direction] = order;
  const arrow = name !== by ? "" : direction > 0 ? " ↑" : " ↓";
  const sort = () => {
    order = [name, name === by ? -direction : -1];
    showRuns();
    byId(`sort-${name}`).focus();
  };
  const button = make("button", { type: "button", id: `sort-${name}`, click: sort }, name + arrow);
  const kind = runs.some((run) => typeof sortKey(run, name) === "number") ? "th.number" : "th";
  return make(kind, { scope: "col", "aria-sort": arrow && (direction > 0 ? "ascending" : "descending") }, button);
}

function runRow(run, columns) {
  const { number } = run;
  const values = columns.map((name) => {
    const [text, note] = COLUMNS[name](run) || [""];
    const kind = `${typeof sortKey(run, name) === "number" ? "number" : ""}.${note === "doubtful" ? note : ""}`;
    return make(`td.${kind}`, { title: text, "data-name": name }, text, note ? make("small", note) : "");
  });
  const button = (name, text, click) =>
    make("button", { type: "button", click, "aria-label": `${name} run ${number}` }, text);
  const link = (name, to, how) =>
    make("a", { href: `/runs/${number}/${to}`, ...how, "aria-label": `${name} run ${number}` }, name);
  const ways = make(
    "div.ways",
    button("Reuse", "Reuse", () => fillForm(run.values)),
    link("Replay", "page", { target: "_blank" }),
    link("JSON", "json", { download: `run-${number}.json` }),
  );
  const row = make(number === shownRun ? "tr.drawn" : "tr", { id: `row-${number}` });
  const show = button("Show", String(number), () => request || showRun(run));
  row.append(make("th.number", { scope: "row" }, show), ...values, make("td", ways));
  return row;
}

/** Show a run's result and its texts. The form stays as it is: Reuse fills it in. */
async function showRun(run) {
  const document = await asked(`/runs/${run.number}/json`);
  if (!document) return;
  shownRun = run.number;
  byId("headline").textContent = run.headline;
  byId("lines").textContent = `Run ${run.number}: ${[...run.lines, run.advice ?? ""].join(" ")}`;
  clearLanes(run.values.prompt);
  DECODERS.flatMap((name) => stepsOf(document, name)).forEach(showStep);
  showRuns();
}

/** The steps of a decoder, as a decode tells them. */
function stepsOf(document, decoder) {
  let end = 0;
  return document[decoder].samples[0].iterations.map(({ pieces, origins, source, drafting, scoring, seconds: s }) => {
    const by = (i) => (origins[i] === "accepted" && source[i] !== "model" ? source[i] : null);
    return [decoder, pieces.map((text, i) => [text, origins[i], by(i)]), drafting, scoring, (end += s)];
  });
}

async function look() {
  const now = request ? null : await asked("/runs");
  const numbers = (of) => String(of.map(({ number }) => number));
  if (!now || request || numbers(now) === numbers(runs)) return;
  runs = now;
  showRuns();
}

/** An answer of the server in JSON, or null. */
async function asked(path) {
  try {
    const answer = await fetch(path);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null; // the server has ended: the next decode says so
  }
}
