// ---- A decode -------------------------------------------------------------------------------------------------------

let request = null; // what ends the decode that is under way

async function decode() {
  const { prompt, stop, ...others } = formValues();
  const flags = Object.fromEntries(Object.entries(others).map(([name, value]) => [name, value.trim()]));
  const body = JSON.stringify({ prompt, flags: { ...flags, stop } });
  request = new AbortController();
  byId("wrong").textContent = "";
  setBusy(true, "Asked.");
  clearLanes(formValues());
  let said = "";
  try {
    const headers = { "content-type": "application/json" };
    const answer = await fetch("/decode", { method: "POST", body, headers, signal: request.signal });
    if (!answer.ok) throw new Error(await answer.text());
    for await (const [kind, value] of events(answer.body)) said = HEARD[kind](value) ?? said;
    if (!said) throw new TypeError("the stream ended early");
  } catch (error) {
    if (error.name === "AbortError") said = "Stopped.";
    else said = "Not decoded.";
    if (error.name === "Error") byId("wrong").textContent = shown(inWordsOfForm(error.message));
    if (error.name === "TypeError") byId("wrong").textContent = "The server does not answer: is main.py still running?";
  }
  request = null;
  setBusy(false, said);
}

/** What to do with each kind of event → what is said at the end, where it is the last. */
const HEARD = {
  waiting(ahead) {
    if (ahead) byId("state").textContent = `Waiting: ${many(ahead, "other text")} before this one.`;
  },
  step: showStep,
  error(line) {
    throw new Error(line);
  },
  done(run) {
    showRuns([...runs.filter(({ number }) => number !== run.number), run]);
    showPage(run);
    endLanes();
    if (run.only) return `Done: ${many(run[run.only].tokens, "token")} in ${seconds(run[run.only].seconds)}.`;
    return `Done: ${times(run.speedup)} as fast, acceptance rate r = ${run.r.toFixed(3)}.`;
  },
};

/** A stream of server-sent events → [kind, value] of each. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const [, kind, data] = part.match(/^event: (.*)\ndata: (.*)$/s);
      yield [kind, JSON.parse(data)];
    }
  }
}

showForm();
showLanes();
look();
setInterval(look, LOOK);
