"""The heat map of one attribution, drawn with matplotlib: sites x tokens, or one site's coloured tokens.

Everything is drawn on Figure objects, without pyplot: no display is needed and no figure stays behind. The
data coordinates of the axes are inches, so that texts and cells can be laid out together; a text that is
too long for one line goes on in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.textpath import text_to_path

from ..records.layers import site_name
from .colours import MISSING, Scale, colours, ink, scale
from .labels import caption, part_names, printable, readable, readable_tokens, shortened
from .terminal import blocks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..attribution import Attribution
    from ..records.generation import Generation

POINT = 1 / 72
"""inches"""
FONT = 10.0
SMALLEST_FONT = 3.0
WIDEST = 9.0
"""the width of a line of cells in inches, if the figure is created here"""
LEFT, RIGHT, TOP, BOTTOM = 1.05, 0.25, 0.45, 0.75
"""inches around the axes, for: names of layers, rotated labels, title, colour bar"""
LEAN = 45
"""degrees by which the tokens above the columns are rotated"""
ABOVE: dict[str, Any] = {"ha": "left", "va": "baseline", "rotation": LEAN, "rotation_mode": "anchor"}
INSIDE: dict[str, Any] = {"ha": "center", "va": "center_baseline"}
"""the alignment of tokens above their column, and inside their cell"""
FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Microsoft YaHei", "Hiragino Sans",
    "PingFang SC", "WenQuanYi Zen Hei", "Arial Unicode MS", "Segoe UI Symbol", "Noto Sans Symbols2",
    "Symbola", "Noto Emoji",
)  # fmt: skip
"""fonts with more scripts than matplotlib's own, used if they are installed"""


@dataclass(frozen=True)
class Layout:
    """The sizes of the cells, in inches."""

    font: float
    """points"""
    widths: np.ndarray
    """(tokens,)"""
    lines: tuple[range, ...]
    """the tokens of each line"""
    head: float
    """height above the cells of a line"""
    cell: float
    """height of one site's cells"""
    sites: int

    @property
    def line(self) -> float:
        return self.head + self.sites * self.cell

    @property
    def height(self) -> float:
        return self.line * max(1, len(self.lines))

    @property
    def width(self) -> float:
        return max((float(self.widths[line].sum()) for line in self.lines), default=0.0)

    def edges(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The x edges (tokens + 1) and y edges (sites + 1) of the cells of a line."""
        top = number * self.line + self.head
        x = np.concatenate([[0.0], np.cumsum(self.widths[self.lines[number]])])
        return x, top + self.cell * np.arange(self.sites + 1)


def plot(attribution: Attribution, ax: Axes | None = None, per_site: bool = False) -> Axes:
    """Draw the attribution and return the axes. Without `ax` a figure is created that fits the text.

    Several sites become a map with the first site at the top and one column per token. One site becomes a
    line of coloured tokens. `per_site` divides each site's scores by the site's largest, as in De Cao et al.
    (2020).
    """
    if ax is None:
        return figure([attribution], per_site).axes[0]
    tokens = _tokens(attribution)
    width, height = ax.bbox.width / ax.figure.dpi, ax.bbox.height / ax.figure.dpi
    layout = _fitting(attribution, tokens, width, height)
    # A map may be stretched to fill the axes; a line of tokens stays a line.
    bottom = max(layout.height, height) if layout.sites == 1 else layout.height
    ax.set(xlim=(0, max(layout.width, width)), ylim=(bottom, 0))
    _clear_frame(ax)
    shown = scale(attribution, per_site)
    _cells(ax, layout, shown)
    _name_tokens(ax, layout, tokens, attribution.special, shown)
    _name_sites(ax, layout, attribution)
    _name_parts(ax, layout, attribution)
    _legend(ax, shown, (width, height))
    return ax


def plot_steps(generation: Generation, ax: Axes | None = None, site: int = 0) -> Axes:
    """Draw an answer at one site and return the axes: one row per step, one column per token before a
    step."""
    g = generation
    count = max(g.seen(i) for i in range(len(g)))
    scores = g.scores[:, g.sites.index(site), :count]
    unseen = np.array([[j >= g.seen(i) for j in range(count)] for i in range(len(g))])
    if ax is None:
        size = (LEFT + max(4.0, 0.28 * count), 1.6 + max(1.0, 0.24 * len(g)))
        ax = Figure(figsize=size, layout="constrained").add_subplot()
    largest, signed = float(np.abs(scores).max()) or 1.0, bool((scores < 0).any())
    norm = Normalize(-largest if signed else 0.0, largest)
    shown = np.ma.masked_array(scores, unseen)
    drawn = ax.imshow(shown, cmap=_colour_map(signed), norm=norm, aspect="auto")
    tokens = [readable(token, g.text[slice(*span)]) for token, span in zip(g.tokens, g.offsets, strict=True)]
    steps = [readable(name, piece) for name, piece in zip(g.steps, g.pieces, strict=True)]
    names = [shortened(printable(name), 20) for name in tokens[:count]]
    ax.set_xticks(range(count), names, rotation=90)
    ax.set_yticks(range(len(g)), [shortened(printable(name), 20) for name in steps])
    ax.set_title(f"{printable(g.method)} · {site_name(site)}", fontsize=FONT)
    ax.figure.colorbar(drawn, ax=ax)
    return ax


def figure(attributions: Sequence[Attribution], per_site: bool = False) -> Figure:
    """A figure with the attributions below one another, as large as necessary."""
    layouts = [_own_layout(attribution) for attribution in attributions]
    room = max([3.0, *(layout.width for layout in layouts), *(_width(_title(a), FONT) for a in attributions)])
    right = max([RIGHT, *(layout.head for layout in layouts)])
    width, height = LEFT + room + right, figure_height(attributions)
    result = Figure(figsize=(width, height))
    top = height
    for attribution, layout in zip(attributions, layouts, strict=True):
        bottom = top - TOP - layout.height
        ax = result.add_axes((LEFT / width, bottom / height, room / width, layout.height / height))
        plot(attribution, ax, per_site)
        top = bottom - BOTTOM
    return result


def figure_height(attributions: Sequence[Attribution]) -> float:
    """The height in inches of the figure with these attributions."""
    return sum(TOP + _own_layout(attribution).height + BOTTOM for attribution in attributions) or 1.0


def _own_layout(attribution: Attribution) -> Layout:
    return _layout(attribution, _tokens(attribution), WIDEST, FONT)


def _fitting(attribution: Attribution, tokens: Sequence[str], width: float, height: float) -> Layout:
    """The layout with the largest font that fits the axes, or with the smallest font if none does."""
    font = FONT
    layout = _layout(attribution, tokens, width, font)
    while layout.height > height * 1.001 and font > SMALLEST_FONT:
        font -= 0.5
        layout = _layout(attribution, tokens, width, font)
    return layout


def _even_room(segments: Sequence[int], room: float, width: float) -> float:
    """The smallest line width that needs no more lines, so that the last line is not left with one or two
    cells."""
    counts = [segments.count(part) for part in sorted(set(segments))]

    def lines(cells: int) -> int:
        return sum(-(-count // cells) for count in counts)

    most = max(1, int(room / width + 1e-6))
    return width * next(cells for cells in range(1, most + 1) if lines(cells) == lines(most))


def _layout(attribution: Attribution, tokens: Sequence[str], room: float, font: float) -> Layout:
    measured = np.array([_width(token, font) for token in tokens], dtype=float)
    line_height, sites = font * POINT, len(attribution.sites)
    if sites == 1:
        widths, head, cell = measured + 0.9 * line_height, 0.4 * line_height, 2.0 * line_height
    else:
        widths = np.full(len(tokens), 2.1 * line_height)
        room = _even_room(attribution.segments, room, float(2.1 * line_height))
        head = float(measured.max(initial=0.0) * np.sin(np.radians(LEAN))) + 1.6 * line_height
        cell = 1.7 * line_height
    lines = tuple(blocks(widths.tolist(), room + 1e-6, gap=0.0, segments=attribution.segments))
    return Layout(font, widths, lines, head, cell, sites)


def _clear_frame(ax: Axes) -> None:
    ax.set_xticks([])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def _cells(ax: Axes, layout: Layout, shown: Scale) -> None:
    colour_map, norm = _colour_map(shown.signed), Normalize(-1.0 if shown.signed else 0.0, 1.0)
    for number, line in enumerate(layout.lines):
        x, y = layout.edges(number)
        values = np.ma.masked_invalid(shown.values[:, line])
        ax.pcolormesh(x, y, values, cmap=colour_map, norm=norm, edgecolors="white", linewidth=1.2)


def _name_tokens(
    ax: Axes, layout: Layout, tokens: Sequence[str], special: Sequence[bool], shown: Scale
) -> None:
    """Write the tokens above their columns, or into their cells if there is one site."""
    inside = layout.sites == 1
    inks = [ink(colour) for colour in colours(shown.values[0], shown.signed)] if inside else ()
    for number, line in enumerate(layout.lines):
        x, y = layout.edges(number)
        for i, left, width in zip(line, x, layout.widths[line], strict=False):
            if inside:
                style = {"color": inks[i], "style": "italic" if special[i] else "normal", **INSIDE}
            else:
                style = {"color": "#666666" if special[i] else "#000000", **ABOVE}
            height = y.mean() if inside else y[0] - 0.35 * layout.font * POINT
            _write(ax, left + 0.5 * width, height, tokens[i], layout.font, **style)


def _name_sites(ax: Axes, layout: Layout, attribution: Attribution) -> None:
    ax.set_title(
        _title(attribution), loc="left", fontsize=FONT, pad=6, parse_math=False, fontfamily=_families()
    )
    if layout.sites == 1:
        ax.set_yticks([])
        return
    rows = [layout.edges(number)[1] for number in range(len(layout.lines))]
    middles = [y[:-1] + 0.5 * layout.cell for y in rows]
    names = [site_name(site) for site in attribution.sites] * len(rows)
    ax.set_yticks(np.concatenate(middles) if middles else [], names if middles else [], fontsize=layout.font)


def _name_parts(ax: Axes, layout: Layout, attribution: Attribution) -> None:
    """Say where each text of a pair begins, in the margin: beside its tokens, or above the sites' names."""
    starts = {attribution.segments[line[0]]: number for number, line in reversed([*enumerate(layout.lines)])}
    for part, name in enumerate(part_names(attribution)):
        if part in starts:
            y = layout.edges(starts[part])[1]
            where = y.mean() if layout.sites == 1 else y[0] - 0.35 * layout.font * POINT
            align = "center_baseline" if layout.sites == 1 else "baseline"
            style = {"ha": "right", "va": align, "weight": "bold", "color": "#444444"}
            _write(ax, -0.08, where, _drawable(shortened(name, 12)), layout.font, **style)


def _legend(ax: Axes, shown: Scale, size: tuple[float, float]) -> None:
    """Draw a small colour bar below the map, with the meaning of its ends."""
    width, height = size
    bar = ax.inset_axes((0.0, -0.28 / height, min(1.0, 1.6 / width), 0.12 / height))
    end = shown.strongest or 1.0
    norm = Normalize(-end if shown.signed else 0.0, end)
    ax.figure.colorbar(ScalarMappable(norm, _colour_map(shown.signed)), cax=bar, orientation="horizontal")
    ticks = [-end, 0.0, end] if shown.signed else [0.0, end]
    bar.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks], fontsize=8)
    bar.tick_params(length=2, pad=2)
    bar.set_yticks([])
    label = "share of the layer's largest score" if shown.strongest is None else "score"
    bar.text(1.06, 0.5, label, transform=bar.transAxes, fontsize=8, va="center", color="#444444")


def _title(attribution: Attribution) -> str:
    where = f" · layer: {site_name(attribution.sites[0])}" if len(attribution.sites) == 1 else ""
    return _drawable(shortened(caption(attribution) + where, 110))


def _tokens(attribution: Attribution) -> list[str]:
    return [_drawable(shortened(token, 24)) for token in readable_tokens(attribution)]


def _write(ax: Axes, x: float, y: float, text: str, size: float, **style: Any) -> None:
    """Put text into the axes as it is: a dollar sign does not start a formula."""
    ax.text(x, y, text, fontsize=size, fontfamily=_families(), parse_math=False, **style)


def _width(text: str, size: float) -> float:
    """The width of a text in inches."""
    font = FontProperties(family=_families(), size=size)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] * POINT


def _drawable(text: str) -> str:
    """The text with a box for every character that no installed font can draw."""
    known = _glyphs(tuple(_families()))
    return "".join(character if ord(character) in known else "□" for character in printable(text))


def _families() -> list[str]:
    return [*matplotlib.rcParams["font.family"], *_installed()]


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    installed = set(fontManager.get_font_names())
    return tuple(name for name in FALLBACKS if name in installed)


@lru_cache(maxsize=8)
def _glyphs(families: tuple[str, ...]) -> frozenset[int]:
    """The characters that the fonts of these families have."""
    fonts = (get_font(findfont(FontProperties(family=[name]))) for name in families)
    return frozenset().union(*(font.get_charmap() for font in fonts))


@lru_cache(maxsize=2)
def _colour_map(signed: bool) -> Colormap:
    shares = np.linspace(-1.0 if signed else 0.0, 1.0, 511)
    return ListedColormap(colours(shares, signed), name="masklens").with_extremes(bad=MISSING["light"])
