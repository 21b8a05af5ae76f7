// The script of the component "files": what is attached to the next message, as chips above it. Its value is
// [{name, media_type, text, pages}], and goes back to the server when the message is sent.

const files = () => (Array.isArray(props.value) ? props.value : []);
const about = (file) => (file.pages ? `${file.pages} page${file.pages > 1 ? "s" : ""}` : `${file.text.length.toLocaleString("en")} characters`);

function draw() {
  const chips = files().map((file, at) => {
    const chip = document.createElement("span"), name = document.createElement("b"), drop = document.createElement("button");
    chip.className = "chip";
    name.textContent = file.name;
    drop.type = "button";
    drop.setAttribute("aria-label", `Remove ${file.name}`);
    drop.addEventListener("click", () => {
      props.value = files().filter((_, other) => other !== at);
      draw();
      document.querySelector("#composer textarea")?.focus();
    });
    chip.append(name, ` ${about(file)}`, drop);
    return chip;
  });
  element.replaceChildren(...chips);
  document.querySelector("#files")?.classList.toggle("some", chips.length > 0);
}
watch("value", draw);

const held = new Map();  // of conversations that are not on the page
document.addEventListener("streaming-arrive", ({ detail: { from, to, going } }) => {
  if (!going) return;
  held.set(from, files());
  props.value = held.get(to) ?? [];
  held.delete(to);
  draw();
});
