// The script of the component "marks", the switch in the drawer: this browser remembers it, and the page's script is told.
const marking = $("input", element);
const tell = () => document.dispatchEvent(new CustomEvent("streaming-marks", { detail: marking.checked }));
marking.checked = recall("marks") === "on";
marking.addEventListener("change", () => {
  keep("marks", marking.checked ? "on" : "");
  tell();
});
tell();
