// ---- 3. One iteration, close up -------------------------------------------------------------------------------------

let chosen = 1; // the iteration, counted from 1

/** Shows iteration `number`, and with a position the draft that stood there. */
function choose(number, position) {
  chosen = Math.min(Math.max(1, number), iterations.length);
  history.replaceState(null, "", `#iteration-${chosen}`);
  showIteration(position);
  const card = byId("glass").querySelector(".card.chosen");
  const { top, bottom } = byId("glass-title").parentElement.getBoundingClientRect();
  if (card) card.scrollIntoView({ block: "nearest" });
  else if (top > 0.8 * innerHeight || bottom < 0) byId("glass-title").scrollIntoView();
}

function showIteration(position) {
  const i = iterations[chosen - 1];
  for (const { span } of iterations) span.classList.toggle("chosen", span === i.span);
  byId("number").value = chosen;
  byId("link").href = `#iteration-${chosen}`;
  byId("previous").disabled = chosen === 1;
  byId("next").disabled = chosen === iterations.length;
  byId("outcome").textContent = outcome(i);
  byId("glass").replaceChildren(context(i), ...whatHappened(i, position));
}

function whatHappened(i, position) {
  if (i.tree) return treeSteps(i);
  return i.details ? steps(i, position) : [whyNoDetails()];
}

function outcome(i) {
  const own = i.tokens.length > i.accepted ? i.tokens.at(-1).origin : "none, as the text had come to its end";
  const verdict = i.drafted ? `${i.accepted} of ${many(i.drafted, "draft")} accepted` : "nothing was drafted";
  return `Iteration ${chosen} of ${iterations.length}: ${verdict}; the target's own token: ${own}.`;
}

function context(i) {
  const before = run.prompt.text + speculative.pieces.slice(0, i.first).join("");
  const end = [...before].slice(-60).join("");
  const prompt = make("span.prompt", (end === before ? "" : "…") + shown(end));
  return make("p.text", prompt, ...i.tokens.map((token) => tokenSpan(token)));
}

function whyNoDetails() {
  return make(
    "p",
    options.engine === "jax"
      ? "This run was one compiled loop on the device. It tells how many drafts were accepted, but neither u, p and " +
          "q nor which drafts were rejected. With --engine numpy they would stand here."
      : "This file holds neither u nor p and q. Decode with --html, or with --json and --details, to see them here.",
  );
}

function steps(i, position) {
  const { drafts, tested, own } = i.details;
  const m = drafts.length;
  const rejected = i.accepted < m;
  const skipped = m - i.accepted - 1;
  const whole = (read) => (read ? ", the reading of the prompt included" : "");
  const step = (title, ...content) => make("section.step", make("h3", title), ...content);

  const chips = drafts.map((id, j) => make("span.draft-chip", chip(id, j < tested.length ? "" : "untested"), by(i, j)));
  const cards = tested.map((test, j) => card(i, test, j, j === position && j < i.accepted));
  const residual =
    own?.from === "residual"
      ? report.rule.left
      : "q, since nothing else is left of it: p and q differ by rounding alone";
  return m === 0
    ? [
        step("Step 1. Nothing is proposed", make("p", "Only the target is called, as in autoregressive decoding.")),
        step("Step 2. The target scores the text", make("p", `1 row, in ${seconds(i.scoring)}${whole(i.prefill)}.`)),
        distribution(i, position, "The target's token: ", "q"),
      ]
    : [
        step(
          `Step 1. The draft proposes ${many(m, "token")}`,
          make("p", ...chips, `in ${seconds(i.drafting)}${whole(i.draft_prefill)}.`),
        ),
        step(
          "Step 2. The target scores them in one call",
          make("p", `${m + 1} rows, one for each draft and one more, in ${seconds(i.scoring)}${whole(i.prefill)}.`),
        ),
        step(
          `Step 3. ${report.rule.step}`,
          make("div.cards", ...cards, rejected ? distribution(i, position, "In its place: ", residual) : ""),
          rejected && skipped ? make("p", `What was drafted after it is dropped: ${many(skipped, "token")}.`) : "",
        ),
        step(
          "Step 4. If all were accepted, the target adds a bonus token",
          rejected
            ? make("p", `Not reached: draft ${i.accepted + 1} was rejected.`)
            : own
              ? distribution(i, position, "Bonus: ", "q, after the last draft")
              : make("p", "Not reached: the text ended."),
        ),
      ];
}

/** An iteration whose drafts were a tree: which guesses there were, and which were walked along. */
function treeSteps(i) {
  const { tokens, parents, path } = i.tree;
  const below = (node) => {
    const children = parents.flatMap((parent, n) => (parent === node ? [n + 1] : []));
    const items = children.map((n) =>
      make("li", chip(tokens[n - 1], path.includes(n) ? "accepted" : "untested"), path.includes(n) ? " ✓" : "", below(n)),
    );
    return items.length ? make("ul", ...items) : "";
  };
  return [
    make("section.step", make("h3", `Step 1. The draft proposes a tree of guesses: ${tokens.length}`), below(0)),
    make(
      "section.step",
      make("h3", "Step 2. The target scores all of them in one call"),
      make("p", `${tokens.length + 1} rows in ${seconds(i.scoring)}.`),
    ),
    make(
      "section.step",
      make("h3", "Steps 3 and 4. Walk down, then add the target's own token"),
      make("p", `${path.length} of the guesses were accepted, those with a ✓. Children are tested in turn, the later ones `
        + "against what the ones before them left of q."),
    ),
  ];
}

function by(i, j) {
  const name = i.by[j];
  return proposers.length > 1 ? make("small", ` ${PROPOSERS[name] ?? name}`) : "";
}

/** What was compared, in the words of the rule; the numbers alone where they are not known here. */
function comparison({ u, p, q, w, h, passed }) {
  const sign = (yes, no) => make("b", passed ? yes : no);
  const whole = (...content) => make("span.whole", ...content);
  switch (report.rule.test) {
    case "u · p < q":
      return [`u · p = ${exactly(u)} · ${exactly(p)} = ${exactly(u * p)} `, whole(sign("<", "≥"), ` ${exactly(q)} = q`)];
    case "u < h":
      return [`w = ${exactly(w)}; u = ${exactly(u)} `, whole(sign("<", "≥"), ` ${exactly(h)} = h`)];
    case "q > 0":
      return [`q = ${exactly(q)} `, whole(sign(">", "="), " 0, of what is typical")];
  }
  return [`u = ${exactly(u)}, p = ${exactly(p)}, q = ${exactly(q)}`];
}

function verdict(passed, isKept) {
  if (!isKept) return make("strong.verdict.resampled", "✗ rejected");
  return make("strong.verdict.accepted", passed ? "✓ accepted" : "✓ kept, as a later one passed");
}

/** One draft that was tested. */
function card(i, test, j, isChosen) {
  const { top } = test;
  const id = i.details.drafts[j];
  const longest = Math.max(...top.p, ...top.q);
  const rows = top.tokens.map((token, row) => {
    const [p, q] = [top.p[row], top.q[row]];
    return [chip(token), probability(p), probability(q), bars({ p: p / longest, q: q / longest })];
  });
  return make(
    `article.card.${isChosen ? "chosen" : ""}`,
    make("h4", `Draft ${j + 1}: `, chip(id)),
    make("p.formula", ...comparison(test)),
    make("p", verdict(test.passed, j < i.accepted)),
    table("The likeliest tokens here", ["token", "p", "q", ""], rows, [top.tokens.indexOf(id)]),
  );
}

/** The target's own token, and what it was drawn from. */
function distribution(i, position, title, caption) {
  const { u, top } = i.details.own;
  const [drawn, { origin }] = [speculative.tokens[i.first + i.accepted], i.tokens.at(-1)];
  const longest = Math.max(...top.probability);
  const rows = top.tokens.map((token, row) => {
    const chance = top.probability[row];
    return [chip(token, token === drawn ? origin : ""), probability(chance), bars({ q: chance / longest })];
  });
  return make(
    `article.card.${position === i.accepted ? "chosen" : ""}`,
    make("h4", title, chip(drawn, origin)),
    make("p.formula", `drawn with u = ${exactly(u)}`),
    table(caption, ["token", "chance", ""], rows, [top.tokens.indexOf(drawn)]),
  );
}

function fromHash() {
  const match = /^#iteration-(\d+)$/.exec(location.hash);
  if (match) choose(Number(match[1]));
}

function showGlass() {
  iterations.forEach((i, at) => {
    byId("number").append(make("option", { value: at + 1 }, `${at + 1}: ${i.accepted} of ${i.drafted}`));
  });
  byId("number").addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("previous").addEventListener("click", () => choose(chosen - 1));
  byId("next").addEventListener("click", () => choose(chosen + 1));
  addEventListener("hashchange", fromHash);
  addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const withOthers = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
    if (!step || withOthers || event.target.closest("input, select, .scroll")) return;
    event.preventDefault();
    choose(chosen + step);
  });
  if (options.temperature === 0)
    byId("rule").append("At temperature 0 a distribution is one-hot: 1 for its likeliest token, 0 for all others. ");
  if (options.lenience < 1) byId("rule").append(`With lenience ${options.lenience}, u is drawn from below that. `);
  const rejection = iterations.findIndex((i) => i.drafted > i.accepted); // which has most to show
  chosen = rejection + 1 || 1;
  showIteration();
  fromHash();
}

if (iterations.length) showGlass();
