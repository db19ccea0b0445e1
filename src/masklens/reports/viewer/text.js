// One text: its controls, and a card for each attribution.

function textView(index) {
  const text = data.texts[index],
    maps = shownMaps(text);
  const page = el("article", { class: "text-view", "data-text": index });
  chooseUnits(text);
  state.site ??= data.live || text.steps ? 0 : telling(text); // the verdict of an answer is about the first layer
  if (state.compare && originalOf(text)) return compareView(originalOf(text), text, index);
  page.append(heading(text, index, maps));
  if (text.steps) page.append(answerButtons(text));
  if (text.maps.length) page.append(el("div", { class: "bar" }, slider(sitesOf(maps)), controls(text)));
  const mixed = new Set(maps.map((m) => m.sites.length > 1)).size > 1;
  const cards = el("div", { class: `cards${mixed ? " mixed" : ""}` });
  for (const map of maps) cards.append(card(text, map));
  if (!maps.length) cards.append(el("p", { class: "soft", text: "Nothing to show with these choices." }));
  page.append(cards, ...[lensRow(text)].filter(Boolean));
  return page;
}

function heading(text, index, maps) {
  const said = mapsOf(text).map(proofNow).find(Boolean)?.before;
  const predicted = () =>
    el("span", {}, "predicted ", isolated(text.prediction, "label"), isNumber(text.prediction) || !said ? "" : ` ${said}`);
  const facts = text.steps ? [] : [predicted()];
  if (text.label != null)
    facts.push(
      el(
        "span",
        { class: text.wrong ? "wrong" : "" },
        "gold ",
        isolated(text.label, "label"),
      ),
    );
  return el(
    "header",
    { class: "text-head" },
    el(
      "div",
      { class: "text-line" },
      el("span", { class: "soft", text: `${index + 1} of ${data.texts.length}` }),
      ...facts,
      el(
        "span",
        { class: "steps" },
        ...(originalOf(text) ? [iconButton("both", "Compare with the text before the edit", () => set({ compare: true }))] : []),
        ...(data.live && !text.steps ? [iconButton("pencil", "Edit and compare", () => set({ editing: !state.editing }))] : []),
        ...(data.live ? [iconButton("cross", "Remove from the history", () => forget(index))] : []),
        iconButton("left", "Previous text (k)", () => step(-1)),
        iconButton("right", "Next text (j)", () => step(1)),
      ),
    ),
    ...headLines(text, maps),
    classRow(text),
    state.editing && data.live && !text.steps ? editForm(text) : null,
  );
}

const ownScalesNow = () => {
  const text = data.texts[state.text];
  return !!text && shownMaps(text).some(ownScales);
};

function controls(text) {
  const bar = el("div", { class: "controls" });
  const units = [
    [false, "tokens", "As the model's tokenizer cuts the text"],
    [true, "words", "Sub-words merged (w)"],
    ...(text.sentences ? [["sentences", "sentences", "Scores merged by sentence"]] : []),
  ];
  if (!text.kind || text.kind === "tokens")
    bar.append(choice("Units", units, state.words, (v) => set({ words: v, chosen: true, picked: [] })));
  const overs = new Set(text.maps.map((m) => m.over));
  if (overs.size > 1)
    bar.append(
      choice("What is scored", [["all", "all"], ...[...overs].sort().map((o) => [o, o])], state.over, (v) =>
        set({ over: v }),
      ),
    );
  bar.append(
    choice(
      "Colours",
      [
        [false, "one scale", "Colours compare layers"],
        [true, "per layer", "Each layer by its own largest score (p)"],
      ],
      ownScalesNow(),
      (v) => set({ perSite: v }),
    ),
  );
  bar.append(
    el("button", {
      type: "button",
      class: "pill",
      text: "numbers",
      title: "Hundredths of the scale in every cell (n)",
      "aria-pressed": String(state.numbers),
      on: { click: () => set({ numbers: !state.numbers }) },
    }),
  );
  const names = [...new Set(text.maps.map((m) => m.name))];
  if (names.length > 1)
    bar.append(
      el(
        "div",
        { class: "pills", role: "group", "aria-label": "Methods" },
        el("span", { class: "soft", text: "show" }),
        ...names.map(methodPill),
      ),
    );
  return bar;
}

// The deepest site at which every map still says something about the text itself: deep gradients are often left
// with the token that the answer is read from.
function telling(text) {
  const maps = mapsOf(text).filter((m) => m.sites.length > 1),
    sites = sitesOf(maps.length ? maps : text.maps);
  const says = (map, site) => {
    const view = viewOf(text, map, false),
      row = view.scores[rowAt(map, site)];
    return row.some(
      (value, i) =>
        value != null &&
        !view.units[i].special &&
        Math.abs(value) > 0.05 * view.strongestAt[rowAt(map, site)],
    );
  };
  return (
    [...sites].reverse().find((site) => maps.every((map) => says(map, site))) ?? sites[sites.length - 1] ?? 0
  );
}

const methodPill = (name) =>
  el(
    "button",
    {
      type: "button",
      class: "pill",
      "aria-pressed": String(!state.hidden.has(name)),
      on: {
        click: () => {
          const hidden = new Set(state.hidden);
          if (!hidden.delete(name)) hidden.add(name);
          set({ hidden });
        },
      },
    },
    isolated(name),
  );

// The place in a list of sites of the chosen one, or of the nearest below it.
const nearest = (sites) =>
  Math.max(
    0,
    sites.findLastIndex((site) => site <= state.site),
  );

// The layer slider, with a button that walks through the layers.
function slider(sites) {
  if (sites.length < 2) return null;
  const at = nearest(sites);
  const label = el("output", { class: "site-name", text: siteName(sites[at]) });
  const input = el("input", {
    type: "range",
    min: 0,
    max: sites.length - 1,
    step: 1,
    "aria-label": "Layer",
    "aria-valuetext": siteName(sites[at]),
  });
  input.value = at;
  input.addEventListener("input", () => {
    stopPlaying();
    goToSite(sites[input.value]);
  });
  const play = iconButton("play", "Walk through the layers", () =>
    playing.timer ? stopPlaying() : startPlaying(sites),
  );
  play.classList.add("play");
  return el("div", { class: "slider" }, play, el("label", { class: "soft", text: "layer" }), input, label);
}

// Move to a site without drawing everything anew.
function goToSite(site) {
  state.site = site;
  for (const view of $$(".text-view")) {
    const text = data.texts[view.dataset.text],
      sites = sitesOf(shownMaps(text)),
      input = $(".slider input", view);
    if (input) {
      input.value = nearest(sites);
      input.setAttribute("aria-valuetext", siteName(site));
      $(".site-name", view).textContent = siteName(site);
    }
    for (const one of $$(".card", view)) one.showSite?.();
  }
  remark();
}

function stepSite(by) {
  const text = data.texts[state.text],
    sites = text ? sitesOf(shownMaps(text)) : [];
  const at = nearest(sites) + by;
  if (at >= 0 && at < sites.length) goToSite(sites[at]);
}

const playing = { timer: null };
function startPlaying(sites) {
  let at = nearest(sites);
  const forward = () => {
    at = (at + 1) % sites.length;
    goToSite(sites[at]);
    if (at === sites.length - 1) stopPlaying();
  };
  $(".play")?.replaceChildren(icon(ICONS.pause));
  playing.timer = setInterval(forward, 700);
  forward();
}
function stopPlaying() {
  clearInterval(playing.timer);
  playing.timer = null;
  $(".play")?.replaceChildren(icon(ICONS.play));
}

// One attribution: what it is, the text at the chosen site, its proof, the map, curves of picked tokens.
function card(text, map) {
  const one = el("section", { class: map.sites.length > 1 ? "card wide" : "card", "aria-label": map.name });
  const [line, proof, picture, sum, compared] = ["line", "proof", "map", "sum", "compare"].map((name) =>
    el("div", { class: `${name}-slot` }),
  );
  one.append(cardHead(text, map), line, proof);
  if (map.emerged) one.append(el("p", { class: "emerged" }, isolated(map.emerged)));
  one.append(picture, legend(map, viewOf(text, map, state.words)), sum, compared, about(map));
  one.showRow = () => {
    for (const cell of $$(".chosen", one)) cell.classList.remove("chosen");
    const row = rowAt(map, state.site);
    for (const cell of $$(`.map i[data-row="${row}"]`, one)) cell.classList.add("chosen");
    markPicks(one, map);
  };
  one.showSite = () => {
    const row = rowAt(map, state.site);
    tellSite(one, map, row);
    line.replaceChildren(reading(text, map, row));
    proof.replaceChildren(...proofBlock(text, map, row));
    sum.replaceChildren(...sumLine(map, row));
    one.showRow();
  };
  one.showPicks = () => {
    markPicks(one, map);
    compared.replaceChildren(...comparison(text, map));
  };
  makeExplorable(line, text, map);
  if (map.sites.length > 1) fillMap(one, picture, text, map);
  one.showSite();
  one.showPicks();
  return one;
}

// Large maps are drawn when they come near the screen.
const LARGE = 2500;
function fillMap(one, slot, text, map) {
  const fill = () => {
    const picture = heatMap(text, map);
    makeExplorable(picture, text, map);
    useKeys(picture, text, map);
    slot.replaceChildren(picture);
    slot.style.removeProperty("min-height");
    one.showRow();
  };
  if (map.sites.length * text.layouts[map.layout].tokens.length < LARGE) return fill();
  slot.style.setProperty("min-height", "600px");
  lazily(slot, fill);
}

function cardHead(text, map) {
  const facts = [el("span", { class: "badge site" }), el("span", { class: "badge over" })];
  if (!text.steps && map.target !== text.prediction)
    facts.push(el("span", { class: "badge other" }, "target ", isolated(map.target)));
  return el("div", { class: "card-head" }, el("h2", {}, isolated(map.name)), ...facts);
}

// The site whose scores are shown, and whether they are of inputs or of states: what a lens says, else by the site.
function tellSite(one, map, row) {
  $(".badge.site", one).textContent = siteName(map.sites[row]);
  $(".badge.over", one).textContent = `over ${settingsOf(map)?.over ?? (map.sites[row] < 2 ? "inputs" : "states")}`;
}

const isNumber = (prediction) => Number.isFinite(Number(prediction.split(" ").pop() || NaN));

// "Sports 0.97. These 4 of 31 tokens suffice (0.95). Random orders need 17." Nats and p are in the details.
function proofBlock(text, map, row) {
  const proof = proofOf(map, row);
  if (!proof) return [];
  const prediction = map.prediction ?? text.prediction,
    passed = proof.verdict === "sufficient" || (proof.verdict == null && proof.kept),
    details = proofDetails(proof) + (text.steps ? `; scores at the ${siteName(map.sites[0])}` : "");
  const said = el(
    "p",
    {},
    el("strong", {}, isolated(prediction), isNumber(prediction) ? "" : ` ${proof.before}`),
    `. ${enoughSaid(proof, (text.kind ?? "tokens").slice(0, -1))} ${randomSaid(proof)}`,
    proof.opened ? ` For that, ${proof.opened} more ${proof.opened === 1 ? "was" : "were"} kept than the map says.` : "",
    ...(!text.steps && map.target !== text.prediction
      ? [" The scores are for ", isolated(map.target), "; this tests the prediction."]
      : []),
  );
  const verdict = el(
    "div",
    { class: `proof ${passed ? "kept" : "lost"}`, title: details },
    icon(ICONS[passed ? "check" : "cross"]),
    el("div", {}, said, el("small", { class: "soft", text: details })),
  );
  return proof.removed.size ? [verdict, whatIsLeft(text, map, proof)] : [verdict];
}

function enoughSaid({ verdict, kept, needed, tokens, after, randomNeeded, without }, noun) {
  const share = `${needed} of ${plural(tokens, noun)}`;
  if (verdict === "ties") return `Equal scores do not say which ${noun}s to keep: there is nothing to verify.`;
  if (verdict === "no token needed")
    return `The prediction stays without any ${noun} (${after}): there is nothing to verify.`;
  if (needed === tokens)
    return `${randomNeeded == null ? "All" : "In this order all"} ${plural(tokens, noun)} are needed.`;
  if (verdict === "not sufficient" || !kept)
    return `${needed ? "These " : ""}${share} do not suffice (${after}${kept ? "" : ", another prediction"}).`;
  if (verdict === "no better than random") {
    const luck = without == null ? "this may be luck" : `as many random ${noun}s may matter as much`,
      unsure = randomNeeded != null && needed > Math.ceil(randomNeeded) ? "random orders need fewer" : luck;
    return `${share} suffice (${after}), but ${unsure}.`;
  }
  return needed ? `These ${share} suffice (${after}).` : `No ${noun} is needed (${after}).`;
}

function randomSaid({ verdict, needed, tokens, randomNeeded, without, randomWithout }) {
  if (verdict === "ties" || verdict === "no token needed") return "";
  if (randomNeeded != null) return `Random orders need ${Math.ceil(randomNeeded)}.`;
  return without == null || needed === tokens
    ? ""
    : `Without them ${without}; without as many random ones ${randomWithout}.`;
}

function proofDetails({ verdict, divergence, p }) {
  const moved =
    divergence == null ? "without bound" : divergence < 0.001 ? "by less than 0.001 nats" : `by ${Number(divergence.toPrecision(2))} nats`;
  return `${verdict ? `${verdict}; ` : ""}the output moves ${moved}${p == null ? "" : `; p = ${p.toFixed(2)}`}`;
}

// The text as the model saw it in the proof: what was kept, with a gap for each run of what was not.
function whatIsLeft(text, map, proof) {
  const units = unitsOf(text.layouts[map.layout]).slice(0, scoresOf(map)[0].length),
    line = el(
      "p",
      { class: "left", dir: direction(text.text.join(" ")) },
      el("span", { class: "soft", text: "what was left " }),
    );
  units.forEach((unit, i) => {
    if (text.text.length > 1 && unit.segment !== units[i - 1]?.segment)
      line.append(el("span", { class: "soft", text: ` ${data.segments[unit.segment]}: ` }));
    if (unit.special && !proof.removed.has(i)) return;
    if (units.length > LONG_PART && proof.removed.has(i)) {
      if (!proof.removed.has(i - 1)) line.append(" …");
      return;
    }
    if (!unit.glued) line.append(" ");
    line.append(
      proof.removed.has(i) ? el("span", { class: "gone" }, isolated(unit.piece)) : isolated(unit.piece),
    );
  });
  return line;
}

function about(map) {
  const settings = Object.entries(settingsOf(map) || {});
  if (!settings.length) return el("span");
  return el(
    "details",
    { class: "settings" },
    el("summary", { text: "settings" }),
    el(
      "dl",
      {},
      ...settings.flatMap(([name, value]) => [el("dt", {}, isolated(name)), el("dd", {}, isolated(value))]),
    ),
  );
}

const PICKS = ["pick0", "pick1"];
function markPicks(one, map) {
  for (const marked of $$(".pick0, .pick1", one)) marked.classList.remove(...PICKS);
  state.picked.forEach((picked, n) => {
    if (picked.layout !== map.layout) return;
    for (const unit of $$(`.unit[data-unit="${picked.unit}"], .column[data-unit="${picked.unit}"]`, one))
      unit.classList.add(PICKS[n]);
  });
}

// The scores of the picked tokens over sites.
function comparison(text, map) {
  const view = viewOf(text, map, state.words),
    picked = state.picked.filter((p) => p.layout === map.layout && view.units[p.unit]);
  if (!picked.length) return [];
  const names = picked.map((p, n) =>
    picked.some((q, m) => m !== n && view.units[q.unit].name === view.units[p.unit].name)
      ? `${view.units[p.unit].name} (${p.unit + 1})`
      : view.units[p.unit].name,
  );
  const series = picked.map((p, n) => [names[n], view.scores.map((row) => row[p.unit])]);
  if (map.sites.length < 2)
    return [
      el(
        "p",
        { class: "compare-line" },
        ...names.map((name, n) =>
          el(
            "span",
            { class: `key pick-key${n}` },
            isolated(name),
            el("b", { text: ` ${exact(series[n][1][0])} ` }),
          ),
        ),
      ),
    ];
  const ticks = map.sites.map(siteName);
  return [
    lineChart({ title: "Scores over layers", series, x: map.sites.map((_, i) => i), ticks, x_name: "" }, 190),
  ];
}

function refreshPicks() {
  for (const one of $$(".card")) one.showPicks?.();
}
