// ---- 1. The text ----------------------------------------------------------------------------------------------------

function showTexts() {
  const prompt = () => make("span.prompt", shown(run.prompt.text));
  byId("plain").append(prompt(), ...plain.pieces.map((text) => shown(text)));
  byId("speculative").append(prompt());
  iterations.forEach((iteration, i) => {
    const spans = iteration.tokens.map((token, j) => tokenSpan(token, { click: () => choose(i + 1, j) }));
    iteration.span = make("span.iteration", ...spans);
    byId("speculative").append(iteration.span);
  });
  for (const [origin, meaning] of Object.entries(MEANINGS)) {
    const n = speculative.origins.filter((o) => o === origin).length;
    const mark = make(`span.token.${origin}`, origin);
    if (n) byId("legend").append(make("li", mark, ` ${meaning}: ${many(n, "token")}`));
  }
  for (const by of proposers.length > 1 ? proposers : []) {
    const n = iterations.flatMap((i) => i.tokens).filter((token) => token.proposer === by).length;
    const mark = make("span.token.accepted", { "data-by": by }, "accepted");
    byId("legend").append(make("li", mark, ` proposed by the ${PROPOSERS[by] ?? by}: ${many(n, "token")}`));
  }
  const lengths = [plain.tokens.length, speculative.tokens.length];
  const first = plain.tokens.findIndex((token, i) => token !== speculative.tokens[i]);
  const difference = first < 0 ? Math.min(...lengths) : first;
  byId("same").append(
    options.temperature > 0
      ? "Each text is a random draw, with random numbers of its own, so the two need not be equal. " +
          (report.rule.lossless
            ? "Both are drawn from the target's distribution."
            : `With ${report.rule.words} the speculative one is not distributed as the target's.`)
      : difference === Math.max(...lengths)
        ? "The two texts are equal, token for token: temperature 0 is greedy, and nothing was lost."
        : `The texts differ from token ${difference + 1} on. At temperature 0 only rounding may do that, where ` +
          "two tokens are as good as tied.",
  );
}

showTexts();
