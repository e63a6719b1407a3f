// ---- The runs so far ------------------------------------------------------------------------------------------------

const LOOK = 2000; // milliseconds between two looks at the runs, as another tab may have asked for one
let runs = []; // their summaries
let shownRun = null; // the number of the one whose page is shown

function pace(decoder) {
  if (!decoder) return null;
  const { tokens, seconds: s } = decoder;
  return make("span", seconds(s), make("small", `${(tokens / s).toFixed(1)} tokens/s`));
}

const COLUMNS = {
  prompt: (run) => run.prompt || NO_PROMPT,
  tokens: (run) => run.n_tokens_to_generate,
  K: (run) => (run.tree === null ? run.K : `tree ${run.tree}`),
  ...Object.fromEntries(bench.filters.map((name) => [hyphened(name), (run) => run[name]])),
  drafter: (run) => make("span", ...run.drafter.split(/(?<=[+/])/).flatMap((name) => [name, make("wbr")])),
  stop: (run) => run.stop,
  seed: (run) => run.seed,
  autoregressive: (run) => pace(run.autoregressive),
  speculative: (run) => pace(run.speculative),
  speedup: (run) => run.speedup && times(run.speedup),
  r: (run) => run.r?.toFixed(3),
};

/** The table of these runs. A column in which nothing would stand is left out. */
function showRuns(now) {
  if (JSON.stringify(now) === JSON.stringify(runs)) return;
  runs = now;
  byId("none").hidden = runs.length > 0;
  byId("runs").hidden = runs.length === 0;
  const columns = Object.entries(COLUMNS).filter(([, cell]) => runs.some((run) => typed(cell(run)) !== ""));
  const head = ["run", ...columns.map(([name]) => name)].map((name) => make("th", { scope: "col" }, name));
  const rows = runs.map((run) => runRow(run, columns)).reverse();
  byId("runs").replaceChildren(make("table", make("thead", make("tr", ...head, make("td"))), make("tbody", ...rows)));
  markShown();
}

function runRow(run, columns) {
  const { number } = run;
  const file = (kind, suffix) =>
    make("a", { href: `/runs/${number}${suffix}`, download: `run-${number}.${kind.toLowerCase()}` }, kind);
  const show = make("button", { type: "button", click: () => showRun(run), "aria-label": `Show run ${number}` }, "Show");
  const cells = columns.map(([name, cell]) => {
    const value = cell(run);
    return make("td", { "data-name": name }, value instanceof Node ? value : typed(value));
  });
  const files = run.only ? [file("JSON", ".json")] : [file("HTML", ""), file("JSON", ".json")];
  const ways = make("div.ways", show, make("div", ...files));
  return make("tr", { id: `row-${number}` }, make("th", { scope: "row" }, number), ...cells, make("td", ways));
}

/** A run that is over, as it was: its flags in the form, its texts, and its page, where it has one. */
async function showRun(run) {
  fillForm(run);
  showPage(run);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const title = byId(run.only ? "live-title" : "shown-title");
  title.scrollIntoView({ behavior: still ? "auto" : "smooth" });
  title.focus({ preventScroll: true });
  const answer = await asked(`/runs/${run.number}.json`);
  if (answer && !request && shownRun === run.number) showTexts(answer); // texts that grow are not disturbed
}

/** The page of a run, in a frame that is as high as it. One decoder alone has none. */
function showPage({ number, only }) {
  shownRun = number;
  byId("shown").hidden = Boolean(only);
  if (!only) {
    byId("shown-title").textContent = `Run ${number}`;
    byId("frame").title = `Run ${number}, replayed`;
    byId("frame").src = `/runs/${number}`;
  }
  markShown();
}

function markShown() {
  for (const row of byId("runs").querySelectorAll("tbody tr")) {
    row.classList.toggle("drawn", row.id === `row-${shownRun}`);
  }
}

byId("frame").addEventListener("load", () => {
  const body = byId("frame").contentDocument?.body;
  const border = 2;
  const fit = () => (byId("frame").style.height = `${Math.ceil(body.getBoundingClientRect().height) + border}px`);
  if (body) new ResizeObserver(fit).observe(body); // there is none where the server is gone
});

async function look() {
  const answer = request ? null : await asked("/runs");
  if (answer) showRuns(answer);
}

/** What the server says in JSON; null where it says nothing. */
async function asked(path) {
  try {
    const answer = await fetch(path);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null; // the server is gone, which the next decode says
  }
}
