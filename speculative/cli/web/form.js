const bench = JSON.parse(byId("data").textContent);
const WORDS = {
  n_tokens_to_generate: "Tokens",
  K: "Lookahead",
  drafter: "Drafter",
  stop: "Stop text",
  seed: "Seed",
  only: "Decode with",
};
const hyphened = (name) => name.replace("_", "-"); // top_k is top-k
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const NO_PROMPT = "<|endoftext|>"; // with which an empty one begins
const FORM = JSON.stringify([bench.target, bench.prompt, bench.fields]); // the name under which what it holds is kept
const names = bench.fields.map(({ name }) => name);

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
    byId("fields").append(make("div", make("label", { for: name }, WORDS[name] ?? capital(hyphened(name))), input, note));
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
