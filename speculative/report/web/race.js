// 1. The race

const total = data.seconds;
const percent = (time) => `${(100 * time) / (total || 1)}%`;
const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]; // seconds on the page for one of the run
const race = { now: total, playing: false, lanes: [] };

function speedName(slower) {
  if (slower === 1) return "as in the run";
  return slower > 1 ? `${slower} times slower` : `${Math.round(1 / slower)} times faster`;
}

function showRace() {
  for (const lane of Object.values(data.lanes)) {
    const status = make("span");
    const tape = make("p", { "aria-hidden": "true" });
    const veil = svg("rect", { class: "veil", y: 0, height: "100%", width: "100%" });
    const height = 18 * lane.lines + (lane === speculative ? 64 : 27);
    const about = { role: "img", class: lane.title.toLowerCase(), "aria-label": lane.label, height };
    byId("lanes").append(
      make("h3", lane.title, " ", status),
      svg("svg", about, ...lane.calls.map((call) => callBox(lane, call)), ...ticks(lane, height - 1), veil),
      make("div.tape", tape),
    );
    race.lanes.push({ ...lane, status, tape, veil, known: -1 });
  }
  byId("lanes").append(axis());
  for (const slower of SPEEDS) {
    byId("speed").append(make("option", { value: slower }, speedName(slower)));
    if (total * byId("speed").value < 8) byId("speed").value = slower; // long enough to see something
  }
  byId("race-note").append(
    `${autoregressive ? "Both decoders on one time axis" : "The decoder on its time axis"}, to scale. `,
    "The first calls also read the prompt (prefill).",
    data.derived ? " The device tells the time of several calls together: equal ones are drawn equally long." : "",
  );
  byId("level-key").hidden = !speculative.calls.some(({ kind }) => kind === "level");
  byId("time").max = total;
  byId("time").addEventListener("input", (event) => {
    pause();
    showTime(event.target.valueAsNumber);
  });
  byId("play").addEventListener("click", () => (race.playing ? pause() : play()));
  showTime(total);
}

function callBox(lane, { kind, line, begin, seconds: width, words, iteration }) {
  const box = svg("rect", { class: kind, x: percent(begin), width: percent(width), y: 2 + 18 * line, height: 16 });
  if (lane === speculative) box.addEventListener("click", () => choose(iteration));
  box.append(svg("title", {}, words));
  return box;
}

/** A block for each token, above those that became known at the same time. */
function ticks({ tokens, lines }, bottom) {
  const most = Math.max(0, ...tokens.map(({ stack }) => stack)) + 1;
  const height = Math.min(9, (bottom - 18 * lines - 3) / most);
  return tokens.map(({ origin, time, stack }) =>
    svg("rect", {
      class: `tick ${origin} ${height < 5 ? "small" : ""}`,
      x: percent(time),
      y: bottom - (stack + 1) * height,
      width: 5,
      height: 0.85 * height,
      transform: "translate(-5 0)",
    }),
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
    const known = lane.tokens.filter(({ time }) => time <= now).length;
    if (known === lane.known) continue;
    lane.known = known;
    lane.status.textContent = `${known} of ${many(lane.tokens.length, "token")}`;
    const last = lane.tokens.slice(Math.max(0, known - 150), known);
    const withColours = lane.title === speculative.title;
    lane.tape.replaceChildren(...last.map((token) => (withColours ? tokenSpan(token) : shown(token.text))));
  }
}

function play() {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches; // then from token to token
  let clock = race.now >= total ? 0 : race.now;
  let last = performance.now();
  race.playing = true;
  byId("play").textContent = "Pause";
  requestAnimationFrame(function frame(now) {
    if (!race.playing) return;
    clock = Math.min(total, clock + Math.max(0, now - last) / 1000 / byId("speed").value);
    last = now;
    const times = race.lanes.flatMap((lane) => lane.tokens.map(({ time }) => time)).filter((time) => time <= clock);
    showTime(still && clock < total ? Math.max(0, ...times) : clock);
    if (clock < total) requestAnimationFrame(frame);
    else pause();
  });
}

function pause() {
  race.playing = false;
  byId("play").textContent = "Play";
}

showRace();
