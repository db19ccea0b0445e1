// Long texts: what is shown of them before "more" is pressed.

const LONG_PART = 80, // tokens or words
  BEFORE_ANSWER = 25,
  LONG_LINE = 220; // characters

// The units of a part that are shown: all of a short part; of a long one those around the answer, or the first ones.
function folded(units) {
  if (state.whole || units.length <= LONG_PART) return units;
  const answer = units.findIndex(([unit]) => unit.answer),
    start = Math.max(0, Math.min(answer - BEFORE_ANSWER, units.length - LONG_PART));
  return units.slice(start, start + LONG_PART);
}

const moreButton = () =>
  el("button", {
    type: "button",
    class: "more",
    text: state.whole ? "less" : "more",
    on: { click: () => set({ whole: !state.whole }) },
  });

// The parts of a text above its cards. A passage with an answer and a long second text are left to the cards.
function headLines(text, maps) {
  if (text.steps) return [];
  const inCards = (part, i) => i > 0 && maps.length > 0 && (text.layouts[0]?.answer || part.length > LONG_LINE);
  return text.text.map((part, i) => (inCards(part, i) ? null : headLine(text, part, i)));
}

function headLine(text, part, i) {
  const long = part.length > LONG_LINE,
    shown = long && !state.whole ? `${part.slice(0, LONG_LINE)}…` : part;
  return el(
    "p",
    {
      class: long ? "sentence long" : "sentence",
      dir: direction(part),
      "data-segment": text.text.length > 1 ? data.segments[i] : null,
    },
    shown,
    ...(long ? [" ", moreButton()] : []),
  );
}
