// ---- 2. The race ----------------------------------------------------------------------------------------------------

const total = Math.max(...Object.values(lanes).map((lane) => lane.at(-1)?.end ?? 0));
const percent = (time) => `${(100 * time) / (total || 1)}%`;
const race = { now: total, playing: false, lanes: [] };

const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]; // seconds on the page, for one of the run

function speedName(slower) {
  if (slower === 1) return "as in the run";
  return slower > 1 ? `${slower} times slower` : `${Math.round(1 / slower)} times faster`;
}

function showRace() {
  for (const [name, title] of [
    ["plain", "Autoregressive"],
    ["speculative", "Speculative"],
  ]) {
    const list = lanes[name];
    const tokens = list.flatMap((i) => i.tokens.map((token) => ({ ...token, time: i.end })));
    const lane = { list, tokens, known: -1, status: make("span"), tape: make("p", { "aria-hidden": "true" }) };
    lane.veil = svg("rect", { class: "veil", y: 0, height: "100%", width: "100%" });
    const label = `${title}: ${many(list.length, "call")} of the target, ${seconds(list.at(-1)?.end ?? 0)}`;
    const picture = svg(
      "svg",
      { role: "img", class: name, "aria-label": label, height: list === iterations ? 100 + 18 * depth : 45 },
      ...calls(lane),
      ...ticks(lane),
      lane.veil,
    );
    byId("lanes").append(make("h3", title, " ", lane.status), picture, make("div.tape", lane.tape));
    race.lanes.push(lane);
  }
  byId("lanes").append(axis());
  for (const slower of SPEEDS) {
    byId("speed").append(make("option", { value: slower }, speedName(slower)));
    if (total * byId("speed").value < 8) byId("speed").value = slower; // long enough that there is something to see
  }
  byId("race-note").append(
    "Both decoders on one time axis, to scale. ",
    iterations.some((i) => i.scoring)
      ? "The first calls also read the prompt (prefill)."
      : "The device does not tell how long a call took: all are drawn equally long.",
  );
  byId("level-key").hidden = depth === 0;
  byId("time").max = total;
  byId("time").addEventListener("input", (event) => {
    pause();
    showTime(event.target.valueAsNumber);
  });
  byId("play").addEventListener("click", () => (race.playing ? pause() : play()));
  showTime(total);
}

const depth = Math.max(0, ...iterations.map((i) => i.levels.length)); // levels of drafting, each with a line of its own

function calls({ list }) {
  return list.flatMap((iteration, i) => {
    const { begin, end, drafting, scoring } = iteration;
    const rect = (kind, from, time, y) => {
      const node = svg("rect", { class: kind, x: percent(from), width: percent(time), y, height: 16 });
      if (list === iterations) node.addEventListener("click", () => choose(i + 1));
      node.append(svg("title", {}, `${kind} ${seconds(time)}`));
      return node;
    };
    return [
      ...(drafting ? (iteration.levels?.length ? levelCalls(iteration, rect) : [rect("draft", begin, drafting, 2)]) : []),
      ...(drafting || scoring ? [] : [rect("device", begin, end - begin, 2)]),
      ...(scoring ? [rect("target", begin + drafting, scoring, list === iterations ? 20 + 18 * depth : 2)] : []),
    ];
  });
}

/** The calls of each level within one proposal, the innermost drafts on the first line: each level's model scores what
 * was drafted for it just before. */
function levelCalls({ begin, drafted, levels }, rect) {
  const next = levels.map(() => 0);
  const rects = [];
  const walk = (level, from, wanted) => {
    let [time, tokens] = [from, 0];
    while (tokens < wanted && next[level] < levels[level].iterations.length) {
      const call = levels[level].iterations[next[level]++];
      if (level + 1 < levels.length && call.drafted) walk(level + 1, time, call.drafted);
      else if (call.drafting) rects.push(rect("draft", time, call.drafting, 2));
      const box = rect("level", time + call.drafting, call.scoring, 2 + 18 * (levels.length - level));
      box.querySelector("title").textContent = `${levels[level].name} ${seconds(call.scoring)}`;
      rects.push(box);
      time += call.drafting + call.scoring;
      tokens += call.tokens;
    }
  };
  walk(0, begin, drafted);
  return rects;
}

/** A block for each token, on top of those that became known at the same time. */
function ticks({ list, tokens }) {
  const together = []; // [[token, ...], ...]
  for (const token of tokens) {
    if (together.length && token.time - together.at(-1)[0].time < 0.002 * total) together.at(-1).push(token);
    else together.push([token]);
  }
  const [top, bottom] = list === iterations ? [40 + 18 * depth, 99 + 18 * depth] : [21, 44];
  const height = Math.min(9, (bottom - top) / Math.max(1, ...together.map((tokens) => tokens.length)));
  return together.flatMap((tokens) =>
    tokens.map(({ origin, time }, j) =>
      svg("rect", {
        class: `tick ${origin} ${height < 5 ? "small" : ""}`,
        x: percent(time),
        y: bottom - (j + 1) * height,
        width: 5,
        height: 0.85 * height,
        transform: "translate(-5 0)",
      }),
    ),
  );
}

function axis() {
  const picture = svg("svg", { class: "axis", height: 22, "aria-hidden": "true" });
  const step = roundStep(total / 4 || 1);
  for (let time = 0; time <= total; time += step) {
    const anchor = time === 0 ? "start" : time > 0.93 * total ? "end" : "middle";
    const label = total >= 1 ? `${+time.toPrecision(6)} s` : `${+(1000 * time).toPrecision(6)} ms`;
    picture.append(
      svg("line", { x1: percent(time), x2: percent(time), y1: 0, y2: 5 }),
      svg("text", { x: percent(time), y: 18, "text-anchor": anchor }, label),
    );
    if (!total) break;
  }
  return picture;
}

function showTime(now) {
  race.now = now;
  byId("time").value = now;
  byId("time").setAttribute("aria-valuetext", seconds(now));
  byId("clock").textContent = `${seconds(now)} of ${seconds(total)}`;
  for (const lane of race.lanes) {
    lane.veil.setAttribute("x", percent(now));
    const later = lane.tokens.findIndex((token) => token.time > now);
    const known = later < 0 ? lane.tokens.length : later;
    if (known === lane.known) continue;
    lane.known = known;
    lane.status.textContent = `${known} of ${many(lane.tokens.length, "token")}`;
    lane.tape.replaceChildren(
      ...lane.tokens
        .slice(Math.max(0, known - 150), known)
        .map((token) => (lane.list === iterations ? tokenSpan(token) : shown(token.text))),
    );
  }
}

function play() {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches; // then from token to token, without gliding
  let [clock, last] = [race.now >= total ? 0 : race.now, performance.now()];
  race.playing = true;
  byId("play").textContent = "Pause";
  requestAnimationFrame(function frame(time) {
    if (!race.playing) return;
    clock = Math.min(total, clock + Math.max(0, time - last) / 1000 / byId("speed").value);
    last = time;
    const known = (token) => (token.time <= clock ? token.time : 0);
    showTime(still && clock < total ? Math.max(...race.lanes.flatMap((lane) => lane.tokens.map(known))) : clock);
    if (clock < total) requestAnimationFrame(frame);
    else pause();
  });
}

function pause() {
  race.playing = false;
  byId("play").textContent = "Play";
}

showRace();
