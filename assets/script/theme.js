// Light or dark, as it was chosen in this browser; without a choice, as the system has it.
function setTheme(name) {
  document.body.classList.toggle("dark", name === "dark");
  keep("theme", name);
}
if (recall("theme") && !new URLSearchParams(location.search).has("__theme")) setTheme(recall("theme"));

document.addEventListener("click", (event) => {
  if (event.target.closest?.("[data-theme-switch]")) setTheme(document.body.classList.contains("dark") ? "light" : "dark");
});
