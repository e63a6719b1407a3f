"use strict";

const run = JSON.parse(document.getElementById("data").textContent);
const { options, figures, report } = run;
const [plain] = run.autoregressive.samples;
const [speculative] = run.speculative.samples;

// ---- Elements. Whatever comes from the model or the user becomes a text node, never markup, and none is obeyed. -----

const byId = (id) => document.getElementById(id);

/** make("p.note", { id: "x", click: f }, "text", node): the attributes and listeners may be left out. */
function make(tag, ...children) {
  const [name, ...classes] = tag.split(".").filter(Boolean);
  const node = document.createElement(name);
  node.classList.add(...classes);
  for (const child of children) {
    if (typeof child === "string") node.append(shown(child));
    else if (child instanceof Node) node.append(child);
    else for (const [key, value] of Object.entries(child)) set(node, key, value);
  }
  return node;
}

function set(node, key, value) {
  if (typeof value === "function") node.addEventListener(key, value);
  else if (value !== undefined) node.setAttribute(key, value);
}

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

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

const hex = (character, n) => character.codePointAt(0).toString(16).padStart(n, "0");

/** Control characters, and those that turn the direction of text, are shown and not obeyed: as in a terminal. */
function shown(text) {
  return text
    .replace(/[\0-\x08\x0b-\x1f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\x7f/g, "\u2421")
    .replace(/[\x80-\x9f]/g, (c) => `\\x${hex(c, 2)}`)
    .replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => `\\u${hex(c, 4)}`);
}

/** A token on its own, with its white space visible. */
function tokenText(id) {
  return shown(run.vocabulary[id]).replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥");
}

const chip = (id, kind = "") => make(`span.chip.${kind}`, tokenText(id));
const many = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
const times = (x) => `${x.toFixed(2)}x`;

function seconds(s) {
  return s >= 1 ? `${s.toFixed(2)} s` : `${(1000 * s).toFixed(s < 0.01 ? 2 : 1)} ms`;
}

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

/** The smallest of 1, 2, 5, 10, 20, 50, … and 0.5, 0.2, 0.1, … that is at least x. */
function roundStep(x) {
  const unit = 10 ** Math.floor(Math.log10(x));
  return unit * [1, 2, 5, 10].find((factor) => factor * unit >= x);
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

function tokenSpan({ text, origin, proposer }, attributes = {}) {
  const blank = text === "" ? "part" : /^\n+$/.test(text) ? "newline" : "";
  const by = proposers.length > 1 ? proposer : undefined;
  return make(`span.token.${origin}.${blank}`, { ...attributes, "data-by": by }, text);
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
  const optional = { top_k: "top-k", top_p: "top-p", draft_temperature: "draft temperature", stop: "stop text" };
  define(byId("facts"), [
    ["draft", run.report.has_draft ? model(options.draft_model_size) : "no model"],
    ["target", model(options.target_model_size)],
    ["drafter", options.drafter],
    ["lookahead K", options.K],
    ["temperature", options.temperature],
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
