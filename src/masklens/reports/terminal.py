"""The heat map of one attribution in the terminal: one row per layer, one column per token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from ..records.layers import site_name
from .colours import Scale, colours, hexadecimal, ink, scale, shares
from .facts import answer_tokens, class_line, sum_line
from .labels import (
    chance,
    emerged,
    other_target,
    part_names,
    printable,
    proof_details,
    proof_sentences,
    readable,
    readable_tokens,
    shortened,
    window_note,
    with_probability,
)

if TYPE_CHECKING:
    from ..attribution import Attribution
    from ..methods.logit_lens import LayerPredictions
    from ..records.generation import Generation
    from ..records.verification import Verification

LABEL_WIDTH = 11
GAP = 1
LONGEST_NAME = 24
MOST_RUNS = 8
"""how many runs of layers a line names, at most"""
CLOSE = 0.1
"""how far the probabilities of layers that are joined may be from that of the first"""
LONGEST_PIECE = 14
"""the longest token in a row of 80 characters that has further columns"""


@dataclass(frozen=True)
class HeatMap:
    """A renderable with one row per layer and one column per token. Long texts continue in further blocks.

    Every number is a probability, or the score divided by the largest absolute score of its layer. The last
    line gives that score. So the map can also be read without colour.
    """

    attribution: Attribution

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        a = self.attribution
        yield Text.assemble(
            ("prediction ", "dim"), (printable(a.prediction), "bold"), ("   target ", "dim"),
            (printable(a.target), "bold"), ("   method ", "dim"), (printable(a.method), "bold"),
        )  # fmt: skip
        if a.probabilities:
            yield Text(class_line(a), "dim")
        if window_note(a):
            yield Text(window_note(a), "dim")
        shown = scale(a)
        tokens = [printable(token) for token in readable_tokens(a)]
        widths = [max(cell_len(token), 5) for token in tokens]
        names, seen = part_names(a), -1
        for columns in blocks(widths, options.max_width - LABEL_WIDTH, segments=a.segments):
            if names and a.segments[columns[0]] != seen:
                seen = a.segments[columns[0]]
                yield Text(names[seen], "italic")
            yield block(a, tokens, widths, columns, shown)
        yield Text(legend(a, shown), "dim")
        if sum_line(a):
            yield Text(f"{site_name(a.sites[-1])}: {sum_line(a)}", "dim")
        if emerged(a):
            yield Text(emerged(a))


@dataclass(frozen=True)
class AnswerMap:
    """A renderable of an answer at its first site: one row per step, one column per token or larger unit."""

    generation: Generation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        g = self.generation
        about = ("   method ", "dim"), (printable(g.method), "bold"), (f"   {site_name(g.sites[0])}", "dim")
        yield Text.assemble(("answer ", "dim"), (printable(g.answer), "bold"), *about)
        seen = [g.seen(i) for i in range(len(g))]
        scores = [
            [float(g.scores[i, 0, j]) if j < n else np.nan for j in range(max(seen))]
            for i, n in enumerate(seen)
        ]
        own = g.merge != "max" and len(g) > 1
        shown = shares(np.array(scores), g.special[: max(seen)], g.merge, per_row=own)
        written = [readable(one, g.text[slice(*span)]) for one, span in zip(g.tokens, g.offsets, strict=True)]
        names = [shortened(printable(token), LONGEST_NAME) for token in written[: max(seen)]]
        widths = [max(cell_len(name), 5) for name in names]
        for columns in blocks(widths, options.max_width - LABEL_WIDTH):
            table = _grid(widths[columns.start : columns.stop], style="bold", no_wrap=True)
            table.add_row("", *(Text(names[j], "dim" if g.special[j] else "bold") for j in columns))
            for i, piece in enumerate(g.pieces):
                cells = (cell(shown.values[i, j], shown.signed, widths[j]) for j in columns)
                table.add_row(Text(printable(piece.strip() or piece)), *cells)
            yield table
        said = f"a score of {shown.strongest:.3g}" if shown.strongest else "the step's largest score"
        yield Text(f"1.00 is {said}", "dim")


def answer_table(generation: Generation) -> Table:
    """A table with one row per step of an answer: probability, layer from which its token stays the
    likeliest, verification."""
    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="dim")
    heads = ["", "prob.", "on top from"]
    proofs = generation.verification
    heads += ["needed", "random", "left", "verdict"] if proofs else []
    for head in heads:
        table.add_column(head, no_wrap=True)
    for i, piece in enumerate(generation.pieces):
        name = Text(shortened(printable(piece.strip() or piece), LONGEST_PIECE), "bold")
        cells = [chance(generation.probabilities[i]), _since(generation, i)]
        table.add_row(name, *cells, *(_proof_cells(proofs[i]) if proofs else ()))
    return table


def _since(generation: Generation, step: int) -> str:
    site = generation.settled[step] if generation.settled else None
    return "-" if site is None else site_name(site)


def _proof_cells(proof: Verification) -> list[Text]:
    random = "-" if proof.random_need is None else str(proof.random_need)
    style = STYLES.get(proof.verdict or "", "")
    said = [f"{proof.needed} of {proof.tokens}", random, chance(proof.probability_after)]
    return [*map(Text, said), Text(proof.verdict or "-", style)]


def answer_proof_line(generation: Generation) -> Text:
    """How many of an answer's steps pass."""
    proofs = generation.verification
    passed = sum(proof.passed for proof in proofs)
    return Text.assemble(
        ("verified: ", "dim"),
        (f"{passed} of {len(proofs)}", "bold green" if passed else "bold red"),
        (f" steps of the answer pass: the needed {generation.kind} suffice, and random ones do worse", "dim"),
    )  # fmt: skip


def legend(a: Attribution, shown: Scale) -> str:
    """What the numbers of a map mean."""
    if a.merge == "max":
        return "1.00: by what the layer knows, the token is needed; 0.00: it can be replaced"
    sign = f"; below 0 speaks against {printable(a.target)}" if shown.signed else ""
    if shown.strongest is None:
        return f"1.00 is the layer's largest score, {shown.range(a.sites)}{sign}"
    return f"1.00 is a score of {shown.strongest:.3g}{sign}"


STYLES = {"sufficient": "bold green", "no better than random": "bold yellow", "not sufficient": "bold red"}


def proof_line(attribution: Attribution, proof: Verification) -> Text:
    """The prediction with its probability, how few tokens suffice and which, and how many random orders
    need."""
    kept = [
        i for i in range(len(attribution.tokens)) if i not in proof.removed and not attribution.special[i]
    ]
    named = " ".join(printable(attribution.tokens[i]) for i in kept) if proof.removed else ""
    return Text.assemble(
        (printable(with_probability(attribution.prediction, proof)), "bold"), ". ",
        (proof_sentences(proof), STYLES.get(proof.verdict or "", "")),
        (f" Kept: {named}." if named else "", ""),
        (other_target(attribution), ""),
        (f" ({site_name(proof.site)}; {proof_details(proof)})", "dim"),
    )  # fmt: skip


def layers_line(found: LayerPredictions) -> Text:
    """The predictions of the layers, from the first to the last. Neighbouring layers are joined where they
    agree; of many changes the last ones are shown."""
    line, all_runs = Text.assemble(("each layer's own prediction: ", "dim")), _runs(found)
    line.append("..., " * (len(all_runs) > MOST_RUNS), "dim")
    for run in all_runs[-MOST_RUNS:]:
        where = " to ".join(dict.fromkeys(site_name(found.sites[k]) for k in (run[0], run[-1])))
        shares = [found.probabilities[k] for k in run]
        share = " to ".join(dict.fromkeys(f"{one:.0%}" for one in (min(shares), max(shares))))
        line.append_text(Text.assemble((f"{where} ", "dim"), printable(found.predictions[run[0]])))
        line.append(f" {share}, ", "dim")
    line.append_text(Text.assemble((printable(found.answer), "bold"), (f" {found.since}", "dim")))
    return line


def _runs(found: LayerPredictions) -> list[list[int]]:
    """Neighbouring layers with the same prediction, and a probability close to that of the first of them."""
    runs: list[list[int]] = []
    for k, name in enumerate(found.predictions):
        first = runs[-1][0] if runs else k
        near = abs(found.probabilities[k] - found.probabilities[first]) <= CLOSE
        if runs and name == found.predictions[first] and near:
            runs[-1].append(k)
        else:
            runs.append([k])
    return runs


def block(
    a: Attribution, tokens: Sequence[str], widths: Sequence[int], columns: range, shown: Scale
) -> Table:
    """The part of the map that holds the given columns."""
    table = _grid(widths[columns.start : columns.stop], style="dim")
    marked = set(answer_tokens(a))
    kinds = ["dim" if a.special[j] else "bold reverse" if j in marked else "bold" for j in columns]
    table.add_row("", *(Text(tokens[j], kind) for j, kind in zip(columns, kinds, strict=True)))
    for site, row in zip(a.sites, shown.values, strict=True):
        table.add_row(site_name(site), *(cell(row[j], shown.signed, widths[j]) for j in columns))
    return table


def _grid(widths: Sequence[int], **names: Any) -> Table:
    """A column for the names of the rows, and columns of these widths."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(width=LABEL_WIDTH - GAP, justify="right", **names)
    for width in widths:
        table.add_column(width=width, no_wrap=True)
    return table


def cell(share: float, signed: bool, width: int) -> Text:
    """One score as a number on its colour."""
    if np.isnan(share):
        return Text("-".center(width), "dim")
    colour = colours(np.array(share), signed)
    return Text(f"{share:.2f}".center(width), Style(color=ink(colour), bgcolor=hexadecimal(colour)))


def blocks(
    widths: Sequence[float], room: float, gap: float = GAP, segments: Sequence[int] = ()
) -> Iterator[range]:
    """Cut the columns into runs that fit into the room, each with at least one column.

    If `segments` says from which text of a pair each token is, no run has tokens of both texts.
    """
    ends = list(accumulate(width + gap for width in widths))
    start = 0
    while start < len(widths):
        used = ends[start - 1] if start else 0
        stop = max(start + 1, sum(end - used <= room for end in ends))
        if segments:
            stop = next((j for j in range(start, stop) if segments[j] != segments[start]), stop)
        yield range(start, stop)
        start = stop
