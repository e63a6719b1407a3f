// ---- Both texts, and the race ---------------------------------------------------------------------------------------

const DECODERS = { autoregressive: "Autoregressive", speculative: "Speculative" };
const lanes = {}; // by decoder: where its text and its race are drawn

function showLanes() {
  for (const [name, title] of Object.entries(DECODERS)) {
    const status = make("span");
    const text = make("p.text");
    const picture = svg("svg", { role: "img", preserveAspectRatio: "none", "aria-label": `${title}: nothing yet` });
    const article = make("article", { "aria-labelledby": name }, make("h3", { id: name }, title, " ", status), picture, text);
    byId("decoders").append(article);
    lanes[name] = { article, status, text, picture };
  }
  for (const kind of ["draft", "target"]) {
    byId("key").append(make("span", make(`i.${kind}`), ` the ${kind} is called`));
  }
  for (const [origin, meaning] of Object.entries(MEANINGS)) {
    byId("meanings").append(make("li", make(`span.token.${origin}`, origin), ` ${meaning}`));
  }
  clearLanes(formValues());
}

/** Begins both texts, or that of the one decoder that is asked. */
function clearLanes({ prompt, only }) {
  byId("live-title").textContent = only ? "The text" : "The two texts";
  for (const [name, lane] of Object.entries(lanes)) {
    lane.article.hidden = Boolean(only) && only !== name;
    Object.assign(lane, { tokens: 0, calls: 0, end: 0 });
    lane.status.textContent = "";
    lane.picture.replaceChildren();
    lane.text.replaceChildren(make("span.prompt", prompt));
  }
  scaleLanes();
}

function showStep({ decoder, tokens, drafting, scoring, end }) {
  const lane = lanes[decoder];
  for (const [text, origin] of tokens) {
    const [kind, by] = origin.split(": ");
    lane.text.append(kind ? markedToken({ text, origin: kind }, { "data-by": by }) : shown(text));
    lane.tokens += kind ? 1 : 0;
  }
  if (end > lane.end) {
    const call = (kind, x, width, y) => svg("rect", { class: kind, x, width, y, height: 16 });
    if (drafting) lane.picture.append(call("draft", lane.end, drafting, 2));
    if (scoring) lane.picture.append(call("target", lane.end + (drafting ?? 0), scoring, 19));
    if (!drafting && !scoring) lane.picture.append(call("device", lane.end, end - lane.end, 19));
    lane.calls += 1;
  }
  lane.end = end;
  lane.status.textContent = `${many(lane.tokens, "token")}, ${many(lane.calls, "call")}, ${seconds(end)}`;
  byId("state").textContent = `${DECODERS[decoder]} …`;
  scaleLanes();
}

/** Both lanes on one time axis; while they grow, it has room for what comes. */
function scaleLanes(grows = true) {
  const end = Math.max(...Object.values(lanes).map((lane) => lane.end)) || 1;
  const total = grows ? roundStep(end) : end;
  lanes.autoregressive.picture.setAttribute("viewBox", `0 17 ${total} 19`); // where nothing is drafted
  lanes.speculative.picture.setAttribute("viewBox", `0 0 ${total} 36`);
}

/** All is decoded. */
function endLanes() {
  scaleLanes(false);
  for (const [name, { calls, end, picture }] of Object.entries(lanes)) {
    picture.setAttribute("aria-label", `${DECODERS[name]}: ${many(calls, "call")} of the target, ${seconds(end)}`);
  }
}

/** The texts of a run that is over. */
function showTexts(run) {
  clearLanes(run.options);
  for (const decoder of Object.keys(DECODERS)) {
    const [sample] = run[decoder].samples;
    if (!sample) continue;
    const each = run[decoder].seconds / sample.iterations.length; // for those of which no time is known
    let [first, end] = [0, 0];
    for (const { tokens: n, by, drafting, scoring, seconds } of sample.iterations) {
      const named = (origin, j) => (by[j] && by[j] !== "model" && origin === "accepted" ? `${origin}: ${by[j]}` : origin);
      const origins = sample.origins.slice(first, first + n).map(named);
      const tokens = origins.map((origin, j) => [sample.pieces[first + j], origin]);
      [first, end] = [first + n, end + (seconds ?? each)];
      showStep({ decoder, tokens, drafting, scoring, end });
    }
  }
  byId("state").textContent = "";
  endLanes();
}
