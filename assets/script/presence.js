// Whether the app is there, and still the one that this page came from. A tab whose streams ended while the app was
// restarted, or while the machine slept, would stand still for ever: it is loaded anew, and finds everything again.

const LOOK_EVERY_MS = 5000, LOST_EVERY_MS = 1500;
const served = window.gradio_config;
let lost = false, looking = 0;

async function look() {
  clearTimeout(looking);
  if (document.hidden) return;  // it looks again as soon as it is seen
  try {
    const answer = await fetch(`${served.root}${served.api_prefix}/app_id`, { cache: "no-store" });
    if (!answer.ok) throw new Error(`${answer.status}`);
    if ((await answer.json()).app_id !== served.app_id || lost) { location.reload(); return; }
  } catch (error) {
    console.warn("The app does not answer:", error);
    lost = true;
  }
  if (lost && !$(".toast-body, #toast.shown")) say("The app does not answer. This page goes on as soon as it does.");
  looking = setTimeout(look, lost ? LOST_EVERY_MS : LOOK_EVERY_MS);
}
document.addEventListener("visibilitychange", look);
addEventListener("online", look);
looking = setTimeout(look, LOOK_EVERY_MS);
