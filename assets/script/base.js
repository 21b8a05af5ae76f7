// What all scripts of the page share. They are joined to one function, which runs once, when the component "tools" is
// mounted; its value says what is on the page: {conversation, title, rows}, a row for each message of the history.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const box = () => $("#composer textarea");
const phase = () => $("#status .status-line")?.dataset.phase ?? "idle";
const busy = () => phase() !== "idle";
const page = () => props.value ?? {};
const rows = () => page().rows ?? [];
const act = (op, asked = {}) => trigger("submit", { op, ...asked });
const narrow = matchMedia("(max-width: 900px)");

function make(tag, properties = {}, ...children) {
  const { label, ...rest } = properties;
  const made = Object.assign(document.createElement(tag), tag === "button" ? { type: "button", ...rest } : rest);
  if (label) made.setAttribute("aria-label", label);
  made.append(...children);
  return made;
}

// What is worth keeping in this browser only. A full or forbidden storage keeps nothing: the page works without.
function keep(name, text) {
  try {
    if (text) localStorage.setItem(`streaming-${name}`, text);
    else localStorage.removeItem(`streaming-${name}`);
  } catch (error) { console.warn(`not kept: ${name}`, error); }
}
function recall(name) {
  try { return localStorage.getItem(`streaming-${name}`) ?? ""; } catch { return ""; }
}
