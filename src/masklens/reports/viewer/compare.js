// A text and an edit of it side by side: what changed in the words, the prediction and the scores.

const MOST_CHANGES = 8;

// The text that another one is an edit of, where it is still there.
const originalOf = (text) => text.like && data.texts.find((one) => one.job === text.like);

// Results of the same text for another target join the first of them.
function joined(texts) {
  const found = [];
  for (const text of texts) {
    const first = text.like && found.find((one) => one.job === text.like && same(one.text, text.text));
    if (first) joinMaps(first, text);
    else found.push(text);
  }
  return found;
}
const same = (a, b) => a.length === b.length && a.every((part, i) => part === b[i]);
function joinMaps(first, text) {
  first.jobs = [...(first.jobs ?? []), text.job];
  first.maps.push(...text.maps.map((map) => ({ ...map, layout: map.layout + first.layouts.length })));
  first.layouts.push(...text.layouts);
}

// Pairs of places in two lists of words that belong together: a longest common subsequence, null for what has no
// partner. What is the same at both ends is taken off first; more than can be compared is replaced as a whole.
const MOST_PAIRS = 4e6;
function aligned(a, b) {
  let start = 0,
    end = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  const room = Math.min(a.length, b.length) - start;
  while (end < room && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const head = a.slice(0, start).map((_, i) => [i, i]),
    tail = Array.from({ length: end }, (_, i) => [a.length - end + i, b.length - end + i]);
  const middle = common(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return [...head, ...middle.map(([i, j]) => [i == null ? null : i + start, j == null ? null : j + start]), ...tail];
}

function common(a, b) {
  const gone = a.map((_, i) => [i, null]),
    come = b.map((_, j) => [null, j]);
  if (a.length * b.length > MOST_PAIRS) return [...gone, ...come];
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      longest[i][j] =
        a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const pairs = [];
  let i = 0,
    j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) pairs.push([i++, j++]);
    else if (j >= b.length || (i < a.length && longest[i + 1][j] >= longest[i][j + 1])) pairs.push([i++, null]);
    else pairs.push([null, j++]);
  }
  return pairs;
}

function compareView(before, after, index) {
  const names = shownMaps(after).map((map) => map.name),
    pairs = shownMaps(before)
      .map((map) => [map, shownMaps(after).find((one) => one.name === map.name)])
      .filter(([, other]) => other);
  return el(
    "article",
    { class: "text-view compare", "data-text": index },
    el(
      "div",
      { class: "text-line" },
      el("span", { class: "soft", text: "the text and its edit" }),
      predictionChange(before, after),
      el("span", { class: "steps" }, iconButton("cross", "Close the comparison", () => set({ compare: false }))),
    ),
    sides(side("before", before, after), side("after", after, before)),
    names.length ? el("div", { class: "bar" }, slider(sitesOf(pairs.flat())), controls(after)) : null,
    el("div", { class: "cards single" }, ...pairs.map(([map, other]) => changeCard(before, map, after, other))),
  );
}

const sides = (...both) => el("div", { class: "sides" }, ...both);

// "positive 0.97, then negative 0.81"
function predictionChange(before, after) {
  const said = (text) => [isolated(text.prediction, "label"), ...chanceOf(text).map((chance) => ` ${chance}`)];
  return el(
    "span",
    { class: before.prediction === after.prediction ? "" : "wrong" },
    ...said(before),
    before.prediction === after.prediction ? ", the same prediction: " : ", then ",
    ...said(after),
  );
}

const shareOf = (text, name) => text.classes?.find(([known]) => known === name)?.[1];
// The probability of the prediction, from the classes or else from a proof; none where neither is known.
function chanceOf(text) {
  const share = shareOf(text, text.prediction),
    proved = mapsOf(text).map(proofNow).find(Boolean)?.before;
  return share != null ? [probability(share)] : proved && !isNumber(text.prediction) ? [proved] : [];
}

// One of the texts, with the words that the other does not have marked, and its probabilities with their change.
function side(name, text, other) {
  const words = (one) => one.text.join("\n").split(/(\s+)/),
    own = words(text),
    kept = new Set(aligned(own, words(other)).filter(([, j]) => j != null).map(([i]) => i));
  const line = el("p", { class: "sentence", dir: direction(text.text.join(" ")) }),
    shown = nearChanges(own, kept);
  own.forEach((word, i) => {
    if (!shown(i)) return shown(i - 1) || !i ? line.append(" … ") : null;
    line.append(kept.has(i) || !word.trim() ? word : el(name === "before" ? "del" : "ins", {}, isolated(word)));
  });
  if (own.length > LONG_SIDE) line.append(" ", moreButton());
  return el("section", { "aria-label": name }, el("h2", { class: "soft", text: name }), line, shareList(text, name, other));
}

// Which words of a long text stand near one that changed; all of a short text, or where nothing was taken or added.
const LONG_SIDE = 160, // words and the spaces between them
  NEAR = 30;
function nearChanges(words, kept) {
  const changed = words.map((_, i) => i).filter((i) => !kept.has(i));
  if (state.whole || words.length <= LONG_SIDE || !changed.length) return (i) => i >= 0;
  const near = new Set(changed.flatMap((i) => Array.from({ length: 2 * NEAR + 1 }, (_, k) => i - NEAR + k)));
  return (i) => near.has(i);
}

function shareList(text, name, other) {
  const shown = (text.classes ?? []).slice(0, MOST_CLASSES).map(([label, share]) => {
    const rise = name === "after" && shareOf(other, label) != null ? share - shareOf(other, label) : null;
    return el(
      "span",
      { class: "class", css: { "--share": `${(100 * share).toFixed(1)}%` } },
      isolated(label),
      el("b", { text: probability(share) }),
      rise == null ? null : el("span", { class: "soft", text: signed(rise) }),
    );
  });
  return el("div", { class: "classes" }, ...shown);
}
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

// One method: both texts in colours of one scale, and the words whose scores changed most.
function changeCard(before, map, after, other) {
  const slot = el("div"),
    one = el("section", { class: "card", "aria-label": map.name }, cardHead(after, other), targets(map, other), slot);
  one.showSite = () => {
    const row = rowAt(map, state.site),
      otherRow = rowAt(other, map.sites[row]);
    tellSite(one, map, row);
    const [first, second] = oneScale(viewOf(before, map, state.words), row, viewOf(after, other, state.words), otherRow);
    slot.replaceChildren(
      sides(reading(before, map, row, first), reading(after, other, otherRow, second)),
      legend(other, second),
      changeTable(viewOf(before, map, true), row, viewOf(after, other, true), otherRow),
    );
  };
  one.showSite();
  return one;
}

const targets = (map, other) =>
  map.target === other.target
    ? null
    : el("p", { class: "soft" }, "Scores before are for ", isolated(map.target), ", after for ", isolated(other.target), ".");

function oneScale(first, row, second, otherRow) {
  const top = Math.max(first.strongest, second.strongest),
    here = Math.max(first.strongestAt[row], second.strongestAt[otherRow]),
    negative = first.signed || second.signed;
  return [first, second].map((view) => ({
    ...view,
    map: second.map, // one rule of scales for both
    signed: negative,
    strongest: top,
    strongestAt: view.strongestAt.map(() => here),
  }));
}

// Words that went and words that came at the same place stand in one row.
function replaced(pairs) {
  const rows = [];
  let open = [];
  for (const [i, j] of pairs) {
    if (i != null && j != null) {
      open = [];
      rows.push([i, j]);
      continue;
    }
    const partner = open.find((row) => (i == null ? row[1] == null : row[0] == null));
    if (partner) partner[i == null ? 1 : 0] = i ?? j;
    else rows.push(open[open.push([i, j]) - 1]);
  }
  return rows;
}

function changeTable(first, row, second, otherRow) {
  const words = (view) => view.units.map((unit) => unit.piece),
    own = ([i, j]) => !(first.units[i] ?? second.units[j]).special,
    pairs = replaced(aligned(words(first), words(second)).filter(own));
  const value = (view, at, i) => (i == null ? null : view.scores[at][i]);
  const rows = pairs
    .map(([i, j]) => [
      i == null ? "" : first.units[i].piece,
      j == null ? "" : second.units[j].piece,
      value(first, row, i),
      value(second, otherRow, j),
    ])
    .map(([was, is, old, now]) => [was, is, (now ?? 0) - (old ?? 0), old, now])
    .filter(([was, is, change]) => was !== is || Math.abs(change) > 1e-6)
    .sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]))
    .slice(0, MOST_CHANGES);
  return el(
    "details",
    { class: "changes", open: true },
    el("summary", { class: "soft", text: "What changed most" }),
    dataTable({ columns: ["before", "after", "change", "score before", "score after"], rows, heat: [2], exact: true }),
  );
}
