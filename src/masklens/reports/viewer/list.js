// The list of texts: search, filters, order, a strip of colours for each.

const SORTS = {
  order: ["order", (a, b) => a - b],
  length: ["longest", (a, b) => tokensOf(b) - tokensOf(a) || a - b],
  prediction: [
    "prediction",
    (a, b) => data.texts[a].prediction.localeCompare(data.texts[b].prediction) || a - b,
  ],
  needed: ["fewest tokens needed", (a, b) => neededOf(a) - neededOf(b) || a - b],
  alphabet: ["A to Z", (a, b) => data.texts[a].text[0].localeCompare(data.texts[b].text[0]) || a - b],
};
const FILTERS = {
  all: ["all", () => true],
  failed: ["fails verification", (text) => failing(text).length > 0],
  wrong: ["model wrong", (text) => text.wrong],
};

const tokensOf = (i) => data.texts[i].layouts[0]?.tokens.length ?? 0;
const proofsNow = (text) => shownMaps(text).map((map) => [map, proofNow(map)]).filter(([, proof]) => proof);
const neededOf = (i) => Math.min(1, ...proofsNow(data.texts[i]).map(([, proof]) => proof.needed / (proof.tokens || 1)));
const failing = (text) => proofsNow(text).filter(([, proof]) => proof.verdict !== "sufficient");
const searchable = (text) =>
  (text.searchable ??= [...text.text, text.prediction, text.label ?? "", ...text.maps.map((m) => m.target)]
    .join("\n")
    .toLocaleLowerCase());

// The numbers of the texts that are listed, in their order.
function listed() {
  const chosen = new Set(inSlice());
  const words = state.query.toLocaleLowerCase().split(/\s+/).filter(Boolean);
  const found = data.texts
    .map((_, i) => i)
    .filter(
      (i) =>
        chosen.has(data.texts[i]) &&
        FILTERS[state.filter][1](data.texts[i]) &&
        words.every((word) => searchable(data.texts[i]).includes(word)),
    );
  return found.sort(SORTS[state.sort][1]);
}

function listPanel() {
  const search = el("input", {
    type: "search",
    placeholder: "Search texts",
    "aria-label": "Search texts",
    class: "search",
  });
  search.addEventListener("input", () => {
    state.query = search.value;
    fillList();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && listed().length) {
      goToText(listed()[0]);
      search.blur();
    }
  });
  const panel = el(
    "nav",
    { class: "panel", "aria-label": "Texts" },
    el(
      "div",
      { class: "panel-head" },
      el("div", { class: "search-box" }, icon(ICONS.search), search),
      el("div", { class: "panel-row" }),
      el("div", { class: "panel-slices" }),
    ),
    el("ol", { class: "list" }),
    el("p", { class: "soft count", role: "status" }),
  );
  return panel;
}

function fillPanel() {
  const proofs = data.texts.some((text) => text.maps.some((m) => m.proofs)),
    labels = data.texts.some((text) => text.label != null);
  const select = (label, options, name) => {
    const made = el(
      "select",
      { "aria-label": label },
      ...options.map(([value, said]) => el("option", { value, text: said, selected: state[name] === value })),
    );
    made.addEventListener("change", () => {
      state[name] = made.value;
      fillList();
    });
    return made;
  };
  const sorts = Object.entries(SORTS)
    .filter(([name]) => proofs || name !== "needed")
    .map(([name, [said]]) => [name, said]);
  const filters = Object.entries(FILTERS)
    .filter(([name]) => name === "all" || (name === "failed" ? proofs : labels))
    .map(([name, [said]]) => [name, said]);
  $(".panel-row").replaceChildren(
    select("Sort", sorts, "sort"),
    ...(filters.length > 1 ? [select("Filter", filters, "filter")] : []),
  );
  $(".panel-slices").replaceChildren(...[slicePanel()].filter(Boolean));
  fillList();
}

function fillList() {
  const found = listed();
  $(".list").replaceChildren(...(found.length || !data.texts.length ? found.map(listItem) : [nothingFound()]));
  $(".count").textContent =
    found.length === data.texts.length
      ? plural(found.length, "text")
      : `${found.length} of ${plural(data.texts.length, "text")}`;
  markItem();
}

const nothingFound = () =>
  el(
    "li",
    { class: "nothing" },
    el("p", { class: "soft" }, "No text ", ...(state.query.trim() ? ["has ", isolated(`“${state.query.trim()}”`)] : ["is left"]), state.query.trim() && (state.filter !== "all" || state.slices.size) ? " and passes the filter." : "."),
    el("button", {
      type: "button",
      class: "more",
      text: "Show all texts",
      on: { click: showAll },
    }),
  );

function showAll() {
  Object.assign(state, { query: "", filter: "all", slices: new Map() });
  $(".search").value = "";
  fillPanel();
}

function listItem(i) {
  const text = data.texts[i],
    strip = el("span", { class: "strip", "aria-hidden": "true" });
  const button = el(
    "button",
    {
      type: "button",
      "data-text": i,
      on: {
        click: () => {
          goToText(i);
          closePanel();
        },
      },
    },
    el("span", {
      class: "item-text",
      dir: direction(text.text[0]),
      text: text.text.join(" · ").slice(0, 240),
    }),
    strip,
    el(
      "span",
      { class: "item-foot" },
      el("span", { class: "soft", text: i + 1 }),
      isolated(text.prediction, text.wrong ? "wrong" : ""),
      el("span", { class: "marks" }),
    ),
  );
  lazily(strip, () => drawStrip(strip, text));
  markProofs(button, text);
  return el("li", {}, button);
}

// How many of the shown explanations pass at the chosen layer, of those that were verified.
function markProofs(button, text) {
  const proofs = proofsNow(text),
    failed = failing(text),
    passed = proofs.length - failed.length;
  const said = proofs.map(([map, proof]) => `${map.name}: ${proof.verdict ?? "not compared"}`).join("; ");
  $(".marks", button).replaceChildren(
    ...(proofs.length
      ? [
          el("span", {
            class: failed.length ? (passed ? null : "lost-mark") : "kept-mark",
            title: `${passed} of ${plural(proofs.length, "explanation")} pass verification. ${siteName(state.site ?? 0)}: ${said}`,
            text: `${passed}/${proofs.length}`,
          }),
        ]
      : []),
  );
}

function remark() {
  for (const button of $$(".list [data-text]")) markProofs(button, data.texts[button.dataset.text]);
}

// The scores of the first map, the mean over its sites.
function drawStrip(strip, text) {
  const map = text.maps[0];
  if (!map) return;
  const view = viewOf(text, map, false),
    said = view.units.map((unit, i) => i).filter((i) => !view.units[i].special);
  const means = said.map((i) => view.scores.reduce((sum, row) => sum + (row[i] ?? 0), 0)),
    top = Math.max(...means.map(Math.abs), 1e-12);
  strip.append(...means.slice(0, 60).map((mean) => el("i", { class: colourOf(mean / top, view.signed) })));
}

function markItem() {
  for (const item of $$(".list [aria-current]")) item.removeAttribute("aria-current");
  const now = $(`.list [data-text="${state.text}"]`);
  now?.setAttribute("aria-current", "true");
  now?.scrollIntoView({ block: "nearest" });
}

const closePanel = () => document.body.classList.remove("panel-open");
const togglePanel = () => document.body.classList.toggle("panel-open");
