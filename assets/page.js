// The page's behaviour: tools under messages, following the end, keys, the help panel, what a screen reader hears.
// Runs once, when the component "tools" is mounted; its value has one row for each message of the history.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const box = () => $("#composer textarea");
const phase = () => $("#status .status-line")?.dataset.phase ?? "idle";
const busy = () => phase() !== "idle";
const send = (op, id = "", text = "") => trigger("submit", { op, id, text });
const rows = () => (Array.isArray(props.value) ? props.value : []);

// -- tools under messages

const ICONS = { copy: "Copy", edit: "Edit", retry: "Try again", undo: "Take back" };

function toolButton(name, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = `tool tool-${name}`;
  button.title = ICONS[name];
  button.setAttribute("aria-label", ICONS[name]);
  button.addEventListener("click", () => act(button));
  return button;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // no permission, or not a secure page
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1200);
}

function toolsFor(row) {
  const bar = document.createElement("div");
  bar.className = "turn-tools";
  if (row.text) bar.append(toolButton("copy", (button) => copy(row.text, button)));
  if (row.kind === "user") bar.append(toolButton("edit", () => edit(row)));
  if (row.last && row.kind === "assistant") {
    bar.append(toolButton("retry", () => busy() || send("retry", row.id)));
    bar.append(toolButton("undo", () => busy() || send("undo")));
  }
  if (row.figures) bar.append(Object.assign(document.createElement("span"), { className: "figures", textContent: row.figures }));
  return bar;
}

let decorated = null;  // the rows whose tools are in place
function decorate() {
  const known = rows();
  if (decorated === known) return;
  const messages = $$("#history .message-row");
  if (messages.length !== known.length) return;
  decorated = known;
  messages.forEach((message, index) => {
    const row = known[index];
    const key = JSON.stringify(row);
    if (message.decoratedWith === key) return;
    message.decoratedWith = key;
    $$(".turn-tools, .turn-note, .edit-form", message).forEach((old) => old.remove());
    message.classList.remove("editing");
    if (row.kind === "thought") return;
    if (row.note) {
      const note = Object.assign(document.createElement("p"), { className: "turn-note", textContent: row.note });
      note.classList.toggle("failed", row.failed === true);
      message.append(note);
    }
    message.append(toolsFor(row));
  });
}

function edit(row) {
  const message = $$("#history .message-row")[rows().findIndex((known) => known.id === row.id)];
  if (!message || busy() || $(".edit-form", message)) return;
  const form = document.createElement("form");
  form.className = "edit-form";
  const area = Object.assign(document.createElement("textarea"), { value: row.text, rows: 1 });
  area.setAttribute("aria-label", "Edit your message");
  const grow = () => { area.style.height = "auto"; area.style.height = `${area.scrollHeight}px`; };
  const close = () => { form.remove(); message.classList.remove("editing"); box()?.focus(); };
  const cancel = Object.assign(document.createElement("button"), { type: "button", textContent: "Cancel" });
  const ok = Object.assign(document.createElement("button"), { type: "submit", textContent: "Send", className: "primary" });
  cancel.addEventListener("click", close);
  area.addEventListener("input", grow);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); close(); }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (area.value.trim() && !busy()) { close(); send("edit", row.id, area.value); }
  });
  form.append(area, cancel, ok);
  message.classList.add("editing");
  message.append(form);
  grow();
  area.focus();
}

// -- formulas: each update replaces the answer's HTML, and Gradio sets its formulas a moment later. Before that moment is
// painted, put in what was set for the same source before.

const formulas = new Map();
function setFormulas() {
  for (const formula of $$(".message-row .math")) {
    if (!$(".katex", formula)) {
      formula.source = formula.textContent;
      if (formulas.has(formula.source)) formula.innerHTML = formulas.get(formula.source);
    } else if (formula.source && !formulas.has(formula.source)) formulas.set(formula.source, formula.innerHTML);
  }
}

// -- the reader's place: follow the end while the reader is there, never move the reader otherwise

const root = document.scrollingElement;
const atEnd = () => root.scrollHeight - root.scrollTop - root.clientHeight < 80;
const toEnd = () => { root.scrollTop = root.scrollHeight; };
let following = true;
let handled = -Infinity;  // when the reader last had a hand on the page
const down = Object.assign(document.createElement("button"), { id: "to-end", type: "button", title: "To the end" });
down.setAttribute("aria-label", "To the end of the conversation");
down.addEventListener("click", () => { following = true; toEnd(); });

for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"])
  addEventListener(kind, () => { handled = performance.now(); }, { passive: true, capture: true });
addEventListener("scroll", () => {  // growing text scrolls too: only the reader's own hand ends the following
  if (atEnd()) following = true;
  else if (performance.now() - handled < 1000) following = false;
  down.classList.toggle("shown", !following);
}, { passive: true });

// -- what a screen reader hears: the finished answer, once

let wasBusy = false;
function announce() {
  const now = busy();
  if (wasBusy && !now) {
    const last = rows().at(-1);
    if (last?.kind === "assistant") $("#announcer").textContent = [last.text, last.note].filter(Boolean).join("\n");
  }
  if (!wasBusy && now) {
    $("#announcer").textContent = "";
    following = true;
  }
  wasBusy = now;
}

function show() {
  const history = $("#history"), live = $("#live"), now = phase();
  const shown = [history, live].map((part) => part.getElementsByClassName("message-row").length > 0);
  history.classList.toggle("no-rows", !shown[0]);
  live.classList.toggle("no-rows", !shown[1]);
  live.dataset.phase = now;
  $("#column").classList.toggle("empty", !shown[0] && !shown[1]);
  $("#dock").classList.toggle("busy", now !== "idle");
}

function settle() {
  show();
  decorate();
  announce();
  if (following) toEnd();
}

let scheduled = false;
function soon() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; settle(); });
}

function begin() {
  const parts = ["#history", "#live", "#status", "#banner", "#problem"].map((selector) => $(selector));
  if (!parts.every(Boolean) || !$("#dock")) return void requestAnimationFrame(begin);
  for (const part of parts) new MutationObserver(() => { setFormulas(); soon(); }).observe(part, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-phase"] });
  for (const log of $$("#history [role=log], #live [role=log]")) log.setAttribute("aria-live", "off");
  $("#dock").append(down);
  soon();
}
watch("value", soon);

// -- buttons of the header, examples, keys

document.addEventListener("click", (event) => {  // nothing is sent without a text
  if (event.target.closest?.("#send") && !box().value.trim()) event.stopImmediatePropagation();
}, true);

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (!button) return;
  if (button.dataset.press) $(`#${button.dataset.press}`)?.click();
  if (button.dataset.open) $(`#${button.dataset.open}`)?.showModal();
  if ("drawer" in button.dataset) $("#drawer .toggle-button, .sidebar .toggle-button")?.click();
  if ("themeSwitch" in button.dataset) setTheme(document.body.classList.contains("dark") ? "light" : "dark");
  if (button.classList.contains("example") && !busy()) send("send", "", button.dataset.text);
});

function setTheme(name) {
  document.body.classList.toggle("dark", name === "dark");
  localStorage.setItem("streaming-theme", name);
}
const kept = localStorage.getItem("streaming-theme");
if (kept && !new URLSearchParams(location.search).has("__theme")) setTheme(kept);

document.addEventListener("keydown", (event) => {
  const inBox = event.target === box();
  if (event.key === "Escape" && busy() && !$("dialog[open]")) $("#stop")?.click();
  if (event.key === "ArrowUp" && inBox && !box().value && !busy()) {
    const last = rows().findLast((row) => row.kind === "user");
    if (last) { event.preventDefault(); edit(last); }
  }
  if (event.ctrlKey && event.shiftKey && event.code === "KeyO") { event.preventDefault(); $("#new-chat")?.click(); }
  if (event.ctrlKey && event.key === "/") { event.preventDefault(); $("#help-dialog")?.showModal(); }
}, true);

document.addEventListener("keydown", (event) => {  // an answer is under way: the text waits in the box
  if (event.target === box() && event.key === "Enter" && !event.shiftKey && (busy() || event.isComposing || !box().value.trim())) {
    event.preventDefault();
    event.stopPropagation();
  }
}, true);

begin();
