const run = JSON.parse(document.getElementById("data").textContent);
const { options, figures, report } = run;
const [plain] = run.autoregressive.samples;
const [speculative] = run.speculative.samples;

// ---- What the parts of a page are made of ---------------------------------------------------------------------------

/** Bars one below the other; shares: kind → length, of 1. */
function bars(shares) {
  const made = Object.entries(shares).map(([kind, share]) => {
    const bar = make(`i.bar.${kind}`);
    bar.style.width = share && `max(1px, ${100 * share}%)`; // which the page's policy allows, and no style attribute
    return bar;
  });
  return make("span.pair", ...made);
}

/** rows: [first cell, ...cells], and those that are marked. */
function table(caption, columns, rows, marked = []) {
  const body = rows.map(([first, ...cells], i) =>
    make(
      marked.includes(i) ? "tr.drawn" : "tr",
      make("th", { scope: "row" }, first),
      ...cells.map((c) => make("td", c)),
    ),
  );
  const heading = (name) => make("th", { scope: "col" }, name === "p" || name === "q" ? make(`b.${name}`, name) : name);
  const head = make("tr", ...columns.map((name) => (name ? heading(name) : make("td"))));
  return make("table.bars", make("caption", caption), make("thead", head), make("tbody", ...body));
}

function define(list, pairs) {
  list.append(...pairs.map(([name, value]) => make("div", make("dt", name), make("dd", String(value)))));
}

// ---- Words and numbers ----------------------------------------------------------------------------------------------

/** A token on its own, with its white space visible. */
function tokenText(id) {
  return shown(run.vocabulary[id]).replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥");
}

const chip = (id, kind = "") => make(`span.chip.${kind}`, tokenText(id));
function probability(p) {
  if (p === 0 || p === 1) return String(p);
  return p >= 0.001 ? p.toFixed(3) : "< 0.001";
}

/** Three digits, so that small ones can be compared. */
function exactly(p) {
  return p === 0 || p === 1
    ? String(p)
    : p >= 1e-6
      ? p.toFixed(Math.max(3, 2 - Math.floor(Math.log10(p))))
      : p.toExponential(2);
}

const PROPOSERS = run.report.drafters; // what each is called in a sentence

// ---- Every iteration, with its place in time and in the text --------------------------------------------------------

function timeline({ samples: [sample], seconds: total }) {
  let [end, first] = [0, 0];
  const each = total / sample.iterations.length; // for those of which no time is known
  return sample.iterations.map((iteration) => {
    const tokens = sample.pieces.slice(first, first + iteration.tokens).map((text, j) => ({
      text,
      origin: sample.origins[first + j],
      proposer: j < iteration.accepted ? iteration.by[j] : undefined,
    }));
    const placed = { ...iteration, tokens, first, begin: end, end: end + (iteration.seconds ?? each) };
    [end, first] = [placed.end, first + tokens.length];
    return placed;
  });
}

const lanes = { plain: timeline(run.autoregressive), speculative: timeline(run.speculative) };
const iterations = lanes.speculative;
const proposers = [...new Set(iterations.flatMap((i) => i.tokens.map((t) => t.proposer)).filter(Boolean))];

function tokenSpan({ proposer, ...token }, attributes = {}) {
  return markedToken(token, { ...attributes, "data-by": proposers.length > 1 ? proposer : undefined });
}

function showHeader() {
  const [slow, fast] = [plain, speculative].map((sample) => sample.tokens.length);
  const { autoregressive, speculative: mine } = figures.seconds;
  if (figures.speedup)
    byId("result").append(
      `${times(figures.speedup)} as fast: ` +
        (slow === fast
          ? `${many(fast, "token")} in ${seconds(mine)} instead of ${seconds(autoregressive)}.`
          : `${many(fast, "token")} in ${seconds(mine)}; token by token, ${slow} in ${seconds(autoregressive)}.`),
    );
  const model = (size) => (run.stand_ins?.[size] ? `${size}, a stand-in: ${run.stand_ins[size]}` : size);
  const filters = run.report.filters.map((name) => [name, name.replace("_", "-")]);
  const optional = { ...Object.fromEntries(filters), draft_temperature: "draft temperature", stop: "stop text" };
  define(byId("facts"), [
    ["draft", run.report.has_draft ? model(options.draft_model_size) : "no model"],
    ["target", model(options.target_model_size)],
    ["drafter", options.drafter],
    ["lookahead K", [options.K].flat().join("/")],
    ...Object.keys(optional).flatMap((name) => (options[name] == null ? [] : [[optional[name], options[name]]])),
    ["seed", options.seed],
    ["engine", options.engine],
    ["machine", `${run.machine.processor}, ${many(run.machine.cpus, "core")}`],
  ]);
  define(
    byId("options"),
    Object.entries({ ...options, ...run.machine }).filter(([, value]) => value !== null),
  );
}

showHeader();
