// Buttons of the header, examples, and keys.

document.addEventListener("click", (event) => {  // nothing is sent without a text
  if (event.target.closest?.("#send") && !box().value.trim()) event.stopImmediatePropagation();
}, true);

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (!button) return;
  if ("new" in button.dataset) newChat();
  if ("side" in button.dataset) setSide(!sideOpen());
  if (button.dataset.open) $(`#${button.dataset.open}`)?.showModal();
  if (button.dataset.copy) copy(button.dataset.copy).then(() => say("Copied"));
  if ("drawer" in button.dataset) $("#drawer .toggle-button, .sidebar.right .toggle-button")?.click();
  if (button.classList.contains("example") && !busy()) act("send", { text: button.dataset.text });
});

function newChat() {
  openConversation("");
  box().focus();
}

function search() {
  setSide(true);
  $("#side-search").focus();
  $("#side-search").select();
}

const KEYS = {
  "shift+KeyO": newChat,
  KeyK: search,
  "shift+KeyS": () => setSide(!sideOpen()),
  "shift+KeyC": () => {
    const last = rows().findLast((row) => row.kind === "assistant");
    if (last) copy(last.text).then(() => say("Copied"));
  },
  Slash: () => $("#help-dialog")?.showModal(),
};

document.addEventListener("keydown", (event) => {
  const inBox = event.target === box();
  const run = (event.ctrlKey || event.metaKey) && !event.altKey && KEYS[(event.shiftKey ? "shift+" : "") + event.code];
  if (run) { event.preventDefault(); run(); return; }
  if (event.altKey && !event.ctrlKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
    event.preventDefault();
    neighbour(event.key === "ArrowUp" ? -1 : 1);
    return;
  }
  if (event.key === "Escape" && !$("dialog[open]") && !menu) {
    if (narrow.matches && sideOpen()) setSide(false);
    else if (busy() && !side().contains(event.target)) $("#stop")?.click();
  }
  if (event.key === "ArrowUp" && inBox && !box().value && !busy()) {
    const last = rows().findLast((row) => row.kind === "user");
    if (last) { event.preventDefault(); edit(last); }
  }
}, true);

document.addEventListener("keydown", (event) => {  // an answer is under way: the text waits in the box
  if (event.target === box() && event.key === "Enter" && !event.shiftKey && (busy() || event.isComposing || !box().value.trim())) {
    event.preventDefault();
    event.stopPropagation();
  }
}, true);
