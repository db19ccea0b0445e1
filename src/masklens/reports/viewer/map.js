// The pictures of one attribution: the text in colour at one site, the map of sites x tokens, the legend.

// The text with each token or word in the colour of its score at one site.
function reading(text, map, row, view = viewOf(text, map, state.words)) {
  if (text.steps) return foldedReading(text, map, row);
  const line = el("div", { class: "reading" });
  eachSegment(text, view, (units, name) => {
    const part = el("p", { dir: view.dir, "data-segment": name }),
      shown = folded(units);
    if (shown[0] !== units[0]) part.append("… ");
    for (const run of runsOf(shown)) {
      const short = run.reduce((length, [unit]) => length + unit.piece.length, 0) < LONGEST_RUN;
      const spans = run.map(([unit, i], n) => colouredUnit(view, unit, row, i, n > 0));
      part.append(el("span", { class: short ? "run" : null }, ...spans), " ");
    }
    if (shown.at(-1) !== units.at(-1)) part.append("… ");
    if (units.length > LONG_PART) part.append(moreButton());
    line.append(part);
  });
  return line;
}

// Tokens that go on where the one before them ends; a short run is not broken over two lines.
const LONGEST_RUN = 24;
function runsOf(units) {
  const runs = [];
  for (const one of units) {
    if (runs.length && one[0].glued) runs[runs.length - 1].push(one);
    else runs.push([one]);
  }
  return runs;
}

function colouredUnit(view, unit, row, i, glued) {
  const colour = colourOf(shareAt(view, row, i), view.signed);
  const kind = `unit ${colour}${kindOf(unit)}${glued ? " glued" : ""}`;
  return markUnit(el("span", { class: kind }, isolated(unit.piece)), row, i);
}

const kindOf = (unit) => `${unit.special ? " special" : ""}${unit.answer ? " in-answer" : ""}`;

// Call with the [unit, number] pairs of each segment, and the segment's name where there are two.
function eachSegment(text, view, call) {
  const numbered = view.units.map((unit, i) => [unit, i]);
  if (text.text.length < 2) return call(numbered, null);
  for (const segment of [0, 1])
    call(
      numbered.filter(([unit]) => unit.segment === segment),
      data.segments[segment],
    );
}

const markUnit = (element, row, unit) => {
  element.dataset.row = row;
  element.dataset.unit = unit;
  return element;
};

// Columns are tokens and flow like text; each brings the names of the sites to the edge of its line.
function heatMap(text, map) {
  const view = viewOf(text, map, state.words);
  const picture = el("div", {
    class: "map",
    tabindex: 0,
    role: "application",
    "aria-label": `${map.name}: sites by tokens. Arrow keys move, Enter picks a token.`,
    "aria-roledescription": "heat map",
  });
  picture.style.setProperty("--sites", `"${map.sites.map(siteName).join("\\a ")}"`);
  eachSegment(text, view, (units, name) => {
    const part = el("div", { class: "columns", dir: view.dir, "data-segment": name });
    for (const [unit, i] of units) part.append(column(view, unit, i));
    picture.append(part);
  });
  return picture;
}

function column(view, unit, i) {
  const made = el(
    "div",
    { class: `column${kindOf(unit)}`, "data-unit": i },
    el("b", {}, isolated(unit.name)),
  );
  view.scores.forEach((_, row) => {
    const share = shareAt(view, row, i),
      hundredths = share == null ? "–" : Math.round(share * 100);
    made.append(
      markUnit(
        el("i", {
          class: colourOf(share, view.signed),
          "data-number": hundredths ? minus(String(hundredths)) : "",
        }),
        row,
        i,
      ),
    );
  });
  return made;
}

function legend(map, view) {
  const shares = Array.from({ length: 17 }, (_, i) => (view.signed ? i / 8 - 1 : i / 16));
  const high = ownScales(map) ? "each layer's largest" : exact(view.strongest);
  const low = view.signed ? (ownScales(map) ? "−" : minus(`-${high}`)) : "0";
  const meaning =
    map.merge === "max" ? "probability that it is kept" : view.signed ? "against · for the target" : "score";
  return el(
    "div",
    { class: "legend" },
    el("span", { text: low }),
    el("span", { class: "ramp" }, ...shares.map((s) => el("i", { class: colourOf(s, view.signed) }))),
    el("span", { text: high }),
    el("span", { class: "soft", text: meaning }),
    state.numbers && map.sites.length > 1
      ? el("span", { class: "soft", text: `· numbers: ${map.merge === "max" ? "percent" : `hundredths of ${high}`}` })
      : null,
    view.units.some((unit) => unit.answer) ? el("span", { class: "soft", text: "· underlined: the answer" }) : null,
  );
}

function tellUnit(element, text, map) {
  const view = viewOf(text, map, state.words),
    row = Number(element.dataset.row),
    i = Number(element.dataset.unit);
  const scores = view.scores[row],
    known = scores.filter((v) => v != null).length;
  if (!scores || !view.units[i]) return;
  showTip(element, view.units[i].name, [
    [siteName(map.sites[row]), exact(scores[i])],
    ["rank", scores[i] == null ? "none" : `${rankOf(scores, i)} of ${known}`],
    ...(view.units[i].raw ? [["token", view.units[i].raw]] : []),
  ]);
}

// Hovering tells exact values, a click picks; the keyboard does both.
function makeExplorable(element, text, map) {
  const cell = (event) => event.target.closest?.("[data-row][data-unit]");
  element.addEventListener("pointerover", (event) => cell(event) && tellUnit(cell(event), text, map));
  element.addEventListener("pointerout", hideTip);
  element.addEventListener("click", (event) => {
    const unit = event.target.closest("[data-unit]");
    if (unit) pick(map.layout, Number(unit.dataset.unit));
  });
}

function moveCursor(picture, text, map, sideways, up) {
  const view = viewOf(text, map, state.words),
    rows = map.sites.length;
  const at = picture.cursor || { unit: 0, row: rowAt(map, state.site) };
  if (picture.cursor) {
    at.unit = Math.max(
      0,
      Math.min(view.units.length - 1, at.unit + sideways * (view.dir === "rtl" ? -1 : 1)),
    );
    at.row = Math.max(0, Math.min(rows - 1, at.row + up));
  }
  picture.cursor = at;
  $(".cursor", picture)?.classList.remove("cursor");
  const cell = $(`i[data-unit="${at.unit}"][data-row="${at.row}"]`, picture);
  if (!cell) return;
  cell.classList.add("cursor");
  cell.scrollIntoView({ block: "nearest", inline: "nearest" });
  tellUnit(cell, text, map);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
function useKeys(picture, text, map) {
  picture.addEventListener("keydown", (event) => {
    if (ARROWS[event.key]) moveCursor(picture, text, map, ...ARROWS[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && picture.cursor)
      pick(map.layout, picture.cursor.unit);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  picture.addEventListener("blur", () => {
    hideTip();
    $(".cursor", picture)?.classList.remove("cursor");
  });
}

// Up to two tokens are picked: a third takes the place of the older one.
function pick(layout, unit) {
  const same = (one) => one.layout === layout && one.unit === unit;
  state.picked = state.picked.some(same)
    ? state.picked.filter((one) => !same(one))
    : [...state.picked, { layout, unit }].slice(-2);
  refreshPicks();
}
