// 3. One iteration, close up

let chosen = data.opening; // number of the iteration, from 1

/** Show an iteration, and mark the token at this position. */
function choose(number, position) {
  chosen = Math.min(Math.max(1, number), data.iterations.length);
  history.replaceState(null, "", `#iteration-${chosen}`);
  showIteration(position);
  const card = byId("glass").querySelector(".card.chosen");
  const { top, bottom } = byId("glass-title").parentElement.getBoundingClientRect();
  if (card) card.scrollIntoView({ block: "nearest" });
  else if (top > 0.8 * innerHeight || bottom < 0) byId("glass-title").scrollIntoView();
}

function showIteration(position) {
  const i = data.iterations[chosen - 1];
  spans.forEach((span, at) => span.classList.toggle("chosen", at === chosen - 1));
  byId("number").value = chosen;
  byId("link").href = `#iteration-${chosen}`;
  byId("previous").disabled = chosen === 1;
  byId("next").disabled = chosen === data.iterations.length;
  const verdict = i.drafted ? `${i.accepted} of ${many(i.drafted, "draft")} accepted` : "nothing was drafted";
  const own = i.origin ?? "none, because the text ended";
  byId("outcome").textContent =
    `Iteration ${chosen} of ${data.iterations.length}: ${verdict}; the target's own token: ${own}.`;
  const tokens = speculative.tokens.filter(({ iteration }) => iteration === chosen);
  const context = make("p.text", make("span.prompt", i.before), ...tokens.map((token) => tokenSpan(token)));
  const steps = i.tree ? treeSteps(i) : i.tested ? chainSteps(i, position) : [make("p", data.rule.no_tests)];
  byId("glass").replaceChildren(context, ...steps);
}

const step = (title, ...content) => make("section.step", make("h3", title), ...content);
const chip = (text, kind = "") => make(`span.chip.${kind}`, text);

/** The blog's Steps 1 to 4. */
function chainSteps(i, position) {
  const { drafted: m, accepted, drafts, tested, own } = i;
  const took = (time, prefill) => ` in ${time}${prefill ? ", which includes reading the prompt" : ""}.`;
  const rows = `${many(m + 1, "row")},${took(i.scoring, i.prefill)}`;
  const chips = drafts.map(([text, by], j) =>
    make("span.draft-chip", chip(text, j < tested.length ? "" : "untested"), by ? make("small", ` ${by}`) : ""),
  );
  const ownCard = (title, caption) =>
    card(
      { ...own, caption, title, columns: ["chance"], origin: i.origin, formula: `sampled with u = ${own.u}` },
      position === accepted,
    );
  if (m === 0)
    return [
      step("Step 1. Nothing is proposed", make("p", "Only the target is called, as in autoregressive decoding.")),
      step("Step 2. The target scores the text", make("p", rows)),
      step("Step 4. The target samples a token", ownCard("The target's token", "q")),
    ];
  const cards = tested.map((test, j) => {
    const kept = j < accepted;
    const verdict = !kept ? "✗ rejected" : test.passed ? "✓ accepted" : "✓ kept, because a later draft passed";
    const parts = {
      ...test,
      verdict,
      kept,
      title: `Draft ${j + 1}`,
      caption: "The likeliest tokens here",
      columns: ["p", "q"],
    };
    return card(parts, j === position && kept);
  });
  const rejected = accepted < m;
  const left = own?.from === "q" ? "q: p and q differ by rounding alone" : data.rule.replaced_by;
  if (rejected && own) cards.push(ownCard("In its place", left));
  const unused = m - accepted - 1;
  const last = rejected ? `Not reached: draft ${accepted + 1} was rejected.` : "Not reached: the text ended.";
  return [
    step(`Step 1. The draft proposes ${many(m, "token")}`, make("p", ...chips, took(i.drafting, i.draft_prefill))),
    step("Step 2. The target scores them in one call", make("p", `One row for each draft and one more: ${rows}`)),
    step(
      `Step 3. ${data.rule.step_3}`,
      make("div.cards", ...cards),
      rejected && unused ? make("p", `Not used: ${many(unused, "draft")} after the rejected one.`) : "",
    ),
    step(
      "Step 4. If all were accepted, the target adds a bonus token",
      rejected || !own ? make("p", last) : ownCard("Bonus", "q, after the last draft"),
    ),
  ];
}

function treeSteps(i) {
  const walked =
    `${many(i.accepted, "draft")} accepted, marked ✓. Siblings are tested in turn, each against the part of q that the ` +
    "rejected ones before it left.";
  return [
    step(`Step 1. The draft proposes a tree of ${many(i.drafted, "token")}`, branches(i.tree)),
    step("Step 2. The target scores all of them in one call", make("p", `${i.drafted + 1} rows, in ${i.scoring}.`)),
    step("Steps 3 and 4. Walk down the tree, then add the target's own token", make("p", walked)),
  ];
}

function branches(children) {
  const items = children.map(([text, accepted, below]) =>
    make(
      "li",
      chip(text, accepted ? "accepted" : "untested"),
      accepted ? " ✓" : "",
      below.length ? branches(below) : "",
    ),
  );
  return make("ul", ...items);
}

/** A tested draft or the target's own token; rows: [token, probability, …] of the likeliest tokens. */
function card({ title, token, origin, formula, verdict, kept, caption, columns, rows, drawn }, isChosen) {
  const chances = rows.flatMap(([, ...row]) => row);
  const oneHot = chances.every((p) => p === 0 || p === 1); // then the likeliest token says as much as p and q
  const likeliest = rows.find((row) => row.at(-1) === 1)?.[0];
  const article = make(
    `article.card.${isChosen ? "chosen" : ""}`,
    make("h4", `${title}: `, chip(token, origin)),
    make("p.formula", ...(oneHot ? ["The target's likeliest token: ", chip(likeliest)] : [formula])),
    verdict ? make("p", make(`strong.verdict.${kept ? "accepted" : "resampled"}`, verdict)) : "",
  );
  if (oneHot) return article;
  const kinds = columns.length > 1 ? columns : ["q"];
  const lines = rows.map(([text, ...row]) => {
    const bars = kinds.map((kind, n) => bar(kind, row[n] / Math.max(...chances)));
    return [chip(text), ...row.map(probability), make("span.pair", ...bars)];
  });
  article.append(table(caption, ["token", ...columns, ""], lines, drawn));
  return article;
}

function probability(p) {
  if (p === 0 || p === 1) return String(p);
  return p >= 0.001 ? p.toFixed(3) : "< 0.001";
}

function fromHash() {
  const match = /^#iteration-(\d+)$/.exec(location.hash);
  if (match) choose(Number(match[1]));
}

function showGlass() {
  data.iterations.forEach(({ accepted, drafted }, i) => {
    byId("number").append(make("option", { value: i + 1 }, `${i + 1}: ${accepted} of ${drafted}`));
  });
  if (data.rule.lossy) byId("rule").append(`With ${data.rule.lossy} the text does not follow q. `);
  if (data.greedy)
    byId("rule").append("At temperature 0 a draft is accepted exactly if it is the target's likeliest token.");
  byId("number").addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("previous").addEventListener("click", () => choose(chosen - 1));
  byId("next").addEventListener("click", () => choose(chosen + 1));
  addEventListener("hashchange", fromHash);
  addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const withOthers = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
    if (!step || withOthers || event.target.closest("input, select")) return;
    event.preventDefault();
    choose(chosen + step);
  });
  showIteration();
  fromHash();
}

if (data.iterations.length) showGlass();
