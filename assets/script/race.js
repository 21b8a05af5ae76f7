// The race's page. Its board is what the eye is on while it runs; a key stops it, as in the chat.
const racing = () => Boolean($(".lanes[data-running]", element));
let raced = false;
watch("value", () => {
  const starts = racing() && !raced;
  raced = racing();
  if (starts) element.scrollIntoView({ block: matchMedia("(max-width: 640px)").matches ? "start" : "nearest" });
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && racing()) $("#race-stop")?.click();
});
