// The answer of a language model: its tokens as buttons, its text in parts that fold, what each layer reads.

const LONG = 60; // units above which a part starts folded
const VERY_LONG = 120; // tokens above which sentences are shown first

const mapsOf = (text) => (text.steps ? text.maps.filter((_, i) => i % text.steps.length === chosenStep(text)) : ofTarget(text));
const chosenStep = (text) => Math.min(state.step, text.steps.length - 1);

// What a long prompt is shown in until the user chooses: its sentences.
function chooseUnits(text) {
  if (text.steps && text.kind === "tokens" && text.layouts[0].tokens.length > VERY_LONG && !state.chosen)
    state.words = "sentences";
  else if (!text.steps && state.words === "sentences") state.words = false;
}

function answerButtons(text) {
  const at = chosenStep(text);
  const buttons = text.steps.map((one, i) =>
    el(
      "button",
      {
        type: "button",
        class: `step ${colourOf(one.probability, false)}`,
        "aria-pressed": String(i === at),
        title: `${one.piece}  ${percent(one.probability)}`,
        on: { click: () => set({ step: i, picked: [] }) },
      },
      isolated(one.piece.trim() || "↵"),
    ),
  );
  return el(
    "div",
    { class: "answer" },
    el("div", { class: "answer-steps", role: "group", "aria-label": "Answer" }, ...buttons),
    stepFacts(text.steps[at]),
  );
}

// The probability of a step, and what else the model thought of.
function stepFacts(one) {
  const guess = ([token, chance]) =>
    el("span", { class: "guess" }, isolated(token), el("b", { text: ` ${percent(chance)}` }));
  return el(
    "p",
    { class: "step-facts soft" },
    guess([one.piece, one.probability]),
    one.others.length ? el("span", { text: "rather than " }) : null,
    ...one.others.map(guess),
  );
}

// What the model's own head reads at each layer, for the step of an answer or for a text.
function lensRow(text) {
  const one = text.steps ? text.steps[chosenStep(text)] : text.layers;
  if (!one?.lens) return null;
  const name = (row) => siteName(text.logit_lens_sites[row]),
    since = one.settled == null ? "it is never the likeliest" : `on top from ${siteName(one.settled)}`,
    stays = (row) => one.settled != null && text.logit_lens_sites[row] >= one.settled;
  return el(
    "details",
    { class: "lens card", open: true },
    el("summary", {}, "what each layer would predict: ", isolated(one.piece), `, ${since}`),
    el(
      "div",
      { class: "lens-row" },
      ...one.lens.map(([token, chance], row) =>
        el(
          "span",
          { class: `lens-cell ${colourOf(chance, false)}${stays(row) ? " stays" : ""}` },
          el("small", { text: `${name(row)} ${percent(chance)}` }),
          isolated(token.trim() || "↵"),
        ),
      ),
    ),
    one.note ? el("p", { class: "soft", text: one.note }) : null,
  );
}

// The text in parts that fold: the turns of a chat, and the sentences of a long turn.
function foldedReading(text, map, row) {
  const view = viewOf(text, map, state.words),
    line = el("div", { class: "reading folded" });
  const total = view.units.reduce((sum, _, i) => sum + Math.abs(view.scores[row][i] ?? 0), 0) || 1;
  for (const [name, start, end] of foldsOf(text, map)) {
    const units = numbers(start, Math.min(end, view.units.length)).map((i) => [view.units[i], i]);
    if (!units.length) continue;
    const key = `${state.text} ${state.words} ${name} ${start}`;
    line.append(fold(key, units.length <= LONG, foldHead(name, units, view, row, total, nounOf(text)), foldBody(key, text, units, view, row, map)));
  }
  return line;
}

const numbers = (start, end) => Array.from({ length: Math.max(0, end - start) }, (_, i) => start + i);

// The parts in the units that are shown, tokens or words.
function foldsOf(text, map) {
  if (!state.words) return text.folds;
  const { of } = groupingOf(text, text.layouts[map.layout], state.words);
  return text.folds.map(([name, start, end]) => [name, of[start], (of[end - 1] ?? -1) + 1]);
}

// A part that opens and folds, and stays so when another step is chosen.
function fold(key, open, head, body) {
  const made = el("details", { class: "fold", open: state.folds[key] ?? open }, head, body);
  head.addEventListener("click", () => (state.folds[key] = !made.open));
  return made;
}

// What the units that are shown are called: token, word, sentence, ...
const nounOf = (text) => (!state.words ? (text.kind ?? "tokens").slice(0, -1) : state.words === true ? "word" : state.words.slice(0, -1));

function foldHead(name, units, view, row, total, noun) {
  const share = units.reduce((sum, [, i]) => sum + Math.abs(view.scores[row][i] ?? 0), 0) / total;
  const said = units.filter(([unit]) => !unit.special).map(([unit]) => (unit.glued ? "" : " ") + unit.piece);
  return el(
    "summary",
    {},
    el("b", {}, isolated(name)),
    el("span", { class: "soft", text: ` ${plural(units.length, noun)} · ${percent(share)} of the scores ` }),
    el("span", { class: "meter" }, el("i", { class: "q30", css: { width: percent(share) } })),
    el("span", { class: "soft said" }, isolated(said.join("").trim().slice(0, 90))),
  );
}

// A short part is a line of coloured units; a long one folds by sentence.
function foldBody(key, text, units, view, row, map) {
  if (units.length <= LONG) return unitLine(units, view, row);
  const { of } = groupingOf(text, text.layouts[map.layout], state.words),
    cuts = new Set(state.words ? text.sentences.map((i) => of[i]) : text.sentences);
  const sentences = [];
  for (const one of units) {
    const begun = sentences[sentences.length - 1]?.some(([unit]) => !unit.special);
    if (!sentences.length || (begun && cuts.has(one[1]) && !one[0].special)) sentences.push([]);
    sentences[sentences.length - 1].push(one);
  }
  return el("div", { class: "sentences" }, ...sentences.map((some) => sentenceFold(key, some, view, row)));
}

function sentenceFold(key, units, view, row) {
  const sum = units.reduce((total, [, i]) => total + (view.scores[row][i] ?? 0), 0);
  const said = units.map(([unit]) => (unit.glued ? "" : " ") + unit.piece).join("").trim();
  const share = Math.max(-1, Math.min(1, sum / topOf(view, row)));
  const head = el(
    "summary",
    {},
    el("span", { class: `unit ${colourOf(share, view.signed)}` }, isolated(said.slice(0, 110))),
  );
  return fold(`${key} ${units[0][1]}`, false, head, unitLine(units, view, row));
}

const unitLine = (units, view, row) => {
  const part = el("p", { dir: view.dir });
  for (const run of runsOf(units))
    part.append(el("span", {}, ...run.map(([unit, i], n) => colouredUnit(view, unit, row, i, n > 0))), " ");
  return part;
};
