// Scores from their compact form; tokens or words; shares of the strongest score, which colours show.

const STEPS = 32767,
  MISSING = -32768,
  LEVELS = 40;

// Rows of scores, one a site, null where there is none. Decoded when first asked for.
function scoresOf(map) {
  if (map.decoded) return map.decoded;
  const bytes = Uint8Array.from(atob(map.scores), (c) => c.charCodeAt(0));
  const parts = new DataView(bytes.buffer),
    count = map.sites.length ? bytes.length / 2 / map.sites.length : 0;
  const row = (top, r) =>
    Array.from({ length: count }, (_, i) => {
      const part = parts.getInt16(2 * (r * count + i), true);
      return part === MISSING ? null : (part / STEPS) * top;
    });
  return (map.decoded = map.largest.map(row));
}

const MERGES = {
  sum: (values) => values.reduce((a, b) => a + b, 0),
  max: (values) => Math.max(...values),
  mean: (values) => values.reduce((a, b) => a + b, 0) / values.length,
};

function mergedRow(row, grouping, merge) {
  const found = grouping.names.map(() => []);
  row.forEach((value, i) => {
    if (value != null) found[grouping.of[i]].push(value);
  });
  return found.map((values) => (values.length ? MERGES[merge](values) : null));
}

// The group of each token, and the names of the groups: words, or the sentences of an answer and its prompt.
function groupingOf(text, layout, units, columns = layout.tokens.length) {
  if (units !== "sentences" || !text.sentences)
    return { of: layout.words, names: layout.names, pieces: layout.names };
  const glued = new Set(layout.glued),
    firsts = new Set(text.sentences),
    of = [],
    pieces = [];
  layout.tokens.slice(0, columns).forEach((token, i) => {
    if (!i || firsts.has(i)) pieces.push("");
    of.push(pieces.length - 1);
    pieces[pieces.length - 1] += (glued.has(i) ? "" : " ") + (layout.pieces[i] ?? token);
  });
  return { of, names: pieces.map((piece) => shortenedTo(piece.trim(), 18)), pieces: pieces.map((p) => p.trim()) };
}
const shortenedTo = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// The units that are drawn, tokens or groups: name, how it reads in the text, special, segment, glued.
function unitsOf(layout, grouping) {
  const special = new Set(layout.special),
    glued = new Set(layout.glued),
    answer = new Set(layout.answer);
  const tokens = layout.tokens.map((name, i) => ({
    name,
    piece: layout.pieces[i] ?? name,
    raw: layout.raw?.[i],
    special: special.has(i),
    glued: glued.has(i),
    answer: answer.has(i),
    segment: layout.segments ? layout.segments[i] : 0,
  }));
  if (!grouping) return tokens;
  const firsts = grouping.names.map((_, group) => grouping.of.indexOf(group)),
    answers = new Set(layout.answer?.map((i) => grouping.of[i]));
  return grouping.names.map((name, group) => ({
    ...tokens[firsts[group]],
    raw: null,
    name,
    piece: grouping.pieces[group],
    answer: answers.has(group),
  }));
}

// Everything that a picture of one map needs, for tokens or words; kept for the next time.
function viewOf(text, map, words) {
  const key = words === "sentences" ? "bySentence" : words ? "byWord" : "byToken";
  if (map[key]) return map[key];
  const layout = text.layouts[map.layout],
    rows = scoresOf(map);
  const columns = rows[0]?.length ?? 0, // those that a step of an answer has seen
    grouping = words ? groupingOf(text, layout, words, columns) : null,
    seen = grouping ? (grouping.of[columns - 1] ?? -1) + 1 : columns;
  const scores = grouping ? rows.map((row) => mergedRow(row, grouping, map.merge).slice(0, seen)) : rows;
  const units = unitsOf(layout, grouping).slice(0, seen);
  // special tokens do not set the scale, unless nothing else has a score
  const size = (row, counts) => row.reduce((top, v, i) => (counts(i) ? Math.max(top, Math.abs(v ?? 0)) : top), 0),
    ownAt = scores.map((row) => size(row, (i) => !units[i].special)),
    strongestAt = scores.map((row, r) => ownAt[r] || size(row, () => true) || 1);
  return (map[key] = {
    map,
    units,
    scores,
    signed: scores.some((row) => row.some((v) => v < 0)),
    strongest: map.merge === "max" ? 1 : Math.max(...ownAt) || Math.max(...strongestAt),
    strongestAt,
    dir: direction(text.text.join(" ")),
  });
}

// Keep probabilities have one scale; other scores have no unit that layers share (see colours.py).
const ownScales = (map) => state.perSite ?? (map.merge !== "max" && map.sites.length > 1);
const topOf = (view, row) => (ownScales(view.map) ? view.strongestAt[row] : view.strongest);

const shareAt = (view, row, unit) => {
  const value = view.scores[row][unit];
  return value == null
    ? null
    : Math.max(-1, Math.min(1, value / topOf(view, row)));
};

// The class of a share's colour: p for the target, n against it, q where nothing is negative, x for none.
function colourOf(share, signed) {
  if (share == null) return "x";
  const level = Math.round(Math.abs(share) * LEVELS);
  return (signed ? (share < 0 ? "n" : "p") : "q") + level;
}

// The row of a map that stands for the chosen site: itself, or the nearest one below it.
function rowAt(map, site) {
  const below = map.sites.map((s, i) => [s, i]).filter(([s]) => s <= site);
  return below.length ? below[below.length - 1][1] : 0;
}

const rankOf = (row, unit) => 1 + row.filter((v) => v != null && v > row[unit]).length;
const settingsOf = (map) => (typeof map.settings === "number" ? data.settings[map.settings] : map.settings);
const shownMaps = (text) =>
  mapsOf(text).filter((m) => !state.hidden.has(m.name) && (state.over === "all" || m.over === state.over));
const sitesOf = (maps) => [...new Set(maps.flatMap((m) => m.sites))].sort((a, b) => a - b);
const proofOf = (map, row) => {
  const found = map.proofs?.[map.proofs.length === 1 ? 0 : row];
  if (!found) return undefined;
  const [verdict, kept, needed, tokens, before, after, divergence, p, randomNeeded, without, randomWithout, removed, opened] =
    found;
  return {
    verdict: VERDICTS[verdict],
    kept: !!kept,
    needed,
    tokens,
    probabilities: [before, after],
    before: before == null ? null : probability(before),
    after: after == null ? null : probability(after),
    divergence,
    p,
    randomNeeded,
    without,
    randomWithout,
    removed: new Set(removed),
    opened,
  };
};
const VERDICTS = ["sufficient", "no better than random", "not sufficient", "ties", "no token needed"];

// The proof of a map at the chosen layer, which its card shows and the list marks.
const proofNow = (map) => proofOf(map, state.site == null ? map.sites.length - 1 : rowAt(map, state.site));
