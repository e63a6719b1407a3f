const bench = JSON.parse(byId("data").textContent);
const WORDS = {
  n_tokens_to_generate: "Tokens",
  K: "Lookahead K",
  temperature: "Temperature",
  top_k: "Top-k",
  top_p: "Top-p",
  drafter: "Drafter",
  stop: "Stop text",
  seed: "Seed",
  only: "Decode with",
};
const DECODERS = { autoregressive: "Autoregressive", speculative: "Speculative" };
const NO_PROMPT = "<|endoftext|>"; // with which an empty one begins
const LOOK = 2000; // milliseconds between two looks at the runs, as another tab may have asked for one
const FORM = JSON.stringify([bench.target, bench.prompt, bench.fields]); // the name under which what it holds is kept
const names = bench.fields.map(({ name }) => name);
const lanes = {}; // by decoder: where its text and its race are drawn
let runs = []; // their summaries
let shownRun = null; // the number of the one whose page is shown
let request = null; // what ends the decode that is under way

/** A flag's value as it is typed: that of K may be a number for each level. */
const typed = (value) => (Array.isArray(value) ? value.join("/") : String(value ?? ""));

// ---- The form -------------------------------------------------------------------------------------------------------

function showForm() {
  byId("models").textContent = bench.draft
    ? `Here the target is ${bench.target} and the draft model ${bench.draft}.`
    : `Here the target is ${bench.target}, and there is no draft model.`;
  for (const { name, help } of bench.fields) {
    if (name === "only") continue; // a choice beside the button
    const how = { id: name, "aria-describedby": `${name}-help`, autocomplete: "off", placeholder: "none" };
    const input = make("input", name === "drafter" ? { ...how, list: "drafters" } : how);
    const note = make("small", { id: `${name}-help` }, help);
    byId("fields").append(make("div", make("label", { for: name }, WORDS[name]), input, note));
  }
  byId("fields").append(make("datalist", { id: "drafters" }, ...bench.drafters.map((value) => make("option", { value }))));
  byId("prompt").placeholder = NO_PROMPT;
  const defaults = Object.fromEntries(bench.fields.map(({ name, value }) => [name, value]));
  fillForm(keptForm() ?? { prompt: bench.prompt, ...defaults });
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!request) decode();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
  });
  byId("end").addEventListener("click", () => request?.abort());
  addEventListener("pagehide", () => sessionStorage.setItem(FORM, JSON.stringify(formValues())));
}

function formValues() {
  return Object.fromEntries(["prompt", ...names].map((name) => [name, byId(name).value]));
}

function fillForm(values) {
  for (const name of ["prompt", ...names]) byId(name).value = typed(values[name]);
}

/** What the form held when this page was left; null where nothing is known. */
function keptForm() {
  try {
    return JSON.parse(sessionStorage.getItem(FORM));
  } catch {
    return null; // a browser may be told to keep nothing
  }
}

/** A line that speaks of flags, in the words of the form. */
function inWordsOfForm(line) {
  return line.replace(/--([A-Za-z]\w*)/g, (flag, name) => (names.includes(name) ? `“${WORDS[name]}”` : flag));
}

/** Whether something is decoded; state: what is said of it. */
function setBusy(busy, state) {
  const focused = document.activeElement;
  byId("start").disabled = busy;
  byId("end").disabled = !busy;
  if (focused === byId("start") && busy) byId("end").focus(); // a button that is disabled loses the focus
  if (focused === byId("end") && !busy) byId("start").focus();
  byId("state").textContent = state;
}

// ---- A decode -------------------------------------------------------------------------------------------------------

async function decode() {
  const { prompt, stop, ...others } = formValues();
  const flags = Object.fromEntries(Object.entries(others).map(([name, value]) => [name, value.trim()]));
  const body = JSON.stringify({ prompt, flags: { ...flags, stop } });
  request = new AbortController();
  byId("wrong").textContent = "";
  setBusy(true, "Asked.");
  clearLanes(formValues());
  let said = "";
  try {
    const headers = { "content-type": "application/json" };
    const answer = await fetch("/decode", { method: "POST", body, headers, signal: request.signal });
    if (!answer.ok) throw new Error(await answer.text());
    for await (const [kind, value] of events(answer.body)) said = HEARD[kind](value) ?? said;
    if (!said) throw new TypeError("the stream ended early");
  } catch (error) {
    if (error.name === "AbortError") said = "Stopped.";
    else said = "Not decoded.";
    if (error.name === "Error") byId("wrong").textContent = shown(inWordsOfForm(error.message));
    if (error.name === "TypeError") byId("wrong").textContent = "The server does not answer: is main.py still running?";
  }
  request = null;
  setBusy(false, said);
}

/** What to do with each kind of event → what is said at the end, where it is the last. */
const HEARD = {
  waiting(ahead) {
    if (ahead) byId("state").textContent = `Waiting: ${many(ahead, "other text")} before this one.`;
  },
  step: showStep,
  error(line) {
    throw new Error(line);
  },
  done(run) {
    showRuns([...runs.filter(({ number }) => number !== run.number), run]);
    showPage(run);
    describeLanes();
    if (run.only) return `Done: ${many(run[run.only].tokens, "token")} in ${seconds(run[run.only].seconds)}.`;
    return `Done: ${times(run.speedup)} as fast, acceptance rate r = ${run.r.toFixed(3)}.`;
  },
};

/** A stream of server-sent events → [kind, value] of each. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const [, kind, data] = part.match(/^event: (.*)\ndata: (.*)$/s);
      yield [kind, JSON.parse(data)];
    }
  }
}

// ---- Both texts, and the race ---------------------------------------------------------------------------------------

function showLanes() {
  for (const [name, title] of Object.entries(DECODERS)) {
    const status = make("span");
    const text = make("p.text");
    const picture = svg("svg", { role: "img", preserveAspectRatio: "none", "aria-label": `${title}: nothing yet` });
    const article = make("article", { "aria-labelledby": name }, make("h3", { id: name }, title, " ", status), picture, text);
    byId("decoders").append(article);
    lanes[name] = { article, status, text, picture };
  }
  for (const kind of ["draft", "target"]) {
    byId("key").append(make("span", make(`i.${kind}`), ` the ${kind} is called`));
  }
  for (const [origin, meaning] of Object.entries(MEANINGS)) {
    byId("meanings").append(make("li", make(`span.token.${origin}`, origin), ` ${meaning}`));
  }
  clearLanes(formValues());
}

/** Begins both texts, or that of the one decoder that is asked. */
function clearLanes({ prompt, only }) {
  byId("live-title").textContent = only ? "The text" : "The two texts";
  for (const [name, lane] of Object.entries(lanes)) {
    lane.article.hidden = Boolean(only) && only !== name;
    Object.assign(lane, { tokens: 0, calls: 0, end: 0 });
    lane.status.textContent = "";
    lane.picture.replaceChildren();
    lane.text.replaceChildren(make("span.prompt", prompt));
  }
  scaleLanes();
}

function showStep({ decoder, tokens, drafting, scoring, end }) {
  const lane = lanes[decoder];
  for (const [text, origin] of tokens) {
    const [kind, by] = origin.split(": ");
    lane.text.append(kind ? markedToken({ text, origin: kind }, { "data-by": by }) : shown(text));
    lane.tokens += kind ? 1 : 0;
  }
  if (end > lane.end) {
    const call = (kind, x, width, y) => svg("rect", { class: kind, x, width, y, height: 16 });
    if (drafting) lane.picture.append(call("draft", lane.end, drafting, 2));
    if (scoring) lane.picture.append(call("target", lane.end + (drafting ?? 0), scoring, 19));
    if (!drafting && !scoring) lane.picture.append(call("device", lane.end, end - lane.end, 19));
    lane.calls += 1;
  }
  lane.end = end;
  lane.status.textContent = `${many(lane.tokens, "token")}, ${many(lane.calls, "call")}, ${seconds(end)}`;
  byId("state").textContent = `${DECODERS[decoder]} …`;
  scaleLanes();
}

/** Both lanes on one time axis, which has room for what comes. */
function scaleLanes() {
  const total = roundStep(Math.max(...Object.values(lanes).map((lane) => lane.end)) || 1);
  lanes.autoregressive.picture.setAttribute("viewBox", `0 17 ${total} 19`); // where nothing is drafted
  lanes.speculative.picture.setAttribute("viewBox", `0 0 ${total} 36`);
}

function describeLanes() {
  for (const [name, { calls, end, picture }] of Object.entries(lanes)) {
    picture.setAttribute("aria-label", `${DECODERS[name]}: ${many(calls, "call")} of the target, ${seconds(end)}`);
  }
}

/** The texts of a run that is over. */
function showTexts(run) {
  clearLanes(run.options);
  for (const decoder of Object.keys(DECODERS)) {
    const [sample] = run[decoder].samples;
    if (!sample) continue;
    const each = run[decoder].seconds / sample.iterations.length; // for those of which no time is known
    let [first, end] = [0, 0];
    for (const { tokens: n, by, drafting, scoring, seconds } of sample.iterations) {
      const named = (origin, j) => (by[j] && by[j] !== "model" && origin === "accepted" ? `${origin}: ${by[j]}` : origin);
      const origins = sample.origins.slice(first, first + n).map(named);
      const tokens = origins.map((origin, j) => [sample.pieces[first + j], origin]);
      [first, end] = [first + n, end + (seconds ?? each)];
      showStep({ decoder, tokens, drafting, scoring, end });
    }
  }
  byId("state").textContent = "";
  describeLanes();
}

// ---- The runs so far ------------------------------------------------------------------------------------------------

function pace(decoder) {
  if (!decoder) return null;
  const { tokens, seconds: s } = decoder;
  return make("span", seconds(s), make("small", `${(tokens / s).toFixed(1)} tokens/s`));
}

const COLUMNS = {
  prompt: (run) => run.prompt || NO_PROMPT,
  tokens: (run) => run.n_tokens_to_generate,
  K: (run) => (run.tree === null ? run.K : `tree ${run.tree}`),
  temperature: (run) => run.temperature,
  "top-k": (run) => run.top_k,
  "top-p": (run) => run.top_p,
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
  const answer = await fetch(`/runs/${run.number}.json`);
  if (answer.ok && !request) showTexts(await answer.json()); // texts that grow are not disturbed
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
  const { body } = byId("frame").contentDocument;
  const border = 2;
  const fit = () => (byId("frame").style.height = `${Math.ceil(body.getBoundingClientRect().height) + border}px`);
  new ResizeObserver(fit).observe(body);
});

async function look() {
  try {
    const answer = request ? {} : await fetch("/runs");
    if (answer.ok) showRuns(await answer.json());
  } catch {
    // The server is gone, which the next decode says.
  }
}

showForm();
showLanes();
look();
setInterval(look, LOOK);
