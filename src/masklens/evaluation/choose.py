"""`choose`: which method, at which layer, to use for a model and its texts.

The affordable methods explain one half of a sample of the texts, and verification says at which layer most of
these explanations pass. The best is tried once more on the other half, which had no part in the choice.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any, NamedTuple

import numpy as np

from ..attribution import Attribution, Text
from ..errors import MasklensError, MethodError, TextError
from ..methods.explain import chosen_sites, explain
from ..methods.registry import METHODS, load_all
from ..methods.ways import Way, find_ways
from ..model.batch import as_texts
from ..model.subject import Subject, as_subject
from ..progress import numbered, showing, stage, step
from ..records.layers import in_layers, site_name
from ..records.verification import LEVEL, Verification, standing
from .table import Cell, Table, cell, plain_text
from .verify import Verifier, is_keep_probability

AFFORDABLE = 100
"""a method is tried by default if it takes at most so many forward passes for a text"""
SAMPLE = 100
"""how many texts are drawn"""
MOST_LAYERS = 8
"""at how many layers a method is tried at most: evenly spread, the last one included"""
CERTAIN = 0.05
"""the choice is confirmed if random explanations pass as often with at most this probability"""
FEW = 20
"""with fewer texts in a half, the verdict warns that the ranking says little"""
BETTER = {"texts that pass": "higher", "needed": "lower"}
"""the columns of the table: the share of texts that pass, and the share of tokens needed"""


@dataclass(frozen=True, eq=False)
class Choice:
    """The method and layer that did best, and the tables that say so."""

    way: Way
    site: int
    """the site whose scores to use; `layer` is its name"""
    tried: Table
    """the first half of the sample: every method at every layer, best first; then random orders, and the
    scores of the best one reversed"""
    confirmation: Table
    """the second half: the chosen method, random orders and reversed scores"""
    p_value: float
    """the probability that as many texts of the second half pass with random explanations"""

    @property
    def method(self) -> str:
        return self.way.method.name

    @property
    def options(self) -> dict[str, Any]:
        """Further arguments for `explain`: a lens or an LM head, if the method needs one."""
        return dict(self.way.options)

    @property
    def layer(self) -> str:
        return site_name(self.site)

    @property
    def confirmed(self) -> bool:
        return self.p_value <= CERTAIN

    @property
    def ranking(self) -> Table:
        """The methods, each at its best layer."""
        best: dict[str, str] = {}
        for row in self.tried.rows:
            best.setdefault(row.rpartition("@")[0] or row, row)
        return replace(self.tried, rows={row: self.tried.rows[row] for row in best.values()})

    @property
    def verdict(self) -> str:
        """Whether the choice is confirmed, in words."""
        name, texts = f"{self.method}, {self.layer}", self.confirmation.settings["texts"]
        if not self.confirmed:
            return (
                f"{name} did best, but on texts that had no part in the choice it is not clearly better than "
                f"random (p = {self.p_value:.2g}). Give more texts, or other methods."
            )
        said = f"Use {name}. On texts that had no part in the choice it does better than random."
        return said if texts >= FEW else f"{said} But {texts} texts say little about which method is best."

    def command(self, *common: str) -> str:
        """The command line that explains with this method; `common` are its words for model and texts."""
        chosen = ["--method", self.method, "--layer", self.layer]
        return shlex.join(["masklens", "explain", *chosen, *common])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "method": self.method,
            "layer": self.layer,
            "confirmed": self.confirmed,
            "p_value": self.p_value,
            "tried": self.tried.to_dict(),
            "confirmation": self.confirmation.to_dict(),
        }

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield f"Chosen on {self.tried.settings['texts']} texts, each method at its best layer:\n"
        yield self.ranking
        yield f"\nThe best on {self.confirmation.settings['texts']} other texts:\n"
        yield self.confirmation
        yield self.verdict

    def __str__(self) -> str:
        return plain_text(self, width=100)

    __repr__ = __str__


def choose(
    subject: Any,
    texts: Iterable[Text],
    methods: Sequence[str] | None = None,
    lenses: Sequence[Any] = (),
    lm_head: Any = None,
    sample: int = SAMPLE,
    seed: int = 0,
    show_progress: bool = False,
) -> Choice:
    """Find the method and the layer whose explanations of these texts pass verification most often.

        choice = ml.choose(subject, texts)
        out = ml.explain(subject, texts, choice.method, sites=[choice.site], **choice.options)

    A random sample of the texts is cut in two. On the first half, the method and layer with which most texts
    pass is chosen; if several are equal, the one that needs fewer tokens, then the cheaper one. The second
    half confirms the choice.

    Args:
        methods: the names to choose from; by default all that take at most 100 forward passes for a text.
        lenses: fitted lenses, to choose from as well.
        lm_head: the pre-trained language model, for decoded_gradcam. Without it, decoded_gradcam is a
            candidate only if the model's own checkpoint contains an LM head.
        sample: how many texts are drawn in all.
    """
    subject = as_subject(subject)
    ways = find_ways(methods or affordable(), "", lenses, lm_head)
    first, second = halves(as_texts(texts), sample, seed)
    with showing(show_progress):
        best, tried = pick(Trial(subject, first, seed), ways)
        return confirm(Trial(subject, second, seed), best, tried)


def affordable() -> list[str]:
    """The methods that are tried if none are named, the cheapest first."""
    load_all()
    own = [m for m in METHODS.values() if not m.is_preset and m.name not in ("diffmask", "random")]
    return [m.name for m in sorted(own, key=lambda m: m.passes) if m.passes <= AFFORDABLE]


def halves(texts: Sequence[Text], sample: int, seed: int) -> tuple[list[Text], list[Text]]:
    """A random sample of the texts, cut in two; a text that occurs twice is taken once."""
    different = list(dict.fromkeys(texts))
    if min(len(different), sample) < 2:
        raise TextError(
            f"{len(different)} different texts and a sample of {sample} were given; a choice needs 2 or "
            f"more, to choose and to confirm, and about {SAMPLE} to be relied on"
        )
    order = np.random.default_rng(seed).permutation(len(different))[:sample]
    drawn, middle = [different[i] for i in order], (len(order) + 1) // 2
    return drawn[:middle], drawn[middle:]


class Candidate(NamedTuple):
    """A method or lens at one layer, with its explanations of some texts and their verification."""

    name: str
    way: Way
    site: int
    attributions: Sequence[Attribution]
    proofs: list[Verification]
    seconds: float
    """seconds to explain one text at all layers that were tried"""

    @property
    def row(self) -> str:
        return f"{self.name}@{self.site}"


class Trial:
    """The texts on which candidates are tried."""

    def __init__(self, subject: Subject, texts: list[Text], seed: int) -> None:
        self.subject, self.texts, self.seed = subject, texts, seed
        self.verifier = Verifier(subject, texts)
        self.random = self.verifier.random()

    def run(self, name: str, way: Way, sites: Sequence[int]) -> list[Candidate]:
        """One candidate for each of the sites."""
        settings: dict[str, Any] = {"sites": sites, "seed": self.seed, **way.options}
        explain(self.subject, self.texts[:1], way.method.name, **settings)  # warm-up, not timed
        found = explain(self.subject, self.texts, way.method.name, **settings)
        with step(f"verifying {name}"):
            proofs = self.verify(way, found, sites)
        seconds = (found.seconds or 0.0) / len(self.texts)
        return [Candidate(name, way, s, found, p, seconds) for s, p in zip(sites, proofs, strict=True)]

    def verify(
        self, way: Way, found: Sequence[Attribution], sites: Sequence[int]
    ) -> list[list[Verification]]:
        return self.verifier.at_sites(found, sites, (*way.lenses, "mask")[0])

    def table(self, candidates: Sequence[Candidate], notes: Sequence[str] = ()) -> Table:
        """The candidates in the given order, then random orders, and the first candidate reversed."""
        best = candidates[0]
        (reverse,) = self.verify(best.way, [turned(a) for a in best.attributions], [best.site])
        rows = {one.row: cells(one.proofs, one.seconds) for one in candidates}
        rows |= {"random order": cells(self.random), "reversed": cells(reverse)}
        return Table(rows, BETTER, notes=notes, settings={"texts": len(self.texts), "seed": self.seed})


def pick(trial: Trial, ways: Mapping[str, Way]) -> tuple[Candidate, Table]:
    """The best candidate on the texts of the trial, and the table of all candidates.

    A method that does not work with this model is left out, and a note says why.
    """
    found: list[Candidate] = []
    notes: list[str] = []
    with stage("choosing", len(ways)) as update:
        for number, (name, way) in numbered(ways.items(), "method"):
            try:
                with step(number):
                    found += trial.run(name, way, candidate_sites(trial.subject, way))
            except MasklensError as error:
                notes.append(f"{name} is left out: {in_layers(' '.join(str(error).split()))}")
            update(advance=1)
    if not found:
        raise MethodError("no method could be tried: " + "; ".join(notes))
    found.sort(key=lambda one: standing(one.proofs), reverse=True)  # where equal, the cheaper one stays first
    return found[0], trial.table(found, notes)


def candidate_sites(subject: Subject, way: Way) -> list[int]:
    """The sites at which a method or lens is tried: its own, or MOST_LAYERS of them, evenly spread."""
    sites = chosen_sites(subject, way.method, None, way.options.get("lens"))
    few = min(len(sites), MOST_LAYERS)
    return [sites[round((i + 1) * len(sites) / few) - 1] for i in range(few)]


def confirm(trial: Trial, best: Candidate, tried: Table) -> Choice:
    """The choice, with its result on other texts."""
    with stage("confirming"), step("confirming"):
        (again,) = trial.run(best.name, best.way, [best.site])
        passed = sum(proof.passed for proof in again.proofs)
        p_value = chance(passed, len(again.proofs))
        return Choice(best.way, best.site, tried, trial.table([again]), p_value)


def chance(passed: int, texts: int) -> float:
    """The probability that at least so many texts pass, if each passes by chance with probability LEVEL."""
    return sum(comb(texts, k) * LEVEL**k * (1 - LEVEL) ** (texts - k) for k in range(passed, texts + 1))


def turned(attribution: Attribution) -> Attribution:
    """The negative control: reversed scores. For a mask, the dropped tokens are kept instead."""
    scores = 1 - attribution.scores if is_keep_probability(attribution) else -attribution.scores
    return replace(attribution, scores=scores)


def cells(proofs: Sequence[Verification], seconds: float | None = None) -> dict[str, Cell]:
    """A row of the table: means over texts with their intervals."""
    found = {
        "texts that pass": cell(np.array([float(proof.passed) for proof in proofs])),
        "needed": Cell(float(np.mean([proof.share_needed for proof in proofs]))),
    }
    return found if seconds is None else found | {"seconds a text": Cell(seconds)}
