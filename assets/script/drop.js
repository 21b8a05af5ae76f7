// Files into the page, by drop or by paste.

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

function beginDrop() {
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
