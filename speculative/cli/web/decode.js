// One decode

let request = null; // the AbortController of the decode that is under way

async function decode() {
  const values = formValues();
  for (const { name } of data.fields) {
    if (name !== "stop") values[name] = values[name].trim();
    if (byId(name).disabled) delete values[name];
  }
  request = new AbortController();
  setBusy("Reading the prompt …");
  showProblem("");
  try {
    const headers = { "content-type": "application/json" };
    const body = JSON.stringify(values);
    const answer = await fetch("/decode", { method: "POST", body, headers, signal: request.signal });
    let kind, value, begun;
    for await ([kind, value] of events(answer.body)) {
      if (kind === "waiting") byId("state").textContent = "Waiting for another run to end …";
      if (kind === "step") {
        if (!begun) begin(values.prompt);
        begun = true;
        byId("state").textContent = `${lanes[value[0]].title} …`;
        showStep(value);
      }
    }
    if (kind === "error") showProblem(value.line, value.field);
    else if (kind === "done") {
      runs = [...runs, value];
      await showRun(value);
    } else throw new TypeError("the stream ended early");
  } catch (error) {
    if (error.name !== "AbortError") showProblem("The server does not answer: is main.py still running?");
  }
  request = null;
  setBusy("");
}

/** Clear the last result, which stays until the first step of the next. */
function begin(prompt) {
  for (const id of ["headline", "lines"]) byId(id).textContent = "";
  clearLanes(prompt);
}

function setBusy(state) {
  byId("start").textContent = request ? "Stop" : "Run";
  byId("state").textContent = state;
}

/** A stream of server-sent events → [kind, value] of each. */
async function* events(stream) {
  let waiting = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const [, kind, line] = part.match(/^event: (.*)\ndata: (.*)$/s);
      yield [kind, JSON.parse(line)];
    }
  }
}

showForm();
showLanes();
look();
setInterval(look, LOOK);
