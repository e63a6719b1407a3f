"use strict";

// Elements of a page. All text becomes text nodes, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/** make("p.note", { id: "x", click: f }, "text", node): attributes and listeners may be left out. */
function make(tag, ...children) {
  const [name, ...classes] = tag.split(".").filter(Boolean);
  const node = document.createElement(name);
  node.classList.add(...classes);
  for (const child of children) {
    if (typeof child === "string") node.append(shown(child));
    else if (child instanceof Node) node.append(child);
    else set(node, child);
  }
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

function set(node, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value !== undefined && value !== null) node.setAttribute(key, value);
  }
}

/** The class whose style shows a sign, if a token's text is invisible. */
const blankOf = (text) => (text === "" ? "part" : /^\n+$/.test(text) ? "newline" : "");

/** A token in the colour of its origin. */
function tokenSpan({ text, origin, by }, attributes = {}) {
  return make(`span.token.${origin}.${blankOf(text)}`, { "data-mark": markOf(by), ...attributes }, text);
}

/** The letter at the tokens of a drafter; the draft model's have none. */
const markOf = (drafter) => data.marks[drafter];

function legend(list, rows) {
  for (const [origin, by, words] of rows) {
    list.append(make("li", make(`span.token.${origin}`, { "data-mark": markOf(by) }, origin), ` ${words}`));
  }
}

function define(list, pairs) {
  for (const [name, value] of pairs) list.append(make("div", make("dt", name), make("dd", value)));
}

/** A bar; share: its length, at most 1. */
function bar(kind, share) {
  const made = make(`i.bar.${kind}`);
  made.style.width = share && `max(1px, ${100 * share}%)`; // the policy allows this, but no style attribute
  return made;
}

/** rows: [heading, ...cells]; the row with the number `marked` is drawn bold. */
function table(caption, columns, rows, marked = -1) {
  const heading = (name) => make("th", { scope: "col" }, /^[pq]$/.test(name) ? make(`b.${name}`, name) : name);
  const head = make("tr", ...columns.map((name) => (name ? heading(name) : make("td"))));
  const body = rows.map(([first, ...cells], i) =>
    make(
      i === marked ? "tr.drawn" : "tr",
      make("th", { scope: "row" }, first),
      ...cells.map((cell) => make("td", cell)),
    ),
  );
  return make("table.bars", make("caption", caption), make("thead", head), make("tbody", ...body));
}

// Steps

/** Call move(-1) or move(1) at the buttons #previous and #next, and at the arrow keys. */
function onStep(move) {
  byId("previous").addEventListener("click", () => move(-1));
  byId("next").addEventListener("click", () => move(1));
  addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const withOthers = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
    if (!step || withOthers || event.target.closest("input, select")) return;
    event.preventDefault();
    move(step);
  });
}

// Words and numbers

const hex = (character) => character.codePointAt(0).toString(16).padStart(4, "0");

/** Control characters, and those that turn the direction of text, become visible, as in the terminal. */
function shown(text) {
  return text
    .replace(/[\0-\x08\x0b-\x1f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\x7f/g, "\u2421")
    .replace(/[\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => `\\u${hex(c)}`);
}

const many = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

function seconds(s) {
  return s >= 1 ? `${s.toFixed(2)} s` : `${(1000 * s).toFixed(s < 0.01 ? 2 : 1)} ms`;
}

/** The smallest of 1, 2, 5, 10, 20, 50, … and 0.5, 0.2, 0.1, … that is at least x. */
function roundStep(x) {
  const unit = 10 ** Math.floor(Math.log10(x));
  return unit * [1, 2, 5, 10].find((factor) => factor * unit >= x);
}
