// What happens when something on the page has changed, and the beginning of it all.

function show() {
  const past = $("#history"), live = $("#live"), now = phase();
  const shown = [past, live].map((part) => part.getElementsByClassName("message-row").length > 0);
  past.classList.toggle("no-rows", !shown[0]);
  live.classList.toggle("no-rows", !shown[1]);
  live.dataset.phase = now;
  $("#column").classList.toggle("empty", !shown[0] && !shown[1]);
  $("#dock").classList.toggle("busy", now !== "idle");
}

// The arrow of a thought is a button within a button: what looks like it is one for the eye only.
function calmThoughts() {
  for (const arrow of $$(".thought-group .title button:not([inert])")) arrow.inert = true;
}

function settle() {
  calmThoughts();
  show();
  decorate();
  decorateLive();
  announce();
  keepDraft();
  document.dispatchEvent(new CustomEvent("streaming-settled", { detail: rows() }));
  if (following) toEnd();
}

let scheduled = false;
function soon() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; settle(); });
}

const PARTS = ["#history", "#live", "#status", "#banner", "#problem"];
function begin() {
  const parts = PARTS.map((selector) => $(selector));
  if (!parts.every(Boolean) || !$("#dock") || !$("#list") || !$("#import") || !box()) return void requestAnimationFrame(begin);
  const observed = { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["data-phase"] };
  for (const part of parts) new MutationObserver(() => { setFormulas(); soon(); }).observe(part, observed);
  for (const log of $$("#history [role=log], #live [role=log]")) log.setAttribute("aria-live", "off");
  $("#dock").append(down);
  box().addEventListener("input", keepDraft);
  beginList();
  beginTransfer();
  beginModels();
  arrive();
  drawList();
  soon();
}
watch("value", () => { arrive(); soon(); });
document.addEventListener("streaming-unsettled", soon);
begin();
