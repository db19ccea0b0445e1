// The probabilities of all classes, the class that is explained, and what its scores add up to.

const MOST_CLASSES = 6;

// Of each name the map of the chosen target; where there is none, of the prediction.
function ofTarget(text) {
  const distance = (map) => (map.target === state.target ? 0 : map.target === text.prediction ? 1 : 2);
  const best = new Map();
  for (const map of text.maps)
    if (!best.has(map.name) || distance(map) < distance(best.get(map.name))) best.set(map.name, map);
  return text.maps.filter((map) => best.get(map.name) === map);
}

// The classes with their probabilities, the most probable first. One whose scores are here, or can be had, is a button.
function classRow(text) {
  if (!text.classes?.length) return null;
  const explained = new Set(shownMaps(text).map((map) => map.target)),
    known = new Set(text.maps.map((map) => map.target)),
    boxes = text.classes.map((one) => classBox(text, one, explained, known)),
    rest = boxes.slice(MOST_CLASSES);
  return el(
    "div",
    { class: "classes", role: "group", "aria-label": "Classes" },
    ...boxes.slice(0, MOST_CLASSES),
    rest.length ? el("details", {}, el("summary", { class: "soft", text: `${rest.length} more` }), ...rest) : null,
  );
}

function classBox(text, [name, share], explained, known) {
  const askable = typeof askTarget === "function" && text.job,
    usable = known.size > 1 && known.has(name) ? "shown" : askable && !known.has(name) ? "asked" : null;
  const inside = [isolated(name), el("b", { text: probability(share) })],
    css = { "--share": `${(100 * share).toFixed(1)}%` };
  if (!usable && !(known.size > 1 || askable)) return el("span", { class: "class", css }, ...inside);
  return el(
    "button",
    {
      type: "button",
      class: "class",
      css,
      "aria-pressed": String(explained.has(name)),
      title: usable === "asked" ? `Explain ${name}: the model runs again` : `The scores are for ${name}`,
      disabled: !usable && !explained.has(name),
      on: { click: () => (usable === "asked" ? askTarget(text, name) : set({ target: name })) },
    },
    ...inside,
  );
}

const probability = (share) =>
  share > 0 && share < 0.005 ? Number(share.toPrecision(1)).toString() : share.toFixed(2);

// For additive methods: the sum of the scores beside what it should be.
function sumLine(map, row) {
  const [sum, expected] = map.sums?.[row] ?? [];
  if (sum == null) return [];
  const said = `scores sum to ${hundredth(sum)}; score of the text minus score of the baseline is ${hundredth(expected)}`;
  return [el("p", { class: "soft sum", text: said })];
}
const hundredth = (value) => minus(value.toFixed(2));
