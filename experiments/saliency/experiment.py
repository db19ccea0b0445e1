"""`python -m experiments saliency`: Decoded Grad-CAM (Hou and Castanon 2023) on SST-2 and AG News.

    run(model_dir, data, out)                  # Tables 1 and 2, Figures 2 to 9, Appendix A

A part is a data set and a method, such as "sst2/gradcam".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from masklens.attribution import Attribution
from masklens.bootstrap import interval
from masklens.diffmask.trainer import fast_products
from masklens.evaluation.faithfulness import Game, hiding, revealing
from masklens.evaluation.masking import Views
from masklens.evaluation.ranking import Ranking, random_rankings, rank
from masklens.evaluation.specificity import Rarity, class_words, document_rarity
from masklens.methods.explain import explain
from masklens.reports.labels import printable

from ..classifier import ClassifierRun
from ..labelled import Labelled, read_test, read_train
from ..model_run import checkpoints_in, default_device
from ..parts import Found, asked_for, check_out, check_wanted
from ..results import command_line, device_name
from . import report as saliency_report

DATASETS = ("sst2", "agnews")
FAMILIES = ("mpnet", "minilm")
COMPETITORS = (
    "allennlp_simple",
    "allennlp_smooth",
    "allennlp_integrated",
    "thermostat_grad_x_activation",
    "thermostat_integrated",
    "thermostat_lime",
    "thermostat_occlusion",
    "thermostat_shapley",
    "thermostat_deeplift_shap",
    "thermostat_gradient_shap",
)
KINDS = ("choice", "decoded_gradcam", "gradcam", *COMPETITORS, "diffmask", "random")
COSTLY = ("thermostat_shapley",)
"""methods that take more than 100 forward passes for a text"""
COSTLY_TEXTS = 1000
TRAINING_TEXTS = 2000
"""the number of training texts on which layer and tau are chosen"""
TAUS = (None, 1, 3)
DRAWS = 20
TOP = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
"""numbers of top words at which the classes are compared"""
EXAMPLES = {
    "sst2": (
        "unflinchingly bleak and desperate",
        "so unremittingly awful that labeling it a dog probably constitutes cruelty to canines .",
        "birthday girl is an amusing joy ride , with some surprisingly violent moments .",
        "more romantic , more emotional and ultimately more satisfying than the teary-eyed original .",
    ),
    "agnews": (
        "Dutch Retailer Beats Apple to Local Download Market",
        "Charity chief kidnapped in Iraq",
        "Hockey Labor Talks Broken Off",
        "United Pilots Cut Deal on Pensions",
    ),
}
"""how the texts of Appendix A.5 begin"""
EXAMPLE_METHODS = {
    "sst2": ("allennlp_simple", "allennlp_smooth", "allennlp_integrated"),
    "agnews": ("thermostat_shapley", "thermostat_occlusion", "thermostat_integrated"),
}
LEVELS = 9
"""the number of strengths of a highlighted word; 0 stands for no highlight"""


def run(
    model_dir: str | Path,
    data: str | Path,
    out: str | Path,
    model: str | None = None,
    part: Sequence[str] | None = None,
    lens: str | Path | None = None,
    device: str | None = None,
    limit: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    jobs: int = 1,
    tell: Callable[[str], None] = print,
) -> None:
    """Do what is missing and write the results.

    Args:
        model_dir: holds FAMILY-sst2, FAMILY-agnews and FAMILY-mlm.
        model: the family, mpnet or minilm; by default mpnet on a GPU and minilm otherwise, if it is there.
        part: only these, such as "sst2/gradcam", or all of "sst2".
        lens: a folder with lenses for the DiffMask row, as FAMILY-sst2-inputs-seedK; by default they are
            fitted and kept in OUT/lenses.
        limit: use at most so many texts of each set (and as many training texts).
        steps: of fitting a lens.
        jobs: processes side by side, which keeps a GPU busy where a method goes text by text.
    """
    model_dir, out, device = Path(model_dir), Path(out), default_device(device)
    check_out(out)
    check_wanted(part, [name for dataset in DATASETS for name in parts_for(dataset)])
    family = model or _family(model_dir, device)
    given = device, None if lens is None else Path(lens), limit, steps, seed
    runs = [SaliencyRun(model_dir, Path(data), out, family, *given, dataset) for dataset in DATASETS]
    _do_chains(_chains(runs, part), jobs, tell)
    options = {"model_dir": "DIR", "data": "DIR", "out": "DIR", "model": family, "limit": limit}
    command = command_line("saliency", **options, steps=steps, seed=seed)
    saliency_report.write(out, family, {one.dataset: one.done() for one in runs}, command)


def parts_for(dataset: str) -> list[str]:
    return [f"{dataset}/{kind}" for kind in KINDS]


def _family(model_dir: Path, device: str) -> str:
    there = checkpoints_in(model_dir, [f"{family}-sst2" for family in FAMILIES])
    return there[-1 if device == "cpu" else 0].removesuffix("-sst2")


Chain = tuple["SaliencyRun", list[str]]
"""parts of a run that have to be done one after the other"""


def _chains(runs: Sequence[SaliencyRun], wanted: Sequence[str] | None) -> list[Chain]:
    """The parts to do, the costly data set first. The decoded layers need the choice of layer and tau."""
    chains = []
    for run in reversed(runs):
        first, second, *others = parts_for(run.dataset)
        chains += [(run, asked_for(names, wanted)) for names in ([first, second], *([one] for one in others))]
    return [chain for chain in chains if chain[1]]


def _do_chains(chains: Sequence[Chain], jobs: int, tell: Callable[[str], None]) -> None:
    if jobs == 1:
        for chain in chains:
            _do_all(*chain, tell)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_do_all, *chain) for chain in chains]):
            done.result()


def _do_all(run: SaliencyRun, names: Sequence[str], tell: Callable[[str], None] = print) -> None:
    for name in names:
        run.do(name, tell)


@dataclass
class SaliencyRun(ClassifierRun):
    """One data set and its model; `model` is the family."""

    dataset: str

    def do(self, name: str, tell: Callable[[str], None]) -> None:
        """Do a part, with fast matrix products on a GPU; a lens is calibrated and judged without."""
        kind = name.rpartition("/")[2]
        with nullcontext() if kind == "diffmask" else fast_products():
            self.parts.do(name, lambda: WORK.get(kind, _competitor)(self, kind), tell)

    def done(self) -> dict[str, Any]:
        """The parts of this data set that are done: {kind: what was found}."""
        found = self.parts.done([*parts_for(self.dataset), f"{self.dataset}/lens"])
        return {name.rpartition("/")[2]: part for name, part in found.items()}

    @property
    def checkpoint(self) -> str:
        return f"{self.model}-{self.dataset}"

    @cached_property
    def lm_head(self) -> Any:
        from transformers import AutoModelForMaskedLM

        head = AutoModelForMaskedLM.from_pretrained(self.model_dir / f"{self.model}-mlm")
        return head.to(self.device).eval()

    @cached_property
    def test(self) -> Labelled:
        return read_test(self.data, self.dataset).first(self.limit)

    @cached_property
    def train(self) -> Labelled:
        return read_train(self.data, self.dataset)

    @cached_property
    def views(self) -> Views:
        return Views(self.subject, self.test.texts, labels=self.test.labels)

    @cached_property
    def rarity(self) -> Rarity:
        return document_rarity(self.data / "wikipedia_document_frequency.tsv.xz")

    @property
    def choice(self) -> dict[str, Any]:
        """The layer and tau chosen on training texts."""
        return self.parts.read(f"{self.dataset}/choice")["chosen"]

    def explain(self, method: str, texts: Sequence[str], **options: Any) -> Any:
        return explain(self.subject, texts, method, batch_size=self.batch_size, seed=self.seed, **options)

    def decode(self, texts: Sequence[str], tau: int | None, sites: Sequence[int] | None = None) -> Any:
        return self.explain("decoded_gradcam", texts, lm_head=self.lm_head, tau=tau, sites=sites)

    def lens_part(self, over: str, number: int) -> str:
        return f"{self.dataset}/lens"


def _choose(run: SaliencyRun, kind: str) -> Found:
    """The layer and tau with the largest revealing minus hiding area on training texts."""
    count = min(TRAINING_TEXTS, run.limit or TRAINING_TEXTS)
    texts, labels = run.train.sample(count, run.seed)
    views = Views(run.subject, texts, labels=labels)
    tried = []
    for tau in TAUS:
        explained = run.decode(texts, tau)
        for site in explained[0].sites:
            ranking = rank(views, explained, site)
            both = {"revealing": revealing(views, ranking).auc, "hiding": hiding(views, ranking).auc}
            tried.append({"site": site, "tau": tau, **both})
    best = max(tried, key=lambda one: one["revealing"] - one["hiding"])
    return {"chosen": {"site": best["site"], "tau": best["tau"]}, "texts": count, "tried": tried}


def _decoded(run: SaliencyRun, kind: str) -> Found:
    """Every layer at the chosen tau; the chosen layer is timed alone, the others as one pass for all."""
    tau, site = run.choice["tau"], run.choice["site"]
    everything = run.decode(run.test.texts, tau)
    alone = run.decode(run.test.texts, tau, [site])
    rows = [_measured(run, everything, k, f"{kind}@{k}", everything.seconds) for k in everything[0].sites]
    for row in rows:
        if row["site"] == site:
            row["seconds"] = alone.seconds
    return _with_examples(run, kind, rows, lambda texts: run.decode(texts, tau, [site]))


def _gradcam(run: SaliencyRun, kind: str) -> Found:
    """Grad-CAM at layer 0, the input of the first block."""
    found = run.explain(kind, run.test.texts, sites=[1])
    return {"rows": [_measured(run, found, 1, f"{kind}@1", found.seconds)]}


def _competitor(run: SaliencyRun, kind: str) -> Found:
    texts = run.test.texts
    if kind in COSTLY and run.dataset == "agnews":
        texts = texts[:COSTLY_TEXTS]
    found = run.explain(kind, texts)
    row = _measured(run, found, None, kind, found.seconds)
    return _with_examples(run, kind, [row], lambda texts: run.explain(kind, texts))


def _diffmask(run: SaliencyRun, kind: str) -> Found:
    """The keep probabilities at the deepest site of a lens over the inputs."""
    lens = run.lens("inputs")
    found = run.explain(kind, run.test.texts, lens=lens, sites=lens.sites[-1:])
    measured = _measured(run, found, None, kind, found.seconds)
    about = {"diagnostics": [d._asdict() for d in lens.diagnostics], "lens": asdict(lens.settings)}
    return {"rows": [measured | about]}


def _random(run: SaliencyRun, kind: str) -> Found:
    """The mean over random orders, and the standard deviation of their areas."""
    games = [_games(run.views, ranking) for ranking in random_rankings(run.views, DRAWS, run.seed)]
    row: dict[str, Any] = {"name": kind, "texts": len(run.views), "seconds": 0.0, "draws": DRAWS}
    for name in ("revealing", "hiding"):
        hits = np.mean([game[name].hits for game in games], axis=0)
        row |= _area(name, Game(games[0][name].shares, hits))
        row[f"{name}_spread"] = float(np.std([game[name].auc for game in games], ddof=1))
    return {"rows": [row]}


WORK: dict[str, Callable[[SaliencyRun, str], Found]] = {
    "choice": _choose,
    "decoded_gradcam": _decoded,
    "gradcam": _gradcam,
    "diffmask": _diffmask,
    "random": _random,
}
"""how a part is done, by the last word of its name; the others are competitors"""


def _games(views: Views, ranking: Ranking) -> dict[str, Game]:
    return {"revealing": revealing(views, ranking), "hiding": hiding(views, ranking)}


def _area(name: str, game: Game) -> dict[str, Any]:
    return {
        name: game.auc,
        f"{name}_interval": list(interval(game.areas)),
        f"{name}_curve": game.curve.tolist(),
    }


def _measured(
    run: SaliencyRun, found: Sequence[Attribution], site: int | None, name: str, seconds: float
) -> dict[str, Any]:
    """Games and word overlap of attributions of the first test texts."""
    views = run.views if len(found) == len(run.views) else _first(run, len(found))
    row: dict[str, Any] = {"name": name, "site": site, "texts": len(found), "seconds": seconds}
    row["device"] = device_name(run.device)
    for game, played in _games(views, rank(views, found, site)).items():
        row |= _area(game, played)
    words = class_words(found, run.rarity, site)
    several = len(words.classes) > 1
    row["overlap"] = {str(k): words.overlap(k) if several else None for k in TOP}
    row["top_words"] = words.top(50)
    row["shared_words"] = [[a, b, shared] for (a, b), shared in words.shared(50).items()]
    return row


def _first(run: SaliencyRun, count: int) -> Views:
    some = run.test.first(count)
    return Views(run.subject, some.texts, labels=some.labels)


def _with_examples(
    run: SaliencyRun,
    kind: str,
    rows: Iterable[dict[str, Any]],
    explainer: Callable[[Sequence[str]], Sequence[Attribution]],
) -> dict[str, Any]:
    """The rows of a part, and its highlights of the paper's examples."""
    wanted = kind in EXAMPLE_METHODS[run.dataset] or kind == "decoded_gradcam"
    return {"rows": list(rows), "examples": _examples(run, explainer) if wanted else []}


def _examples(
    run: SaliencyRun, explainer: Callable[[Sequence[str]], Sequence[Attribution]]
) -> list[dict[str, Any]]:
    """The texts of Appendix A.5, with the probability of the prediction."""
    everything = read_test(run.data, run.dataset).texts
    texts = [text for text in everything if " ".join(text.split()).startswith(EXAMPLES[run.dataset])]
    if not texts:
        return []
    probabilities = Views(run.subject, texts).whole().probability
    return [
        {
            "text": found.text,
            "prediction": found.prediction,
            "probability": float(probability),
            "words": highlights(found),
        }
        for found, probability in zip(explainer(texts), probabilities, strict=True)
    ]


def highlights(attribution: Attribution) -> list[tuple[str, int]]:
    """The words of a text, each with its score in ninths of the largest; 0 is none or against the class."""
    words = attribution.words()
    scores = np.where(words.special, 0.0, words.scores[-1]).clip(min=0)
    levels = np.rint(LEVELS * scores / max(scores.max(initial=0.0), 1e-30)).astype(int)
    shown = zip(words.tokens, levels.tolist(), words.special, strict=True)
    return [(printable(word), level) for word, level, special in shown if not special]
