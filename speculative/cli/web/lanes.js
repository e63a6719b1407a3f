// Both texts, and the calls of both decoders on one time axis

const DECODERS = ["autoregressive", "speculative"];
const lanes = {}; // of each decoder: its elements, and counts of its tokens and calls

function showLanes() {
  for (const name of DECODERS) {
    const title = name[0].toUpperCase() + name.slice(1);
    const status = make("span");
    const text = make("p.text");
    const picture = svg("svg", { role: "img", preserveAspectRatio: "none", "aria-label": `${title}: not decoded yet` });
    const heading = make("h2", { id: name }, title, " ", status);
    byId("decoders").append(make("article", { "aria-labelledby": name }, heading, picture, text));
    lanes[name] = { title, status, text, picture };
  }
  legend(byId("legend"), data.legend);
  clearLanes(data.values.prompt);
}

/** Begin both texts again. */
function clearLanes(prompt) {
  for (const lane of Object.values(lanes)) {
    Object.assign(lane, { tokens: 0, calls: 0, end: 0 });
    lane.status.textContent = "";
    lane.picture.replaceChildren();
    lane.text.replaceChildren(make("span.prompt", prompt));
  }
}

/** tokens: [text, origin, drafter]; times in seconds. */
function showStep([decoder, tokens, drafting, scoring, end]) {
  const lane = lanes[decoder];
  for (const [text, origin, by] of tokens) {
    lane.text.append(decoder === "speculative" ? tokenSpan({ text, origin, by }) : shown(text));
  }
  const call = (kind, x, width, y) => svg("rect", { class: kind, x, width, y, height: 16 });
  if (drafting) lane.picture.append(call("draft", lane.end, drafting, 2));
  if (scoring) lane.picture.append(call("target", lane.end + drafting, scoring, 19));
  lane.tokens += tokens.length;
  lane.calls += 1;
  lane.end = end;
  lane.status.textContent = `${many(lane.tokens, "token")}, ${many(lane.calls, "call")}, ${seconds(end)}`;
  lane.picture.setAttribute("aria-label", `${lane.title}: ${lane.status.textContent}`);
  const total = Math.max(...Object.values(lanes).map(({ end }) => end));
  lanes.autoregressive.picture.setAttribute("viewBox", `0 17 ${total} 19`); // without the line of the drafts
  lanes.speculative.picture.setAttribute("viewBox", `0 0 ${total} 36`);
}
