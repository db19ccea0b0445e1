// The whole set: curves, tables and word clouds.

const DRAWERS = { chart: (part) => lineChart(part), grid: dataTable, cloud: wordCloud };

function setView() {
  const page = el("article", { class: "set-view" });
  const clouds = data.parts.filter((part) => part.kind === "cloud"),
    charts = data.parts.filter((part) => part.kind === "chart");
  const grids = data.parts.filter((part) => part.kind === "grid");
  for (const [name, parts] of [
    ["grids lead", grids.filter((part) => part.lead)],
    ["charts", charts],
    ["clouds", clouds],
    ["grids", grids.filter((part) => !part.lead)],
  ]) {
    if (parts.length) page.append(el("div", { class: `parts ${name}` }, ...parts.map(partCard)));
  }
  return page;
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
      el("h2", {}, isolated(part.title)),
      part.y_name && part.kind === "chart" ? el("span", { class: "soft", text: part.y_name }) : null,
    ),
    part.note ? el("p", { class: "soft note", text: part.note }) : null,
    slot,
  );
}
