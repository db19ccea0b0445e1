// Slices: the texts that share a label, a prediction, a column of their file, ...; the list, the charts and what else is a mean follow.

const MOST_VALUES = 50; // a column with more is no slice
const BANDS = {
  confidence: [[0.6, "below 0.6"], [0.9, "0.6 to 0.9"], [Infinity, "0.9 and more"]],
  length: [[16, "up to 15 tokens"], [64, "16 to 63 tokens"], [Infinity, "64 tokens and more"]],
};
const band = (name, value) => (value == null ? null : BANDS[name].find(([end]) => value < end)[1]);

// What texts can be sliced by: a name, and the value of a text, null where it has none.
function dimensions() {
  const columns = [...new Set(data.texts.flatMap((text) => Object.keys(text.columns ?? {})))];
  const own = [
    ["label", (text) => text.label],
    ["prediction", (text) => text.prediction],
    ["right or wrong", (text) => (text.label == null ? null : text.wrong ? "wrong" : "right")],
    ["confidence", (text) => band("confidence", shareOf(text, text.prediction))],
    ["length", (text) => band("length", ownTokens(text))],
  ];
  const taken = new Set(own.map(([name]) => name)),
    named = columns.map((name) => [taken.has(name) ? `column ${name}` : name, (text) => text.columns?.[name]]);
  return [...own, ...named].map(([name, of]) => [name, of, valuesOf(of)]).filter(([, , values]) => values.length);
}

function ownTokens(text) {
  const layout = text.layouts[0];
  return layout ? layout.tokens.length - layout.special.length : null;
}

// The values of a dimension and how many texts have each; none where all are the same, or nearly all differ.
function valuesOf(of) {
  const counts = new Map();
  for (const text of data.texts) if (of(text) != null) counts.set(of(text), (counts.get(of(text)) ?? 0) + 1);
  const few = counts.size > 1 && counts.size <= Math.min(MOST_VALUES, data.texts.length - 1);
  return few ? [...counts].sort(([a], [b]) => String(a).localeCompare(String(b), "en", { numeric: true })) : [];
}

// The texts that have the values that are chosen.
function inSlice() {
  if (!state.slices.size) return data.texts;
  const chosen = dimensions().filter(([name]) => state.slices.has(name));
  return data.texts.filter((text) => chosen.every(([name, of]) => of(text) === state.slices.get(name)));
}

function setSlices(changes) {
  const slices = new Map(state.slices);
  for (const [name, value] of Object.entries(changes)) value == null ? slices.delete(name) : slices.set(name, value);
  state.slices = slices;
  fillPanel();
  draw();
}

// A box for each dimension.
const sliceBoxes = () =>
  dimensions().map(([name, , values]) => {
    const chosen = state.slices.get(name);
    const box = el(
      "select",
      { "aria-label": `Slice by ${name}`, class: chosen == null ? null : "on" },
      el("option", { value: "", text: `${name}: all` }),
      ...values.map(([value, count], i) =>
        el("option", {
          value: i + 1,
          text: `${value === chosen ? `${name}: ` : ""}${value} (${count})`,
          selected: value === chosen,
        }),
      ),
    );
    box.addEventListener("change", () => setSlices({ [name]: box.value ? values[box.value - 1][0] : null }));
    return box;
  });

// Beside the list: boxes that open, and what is chosen.
function slicePanel() {
  const boxes = sliceBoxes();
  if (!boxes.length) return null;
  const said = state.slices.size ? [...state.slices].map(([name, value]) => `${name}: ${value}`).join(", ") : "slices";
  const panel = el("details", { class: "slices", open: state.slicing }, el("summary", {}, isolated(said)), ...boxes);
  panel.addEventListener("toggle", () => (state.slicing = panel.open));
  return panel;
}

// Above the charts: the same boxes, and how many texts are left.
function sliceBar() {
  const boxes = sliceBoxes();
  if (!boxes.length) return null;
  return el(
    "div",
    { class: "slice-bar" },
    ...boxes,
    el("span", { class: "soft", role: "status", text: `${inSlice().length} of ${plural(data.texts.length, "text")}` }),
    state.slices.size
      ? el("button", {
          type: "button",
          class: "more",
          text: "all texts",
          on: { click: () => setSlices(Object.fromEntries([...state.slices.keys()].map((name) => [name, null]))) },
        })
      : null,
  );
}

// What a chart or a table is a mean of: values of a map at a row.
const MEASURES = {
  "texts that pass": (map, row) => ofProof(map, row, (proof) => Number(proof.verdict === "sufficient")),
  "tokens needed": (map, row) => ofProof(map, row, (proof) => proof.needed / (proof.tokens || 1)),
  "probability before": (map, row) => ofProof(map, row, (proof) => proof.probabilities[0]),
  "probability after": (map, row) => ofProof(map, row, (proof) => proof.probabilities[1]),
  "divergence (nats)": (map, row) => ofProof(map, row, (proof) => proof.divergence),
  kept: (map, row) => scoresOf(map)[row].filter((value) => value != null),
};
function ofProof(map, row, read) {
  const proof = proofOf(map, row);
  return proof ? [read(proof)] : [];
}

// The map that speaks of the set: of the prediction, where there are several targets.
const mainMap = (text, name) => {
  const own = text.maps.filter((map) => map.name === name);
  return own.find((map) => map.target === text.prediction) ?? own[0];
};

// A part of the set for the texts of the slice alone; null where it cannot be made from what is here.
function slicedPart(part, texts) {
  if (part.kind === "chart" && MEASURES[part.measure]) return { ...part, series: measured(part, texts) };
  if (part.by_text?.[0]?.length === data.texts.length) return { ...part, series: averaged(part, texts) };
  if (part.measures?.length) return { ...part, rows: measuredRows(part, texts) };
  if (part.kind === "cloud" && part.name) return { ...part, words: cloudWords(part, texts) };
  return null;
}

// The values of a measure of the texts, by a name at a site.
const valuesAt = (measure, texts, name, site) =>
  texts.flatMap((text) => {
    const map = mainMap(text, name),
      row = map ? map.sites.indexOf(site) : -1;
    return row < 0 ? [] : MEASURES[measure](map, row);
  });
// A null is a value that is not finite: then neither is the mean.
const meanOf = (values) => (values.length && !values.includes(null) ? MERGES.mean(values) : null);

function measured(part, texts) {
  const at = (name, site) => meanOf(valuesAt(part.measure, texts, name, site));
  return part.series.map(([name]) => [name, part.x.map((site) => at(name, site))]);
}

function measuredRows(part, texts) {
  const means = part.columns.slice(3);
  return part.measures.map(([name, site], i) => {
    const [said, where] = part.rows[i],
      found = means.map((measure) => valuesAt(measure, texts, name, site));
    return [said, where, found[0].length, ...found.map(meanOf)];
  });
}

function averaged(part, texts) {
  const places = texts.map((text) => data.texts.indexOf(text)),
    mean = (line, k) => (places.length ? MERGES.mean(places.map((i) => part.by_text[line][i][k])) : null);
  return part.series.map(([name], line) => [name, part.x.map((_, k) => mean(line, k))]);
}

// The words of texts that are predicted as the cloud says, by their summed scores.
const CLOUD_WORDS = 50;
function cloudWords(cloud, texts) {
  const sums = new Map();
  for (const text of texts.filter((one) => one.prediction === cloud.title)) {
    const map = mainMap(text, cloud.name),
      row = map ? map.sites.indexOf(cloud.site) : -1;
    if (row < 0) continue;
    const view = viewOf(text, map, true);
    view.units.forEach((unit, i) => {
      if (unit.special || !/[\p{L}\p{N}]/u.test(unit.name)) return;
      const word = unit.name.toLowerCase();
      sums.set(word, (sums.get(word) ?? 0) + (view.scores[row][i] ?? 0));
    });
  }
  return [...sums].filter(([, sum]) => sum > 0).sort((a, b) => b[1] - a[1]).slice(0, CLOUD_WORDS);
}
