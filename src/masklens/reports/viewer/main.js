// Puts the page together, and moves it on.

const HELP = [
  ["j  k", "next, previous text"],
  ["[  ]", "a layer down, up"],
  ["w", "tokens or words"],
  ["p", "one scale, or one for each layer"],
  ["n", "numbers in the cells"],
  ["/", "search"],
  ["s", "texts, or the whole set"],
  ["t", "dark or light"],
  ["Tab, arrows", "walk through a heat map"],
  ["Enter", "pick a token; two are compared"],
  ["Esc", "let go"],
  ["?", "this help"],
];

function header() {
  const tabs = hasSet()
    ? [
        choice(
          "View",
          [
            ["texts", "Texts"],
            ["set", "The set"],
          ],
          state.tab,
          (tab) => set({ tab }),
        ),
      ]
    : [];
  return el(
    "header",
    { class: "top" },
    iconButton("list", "List of texts", togglePanel, { class: "icon-button panel-button" }),
    el("h1", {}, isolated(data.title)),
    el("div", { class: "tabs" }, ...tabs),
    el(
      "div",
      { class: "top-tools" },
      ...(typeof liveTools === "function" ? liveTools() : []),
      iconButton("sun", "Dark or light (t)", toggleTheme),
      el("button", {
        type: "button",
        class: "icon-button",
        text: "?",
        title: "Keyboard and colours (?)",
        "aria-label": "Help",
        on: { click: () => help.showModal() },
      }),
    ),
  );
}

const help = el(
  "dialog",
  { class: "help", "aria-label": "Help" },
  el("h2", { text: "How to read this" }),
  el("p", {
    text: "Columns are tokens, rows are sites of the model: the words before position is added, the whole embeddings, and the output of each block. Where scores have a sign, blue speaks for the target and orange against it. Hover over a cell for its exact value; click two tokens to compare them over the layers.",
  }),
  el("p", {
    text: "The line with a tick or a cross is the proof. The model ran again with the most important tokens alone, as few as suffice: the prediction stays and the output moves little. A tick also means that random orders of the tokens do worse. The list says how many of the explanations of a text have a tick at the layer that is chosen.",
  }),
  el("h2", { text: "Keyboard" }),
  el("dl", {}, ...HELP.flatMap(([keys, does]) => [el("dt", { text: keys }), el("dd", { text: does })])),
  el("form", { method: "dialog" }, el("button", { class: "button", text: "Close" })),
);
help.addEventListener("click", (event) => event.target === help && help.close());

const main = el("main", { tabindex: -1 });

// Change the state and draw what is shown.
function set(changes) {
  Object.assign(state, changes);
  draw();
}

function draw() {
  hideTip();
  stopPlaying();
  document.body.classList.toggle("with-numbers", state.numbers);
  document.body.dataset.tab = state.tab;
  for (const button of $$(".tabs [data-value]"))
    button.setAttribute("aria-pressed", String(button.dataset.value === state.tab));
  if (state.tab === "set") main.replaceChildren(setView());
  else
    main.replaceChildren(
      ...(typeof composer === "function" ? [composer()] : []),
      data.texts[state.text]
        ? textView(state.text)
        : el("p", {
            class: "empty soft",
            text: data.live ? `Type a ${data.live.answers ? "prompt" : "text"} above and press Explain.` : "There are no texts here.",
          }),
    );
  remark();
}

function goToText(i) {
  if (!data.texts[i]) return;
  set({ text: i, step: 0, picked: [], whole: false, compare: false, editing: false, tab: "texts" });
  markItem();
  scrollTo({ top: 0 });
  try {
    history.replaceState(null, "", `#${i + 1}`);
  } catch {
    /* the address stays */
  }
}

function step(by) {
  const found = listed(),
    at = found.indexOf(state.text) + by;
  if (found[at] != null) goToText(found[at]);
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  "]": () => stepSite(1),
  "[": () => stepSite(-1),
  w: () => set({ words: state.words !== true, chosen: true, picked: [] }),
  p: () => set({ perSite: !ownScalesNow() }),
  n: () => set({ numbers: !state.numbers }),
  "/": () => {
    document.body.classList.add("panel-open");
    $(".search").focus();
  },
  s: () => hasSet() && set({ tab: state.tab === "set" ? "texts" : "set" }),
  t: toggleTheme,
  "?": () => help.showModal(),
  Escape: () => {
    closePanel();
    hideTip();
    document.activeElement?.blur();
    state.picked = [];
    refreshPicks();
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.matches?.("input:not([type=range]), textarea, select");
  if (typing && event.key !== "Escape") return;
  const call = KEYS[event.key];
  if (!call) return;
  event.preventDefault();
  call();
});

// On paper: every text, where there are few.
const MOST_PRINTED = 40;
addEventListener("beforeprint", () => {
  state.whole = true;
  if (state.tab === "texts" && data.texts.length > 1 && data.texts.length <= MOST_PRINTED)
    main.replaceChildren(...data.texts.map((_, i) => textView(i)));
  for (const slot of $$(".map-slot, .part-slot")) slot.drawNow?.();
});
addEventListener("afterprint", () => set({ whole: false }));
addEventListener("scroll", hideTip, { passive: true });
addEventListener("hashchange", () => goToText(Number(location.hash.slice(1)) - 1));

data.texts = joined(data.texts);
document.body.append(
  header(),
  el("div", { class: "frame" }, listPanel(), el("div", { class: "veil", on: { click: closePanel } }), main),
  help,
  tip,
);
document.body.classList.toggle("one-text", data.texts.length < 2 && !data.live);
fillPanel();
const linked = Number(location.hash.slice(1)) - 1;
if (data.texts[linked]) goToText(linked);
else draw();
if (typeof startLive === "function") startLive();
