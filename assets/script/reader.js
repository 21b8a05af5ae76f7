// The reader's place: follow the end while the reader is there, never move the reader otherwise. And what a screen
// reader hears: the finished answer, once.

const root = document.scrollingElement;
const atEnd = () => root.scrollHeight - root.scrollTop - root.clientHeight < 80;
const toEnd = () => { root.scrollTop = root.scrollHeight; };
let following = true;
let handled = -Infinity;  // when the reader last had a hand on the page
const down = make("button", { id: "to-end", title: "To the end", label: "To the end of the conversation" });
down.addEventListener("click", () => { following = true; toEnd(); });

for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"])
  addEventListener(kind, () => { handled = performance.now(); }, { passive: true, capture: true });
addEventListener("scroll", () => {  // growing text scrolls too: only the reader's own hand ends the following
  if (atEnd()) following = true;
  else if (performance.now() - handled < 1000) following = false;
  down.classList.toggle("shown", !following);
}, { passive: true });

let sought = null;  // the message that a search has found, until it is on the page
function showFound(messages) {
  const at = sought ? rows().findIndex((row) => row.id === sought && row.kind !== "thought") : -1;
  if (at < 0) return;
  sought = null;
  following = false;
  messages[at].scrollIntoView({ block: "center" });
  messages[at].classList.add("found");
  messages[at].addEventListener("animationend", () => messages[at].classList.remove("found"), { once: true });
}

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
