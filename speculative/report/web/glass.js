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
  byId("outcome").textContent = i.outcome;
  const tokens = speculative.tokens.filter(({ iteration }) => iteration === chosen);
  const context = make("p.text", make("span.prompt", i.before), ...tokens.map((token) => tokenSpan(token)));
  const steps = i.steps.length ? i.steps.map((step) => blogStep(step, position)) : [make("p", data.rule.no_tests)];
  byId("glass").replaceChildren(context, ...steps);
}

const chip = (text, kind = "") => make(`span.chip.${kind}`, text);

/** One of the blog's Steps 1 to 4. */
function blogStep({ title, text = "", chips = [], cards = [], tree = null }, position) {
  const drafts = chips.map(([token, by, isTested]) =>
    make("span.draft-chip", chip(token, isTested ? "" : "untested"), by ? make("small", ` ${by}`) : ""),
  );
  return make(
    "section.step",
    make("h3", title),
    tree ? branches(tree) : "",
    cards.length ? make("div.cards", ...cards.map((content) => card(content, content.position === position))) : "",
    text ? make("p", ...drafts, text) : "",
  );
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
function card({ title, token, origin, formula, certain, verdict, kept, caption, columns, rows, drawn }, isChosen) {
  const article = make(
    `article.card.${isChosen ? "chosen" : ""}`,
    make("h4", `${title}: `, chip(token, origin)),
    make("p.formula", ...(certain === null ? [formula] : [data.rule.certain, chip(certain)])),
    verdict ? make("p", make(`strong.verdict.${kept ? "accepted" : "resampled"}`, verdict)) : "",
  );
  if (certain !== null) return article;
  const largest = Math.max(...rows.flatMap(([, ...row]) => row));
  const kinds = columns.length > 1 ? columns : ["q"];
  const lines = rows.map(([text, ...row]) => {
    const bars = kinds.map((kind, n) => bar(kind, row[n] / largest));
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
  byId("rule").append(data.rule.about);
  byId("number").addEventListener("change", (event) => choose(Number(event.target.value)));
  onStep((step) => choose(chosen + step));
  addEventListener("hashchange", fromHash);
  showIteration();
  fromHash();
}

if (data.iterations.length) showGlass();
