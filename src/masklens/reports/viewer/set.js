// The whole set: curves, tables and word clouds.

const DRAWERS = { chart: (part) => lineChart(part, 250, lineNumbers(part.series.map(([name]) => name))), grid: dataTable, cloud: wordCloud };

function setView() {
  const page = el("article", { class: "set-view" }, ...[sliceBar(), matrixCard()].filter(Boolean));
  const texts = inSlice(),
    shown = data.parts.map((part) => (state.slices.size ? (slicedPart(part, texts) ?? { ...part, all: true }) : part));
  const clouds = shown.filter((part) => part.kind === "cloud"),
    charts = shown.filter((part) => part.kind === "chart");
  const grids = shown.filter((part) => part.kind === "grid");
  for (const [name, parts] of [
    ["grids lead", grids.filter((part) => part.lead)],
    ["charts", charts],
    ["clouds", clouds],
    ["grids", grids.filter((part) => !part.lead)],
  ]) {
    if (parts.length) page.append(el("div", { class: `parts ${name}` }, ...parts.map(partCard)));
  }
  whenIdle(() => fillNext(page));
  return page;
}

// The parts further down are drawn one by one while nothing else is to do.
const whenIdle = (call) => (window.requestIdleCallback ?? setTimeout)(call);
function fillNext(page) {
  const slot = page.isConnected && $$(".part-slot", page).find((one) => one.drawNow);
  if (!slot) return;
  slot.drawNow();
  whenIdle(() => fillNext(page));
}

function partCard(part) {
  const slot = el("div", { class: "part-slot" });
  lazily(slot, () => slot.append(DRAWERS[part.kind](part)));
  return el(
    "section",
    { class: `card part part-${part.kind}` },
    el(
      "div",
      { class: "card-head" },
      el("h2", {}, isolated(part.kind === "cloud" && part.name ? `${part.name}: ${part.title}` : part.title)),
      part.all ? el("span", { class: "badge", text: "all texts", title: "Slices do not reach this part" }) : null,
      part.y_name && part.kind === "chart" ? el("span", { class: "soft", text: part.y_name }) : null,
    ),
    part.note ? el("p", { class: "soft note", text: part.note }) : null,
    slot,
  );
}
