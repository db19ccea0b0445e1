"""Texts that all pictures share: captions, sentences about a verification, and text that is safe to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from unicodedata import category

from ..records.layers import site_name

if TYPE_CHECKING:
    from ..attribution import Attribution
    from ..records.verification import Verification

PARTS = ("first text", "second text")
"""names of the two texts of a pair if the record has none"""


LISTED = 8
"""how many words a line about a text names, at most"""
KEPT = 0.5
"""the keep probability above which a lens keeps a token"""


def part_names(attribution: Attribution) -> tuple[str, ...]:
    """The names of the two texts of a pair; empty for a single text."""
    if isinstance(attribution.text, str):
        return ()
    return tuple(printable(name) for name in attribution.parts or PARTS)


def window_note(attribution: Attribution) -> str:
    """Where the window and the answer are in the whole context, if the record is of a window."""
    said = attribution.settings
    if isinstance(attribution.text, str) or "window" not in said:
        return ""
    end = said["window_start"] + len(attribution.text[1])
    answer = f"the answer at {said['answer_start']}-{said['answer_end']}"
    return printable(f"window {said['window']}: characters {said['window_start']}-{end}, {answer}")


def caption(attribution: Attribution) -> str:
    """Method, target and, if it differs from the target, the prediction."""
    about = f"{attribution.method} · target {attribution.target}"
    other = attribution.prediction != attribution.target
    return printable(f"{about} · predicted {attribution.prediction}" if other else about)


def with_probability(prediction: str, proof: Verification) -> str:
    """A prediction with its probability. A predicted number has none."""
    return prediction if _is_number(prediction) else f"{prediction} {chance(proof.probability_before)}"


def _is_number(text: str) -> bool:
    try:
        float(text.split()[-1])
    except (ValueError, IndexError):
        return False
    return True


def chance(probability: float) -> str:
    """A probability, or a predicted number, as text."""
    return f"{probability:.1g}" if 0 < probability < 0.005 else f"{probability:.2f}"


def proof_sentences(proof: Verification) -> str:
    """In words: how few tokens suffice, the probability with them alone, and how random explanations do."""
    return " ".join(filter(None, (_enough(proof), _beside(proof))))


def _enough(proof: Verification) -> str:
    share, left = f"{proof.needed} of {proof.tokens} tokens", chance(proof.probability_after)
    if proof.verdict == "ties":
        return "Equal scores do not say which tokens to keep: there is nothing to verify."
    if proof.verdict == "no token needed":
        return f"The prediction stays without any token ({left}): there is nothing to verify."
    if proof.needed == proof.tokens:
        start = "All" if proof.random_need is None else "In this order all"
        return f"{start} {proof.tokens} tokens are needed."
    if proof.verdict == "not sufficient" or not proof.prediction_kept:
        return (
            f"{'These ' if proof.needed else ''}{share} do not suffice "
            f"({left}{'' if proof.prediction_kept else ', another prediction'})."
        )
    if proof.verdict == "no better than random":
        return f"{share} suffice ({left}), but {_unsure(proof)}."
    return f"These {share} suffice ({left})." if proof.needed else f"No token is needed ({left})."


def _unsure(proof: Verification) -> str:
    """Why an explanation whose tokens suffice is no better than random."""
    if proof.random_need is not None and proof.needed > proof.random_need:
        return "random orders need fewer"
    return (
        "this may be luck"
        if proof.probability_without is None
        else "as many random tokens may matter as much"
    )


def _beside(proof: Verification) -> str:
    if proof.verdict in ("ties", "no token needed"):
        return ""
    if proof.random_need is not None:
        return f"Random orders need {proof.random_need}."
    if proof.probability_without is None or proof.random_without is None or proof.needed == proof.tokens:
        return ""
    own, random = chance(proof.probability_without), chance(proof.random_without)
    return f"Without them {own}; without as many random ones {random}."


def other_target(attribution: Attribution) -> str:
    """A note for scores of another target than the prediction, which is what verification tests."""
    if attribution.target == attribution.prediction:
        return ""
    return f" The scores are for {printable(attribution.target)}; this tests the prediction."


def proof_details(proof: Verification) -> str:
    """The same in nats."""
    parts = [f"the output moves by {proof.divergence:.3f} nats"]
    if proof.p_value is not None:
        parts.append(f"p = {proof.p_value:.2f}")
    if proof.opened:
        parts.append(f"{proof.opened} more kept than it says")
    return ", ".join(parts)


def printable(text: str) -> str:
    """The text with every control, format and other unprintable character shown as a dot.

    A text may hold escape sequences, which must not reach the terminal, and characters that reverse the
    direction of the text after them.
    """
    return "".join(character if character.isprintable() else "·" for character in text)


def visible(text: str, lines: bool = False) -> str:
    """The text with every unprintable character replaced by a sign or its number; `lines` keeps line breaks.

    The joiners of emoji and of Persian stay, because they do not change the direction of the text.
    """
    kept = "\u200c\u200d" + "\n\t" * lines
    if lines:
        text = text.replace("\r\n", "\n")
    return "".join(c if c.isprintable() or c in kept or category(c) == "Zs" else _picture(c) for c in text)


def _picture(character: str) -> str:
    return {"\n": "\u21b5", "\t": "\u21e5"}.get(character, f"\u27e8U+{ord(character):04X}\u27e9")


def readable(token: str, written: str) -> str:
    """How a token is shown: by its text, if the tokenizer names it with signs for bytes or spaces that are
    not in its text; else by its name."""
    if not written or all(character.isascii() or character in written for character in token):
        return token
    return visible(written.strip(" ")) or "\u2423"


def readable_tokens(attribution: Attribution) -> list[str]:
    """How the tokens of a record are shown."""
    a = attribution
    placed = zip(a.tokens, a.offsets, a.segments, strict=True)
    return [readable(token, a.sources[segment][start:end]) for token, (start, end), segment in placed]


def shortened(text: str, length: int) -> str:
    """At most `length` characters of a text."""
    return text if len(text) <= length else text[: length - 1] + "…"


def emerged(attribution: Attribution) -> str:
    """One line about a text and a lens over inputs: which words are kept at the last layer, and at which
    layer the others are dropped.

    Only words that are kept at every layer up to their last one are named: a word that is dropped once, and
    stays so. Punctuation is left out.
    """
    if attribution.settings.get("over") != "inputs" or len(attribution.sites) < 2:
        return ""
    words = attribution.words()
    kept = words.scores > KEPT  # (sites, words)
    last = [int(column.nonzero()[0].max(initial=-1)) for column in kept.T]  # the last site that keeps it
    named = [
        (printable(word), site)
        for word, site, special, column in zip(words.tokens, last, words.special, kept.T, strict=True)
        if not special and any(map(str.isalnum, word)) and column[: site + 1].all()
    ]
    end = len(words.sites) - 1
    stay = [word for word, site in named if site == end]
    parts = [f"{_listed(stay)} {'stays' if len(stay) == 1 else 'stay'} to the end"] if stay else []
    for site in range(end - 1, -1, -1):
        gone = [word for word, kept_until in named if kept_until == site]
        if gone:
            parts.append(f"{_listed(gone)}: no longer needed at {site_name(words.sites[site + 1])}")
    return "; ".join(parts)


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - LISTED} more" if len(words) > LISTED else ""
    return ", ".join(words[:LISTED]) + more
