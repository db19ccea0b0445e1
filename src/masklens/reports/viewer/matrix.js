// The confusion matrix: gold labels down, predictions across; a click lists the texts of a cell.

const MOST_IN_MATRIX = 20;

// The classes of the matrix, or none: where there are no labels, or answers in place of classes.
function matrixClasses() {
  const labelled = data.texts.filter((text) => text.label != null && !text.layouts[0]?.answer),
    names = [...new Set(labelled.flatMap((text) => [text.label, text.prediction]))].sort();
  return names.length > 1 && names.length <= MOST_IN_MATRIX && names.length < labelled.length ? names : [];
}

function matrixCard() {
  const names = matrixClasses();
  if (!names.length) return null;
  const counts = new Map();
  for (const text of inSlice()) {
    const key = JSON.stringify([text.label, text.prediction]);
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const count = (label, prediction) => counts.get(JSON.stringify([label, prediction])) ?? 0,
    top = Math.max(...counts.values(), 1);
  const rows = names.map((label) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, isolated(label)),
      ...names.map((prediction) => el("td", {}, matrixCell(label, prediction, count(label, prediction), top))),
    ),
  );
  const heads = names.map((name) => el("th", { scope: "col" }, isolated(name)));
  return el(
    "section",
    { class: "card part part-matrix" },
    el("div", { class: "card-head" }, el("h2", { text: "Confusion matrix" })),
    el("p", { class: "soft note", text: "Gold labels down, predictions across. A click lists the texts." }),
    el("div", { class: "table" }, el("table", { class: "matrix" }, el("tr", {}, el("td"), ...heads), ...rows)),
  );
}

const matrixCell = (label, prediction, count, top) =>
  el("button", {
    type: "button",
    class: colourOf(count / top, false),
    text: count,
    "aria-label": `gold ${label}, predicted ${prediction}: ${plural(count, "text")}`,
    disabled: !count,
    on: { click: () => listCell(label, prediction) },
  });

function listCell(label, prediction) {
  setSlices({ label, prediction });
  document.body.classList.add("panel-open");
  if (listed().length) goToText(listed()[0]);
}

const hasSet = () => data.parts.length > 0 || matrixClasses().length > 0;
