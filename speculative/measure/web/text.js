// The header, and 1. The text

for (const id of ["headline", "doubt", "same"]) byId(id).append(shown(data[id]));
byId("lines").append(data.lines.join(" "));
define(byId("facts"), data.facts);
define(byId("options"), data.options);
legend(byId("legend"), data.legend);

const { autoregressive, speculative } = data.lanes;
byId("plain").append(make("span.prompt", data.prompt), ...autoregressive.tokens.map(({ text }) => shown(text)));
byId("speculative").append(make("span.prompt", data.prompt));
const spans = data.iterations.map(() => make("span.iteration")); // of each iteration
for (const token of speculative.tokens) {
  const span = spans[token.iteration - 1];
  const position = span.children.length;
  span.append(tokenSpan(token, { click: () => choose(token.iteration, position) }));
}
byId("speculative").append(...spans);
