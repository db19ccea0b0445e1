"""Heat maps drawn with matplotlib: an attribution (sites x tokens, or one site's coloured tokens), or an
answer (steps x tokens).

Everything is drawn on Figure objects, without pyplot: no display is needed and no figure stays behind. The
data coordinates of the axes are inches, so that texts and cells can be laid out together; a text that is
too long for one line goes on in the next. Of a text that would fill more than a few pages only the lines with
the strongest scores are drawn, and the title says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure

from ..records.layers import row_of, site_name
from .colours import MISSING, Scale, colours, ink, scale, shares
from .fonts import POINT, drawable, families, text_width
from .labels import caption, part_names, readable, readable_tokens, shortened
from .terminal import blocks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..attribution import Attribution
    from ..records.generation import Generation

FONT, SMALL = 10.0, 8.0
SMALLEST_FONT = 3.0
WIDEST = 9.0
"""the width of a line of cells in inches, if the figure is created here"""
TALLEST = 30.0
"""the height of a map in inches; a higher one becomes wider, and then it is cut"""
WIDENED = 3
"""how many times as wide as WIDEST it may become"""
LEAST_LINES = 3
"""lines that are always drawn, however high they are"""
LEFT, RIGHT, TOP, BOTTOM = 1.05, 0.25, 0.45, 0.75
"""inches around the axes, for: names of rows, rotated labels, title, colour bar"""
BESIDE = 0.6
"""inches for the numbers at the right of the rows"""
BAR = 1.6
"""the width of the colour bar in inches"""
LEAN = 45
"""degrees by which the tokens above the columns are rotated"""
LONGEST_ROW = 12
"""characters of a row's name"""
ABOVE: dict[str, Any] = {"ha": "left", "va": "baseline", "rotation": LEAN, "rotation_mode": "anchor"}
INSIDE: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
"""the alignment of tokens above their column, and inside their cell"""


@dataclass(frozen=True)
class Grid:
    """What is drawn: rows of scores over the tokens of a text. All text in it is drawable."""

    tokens: Sequence[str]
    special: Sequence[bool]
    segments: Sequence[int]
    rows: Sequence[str]
    shown: Scale
    title: str
    meaning: str
    """of the scores"""
    parts: Sequence[str] = ()
    row: str = "layer"
    """what a row is"""
    missing: tuple[float, ...] = MISSING["light"]

    @property
    def about(self) -> str:
        """What the colours show."""
        own = f"share of the {self.row}'s largest score (at the right)"
        return own if self.shown.strongest is None else self.meaning


@dataclass(frozen=True)
class Layout:
    """The sizes of the cells, in inches."""

    font: float
    """points"""
    widths: np.ndarray
    """(tokens,)"""
    lines: tuple[range, ...]
    """the tokens of each line that is drawn"""
    head: float
    """height above the cells of a line"""
    cell: float
    """height of one row's cells"""
    rows: int

    @property
    def line(self) -> float:
        return self.head + self.rows * self.cell

    @property
    def height(self) -> float:
        return self.line * max(1, len(self.lines))

    @property
    def width(self) -> float:
        return max((float(self.widths[line].sum()) for line in self.lines), default=0.0)

    @property
    def cut(self) -> bool:
        return self.tokens < len(self.widths)

    @property
    def tokens(self) -> int:
        """How many tokens are drawn."""
        return sum(map(len, self.lines))

    def edges(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The x edges (tokens + 1) and y edges (rows + 1) of the cells of a line."""
        top = number * self.line + self.head
        x = np.concatenate([[0.0], np.cumsum(self.widths[self.lines[number]])])
        return x, top + self.cell * np.arange(self.rows + 1)


def plot(attribution: Attribution, ax: Axes | None = None, per_site: bool | None = None) -> Axes:
    """Draw the attribution and return the axes. Without `ax` a figure is created that fits the text.

    Several sites become a map with the first site at the top and one column per token. One site becomes a
    line of coloured tokens. `per_site` is as in `scale`.
    """
    return _plot(_grid(attribution, per_site), ax)


def plot_steps(generation: Generation, ax: Axes | None = None, site: int | str = 0) -> Axes:
    """Draw an answer at one site and return the axes: one row per step, one column per token before a
    step."""
    return _plot(_steps(generation, site), ax)


def figure(attributions: Sequence[Attribution], per_site: bool | None = None) -> Figure:
    """A figure with the attributions below one another, as large as necessary."""
    return _figure([_grid(attribution, per_site) for attribution in attributions])


def figure_height(attributions: Sequence[Attribution]) -> float:
    """The height in inches of the figure with these attributions."""
    return _height([_layout(_grid(attribution)) for attribution in attributions])


def _grid(attribution: Attribution, per_site: bool | None = None) -> Grid:
    a = attribution
    where = f" · layer: {site_name(a.sites[0])}" if len(a.sites) == 1 else ""
    return Grid(
        tokens=[drawable(shortened(token, 24)) for token in readable_tokens(a)],
        special=a.special,
        segments=a.segments,
        rows=[site_name(site) for site in a.sites],
        shown=scale(a, per_site),
        title=drawable(shortened(caption(a) + where, 110)),
        meaning="keep probability" if a.merge == "max" else "score",
        parts=[drawable(shortened(name, LONGEST_ROW)) for name in part_names(a)],
    )


def _steps(generation: Generation, site: int | str) -> Grid:
    g, row = generation, row_of(site, generation.sites)
    seen = [g.seen(i) for i in range(len(g))]
    count = max(seen)
    unseen = np.arange(count) >= np.array(seen)[:, None]
    scores = np.where(unseen, np.nan, g.scores[:, row, :count])
    placed = zip(g.tokens[:count], g.offsets, strict=False)
    steps = [readable(name, piece) for name, piece in zip(g.steps, g.pieces, strict=True)]
    name = f" · answer: {steps[0]}" if len(g) == 1 else ""
    return Grid(
        tokens=[drawable(shortened(readable(token, g.text[slice(*span)]), 24)) for token, span in placed],
        special=g.special[:count],
        segments=(0,) * count,
        rows=[drawable(shortened(step, LONGEST_ROW)) for step in steps],
        shown=shares(scores, g.special[:count], g.merge, per_row=g.merge != "max" and len(g) > 1),
        title=drawable(shortened(f"{g.method} · {site_name(g.sites[row])}{name}", 110)),
        meaning="keep probability" if g.merge == "max" else "score",
        row="step",
        missing=(1.0, 1.0, 1.0),
    )


def _plot(grid: Grid, ax: Axes | None) -> Axes:
    if ax is None:
        return _figure([grid]).axes[0]
    width, height = ax.bbox.width / ax.figure.dpi, ax.bbox.height / ax.figure.dpi
    layout = _fitting(grid, width, height)
    # A map may be stretched to fill the axes; a line of tokens stays a line.
    bottom = max(layout.height, height) if layout.rows == 1 else layout.height
    ax.set(xlim=(0, max(layout.width, width)), ylim=(bottom, 0))
    _clear_frame(ax)
    _cells(ax, layout, grid)
    _name_tokens(ax, layout, grid)
    _name_rows(ax, layout, grid)
    _name_lines(ax, layout, grid)
    _legend(ax, grid, (width, height))
    return ax


def _figure(grids: Sequence[Grid]) -> Figure:
    layouts = [_layout(grid) for grid in grids]
    titles = [text_width(_title(grid, layout), FONT) for grid, layout in zip(grids, layouts, strict=True)]
    legends = [1.06 * BAR + text_width(grid.about, SMALL) for grid in grids]
    room = max([3.0, *(layout.width for layout in layouts), *titles, *legends])
    beside = [BESIDE for grid in grids if grid.shown.strongest is None]
    right = max([RIGHT, *beside, *(layout.head for layout in layouts)])
    width, height = LEFT + room + right, _height(layouts)
    result = Figure(figsize=(width, height))
    top = height
    for grid, layout in zip(grids, layouts, strict=True):
        bottom = top - TOP - layout.height
        ax = result.add_axes((LEFT / width, bottom / height, room / width, layout.height / height))
        _plot(grid, ax)
        top = bottom - BOTTOM
    return result


def _height(layouts: Sequence[Layout]) -> float:
    return sum(TOP + layout.height + BOTTOM for layout in layouts) or 1.0


def _fitting(grid: Grid, width: float, height: float) -> Layout:
    """The layout with the largest font that fits the axes, or with the smallest font if none does."""
    font = FONT
    layout = _layout(grid, width, font)
    while layout.height > height * 1.001 and font > SMALLEST_FONT:
        font -= 0.5
        layout = _layout(grid, width, font)
    return layout


def _even_room(segments: Sequence[int], room: float, width: float) -> float:
    """The smallest line width that needs no more lines, so that the last line is not left with one or two
    cells."""
    counts = [segments.count(part) for part in sorted(set(segments))]

    def lines(cells: int) -> int:
        return sum(-(-count // cells) for count in counts)

    most = max(1, int(room / width + 1e-6))
    return width * next(cells for cells in range(1, most + 1) if lines(cells) == lines(most))


def _layout(grid: Grid, room: float | None = None, font: float = FONT) -> Layout:
    """Without `room`, the width of a line, a map becomes as wide as it needs to be."""
    measured = np.array([text_width(token, font) for token in grid.tokens], dtype=float)
    line_height, rows = font * POINT, len(grid.rows)
    if rows == 1:
        widths, head, cell = measured + 0.9 * line_height, 0.4 * line_height, 2.0 * line_height
    else:
        widths = np.full(len(grid.tokens), 2.1 * line_height)
        head = float(measured.max(initial=0.0) * np.sin(np.radians(LEAN))) + 1.6 * line_height
        cell = 1.7 * line_height
        room = room or WIDEST * _widening(float(widths.sum()) / WIDEST * (head + rows * cell))
        room = _even_room(grid.segments, room, float(2.1 * line_height))
    lines = tuple(blocks(widths.tolist(), (room or WIDEST) + 1e-6, gap=0.0, segments=grid.segments))
    layout = Layout(font, widths, lines, head, cell, rows)
    return replace(layout, lines=_strongest(grid, lines, max(LEAST_LINES, int(TALLEST / layout.line))))


def _widening(height: float) -> int:
    """How many times as wide a map of this height becomes, so that all of it fits if possible."""
    return next((n for n in range(1, WIDENED) if height / n <= TALLEST), WIDENED)


def _strongest(grid: Grid, lines: Sequence[range], most: int) -> tuple[range, ...]:
    """At most so many lines, in their order: those in which the rows have their strongest scores."""
    strength = np.nan_to_num(np.abs(grid.shown.values)) * ~np.array(grid.special, dtype=bool)
    ranked = sorted(range(len(lines)), key=lambda number: -strength[:, lines[number]].max(1).sum())
    return tuple(lines[number] for number in sorted(ranked[:most]))


def _clear_frame(ax: Axes) -> None:
    ax.set_xticks([])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def _cells(ax: Axes, layout: Layout, grid: Grid) -> None:
    signed = grid.shown.signed
    colour_map = _colour_map(signed).with_extremes(bad=grid.missing)
    norm = Normalize(-1.0 if signed else 0.0, 1.0)
    for number, line in enumerate(layout.lines):
        x, y = layout.edges(number)
        values = np.ma.masked_invalid(grid.shown.values[:, line])
        ax.pcolormesh(x, y, values, cmap=colour_map, norm=norm, edgecolors="white", linewidth=1.2)


def _name_tokens(ax: Axes, layout: Layout, grid: Grid) -> None:
    """Write the tokens above their columns, or into their cells if there is one row."""
    inside, special = layout.rows == 1, grid.special
    inks = [ink(colour) for colour in colours(grid.shown.values[0], grid.shown.signed)] if inside else ()
    for number, line in enumerate(layout.lines):
        x, y = layout.edges(number)
        for i, left, width in zip(line, x, layout.widths[line], strict=False):
            if inside:
                style = {"color": inks[i], "style": "italic" if special[i] else "normal", **INSIDE}
            else:
                style = {"color": "#666666" if special[i] else "#000000", **ABOVE}
            height = y.mean() if inside else y[0] - 0.35 * layout.font * POINT
            _write(ax, left + 0.5 * width, height, grid.tokens[i], layout.font, **style)


def _name_rows(ax: Axes, layout: Layout, grid: Grid) -> None:
    title = _title(grid, layout)
    ax.set_title(title, loc="left", fontsize=FONT, pad=6, parse_math=False, fontfamily=families())
    if layout.rows == 1:
        ax.set_yticks([])
        return
    edges = [layout.edges(number) for number in range(len(layout.lines))]
    middles = [y[:-1] + 0.5 * layout.cell for _, y in edges]
    names = list(grid.rows) * len(edges)
    style: dict[str, Any] = {"fontsize": layout.font, "fontfamily": families(), "parse_math": False}
    ax.set_yticks(np.concatenate(middles) if middles else [], names, **style)
    if grid.shown.strongest is None and edges:
        for y, largest in zip(middles[0], grid.shown.largest, strict=True):
            style = {"ha": "left", "va": "center_baseline", "color": "#666666"}
            _write(ax, edges[0][0][-1] + 0.06, y, f"{largest:.3g}", 0.8 * layout.font, **style)


def _name_lines(ax: Axes, layout: Layout, grid: Grid) -> None:
    """Say in the margin where each text of a pair begins, and with which token the lines of a cut map."""
    names = {n: f"token {line[0] + 1:,}" for n, line in enumerate(layout.lines)} if layout.cut else {}
    starts = {grid.segments[line[0]]: number for number, line in reversed([*enumerate(layout.lines)])}
    names |= {starts[part]: name for part, name in enumerate(grid.parts) if part in starts}
    weight = "bold" if grid.parts else "normal"
    for number, name in names.items():
        y = layout.edges(number)[1]
        where = y.mean() if layout.rows == 1 else y[0] - 0.35 * layout.font * POINT
        align = "center_baseline" if layout.rows == 1 else "baseline"
        style = {"ha": "right", "va": align, "weight": weight, "color": "#444444"}
        _write(ax, -0.08, where, name, layout.font, **style)


def _legend(ax: Axes, grid: Grid, size: tuple[float, float]) -> None:
    """Draw a small colour bar below the map, with the meaning of its ends."""
    width, height = size
    shown = grid.shown
    bar = ax.inset_axes((0.0, -0.28 / height, min(1.0, BAR / width), 0.12 / height))
    end = shown.strongest or 1.0
    norm = Normalize(-end if shown.signed else 0.0, end)
    ax.figure.colorbar(ScalarMappable(norm, _colour_map(shown.signed)), cax=bar, orientation="horizontal")
    ticks = [-end, 0.0, end] if shown.signed else [0.0, end]
    bar.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks], fontsize=SMALL)
    bar.tick_params(length=2, pad=2)
    bar.set_yticks([])
    bar.text(1.06, 0.5, grid.about, transform=bar.transAxes, fontsize=SMALL, va="center", color="#444444")


def _title(grid: Grid, layout: Layout) -> str:
    """The title, and whether the map is cut."""
    if not layout.cut:
        return grid.title
    drawn = f"{layout.tokens:,} of {len(layout.widths):,} tokens"
    return f"{grid.title} · {drawn}: the lines with the strongest scores"


def _write(ax: Axes, x: float, y: float, text: str, size: float, **style: Any) -> None:
    """Put text into the axes as it is: a dollar sign does not start a formula."""
    ax.text(x, y, text, fontsize=size, fontfamily=families(), parse_math=False, **style)


@lru_cache(maxsize=2)
def _colour_map(signed: bool) -> Colormap:
    steps = np.linspace(-1.0 if signed else 0.0, 1.0, 511)
    return ListedColormap(colours(steps, signed), name="masklens")
