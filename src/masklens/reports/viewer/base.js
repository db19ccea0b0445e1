// What everything else is made of: elements, the state of the page, the theme, the tooltip.

const data = JSON.parse(document.getElementById("data").textContent);

const state = {
  tab: "texts",
  text: 0,
  step: 0, // of an answer
  folds: {}, // parts of a prompt that were opened or folded
  site: null, // a site number; chosen when the first text is drawn
  words: false, // or true, or "sentences"
  chosen: false, // whether the user chose the units
  over: "all",
  hidden: new Set(), // names of methods that are not shown
  perSite: null, // whether each layer has its own scale, where the user chose it
  numbers: false,
  picked: [], // up to two {layout, unit}
  query: "",
  sort: "order",
  filter: "all",
  slices: new Map(), // values by what texts are sliced by
  slicing: false, // whether the boxes of slices beside the list are open
  whole: false, // whether long texts are shown to their ends
  compare: false, // whether an edit stands beside the text that it was made of
  editing: false,
  target: null, // the class whose scores are shown where there are several
};

// An element with properties, attributes and children. Text is only ever set as text.
function el(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === "on") for (const [event, call] of Object.entries(value)) made.addEventListener(event, call);
    else if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name === "css") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null && child !== false));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const $ = (selector, inside = document) => inside.querySelector(selector);
const $$ = (selector, inside = document) => [...inside.querySelectorAll(selector)];

// Text of the user's, kept apart from the direction of what stands around it.
const isolated = (text, className) => el("bdi", { text, dir: "auto", class: className || null });

const RIGHT_TO_LEFT =
  /^[^A-Za-z\u00c0-\u024f\u0370-\u058f\u0900-\u1fff\u2c00-\ud7ff]*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]/;
const direction = (text) => (RIGHT_TO_LEFT.test(text) ? "rtl" : "ltr");

// 0 is the words before position is added, 1 the whole embeddings, k+1 the output of block k.
const siteName = (site) => (site < 2 ? ["words", "embeddings"][site] : `block ${site - 1}`);

const minus = (text) => text.replace(/-/g, "\u2212");
const exact = (value) => (value == null ? "none" : minus(String(Number(value.toPrecision(4)))));
const percent = (share) => `${Math.round(share * 100)}%`;
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

const icon = (path) =>
  svg("svg", { viewBox: "0 0 20 20", class: "icon", "aria-hidden": "true" }, svg("path", { d: path }));
const ICONS = {
  sun: "M10 6a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM10 1.5v2M10 16.500v2M1.500 10h2M16.500 10h2M4 4l1.400 1.400M14.600 14.600 16 16M16 4l-1.400 1.400M5.400 14.600 4 16",
  play: "M6.500 4.500v11l9-5.500z",
  pause: "M7 4.500v11M13 4.500v11",
  check: "m4.500 10.500 3.500 3.500 7.500-8",
  cross: "m5.500 5.500 9 9M14.500 5.500l-9 9",
  left: "m12.500 4.500-5.500 5.500 5.500 5.500",
  right: "m7.500 4.500 5.500 5.500-5.500 5.500",
  list: "M3.500 5.500h13M3.500 10h13M3.500 14.500h13",
  down: "M10 3.500v9M5.500 8.500 10 13l4.500-4.500M4 16.500h12",
  pencil: "m4 16 .8-3.600L13 4.200a1.400 1.400 0 0 1 2 0l.8.8a1.400 1.400 0 0 1 0 2L7.600 15.200zM11.500 5.700l2.800 2.800",
  both: "M3.500 4.500h5.500v11h-5.500zM11 4.500h5.500v11H11z",
  search: "M9 3.500a5.500 5.500 0 1 0 0 11 5.500 5.500 0 0 0 0-11ZM13 13l4 4",
};

function iconButton(name, label, click, more = {}) {
  return el(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, on: { click }, ...more },
    icon(ICONS[name]),
  );
}

// A row of buttons of which one is pressed.
function choice(label, options, current, choose) {
  const buttons = options.map(([value, name, hint]) =>
    el("button", {
      type: "button",
      text: name,
      title: hint,
      "data-value": value,
      "aria-pressed": String(value === current),
      on: { click: () => choose(value) },
    }),
  );
  return el("div", { class: "choice", role: "group", "aria-label": label }, ...buttons);
}

const remembered = {
  get(name) {
    try {
      return localStorage.getItem(`masklens-${name}`);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`masklens-${name}`, value);
    } catch {
      /* not kept, then */
    }
  },
};

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const chosen = remembered.get("theme");
  document.documentElement.dataset.theme = chosen || (prefersDark.matches ? "dark" : "light");
}
function toggleTheme() {
  remembered.set("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  applyTheme();
}
prefersDark.addEventListener("change", applyTheme);
applyTheme();

const tip = el("div", { class: "tip", role: "status", "aria-live": "polite" });

// Show lines of [name, value] at an element or at the pointer.
function showTip(place, title, lines) {
  tip.replaceChildren(
    el("strong", {}, isolated(title)),
    ...lines.map(([name, value]) => el("span", {}, `${name} `, el("b", { text: value }))),
  );
  tip.classList.add("shown");
  const box = place.getBoundingClientRect(),
    own = tip.getBoundingClientRect();
  const left = Math.min(Math.max(6, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 6);
  const above = box.top - own.height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : box.bottom + 8}px`;
}
const hideTip = () => tip.classList.remove("shown");

// Call once, when an element comes near the screen, or when `drawNow` is called.
const watcher = new IntersectionObserver(
  (seen) => seen.filter((one) => one.isIntersecting).forEach((one) => one.target.drawNow?.()),
  { rootMargin: "300px" },
);
function lazily(element, call) {
  element.drawNow = () => {
    watcher.unobserve(element);
    delete element.drawNow;
    call();
  };
  watcher.observe(element);
}
