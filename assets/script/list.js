// The list at the side: conversations by day, the search, and what one can do to each. As a drawer on narrow screens.

const ask = (event, asked = {}) => document.dispatchEvent(new CustomEvent("streaming-ask-feed", { detail: [event, asked] }));
const side = () => $("#side");
const query = () => $("#side-search").value.trim();
let listed = { query: "", entries: [] };
let renaming = false;

function dayOf(entry) {
  if (entry.pinned) return "Pinned";
  const then = new Date(entry.updated * 1000), now = new Date();
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate());
  const days = Math.round((midnight(now) - midnight(then)) / 86400000);
  if (days < 1) return "Today";
  if (days < 2) return "Yesterday";
  if (days < 8) return "Previous 7 days";
  const year = then.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return then.toLocaleDateString("en", { month: "long", year });
}

function entryLine(entry) {
  const link = make("a", { href: address(entry.id), className: "entry-link", title: entry.title });
  const marked = entry.hit && [entry.hit[0], make("mark", { textContent: entry.hit[1] }), entry.hit[2]];
  link.append(make("span", { className: "entry-title" }, ...(marked && !entry.node ? marked : [entry.title])));
  if (entry.running) link.append(make("span", { className: "entry-running", title: "An answer is being written" }, make("span", { className: "sr", textContent: "being written" })));
  if (marked && entry.node) link.append(make("span", { className: "entry-hit" }, ...marked));
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;  // in a tab of its own
    event.preventDefault();
    openConversation(entry.id, entry.node);
  });
  const line = make("li", { className: "entry" }, link);
  line.dataset.id = entry.id;
  line.append(menuButton("entry-more", `More for ${entry.title}`, () => [
    { name: "Rename", run: () => rename(entry) },
    { name: entry.pinned ? "Unpin" : "Pin", run: () => ask("edit", { op: entry.pinned ? "unpin" : "pin", id: entry.id }) },
    { name: "Copy as Markdown", run: () => ask("download", { op: "copy", id: entry.id }) },
    { name: "Export as Markdown", run: () => ask("download", { op: "markdown", id: entry.id }) },
    { name: "Export as JSON", run: () => ask("download", { op: "json", id: entry.id }) },
    { name: "Delete", danger: true, run: () => ask("edit", { op: "delete", id: entry.id }) },
  ]));
  link.addEventListener("dblclick", () => rename(entry));
  return line;
}

function drawList() {
  if (renaming) return;
  const list = $("#list"), focused = document.activeElement?.closest?.(".entry")?.dataset.id;
  const place = list.scrollTop, parts = [], opened = menu?.button.closest("#list .entry")?.dataset.id;
  let day = null, lines = null;
  for (const entry of listed.entries) {
    if (listed.query ? !lines : dayOf(entry) !== day) {
      day = dayOf(entry);
      lines = make("ul");
      parts.push(make("h2", { textContent: listed.query ? "Found" : day }), lines);
    }
    lines.append(entryLine(entry));
  }
  if (!parts.length) parts.push(make("p", { textContent: listed.query ? "Nothing found" : "Your conversations will be here." }));
  if (listed.full) parts.push(make("p", { textContent: "Older ones: search" }));
  list.replaceChildren(...parts);
  list.scrollTop = place;
  markCurrent();
  if (opened) handMenu(lineOf(opened)?.querySelector(".entry-more"));
  if (focused) lineOf(focused)?.querySelector(".entry-link").focus();
}
const lineOf = (id) => $(`#list .entry[data-id="${CSS.escape(id)}"]`);

function markCurrent() {
  for (const line of $$("#list .entry")) {
    const current = line.dataset.id === page().conversation;
    line.classList.toggle("current", current);
    if (current) line.firstElementChild.setAttribute("aria-current", "page");
    else line.firstElementChild.removeAttribute("aria-current");
  }
}

function rename(entry) {
  const line = lineOf(entry.id);  // the list may have been drawn anew since the menu was opened
  if (!line) return;
  const field = make("input", { value: entry.title, className: "entry-name", label: "New title", maxLength: 200 });
  const link = line.firstElementChild;
  const end = (save) => {
    if (!renaming) return;
    renaming = false;
    if (save && field.value.trim() && field.value !== entry.title) ask("edit", { op: "rename", id: entry.id, text: field.value });
    field.replaceWith(link);
    link.focus();
    drawList();
  };
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter" && !event.isComposing) end(true);
    if (event.key === "Escape") end(false);
  });
  field.addEventListener("blur", () => end(true));
  renaming = true;
  link.replaceWith(field);
  field.focus();
  field.select();
}

function openConversation(id, node = null) {
  if (narrow.matches) setSide(false);
  if (id === page().conversation && !node) return;
  sought = node;
  go("select", { id, node });
}

function neighbour(step) {
  const ids = listed.entries.map((entry) => entry.id), at = ids.indexOf(page().conversation);
  const to = at < 0 ? 0 : at + step;
  if (to >= 0 && to < ids.length) openConversation(ids[to]);
}

function setSide(open) {
  document.body.classList.toggle("with-side", open);
  side().inert = !open;
  if (!narrow.matches) keep("side", open ? "" : "closed");
  if (open && narrow.matches) $("#side [data-side]").focus();
}
const sideOpen = () => document.body.classList.contains("with-side");

document.addEventListener("streaming-feed", ({ detail }) => {
  if (!detail?.entries) return;
  listed = detail;
  drawList();
});
document.addEventListener("streaming-notes", ({ detail }) => {
  if (detail?.toast) say(detail.toast, detail.undo && (() => ask("edit", { op: "restore", id: detail.undo })));
  if (detail?.undo && detail.undo === page().conversation) openConversation("");
});

function beginList() {
  let typing = 0;
  $("#side-search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => ask("submit", { text: query() }), 150);
  });
  $("#side-search").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && $("#side-search").value) {
      event.stopPropagation();
      $("#side-search").value = "";
      ask("submit", { text: "" });
    }
    if (event.key === "ArrowDown" || (event.key === "Enter" && listed.entries.length)) $("#list .entry-link")?.focus();
  });
  $("#list").addEventListener("keydown", (event) => {
    const to = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!to || event.altKey || !event.target.classList.contains("entry-link")) return;
    const links = $$("#list .entry-link"), next = links[links.indexOf(event.target) + to];
    event.preventDefault();
    (next ?? (to < 0 ? $("#side-search") : event.target)).focus();
  });
  $("#scrim").addEventListener("click", () => setSide(false));
  narrow.addEventListener("change", () => setSide(!narrow.matches && recall("side") !== "closed"));
  setSide(!narrow.matches && recall("side") !== "closed");
  $("#side-more").replaceWith(menuButton("icon side-more", "Import and export", () => [
    { name: "Import…", run: () => inputOf("import").click() },
    { name: "Export everything", run: () => ask("download", { op: "all" }) },
  ]));
  let hidden = 0;  // a tab that nobody sees holds no connection; it asks anew when it is looked at
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.visibilityState === "visible") ask("submit", { text: query() });
    else hidden = setTimeout(() => ask("clear"), 1000);
  });
  setInterval(drawList, 600000);  // days pass
}
