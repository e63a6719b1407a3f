const bench = JSON.parse(byId("data").textContent);
const WORDS = {
  n_tokens_to_generate: "Tokens",
  K: "Lookahead K",
  temperature: "Temperature",
  top_k: "Top-k",
  top_p: "Top-p",
  drafter: "Drafter",
  seed: "Seed",
};
const ORIGINS = ["autoregressive", "accepted", "resampled", "bonus"];
const DECODERS = { autoregressive: "Autoregressive", speculative: "Speculative" };
const lanes = {}; // by decoder: where its text and its race are drawn
const runs = new Map(); // number → summary
let request = null; // what ends the decode that is under way

/** A flag's value as it is typed: that of K may be a number for each level. */
const typed = (value) => (Array.isArray(value) ? value.join("/") : String(value ?? ""));

// ---- The form -------------------------------------------------------------------------------------------------------

function showForm() {
  byId("models").textContent = bench.draft
    ? `Here the target is ${bench.target} and the draft model ${bench.draft}.`
    : `Here the target is ${bench.target}, and there is no draft model.`;
  byId("prompt").value = bench.prompt;
  for (const { name, value, help } of bench.fields) {
    const input = make("input", { id: name, "aria-describedby": `${name}-help`, autocomplete: "off" });
    input.value = typed(value);
    if (name === "drafter") input.setAttribute("list", "drafters");
    const note = make("small", { id: `${name}-help` }, help);
    byId("fields").append(make("div", make("label", { for: name }, WORDS[name]), input, note));
  }
  byId("fields").append(make("datalist", { id: "drafters" }, ...bench.drafters.map((value) => make("option", { value }))));
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!request) decode();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
  });
  byId("stop").addEventListener("click", () => request?.abort());
  byId("frame").addEventListener("load", () => {
    const page = byId("frame").contentDocument.body;
    const fit = () => (byId("frame").style.height = `${page.parentNode.scrollHeight + 4}px`);
    if (page) new ResizeObserver(fit).observe(page);
  });
}

/** Whether something is decoded; state: what is said of it. */
function setBusy(busy, state) {
  const focused = document.activeElement;
  byId("start").disabled = busy;
  byId("stop").disabled = !busy;
  if (focused === byId("start") && busy) byId("stop").focus(); // a button that is disabled loses the focus
  if (focused === byId("stop") && !busy) byId("start").focus();
  byId("state").textContent = state;
}

// ---- A decode -------------------------------------------------------------------------------------------------------

async function decode() {
  const flags = Object.fromEntries(bench.fields.map(({ name }) => [name, byId(name).value.trim()]));
  const body = JSON.stringify({ prompt: byId("prompt").value, flags });
  request = new AbortController();
  byId("wrong").textContent = "";
  setBusy(true, "Asked.");
  clearLanes();
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
    if (error.name === "Error") byId("wrong").textContent = shown(error.message);
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
  done(summary) {
    addRun(summary);
    showRun(summary.number);
    for (const name of Object.keys(DECODERS)) describeLane(name);
    return `Done: ${times(summary.speedup)} as fast, r = ${summary.r.toFixed(3)}.`;
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
    byId("decoders").append(
      make("article", { "aria-labelledby": name }, make("h3", { id: name }, title, " ", status), picture, text),
    );
    lanes[name] = { status, text, picture };
  }
  for (const kind of ["draft", "target"]) {
    byId("key").append(make("span", make(`i.${kind}`), ` the ${kind} is called`));
  }
  byId("key").append(...ORIGINS.map((origin) => make("span", make(`span.token.${origin}`, origin))));
  clearLanes();
}

function clearLanes() {
  for (const lane of Object.values(lanes)) {
    Object.assign(lane, { tokens: 0, calls: 0, end: 0 });
    lane.status.textContent = "";
    lane.picture.replaceChildren();
    lane.text.replaceChildren(make("span.prompt", byId("prompt").value));
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
  for (const { picture } of Object.values(lanes)) picture.setAttribute("viewBox", `0 0 ${total} 36`);
}

function describeLane(name) {
  const { calls, end, picture } = lanes[name];
  picture.setAttribute("aria-label", `${DECODERS[name]}: ${many(calls, "call")} of the target, ${seconds(end)}`);
}

// ---- The runs so far ------------------------------------------------------------------------------------------------

function addRun(summary) {
  runs.set(summary.number, summary);
  byId("none").hidden = true;
  byId("runs").hidden = false;
  const columns = ["run", "prompt", "tokens", "K", "temperature", "top-k", "top-p", "drafter", "seed", "speedup", "r", ""];
  const head = make("tr", ...columns.map((name) => (name ? make("th", { scope: "col" }, name) : make("td"))));
  const rows = [...runs.values()].reverse().map(runRow);
  byId("runs").replaceChildren(make("table", make("thead", head), make("tbody", ...rows)));
}

function runRow(run) {
  const lookahead = run.tree === null ? run.K : `tree ${run.tree}`;
  const values = [run.prompt, run.n_tokens_to_generate, lookahead, run.temperature, run.top_k, run.top_p];
  const cells = [...values, run.drafter, run.seed, times(run.speedup), run.r.toFixed(3)];
  const file = (kind, suffix) =>
    make("a", { href: `/runs/${run.number}${suffix}`, download: `run-${run.number}.${kind.toLowerCase()}` }, kind);
  const show = make("button", { type: "button", click: () => showRun(run.number), "aria-label": `Show run ${run.number}` });
  show.append("Show");
  return make(
    "tr",
    { id: `row-${run.number}` },
    make("th", { scope: "row" }, run.number),
    ...cells.map((value) => make("td", typed(value))),
    make("td", show, " ", file("HTML", ""), " ", file("JSON", ".json")),
  );
}

/** The page of a run, in a frame that is as high as it. */
function showRun(number) {
  byId("shown").hidden = false;
  byId("shown-title").textContent = `Run ${number}`;
  byId("frame").title = `Run ${number}, replayed`;
  byId("frame").src = `/runs/${number}`;
  for (const row of byId("runs").querySelectorAll("tbody tr")) {
    row.classList.toggle("drawn", row.id === `row-${number}`);
  }
}

showForm();
showLanes();
bench.runs.forEach(addRun);
