// Lines, tables and word clouds.

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "1 4"];
const MARKS = [
  "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
  "M-3.2-3.2h6.400v6.400h-6.400z",
  "M0-4.200 4 3h-8z",
  "M0-4.500 4 0 0 4.500-4 0z",
];
const LINES = 7; // colours of lines in the style sheet: --line0 to --line6

const key = (number, name) =>
  el(
    "span",
    { class: "key" },
    svg(
      "svg",
      { viewBox: "0 0 30 12", width: 30, height: 12, "aria-hidden": "true" },
      svg("path", {
        d: "M1 6h28",
        class: `line line${number % LINES}`,
        "stroke-dasharray": DASHES[number % DASHES.length],
      }),
      svg("path", {
        d: MARKS[number % MARKS.length],
        transform: "translate(15 6)",
        class: `mark line${number % LINES}`,
      }),
    ),
    isolated(name),
  );

// Round numbers that cover a range, about `count` of them.
function roundTicks(low, high, count = 5) {
  const raw = (high - low || 1) / count,
    power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const ticks = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step)
    ticks.push(Number(t.toPrecision(12)));
  return ticks;
}

function range(values) {
  const finite = values.filter((v) => v != null);
  const low = Math.min(0, ...finite),
    high = Math.max(...finite, low + 1e-9);
  return [low, low === 0 && high > 0.75 && high <= 1 ? 1 : high];
}

// A line of a chart is a method, "method, layer", or something else, such as random orders.
const methodNames = () => [...new Set(data.texts.flatMap((text) => text.maps.map((map) => map.name)))];
const methodOf = (name, methods) =>
  methods.find((method) => name === method || name.startsWith(`${method}, `)) ?? name;

// The numbers of the looks of lines: a method has the same in all charts of a report.
let lineOrder = null;
function lineNumbers(names) {
  const methods = methodNames(),
    charts = data.parts.filter((part) => part.kind === "chart");
  lineOrder ??= [
    ...new Set([...methods, ...charts.flatMap((part) => part.series.map(([name]) => methodOf(name, methods)))]),
  ];
  const numbers = names.map((name) => lineOrder.indexOf(methodOf(name, methods)));
  return new Set(numbers).size === names.length ? numbers : names.map((_, n) => n);
}

// A chart of {series: [[name, [y]]], x, x_name, y_name, ticks}; hovering tells the values at the nearest x.
function lineChart(chart, height = 250, looks = chart.series.map((_, n) => n)) {
  const width = innerWidth < 600 ? 340 : 520,
    inner = { left: 46, right: width - 14, top: 12, bottom: height - (chart.x_name ? 44 : 28) };
  const names = chart.series.map(([name]) => name),
    lines = chart.series.map(([, values]) => values);
  const [low, high] = range(lines.flat());
  const first = chart.x[0],
    last = chart.x[chart.x.length - 1];
  const px = (x) =>
    last === first
      ? (inner.left + inner.right) / 2
      : inner.left + ((x - first) / (last - first)) * (inner.right - inner.left);
  const py = (y) => inner.bottom - ((y - low) / (high - low)) * (inner.bottom - inner.top);
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "plot",
    role: "img",
    "aria-label": `${chart.title || "Curves"}: ${names.join(", ")}`,
  });
  drawing.append(...axes(chart, inner, { low, high, px, py }));
  lines.forEach((values, n) => drawing.append(...line(chart.x, values, looks[n], px, py)));
  const rule = svg("path", { class: "rule", d: "" });
  drawing.append(rule);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect(),
      at = ((event.clientX - box.left) / box.width) * width;
    const nearest = chart.x.reduce(
      (best, x, i) => (Math.abs(px(x) - at) < Math.abs(px(chart.x[best]) - at) ? i : best),
      0,
    );
    rule.setAttribute("d", `M${px(chart.x[nearest])} ${inner.top}V${inner.bottom}`);
    showTip(
      rule,
      tickName(chart, nearest),
      names.map((name, n) => [name, exact(lines[n][nearest])]),
    );
  });
  drawing.addEventListener("pointerleave", () => {
    rule.setAttribute("d", "");
    hideTip();
  });
  return el(
    "div",
    { class: "figure" },
    drawing,
    el("div", { class: "keys" }, ...names.map((name, n) => key(looks[n], name))),
  );
}

const tickName = (chart, i) =>
  chart.ticks?.length ? chart.ticks[i] : `${exact(chart.x[i])} ${chart.x_name || ""}`;

function axes(chart, inner, { low, high, px, py }) {
  const parts = [];
  for (const y of roundTicks(low, high, 4)) {
    parts.push(
      svg("path", { class: y === 0 ? "axis" : "guide", d: `M${inner.left} ${py(y)}H${inner.right}` }),
    );
    parts.push(svg("text", { x: inner.left - 7, y: py(y) + 3.5, "text-anchor": "end", text: exact(y) }));
  }
  const places = chart.ticks?.length
    ? chart.x.map((x, i) => [x, chart.ticks[i]])
    : roundTicks(chart.x[0], chart.x[chart.x.length - 1], 5).map((x) => [x, exact(x)]);
  const every = Math.ceil((places.length * 58) / (inner.right - inner.left));
  places.forEach(([x, name], i) => {
    if (i % every === 0)
      parts.push(svg("text", { x: px(x), y: inner.bottom + 17, "text-anchor": "middle", text: name }));
  });
  if (chart.x_name)
    parts.push(
      svg("text", {
        x: (inner.left + inner.right) / 2,
        y: inner.bottom + 36,
        "text-anchor": "middle",
        class: "axis-name",
        text: chart.x_name,
      }),
    );
  return parts;
}

function line(x, y, number, px, py) {
  let path = "",
    pen = false;
  y.forEach((value, i) => {
    if (value != null) path += `${pen ? "L" : "M"}${px(x[i]).toFixed(1)} ${py(value).toFixed(1)}`;
    pen = value != null;
  });
  const marks =
    y.length > 30
      ? []
      : y
          .map(
            (value, i) =>
              value != null &&
              svg("path", {
                d: MARKS[number % MARKS.length],
                class: `mark line${number % LINES}`,
                transform: `translate(${px(x[i]).toFixed(1)} ${py(value).toFixed(1)})`,
              }),
          )
          .filter(Boolean);
  return [
    svg("path", {
      d: path,
      class: `line line${number % LINES}`,
      "stroke-dasharray": DASHES[number % DASHES.length],
    }),
    ...marks,
  ];
}

// A table whose columns sort when their names are clicked; numbers in columns of `heat` are coloured.
function dataTable(grid) {
  const body = el("tbody"),
    order = { column: null, down: true };
  const numeric = grid.columns.map((_, c) => grid.rows.some((row) => typeof row[c] === "number"));
  const heat = new Set(grid.heat),
    shares = new Set(grid.percent),
    decimals = grid.columns.map((_, c) => decimalsOf(grid.rows.map((row) => row[c])));
  const said = (value, c) =>
    grid.exact ? exact(value) : shares.has(c) ? percent(value) : minus(value.toFixed(decimals[c]));
  const numbers = grid.rows.flatMap((row) => row.filter((v, c) => heat.has(c) && typeof v === "number"));
  const top = Math.max(...numbers.map(Math.abs), 1e-12),
    signed = numbers.some((v) => v < 0);
  const cell = (value, c) => {
    const hot = heat.has(c) && typeof value === "number";
    return el(
      "td",
      {
        class:
          [numeric[c] && "number", hot && colourOf(value / top, signed)].filter(Boolean).join(" ") || null,
        title: typeof value === "number" ? exact(value) : null,
      },
      typeof value === "number" ? said(value, c) : value == null ? "" : isolated(String(value)),
    );
  };
  const fill = () => {
    const { column, down } = order,
      rows = [...grid.rows];
    if (column != null) rows.sort((a, b) => (down ? -1 : 1) * compare(a[column], b[column]));
    body.replaceChildren(...rows.map((row) => el("tr", {}, ...row.map(cell))));
  };
  const heads = grid.columns.map((name, c) =>
    el(
      "th",
      { scope: "col", class: numeric[c] ? "number" : null },
      el(
        "button",
        {
          type: "button",
          on: {
            click: () => {
              Object.assign(order, { column: c, down: order.column === c ? !order.down : numeric[c] });
              heads.forEach((head, i) =>
                head.setAttribute("aria-sort", i === c ? (order.down ? "descending" : "ascending") : "none"),
              );
              fill();
            },
          },
        },
        isolated(name),
      ),
    ),
  );
  fill();
  return el("div", { class: "table" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body));
}

// How many decimals all numbers of a column have: none for counts, else two, or two digits of the largest.
function decimalsOf(values) {
  const numbers = values.filter((value) => typeof value === "number");
  if (numbers.every(Number.isInteger)) return 0;
  return Math.min(8, Math.max(2, 1 - Math.floor(Math.log10(Math.max(...numbers.map(Math.abs))))));
}

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

// Words in the size of their weight; those of most weight stand in the middle.
function wordCloud(cloud) {
  const top = Math.max(...cloud.words.map(([, weight]) => Math.abs(weight)), 1e-12),
    placed = [];
  cloud.words.slice(0, 80).forEach((word, i) => (i % 2 ? placed.push(word) : placed.unshift(word)));
  return el(
    "div",
    { class: "cloud" },
    ...placed.map(([word, weight]) => {
      const share = Math.abs(weight) / top;
      const made = el(
        "span",
        {
          tabindex: 0,
          class: weight < 0 ? "against" : null,
          css: {
            "font-size": `${(0.75 + 1.6 * Math.sqrt(share)).toFixed(2)}rem`,
            opacity: (0.55 + 0.45 * share).toFixed(2),
          },
        },
        isolated(word),
      );
      const tell = () => showTip(made, word, [["weight", exact(weight)]]);
      for (const event of ["pointerenter", "focus"]) made.addEventListener(event, tell);
      for (const event of ["pointerleave", "blur"]) made.addEventListener(event, hideTip);
      return made;
    }),
  );
}
