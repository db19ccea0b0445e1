"""Decoded Grad-CAM (Hou and Castanon 2023) on SST-2 and AG News: Tables 1 and 2, Figures 2 to 9, Appendix A.

    run(model_dir, data, out)                  # out/results.json, results.md, figures, highlighted texts

The work is done in parts, one a data set and method, each kept in out/parts as soon as it is there: a run
that was stopped goes on where it was, and several processes may share a folder (`parts=`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..attribution import Attribution
from ..errors import FileError, MethodError
from ..evaluation.faithfulness import Game, hiding, revealing
from ..evaluation.ranking import Ranking, random_rankings, rank
from ..evaluation.specificity import Rarity, class_words, document_rarity
from ..evaluation.table import interval
from ..evaluation.views import Views
from ..explaining import explain
from ..files import whole
from ..subject import Subject
from . import saliency_report
from .highlights import page, snippet
from .labelled import Labelled, read_test, read_train
from .running import commit, fast_products

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
PARTS = ("choice", "decoded_gradcam", "gradcam", *COMPETITORS, "diffmask", "random")
COSTLY = ("thermostat_shapley",)
"""more than 100 forward passes a text"""
COSTLY_TEXTS = 1000
TRAINING_TEXTS = 2000
"""on which layer and tau are chosen"""
LENS_TEXTS = 20_000
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


def run(
    model_dir: str | Path,
    data: str | Path,
    out: str | Path,
    model: str | None = None,
    device: str | None = None,
    limit: int | None = None,
    lens: Path | None = None,
    parts: Sequence[str] | None = None,
    jobs: int = 1,
    seed: int = 0,
    tell: Callable[[str], None] = print,
) -> None:
    """Do what is missing and write the results.

    Args:
        model_dir: holds FAMILY-sst2, FAMILY-agnews and FAMILY-mlm.
        model: "mpnet" or "minilm"; by default mpnet on a GPU and minilm otherwise, if it is there.
        limit: use at most so many texts of each set (and as many training texts).
        lens: a folder with lenses for the DiffMask row, sst2 and agnews; fitted where it is not given.
        parts: do only these, such as "sst2/gradcam"; the results are written from all parts that are there.
        jobs: processes side by side, which keeps a GPU busy where a method goes text by text.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    family = model or _family(Path(model_dir), device)
    studies = [
        Study(Path(model_dir), Path(data), Path(out), family, name, device, limit, lens, seed)
        for name in DATASETS
    ]
    chains = _chains(studies, parts)
    if jobs == 1:
        for chain in chains:
            _do_all(*chain, tell)
    else:
        _side_by_side(chains, jobs)
    command = _command(family, limit, seed)
    saliency_report.write(Path(out), family, {s.dataset: s.done() for s in studies}, command)


Chain = tuple["Study", tuple[str, ...]]
"""parts of a study that have to be done one after the other"""


def _chains(studies: Sequence[Study], parts: Sequence[str] | None) -> list[Chain]:
    """What is to be done, the costly data set first."""
    known = [f"{dataset}/{part}" for dataset in DATASETS for part in PARTS]
    unknown = [part for part in parts or () if part not in known]
    if unknown:
        raise MethodError(f"no part {unknown[0]!r}; there are {', '.join(known)}")
    chains = []
    for study in reversed(studies):
        for some in (PARTS[:2], *([part] for part in PARTS[2:])):
            wanted = tuple(p for p in some if parts is None or f"{study.dataset}/{p}" in parts)
            chains.append((study, wanted))
    return [chain for chain in chains if chain[1]]


def _side_by_side(chains: Sequence[Chain], jobs: int) -> None:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_do_all, *chain) for chain in chains]):
            done.result()


def _do_all(study: Study, parts: Sequence[str], tell: Callable[[str], None] = print) -> None:
    with fast_products(study.device):
        for part in parts:
            _do(study, part, tell)


def _family(model_dir: Path, device: str) -> str:
    there = [name for name in FAMILIES if (model_dir / f"{name}-sst2").exists()]
    if not there:
        raise FileError(f"{model_dir} has neither {' nor '.join(f'{name}-sst2' for name in FAMILIES)}")
    return there[-1] if device == "cpu" else there[0]


def _command(family: str, limit: int | None, seed: int) -> str:
    folders = "--model-dir DIR --data DIR --out DIR"
    more = "" if limit is None else f" --limit {limit}"
    return f"masklens reproduce saliency {folders} --model {family} --seed {seed}{more}"


def _do(study: Study, part: str, tell: Callable[[str], None]) -> None:
    """Do a part unless it is there; one that cannot be done here is told of and left out."""
    path = study.path(part)
    if path.exists():
        return
    start = time.perf_counter()
    try:
        found = DO.get(part, _competitor)(study, part)
    except MethodError as error:
        tell(f"{study.dataset}/{part}: left out ({error})")
        return
    with whole(path) as temporary:
        temporary.write_text(json.dumps({**found, "commit": commit()}), encoding="utf-8")
    tell(f"{study.dataset}/{part}: {time.perf_counter() - start:.1f} s")


@dataclass
class Study:
    """One data set, its model and what was done so far."""

    model_dir: Path
    data: Path
    out: Path
    family: str
    dataset: str
    device: str
    limit: int | None
    lens: Path | None
    seed: int

    @property
    def folder(self) -> Path:
        """Where this study's parts are; those of another seed or limit are others."""
        limit = "" if self.limit is None else f"-first{self.limit}"
        return self.out / "parts" / f"{self.family}-{self.dataset}-seed{self.seed}{limit}"

    def path(self, part: str) -> Path:
        return self.folder / f"{part}.json"

    def read(self, part: str) -> Any:
        if not self.path(part).exists():
            raise MethodError(f"{self.dataset}/{part} has to be done first")
        return json.loads(self.path(part).read_text(encoding="utf-8"))

    def done(self) -> dict[str, Any]:
        """The parts that are there."""
        return {part: self.read(part) for part in PARTS if self.path(part).exists()}

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name() if self.device.startswith("cuda") else self.device

    @cached_property
    def subject(self) -> Subject:
        return Subject.from_pretrained(
            self.model_dir / f"{self.family}-{self.dataset}", device=self.device, truncate=True
        )

    @cached_property
    def lm_head(self) -> Any:
        from transformers import AutoModelForMaskedLM

        return (
            AutoModelForMaskedLM.from_pretrained(self.model_dir / f"{self.family}-mlm").to(self.device).eval()
        )

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
        return self.read("choice")["chosen"]

    def explain(self, method: str, texts: Sequence[str], **options: Any) -> Any:
        size = 32 if self.device == "cpu" else 256
        return explain(self.subject, texts, method, batch_size=size, seed=self.seed, **options)

    def decode(self, texts: Sequence[str], tau: int | None, sites: Sequence[int] | None = None) -> Any:
        return self.explain("decoded_gradcam", texts, lm_head=self.lm_head, tau=tau, sites=sites)


def _choose(study: Study, part: str) -> dict[str, Any]:
    """The layer and tau with the largest revealing minus hiding area on training texts."""
    count = min(TRAINING_TEXTS, study.limit or TRAINING_TEXTS)
    texts, labels = study.train.sample(count, study.seed)
    views = Views(study.subject, texts, labels=labels)
    tried = []
    for tau in TAUS:
        explained = study.decode(texts, tau)
        for site in explained[0].sites:
            ranking = rank(views, explained, site)
            both = {"revealing": revealing(views, ranking).auc, "hiding": hiding(views, ranking).auc}
            tried.append({"site": site, "tau": tau, **both})
    best = max(tried, key=lambda one: one["revealing"] - one["hiding"])
    return {"chosen": {"site": best["site"], "tau": best["tau"]}, "texts": count, "tried": tried}


def _decoded(study: Study, part: str) -> dict[str, Any]:
    """Every layer at the chosen tau; the chosen layer is timed alone, the others as one pass for all."""
    tau, site = study.choice["tau"], study.choice["site"]
    everything = study.decode(study.test.texts, tau)
    alone = study.decode(study.test.texts, tau, [site])
    rows = [_measured(study, everything, k, f"{part}@{k}", everything.seconds) for k in everything[0].sites]
    for row in rows:
        if row["site"] == site:
            row["seconds"] = alone.seconds
    _write_page(study, alone)
    return _part(study, part, rows, lambda texts: study.decode(texts, tau, [site]))


def _gradcam(study: Study, part: str) -> dict[str, Any]:
    """Grad-CAM at layer 0, the input of the first block."""
    found = study.explain(part, study.test.texts, sites=[1])
    return {"rows": [_measured(study, found, 1, f"{part}@1", found.seconds)]}


def _competitor(study: Study, part: str) -> dict[str, Any]:
    texts = study.test.texts
    if part in COSTLY and study.dataset == "agnews":
        texts = texts[:COSTLY_TEXTS]
    found = study.explain(part, texts)
    row = _measured(study, found, None, part, found.seconds)
    return _part(study, part, [row], lambda texts: study.explain(part, texts))


def _diffmask(study: Study, part: str) -> dict[str, Any]:
    """The keep probabilities at the deepest site of a lens over the inputs."""
    lens = _lens(study)
    found = study.explain(part, study.test.texts, lens=lens, sites=lens.sites[-1:])
    measured = _measured(study, found, None, part, found.seconds)
    about = {"diagnostics": [d._asdict() for d in lens.diagnostics], "lens": asdict(lens.settings)}
    return {"rows": [measured | about]}


def _lens(study: Study) -> Any:
    from ..diffmask.lens import DiffMask

    folder = study.lens / study.dataset if study.lens else study.folder / "lens"
    if study.lens or (folder / "lens.json").exists():
        return DiffMask.from_pretrained(folder, study.subject)
    texts = study.train.sample(min(LENS_TEXTS, 4 * (study.limit or LENS_TEXTS)), study.seed).texts
    settings: dict[str, Any] = {} if study.limit is None else {"steps": study.limit}
    lens = DiffMask.fit(study.subject, texts, over="inputs", seed=study.seed, **settings)
    lens.save_pretrained(folder)
    return lens


def _random(study: Study, part: str) -> dict[str, Any]:
    """The mean over random orders, and the standard deviation of their areas."""
    games = [_games(study.views, ranking) for ranking in random_rankings(study.views, DRAWS, study.seed)]
    row: dict[str, Any] = {"name": part, "texts": len(study.views), "seconds": 0.0, "draws": DRAWS}
    for name in ("revealing", "hiding"):
        hits = np.mean([game[name].hits for game in games], axis=0)
        row |= _area(name, Game(games[0][name].shares, hits))
        row[f"{name}_spread"] = float(np.std([game[name].auc for game in games], ddof=1))
    return {"rows": [row]}


DO: dict[str, Callable[[Study, str], dict[str, Any]]] = {
    "choice": _choose,
    "decoded_gradcam": _decoded,
    "gradcam": _gradcam,
    "diffmask": _diffmask,
    "random": _random,
}
"""what is done for a part; the others are competitors"""


def _games(views: Views, ranking: Ranking) -> dict[str, Game]:
    return {"revealing": revealing(views, ranking), "hiding": hiding(views, ranking)}


def _area(name: str, game: Game) -> dict[str, Any]:
    return {
        name: game.auc,
        f"{name}_interval": list(interval(game.areas)),
        f"{name}_curve": game.curve.tolist(),
    }


def _measured(
    study: Study, found: Sequence[Attribution], site: int | None, name: str, seconds: float
) -> dict[str, Any]:
    """Games and word overlap of attributions of the first test texts."""
    views = study.views if len(found) == len(study.views) else _first(study, len(found))
    row: dict[str, Any] = {"name": name, "site": site, "texts": len(found), "seconds": seconds}
    row["device"] = study.device_name
    for game, played in _games(views, rank(views, found, site)).items():
        row |= _area(game, played)
    words = class_words(found, study.rarity, site)
    several = len(words.classes) > 1
    row["overlap"] = {str(k): words.overlap(k) if several else None for k in TOP}
    row["top_words"] = words.top(50)
    row["shared_words"] = [[a, b, shared] for (a, b), shared in words.shared(50).items()]
    return row


def _first(study: Study, count: int) -> Views:
    some = study.test.first(count)
    return Views(study.subject, some.texts, labels=some.labels)


def _part(
    study: Study,
    part: str,
    rows: Iterable[dict[str, Any]],
    explainer: Callable[[Sequence[str]], Sequence[Attribution]],
) -> dict[str, Any]:
    """A part's rows, and its highlights of the paper's examples."""
    wanted = part in EXAMPLE_METHODS[study.dataset] or part == "decoded_gradcam"
    return {"rows": list(rows), "examples": _examples(study, explainer) if wanted else []}


def _examples(
    study: Study, explainer: Callable[[Sequence[str]], Sequence[Attribution]]
) -> list[dict[str, Any]]:
    """The texts of Appendix A.5, with the probability of the prediction."""
    everything = read_test(study.data, study.dataset).texts
    texts = [text for text in everything if " ".join(text.split()).startswith(EXAMPLES[study.dataset])]
    if not texts:
        return []
    probabilities = Views(study.subject, texts).whole().probability
    return [
        {
            "text": found.text,
            "prediction": found.prediction,
            "probability": float(probability),
            "html": snippet(found),
        }
        for found, probability in zip(explainer(texts), probabilities, strict=True)
    ]


def _write_page(study: Study, found: Sequence[Attribution]) -> None:
    """Every text highlighted, with its prediction and probability."""
    probabilities = study.views.whole().probability
    title = f"{study.dataset}: Decoded Grad-CAM at site {found[0].sites[-1]}, {study.family}"
    with whole(study.out / f"{study.family}-{study.dataset}-highlights.html") as path:
        path.write_text(page(title, zip(found, probabilities, strict=True)), encoding="utf-8")
