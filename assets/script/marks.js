// The script of the component "marks", the switch in the drawer, which this browser remembers. While it is on, the guesses
// of all answers on the page are painted, as often as the page's script has settled something.

const marking = $("input", element);
let sources = [];  // the rows of the history
let unpainted = true;  // something of the history has changed

function paintAll() {
  if (!grounds.live || !(marking.checked || unpainted)) return;
  const told = marking.checked && $("#status .status-line")?.dataset.guessed;
  paint("live", $$("#live .bot-row"), told ? JSON.parse(told) : []);
  if (unpainted) paint("history", $$("#history .message-row"), marking.checked ? sources : []);
  unpainted = false;
}

function beginMarks() {
  const history = $("#history");
  if (!history) return void requestAnimationFrame(beginMarks);
  new MutationObserver(() => { unpainted = true; }).observe(history, { childList: true, subtree: true, characterData: true });
  document.addEventListener("streaming-settled", ({ detail }) => {
    unpainted ||= detail !== sources;
    sources = detail;
    paintAll();
  });
  switchMarks();
}

function switchMarks() {
  unpainted = true;
  document.body.classList.toggle("marking", marking.checked);  // the style alone would cost everybody frames
  document.dispatchEvent(new CustomEvent("streaming-unsettled"));
}

marking.checked = recall("marks") === "on";
marking.addEventListener("change", () => {
  keep("marks", marking.checked ? "on" : "");
  switchMarks();
});
beginMarks();
