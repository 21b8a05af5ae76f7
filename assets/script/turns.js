// Under each message: its tools, its versions, how it ended; and editing it in place.

const NAMES = { copy: "Copy", edit: "Edit", retry: "Try again", undo: "Take back" };

function tool(name, run) {
  const button = make("button", { className: `tool tool-${name}`, title: NAMES[name], label: NAMES[name] });
  button.addEventListener("click", () => run(button));
  return button;
}
const idle = (run) => () => busy() || run();

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // no permission, or not a secure page
    const area = make("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button?.classList.add("done");
  setTimeout(() => button?.classList.remove("done"), 1200);
}

function versions(row) {
  const [which, many] = row.version;
  const step = (by, label, text, possible) => {
    const button = make("button", { className: "step", label, title: label, textContent: text, disabled: !possible });
    button.addEventListener("click", idle(() => act("version", { id: row.id, step: by })));
    return button;
  };
  const count = make("span", { textContent: `${which}/${many}`, label: `Version ${which} of ${many}` });
  count.setAttribute("role", "img");
  return make("span", { className: "versions" },
    step(-1, "Earlier version", "‹", which > 1), count, step(1, "Later version", "›", which < many));
}

function rarely(row) {
  const items = [{ name: "Branch off here", run: idle(() => go("submit", { op: "fork", id: row.id })) }];
  if (row.kind === "assistant") items.unshift({ name: "Edit", run: () => edit(row) });
  items.push({ name: "Delete message", danger: true, run: idle(() => act("delete", { id: row.id })) });
  return items;
}

function toolsFor(row) {
  const bar = make("div", { className: "turn-tools" });
  if (row.version) bar.append(versions(row));
  if (row.text) bar.append(tool("copy", (button) => copy(row.text, button)));
  if (row.kind === "user") bar.append(tool("edit", () => edit(row)));
  if (row.last && row.kind === "assistant") {
    bar.append(tool("retry", idle(() => act("retry", { id: row.id }))));
    bar.append(tool("undo", idle(() => act("undo"))));
  }
  bar.append(menuButton("tool tool-more", "More", () => rarely(row)));
  if (row.figures) bar.append(make("span", { className: "figures", textContent: row.figures }));
  return bar;
}

function chips(attached) {
  const chip = ({ name, about }) => make("span", { className: "chip", title: about }, make("b", { textContent: name }), ` ${about}`);
  return make("div", { className: "turn-files" }, ...attached.map(chip));
}

function decorateLive() {  // the question of the answer that is being written
  const question = $("#live .message-row.user-row");
  if (question && page().asked?.length && !$(".turn-files", question)) question.prepend(chips(page().asked));
}

function note(row) {
  const line = make("p", { className: "turn-note", textContent: row.note });
  line.classList.toggle("failed", row.failed === true);
  if (!row.continues) return line;
  const button = make("button", { className: "continue", textContent: "Continue" });
  button.addEventListener("click", idle(() => act("continue", { id: row.id })));
  return make("div", { className: "turn-end" }, line, button);
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
    $$(".turn-files, .turn-tools, .turn-note, .turn-end, .edit-form", message).forEach((old) => old.remove());
    message.classList.remove("editing");
    if (row.kind === "thought") return;
    if (row.files) message.prepend(chips(row.files));
    if (row.note || row.continues) message.append(note(row));
    message.append(toolsFor(row));
  });
  showFound(messages);
}

function edit(row) {
  const at = rows().findIndex((known) => known.id === row.id && known.kind !== "thought");
  const message = $$("#history .message-row")[at];
  if (!message || busy() || $(".edit-form", message)) return;
  const own = row.kind === "user";
  const form = make("form", { className: "edit-form" });
  const area = make("textarea", { value: row.text, rows: 1, label: own ? "Edit your message" : "Edit the answer" });
  const grow = () => { area.style.height = "auto"; area.style.height = `${area.scrollHeight + 2}px`; };
  const close = () => { form.remove(); message.classList.remove("editing"); box()?.focus(); };
  const cancel = make("button", { textContent: "Cancel" });
  const ok = make("button", { type: "submit", textContent: own ? "Send" : "Save", className: "primary" });
  cancel.addEventListener("click", close);
  area.addEventListener("input", grow);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.stopPropagation(); close(); }
    const done = own ? !event.shiftKey : event.ctrlKey || event.metaKey;  // an answer has lines of its own
    if (event.key === "Enter" && done && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!area.value.trim() || busy()) return;
    close();
    if (own || area.value !== row.text) act(own ? "edit" : "edit-answer", { id: row.id, text: area.value });
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
