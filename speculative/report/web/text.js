// The header, and 2. The text

byId("headline").append(data.headline);
byId("lines").append(shown(data.lines.join(" ")));
byId("command").append(shown(data.command));
define(byId("facts"), data.facts);
define(byId("options"), data.options);
legend(byId("legend"), data.legend);

const { autoregressive, speculative } = data.lanes;
if (autoregressive)
  byId("plain").append(make("span.prompt", data.prompt), ...autoregressive.tokens.map(({ text }) => shown(text)));
else byId("plain").parentElement.remove();
byId("speculative").append(make("span.prompt", data.prompt));
const spans = data.iterations.map(() => make("span.iteration")); // of each iteration
for (const token of speculative.tokens) {
  const span = spans[token.iteration - 1];
  const position = span.children.length;
  span.append(tokenSpan(token, { click: () => choose(token.iteration, position) }));
}
byId("speculative").append(...spans);
