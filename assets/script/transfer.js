// Files into the page, by drop, by paste or from a menu; and texts out of it.

// Gradio puts the input of an upload button right before the button.
const inputOf = (id) => {
  let at = $(`#${id}`);
  while (!at.matches("input[type=file]")) at = at.previousElementSibling;
  return at;
};
function give(id, files) {
  const input = inputOf(id);
  input.files = files;
  input.dispatchEvent(new Event("change", { bubbles: true }));
}
const brings = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

function beginTransfer() {
  $("#import").tabIndex = -1;  // the list's menu has it
  let inside = 0;  // of how many nested elements the file is over
  const over = (more) => {
    inside = Math.max(0, inside + more);
    document.body.classList.toggle("dropping", inside > 0);
  };
  addEventListener("dragenter", (event) => { if (brings(event)) over(1); });
  addEventListener("dragleave", (event) => { if (brings(event)) over(-1); });
  addEventListener("dragover", (event) => { if (brings(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!brings(event)) return;
    event.preventDefault();
    over(-inside);
    give("attach", event.dataTransfer.files);
  });
  box().addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length || event.clipboardData.types.includes("text/plain")) return;
    event.preventDefault();
    give("attach", event.clipboardData.files);
  });
}

function save({ name, type, text }) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

document.addEventListener("streaming-notes", ({ detail }) => {
  if (detail?.file) save(detail.file);
  if (detail?.copy) copy(detail.copy).then(() => say("Copied"));
});
