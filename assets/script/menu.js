// Small things that open over the page: a menu at a button, and a toast that takes something back.

let menu = null;  // {list, button} of the one that is open
function closeMenu() {
  if (!menu) return;
  const { list, button } = menu;
  menu = null;
  const inside = list.contains(document.activeElement);
  list.remove();
  button.setAttribute("aria-expanded", "false");
  if (inside) button.focus();
}

function openMenu(button, items) {
  const again = menu?.button === button;
  closeMenu();
  if (again) return;
  const list = make("div", { className: "menu" });
  list.setAttribute("role", "menu");
  for (const { name, run, danger } of items) {
    const item = make("button", { textContent: name, className: danger ? "danger" : "" });
    item.setAttribute("role", "menuitem");
    item.addEventListener("click", () => { closeMenu(); run(); });
    list.append(item);
  }
  list.addEventListener("keydown", (event) => {
    const all = [...list.children], at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (to !== undefined) all.at(to % all.length).focus();
    else if (event.key === "Escape" || event.key === "Tab") closeMenu();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  menu = { list, button };
  button.setAttribute("aria-expanded", "true");
  document.body.append(list);
  const at = button.getBoundingClientRect();
  const below = at.bottom + 4 + list.offsetHeight < innerHeight;
  list.style.left = `${Math.max(8, Math.min(at.left, innerWidth - list.offsetWidth - 8))}px`;
  list.style.top = `${below ? at.bottom + 4 : Math.max(8, at.top - list.offsetHeight - 4)}px`;
  list.firstElementChild.focus();
}

function handMenu(button) {  // its button has been drawn anew, or has gone
  if (!button) { closeMenu(); return; }
  menu.button = button;
  button.setAttribute("aria-expanded", "true");
}

function menuButton(className, label, items) {
  const button = make("button", { className, label, title: label });
  button.setAttribute("aria-haspopup", "menu");
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => openMenu(button, items()));
  return button;
}

addEventListener("pointerdown", (event) => {
  if (menu && !menu.list.contains(event.target) && !menu.button.contains(event.target)) closeMenu();
}, true);
addEventListener("scroll", (event) => { if (menu && !menu.list.contains(event.target)) closeMenu(); }, true);

const toast = make("div", { id: "toast" });
toast.setAttribute("role", "status");
document.body.append(toast);
let toasted = 0;
function say(text, undo) {
  clearTimeout(toasted);
  toast.replaceChildren(make("span", { textContent: text }));
  if (undo) {
    const button = make("button", { textContent: "Undo" });
    button.addEventListener("click", () => { toast.classList.remove("shown"); undo(); });
    toast.append(button);
  }
  toast.classList.add("shown");
  toasted = setTimeout(() => toast.classList.remove("shown"), 7000);
}
