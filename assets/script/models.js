// Which model answers: its name wherever the page shows it, and the panel in which another one is chosen.

const askEngine = (event, asked = {}) => document.dispatchEvent(new CustomEvent("streaming-ask-engine", { detail: [event, asked] }));
function askPicker(op, text) {  // a new question: what was said of the last one is old
  showProblem("");
  askEngine("edit", { op, text });
}
const panel = () => $("#models-dialog");
let engine = null;  // {name, title, offered, hub, picking: {state, name, title, detail, fraction}}

function modelLine(choice) {
  const inUse = choice.origin === "loaded" || choice.name === engine?.name;
  const words = make("div", {}, make("b", { textContent: choice.title }), make("span", { textContent: choice.about }));
  if (choice.name !== choice.title) $("b", words).title = choice.name;
  const line = make("li", { className: choice.fits === false ? "model-line too-large" : "model-line" }, words);
  if (inUse) line.append(make("span", { className: "model-used", textContent: "in use" }));
  else {
    const button = make("button", { textContent: "Use", label: `Use ${choice.title}`, disabled: choice.fits === false });
    button.addEventListener("click", () => askPicker("choose", choice.name));
    line.append(button);
  }
  return line;
}

function showProblem(text) {
  const problem = $(".problem", panel());
  problem.textContent = text;
  problem.hidden = !text;
  if (text) problem.scrollIntoView({ block: "nearest" });
}

function showGoing({ state, title, detail, fraction }) {
  const going = $("#models-going"), bar = $("progress", going), was = !going.hidden;
  going.hidden = state === "idle" || state === "failed";
  $("p", going).textContent = detail || title;
  if (fraction === null) bar.removeAttribute("value");
  else bar.value = fraction;
  $("[data-cancel-model]", going).hidden = state === "loading";
  panel().classList.toggle("going", !going.hidden);
  if (!was && !going.hidden) going.scrollIntoView({ block: "nearest" });
  if (state === "failed") showProblem(detail);
}

function nameModel() {
  const button = $("#header .model");
  button.textContent = engine.title;
  button.disabled = !engine.offered;
  $("#greeting h1").textContent = `Chat with ${engine.title}`;
  box().placeholder = `Message ${engine.title}`;
}

document.addEventListener("streaming-engine", ({ detail }) => {
  if (!detail?.name) return;
  const before = engine;
  engine = detail;
  nameModel();
  if (!engine.offered) return;
  $("#models-look-up").hidden = !engine.hub;
  const { state } = engine.picking, ended = before && before.picking.state !== state && (state === "idle" || state === "failed");
  if (before?.picking.state === "failed" && state !== "failed") showProblem("");
  showGoing(engine.picking);
  if (!panel().open) {
    if (ended && state === "failed") say(engine.picking.detail);
    return;
  }
  if (before?.name !== engine.name || ended) askEngine("edit", { op: "list" });
});

document.addEventListener("streaming-replies", ({ detail }) => {
  if (!detail?.number) return;
  if (detail.problem) showProblem(detail.problem);
  if (detail.groups) {
    $("#models-list").replaceChildren(...detail.groups.flatMap(({ heading, choices }) => [
      make("h3", { textContent: heading }), make("ul", {}, ...choices.map(modelLine)),
    ]));
  }
  $("#models-look-up").classList.remove("looking");
  $("#models-found").replaceChildren(...(detail.found ? [modelLine(detail.found)] : []));
});

function beginModels() {
  $("#header .model").addEventListener("click", () => {
    showProblem(engine?.picking.state === "failed" ? engine.picking.detail : "");
    askEngine("edit", { op: "list" });
  });
  $("[data-cancel-model]").addEventListener("click", () => askPicker("cancel"));
  $("#models-look-up").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = $("#models-name").value.trim();
    if (!name) return;
    $("#models-look-up").classList.add("looking");
    askPicker("look-up", name);
  });
  document.addEventListener("visibilitychange", () => askEngine(document.hidden ? "clear" : "submit"));
}
