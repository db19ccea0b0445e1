"""Positions in a batch: the tokens that can carry a label, and spans of tokens from and to text."""

from __future__ import annotations

from torch import Tensor

from ..model.batch import Batch


def labelled(batch: Batch) -> Tensor:
    """(examples, tokens): the tokens that stand for text and can carry a label."""
    return batch.valid & ~batch.special


def in_context(batch: Batch) -> Tensor:
    """(examples, tokens): tokens of the second text."""
    return labelled(batch) & (batch.segments == 1)


def occurrences(batch: Batch, i: int, piece: str, segment: int) -> list[tuple[int, int]]:
    """The first and last token of each occurrence of a piece of text in one text of the pair."""
    text = batch.texts[i]
    source = text[segment] if isinstance(text, tuple) else text if segment == 0 else ""
    usable = (labelled(batch)[i] & (batch.segments[i] == segment)).tolist()
    spans, at = [], source.find(piece) if piece else -1
    while at >= 0:
        end = at + len(piece)
        inside = [t for t, (a, b) in enumerate(batch.offsets[i]) if usable[t] and a < end and b > at]
        if inside:
            spans.append((inside[0], inside[-1]))
        at = source.find(piece, at + 1)
    return spans


def span_text(batch: Batch, i: int, start: int, end: int) -> str:
    """The text from one token to another, or the names of the tokens if they stand for no text."""
    text = batch.texts[i]
    source = text[int(batch.segments[i, start])] if isinstance(text, tuple) else text
    piece = source[batch.offsets[i][start][0] : batch.offsets[i][end][1]].strip()
    return piece or " ".join(batch.tokens[i][start : end + 1])
