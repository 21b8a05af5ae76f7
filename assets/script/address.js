// Which conversation is on the page: the address bar names it, and each has a draft of its own in this browser.

const addressed = () => new URLSearchParams(location.search).get("c") ?? "";
function address(id) {
  const url = new URL(location);
  if (id) url.searchParams.set("c", id);
  else url.searchParams.delete("c");
  return url.href;
}

let going = false;  // the reader has asked for another conversation
function go(event, asked) {
  going = true;
  trigger(event, asked);
}
addEventListener("popstate", () => { sought = null; go("select", { id: addressed() }); });

let place = null;  // the conversation whose draft is in the box
function arrive() {
  const now = page().conversation;
  if (now === undefined) return;
  if (place !== null) keep(`sent:${place}`, "");  // the server has said what came of it
  if (now !== addressed()) history[going && place !== null ? "pushState" : "replaceState"](null, "", address(now));
  document.title = page().title ? `${page().title} · Streaming` : "Streaming";
  if (now !== place) {
    if (place === null) { if (!box().value && !hasCome(now)) fill(recall(`draft:${now}`)); }
    else if (going) fill(recall(`draft:${now}`));
    else keep(`draft:${place}`, "");  // a new chat has got its name: what is in the box belongs to it
    closeMenu();
    document.dispatchEvent(new CustomEvent("streaming-arrive", { detail: { from: place, to: now, going } }));
    if (going && !sought) following = true;
    place = now;
    markCurrent();
  }
  going = false;
}

// A text that is sent stays in the box until the server has it. If the page is torn away in between, it may have come.
function keepSent() {
  if (place !== null && box().value.trim()) keep(`sent:${place}`, JSON.stringify([rows().length, box().value]));
}
function hasCome(now) {
  const [before, text] = JSON.parse(recall(`sent:${now}`) || "[]");
  const last = page().question || (rows().length > before && rows().findLast((row) => row.kind === "user")?.text);
  const come = Boolean(text) && last === text;
  if (come) keep(`draft:${now}`, "");
  return come;
}
document.addEventListener("click", (event) => { if (event.target.closest?.("#send")) keepSent(); }, true);
document.addEventListener("keydown", (event) => {
  if (event.target === box() && event.key === "Enter" && !event.shiftKey && !event.isComposing && !busy()) keepSent();
}, true);

function fill(text) {
  box().value = text;
  box().dispatchEvent(new Event("input", { bubbles: true }));
}

let draft = null;
function keepDraft() {
  if (place === null || going || box().value === draft) return;
  draft = box().value;
  keep(`draft:${place}`, draft);
}
