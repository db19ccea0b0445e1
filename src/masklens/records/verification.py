"""The result of verifying an explanation, by removing the tokens that it does not need. It needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, isfinite
from statistics import fmean
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter

from ..files.parquet import column_types

Verdict = Literal["sufficient", "no better than random", "not sufficient", "ties", "no token needed"]
Count = Annotated[int, Field(ge=0, le=10**9)]
Number = Annotated[float, Field(allow_inf_nan=False)]
LEVEL = 0.1
"""an explanation passes if a random one does as well with at most this probability"""


@dataclass(frozen=True)
class Verification:
    """The result of running the model with only the tokens that an explanation keeps."""

    site: Count
    """the site whose scores were used"""
    tokens: Count
    """how many tokens can be removed: all but special ones"""
    needed: Count
    """how many of these tokens were kept: the fewest that suffice, or those of a fixed choice"""
    divergence: Annotated[float, Field(ge=-1)]  # rounding errors may be below 0
    """the divergence of the output from that of the whole text, in nats"""
    prediction_kept: bool
    probability_before: Number
    """the probability of the prediction (the class, the answer or the next token) for the whole text; for
    regression, the predicted number; for "A rather than B", the probability of A among the two"""
    probability_after: Number
    """the same with the kept tokens alone"""
    probability_without: Number | None = None
    """the same without the kept tokens; None if the number of tokens was searched"""
    random_without: Number | None = None
    """the same without as many random tokens, the median of ten choices"""
    verdict: Verdict | None = None
    """None if no random explanations were tried"""
    p_value: Number | None = None
    """the probability that a random explanation tells the text's important tokens from the others as well"""
    p_reversed: Number | None = None
    """the p-value of the reversed explanation, which should fail"""
    random_needed: Number | None = None
    """the median number of tokens that random orders need; None for a fixed choice of tokens"""
    removed: tuple[Count, ...] = ()
    """the numbers of the removed tokens; empty if the explanation has other tokens than the model"""
    opened: Count = 0
    """how many further tokens were kept to bring the text within the guard"""

    @property
    def random_need(self) -> int | None:
        """`random_needed` as a whole number of tokens, with which at least half of the random orders do."""
        return None if self.random_needed is None else ceil(self.random_needed)

    @property
    def passed(self) -> bool:
        """Whether the kept tokens suffice, and the explanation does better than random ones."""
        return self.verdict == "sufficient"

    @property
    def share_needed(self) -> float:
        return self.needed / max(1, self.tokens)

    @property
    def share_removed(self) -> float:
        return (self.tokens - self.needed) / max(1, self.tokens)

    @property
    def random_share(self) -> float | None:
        """The share of the tokens that random orders need: their median."""
        return None if self.random_needed is None else self.random_needed / max(1, self.tokens)


DERIVED = {"passed": bool, "share_needed": float, "share_removed": float, "random_share": float}
"""what a file holds beside the fields, for those who read it with other tools"""


def verification_record(proof: Verification) -> dict[str, Any]:
    """All fields and the values derived from them, for JSON and Parquet."""
    row = asdict(proof) | {name: getattr(proof, name) for name in DERIVED}
    return row | {"divergence": proof.divergence if isfinite(proof.divergence) else None}


def from_record(row: Any) -> Verification | None:
    """The verification in a record of a file. A record that does not fit raises a ValueError."""
    if isinstance(row, dict):
        row = {name: value for name, value in row.items() if name not in DERIVED}
        row["divergence"] = inf if row.get("divergence") is None else row["divergence"]
    return TypeAdapter(Verification | None).validate_python(row)


def verification_schema(pa: Any) -> Any:
    """The columns of a verification in Parquet."""
    return pa.struct(column_types(get_type_hints(Verification) | DERIVED))


def standing(proofs: Sequence[Verification]) -> tuple[float, float]:
    """A key to compare methods by the verification of their explanations: the share that passes, then how few
    tokens are needed. Larger is better."""
    return fmean(proof.passed for proof in proofs), -fmean(proof.share_needed for proof in proofs)


def control_line(proofs: Sequence[Verification], random: Sequence[Verification] = ()) -> str:
    """In words: how many texts pass, and how many with the negative controls; empty if these were not
    tried."""
    tried = [proof for proof in proofs if proof.verdict is not None]
    if not tried:
        return ""
    empty = sum(proof.verdict == "no token needed" for proof in tried)
    beside = f" ({empty} need no token)" if empty else ""
    parts = [f"this method passes {sum(proof.passed for proof in tried)}{beside}"]
    if random:
        parts.append(f"random orders {sum(proof.passed for proof in random)}")
    if any(proof.p_reversed is not None for proof in tried):
        turned = sum(proof.p_reversed is not None and proof.p_reversed <= LEVEL for proof in tried)
        parts.append(f"reversed {turned}")
    return f"of {len(tried)} texts: {', '.join(parts)}"
