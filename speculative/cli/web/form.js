// The form

const FORM = "form"; // key in sessionStorage: a tab keeps its form when it is loaded again
const IN_ROW = 6; // fields in the first row; the others are behind "More options"
const names = Object.keys(data.values);

function showForm() {
  byId("engine").append(data.engine);
  data.fields.forEach(({ name, label, help, choices }, i) => {
    const about = { id: name, title: help, "aria-describedby": "wrong" };
    const field = choices.length
      ? make("select", about, ...choices.map((value) => make("option", { value }, value)))
      : make("input", { ...about, autocomplete: "off", placeholder: "not set" });
    byId(i < IN_ROW ? "fields" : "others").append(make("div", make("label", { for: name }, label), field));
    field.addEventListener("focus", () => (byId("help").textContent = `${label}: ${help}`));
  });
  fillForm({ ...data.values, ...JSON.parse(sessionStorage.getItem(FORM)) });
  byId("form").addEventListener("input", (event) => {
    event.target.removeAttribute("aria-invalid");
    showFast();
  });
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (request) request.abort();
    else decode();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !request) byId("form").requestSubmit();
  });
  addEventListener("pagehide", () => {
    sessionStorage.setItem(FORM, JSON.stringify(formValues()));
    request?.abort(); // a browser may keep the page for a while, in case its user comes back
  });
}

const formValues = () => Object.fromEntries(names.map((name) => [name, byId(name).value]));

function fillForm(values) {
  for (const name of names) byId(name).value = values[name];
  showFast();
}

/** Disable the fields that "Fast" stands for. */
function showFast() {
  for (const name of ["K", "drafter", "accept"]) byId(name).disabled = byId("fast").value === "on";
}

/** Say why nothing was decoded, and mark the field that is wrong, if it is one. */
function showProblem(line, wrong = "") {
  byId("wrong").textContent = shown(line);
  for (const name of names) byId(name).removeAttribute("aria-invalid");
  if (!wrong) return;
  byId(wrong).closest("details")?.setAttribute("open", "");
  byId(wrong).setAttribute("aria-invalid", "true");
  byId(wrong).focus();
}
