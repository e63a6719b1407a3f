"use strict";

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

const MEANINGS = {
  accepted: "proposed, and accepted by the target",
  resampled: "the target's own, after it had rejected a proposal",
  bonus: "the target's own, after it had accepted a whole window",
  autoregressive: "the target's own, where nothing was proposed",
};

/** A token in the colour of its origin; one that shows nothing has a sign in its place. */
function markedToken({ text, origin }, attributes = {}) {
  const blank = text === "" ? "part" : /^\n+$/.test(text) ? "newline" : "";
  return make(`span.token.${origin}.${blank}`, attributes, text);
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

const many = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;
const times = (x) => `${x.toFixed(2)}x`;

function seconds(s) {
  return s >= 1 ? `${s.toFixed(2)} s` : `${(1000 * s).toFixed(s < 0.01 ? 2 : 1)} ms`;
}

/** The smallest of 1, 2, 5, 10, 20, 50, … and 0.5, 0.2, 0.1, … that is at least x. */
function roundStep(x) {
  const unit = 10 ** Math.floor(Math.log10(x));
  return unit * [1, 2, 5, 10].find((factor) => factor * unit >= x);
}
