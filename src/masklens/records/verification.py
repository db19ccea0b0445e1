"""What came of removing the tokens that an explanation does not need. It does not need torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from statistics import fmean
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter

from ..files.parquet import column_types

Verdict = Literal["sufficient", "no better than random", "not sufficient", "ties"]
LEVEL = 0.1
"""an explanation passes if a random one does as well with at most this probability"""


@dataclass(frozen=True)
class Verification:
    """What the model says when only the tokens that an explanation keeps are left."""

    site: int
    """whose scores were used"""
    tokens: int
    """how many could be removed"""
    needed: int
    """how many of them were kept"""
    divergence: float
    """of the output from that of the whole text, in nats"""
    prediction_kept: bool
    probability_before: float
    """of the prediction for the whole text: of the class, the answer or the next token; a number's value"""
    probability_after: float
    """of the same, with the kept tokens alone"""
    probability_without: float | None = None
    """of the same, with the removed tokens alone; None where the number of tokens was searched"""
    random_without: float | None = None
    """the same if as many random tokens are kept back: the median of ten choices"""
    verdict: Verdict | None = None
    """None where nothing random was tried beside it"""
    p_value: float | None = None
    """how likely a random explanation does as well"""
    p_reversed: float | None = None
    """the same for the explanation turned round, which has to fail"""
    random_needed: float | None = None
    """how many tokens random orders need: their median; None where the number of tokens was fixed"""
    removed: tuple[int, ...] = ()
    """the numbers of the removed tokens; none where the explanation has other tokens than the model"""
    opened: int = 0
    """how many tokens more than the explanation says were kept, for its text to be within the guard"""

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
    """For JSON and Parquet: all fields, and what follows from them."""
    row = asdict(proof) | {name: getattr(proof, name) for name in DERIVED}
    return row | {"divergence": proof.divergence if isfinite(proof.divergence) else None}


def from_record(row: Any) -> Verification | None:
    """The verification of a record out of a file; what does not fit is a ValueError."""
    if isinstance(row, dict):
        row = {name: value for name, value in row.items() if name not in DERIVED}
        row["divergence"] = inf if row.get("divergence") is None else row["divergence"]
    return TypeAdapter(Verification | None).validate_python(row)


def verification_schema(pa: Any) -> Any:
    """The columns of a verification in Parquet."""
    return pa.struct(column_types(get_type_hints(Verification) | DERIVED))


def standing(proofs: Sequence[Verification]) -> tuple[float, float]:
    """How well explanations of some texts do, to be compared: the share that passes, then how few tokens
    are needed. Larger is better."""
    return fmean(proof.passed for proof in proofs), -fmean(proof.share_needed for proof in proofs)


def control_line(proofs: Sequence[Verification], random: Sequence[Verification] = ()) -> str:
    """How many texts pass, beside the negative controls; empty where nothing random was tried."""
    tried = [proof for proof in proofs if proof.verdict is not None]
    if not tried:
        return ""
    parts = [f"this method passes {sum(proof.passed for proof in tried)}"]
    if random:
        parts.append(f"random orders {sum(proof.passed for proof in random)}")
    if any(proof.p_reversed is not None for proof in tried):
        turned = sum(proof.p_reversed is not None and proof.p_reversed <= LEVEL for proof in tried)
        parts.append(f"reversed {turned}")
    return f"of {len(tried)} texts: {', '.join(parts)}"
