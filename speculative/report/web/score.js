// The header

byId("headline").append(data.headline);
byId("lines").append(shown(data.lines.join(" ")));
byId("command").append(shown(data.command));
define(byId("options"), data.options);
byId("models").append(table("Each model on this text", ...data.models));

// 1. The text

const texts = data.tokens.map((text) => make(`span.${blankOf(text)}`, text));
byId("text").append(...texts);
texts.forEach((span, number) => span.addEventListener("click", () => choose(number)));
byId("shown").append(data.shown);

/** Colour the tokens by one number of each, from 0 to 1. The first has none. */
function showLayer({ low, high, marked, shares }) {
  texts.slice(1).forEach((span, i) => {
    span.style.setProperty("--share", shares[i]); // the policy allows this, but no style attribute
    span.classList.toggle("lost", shares[i] > 0.5);
  });
  byId("low").textContent = low;
  byId("high").textContent = high;
  byId("marked").textContent = marked;
}

data.layers.forEach(({ name }, i) => byId("layer").append(make("option", { value: i }, name)));
byId("layer").addEventListener("change", (event) => showLayer(data.layers[event.target.value]));
showLayer(data.layers[0]);

// 2. One token

let chosen = data.opening; // number of the token, from 0

function choose(number) {
  texts[chosen].classList.remove("chosen");
  chosen = Math.min(Math.max(0, number), texts.length - 1);
  texts[chosen].classList.add("chosen");
  const box = byId("text");
  const place = texts[chosen].offsetTop - box.scrollTop; // in the box, which scrolls
  if (place < 0 || place > box.clientHeight - 30) box.scrollTop += place - box.clientHeight / 2;
  byId("previous").disabled = chosen === 0;
  byId("next").disabled = chosen === texts.length - 1;
  const before = data.tokens.slice(Math.max(0, chosen - 12), chosen).join("");
  const chip = make("span.chip", data.names[data.ids[chosen]]);
  byId("where").replaceChildren(`Token ${chosen} of ${texts.length - 1}: `, make("span.prompt", shown(before)), " ", chip);
  if (chosen === 0) return byId("token").replaceChildren(make("p", "The first token has nothing before it, and no score."));
  const rows = data.scores.map(({ model, log_probs, likeliest, chances }) => {
    const log = log_probs[chosen - 1];
    const best = make("span.chip", data.names[likeliest[chosen - 1]]);
    const chance = chances.length ? chances[chosen - 1].toFixed(3) : "";
    return [model, probability(log === null ? 0 : Math.exp(log)), log === null ? "∞" : (-log).toFixed(3), best, chance];
  });
  byId("token").replaceChildren(table("", data.columns, rows));
}

function probability(p) {
  if (p === 0 || p === 1) return String(p);
  return p >= 0.001 ? p.toFixed(3) : p.toExponential(1);
}

onStep((step) => choose(chosen + step));
choose(chosen);
