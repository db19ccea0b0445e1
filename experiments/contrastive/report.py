"""The contrastive experiment as results.json and results.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from masklens.records.layers import site_name

from ..parts import Found, Parts
from ..results import commits_of, made_by, table, write_results


def write(out: Path, names: Sequence[str], lenses: Sequence[str], command: str) -> None:
    """Write the results of the finished parts, model by model: `names` of methods on sets, and `lenses`."""
    models, commits = {}, set()
    for folder in sorted(path for path in (out / "parts").iterdir() if path.is_dir()):
        done, fits = Parts(folder, {}).done(names), Parts(folder, {}).done(lenses)
        if done or fits:
            models[folder.name] = gathered(done, fits)
            commits |= set(commits_of([*done.values(), *fits.values()]))
    results = {"command": command, "commits": sorted(commits), "models": models}
    write_results(out, results, page(results))


def gathered(done: Found, fits: Found) -> Found:
    """{set: {"accuracy": ..., "methods": {method: its part}}}, the lenses, and the settings of the parts."""
    sets: dict[str, dict] = {}
    for name, part in done.items():
        group, which = name.split("/")
        one = sets.setdefault(group, {"accuracy": None, "methods": {}})
        kept = {key: value for key, value in part.items() if key != "settings"}
        if which == "accuracy":
            one["accuracy"] = part["accuracy"]
        else:
            one["methods"][which] = kept
    first = next(iter([*done.values(), *fits.values()]))
    settings = {key: value for key, value in first["settings"].items() if key != "commit"}
    return {"settings": settings, "sets": sets, "lenses": fits}


def page(results: Found) -> list[str]:
    """results.md"""
    text = f"""# Explanations of language models where the evidence is known

{made_by(results)}

After each prompt one earlier word, the evidence, decides which of two words is right. The target is the right
word rather than the wrong one. Figures are the mean reciprocal rank of the evidence among the tokens of the
prompt (1 is best), with the 95% interval over prompts; `random` is what random scores get. A prompt whose
only tokens are evidence is left out.
"""
    lines = [text]
    for model, found in results["models"].items():
        said = f"At most {found['settings']['limit']} prompts of each set (`--limit`)."
        lines += [f"## {model}", "", said, ""]
        if found["sets"]:
            lines += [*_best(found["sets"]), *_layers(found["sets"])]
        for name, lens in found["lenses"].items():
            lines += _lens(model, name, lens)
    return lines


def _lens(model: str, name: str, lens: Found) -> list[str]:
    """What a lens drops at each site, what it would cost to drop others, and how much of the evidence it
    keeps where that is known."""
    margin, what = lens["lens"]["margin"], name.split("/")[1]
    time = f"{lens['seconds']:.0f} seconds ({lens['settings']['device']})"
    title = f"a lens over {what}" if "evidence_kept" in lens else f"a lens over inputs, {what}"
    example = " ".join(lens["example"].split())
    said = (
        f"Fitted with the defaults on {lens['texts']:,} other prompts and measured, in {time}. The margin is "
        f'{margin} nats. Measured on {lens["measured"]} prompts such as "{example}". "At random" is the '
        f"divergence if as many tokens of each prompt are dropped, drawn at random."
    )
    heads = ["layer", "dropped", "divergence", "at random", "same next token"]
    rows = [
        [
            site_name(one["site"]),
            f"{1 - one['kept']:.2f}",
            f"{one['divergence']:.3f}",
            f"{random:.3f}",
            f"{one['agreement']:.0%}",
        ]
        for one, random in zip(lens["diagnostics"], lens["random"], strict=True)
    ]
    if "evidence_kept" in lens:
        said += (
            f' From "evidence kept" on, the figures are for the {lens["prompts"]} prompts that have evidence '
            f"and another token. The interval is that of the difference between the two shares before it."
        )
        heads += ["evidence kept", "other tokens kept", "interval", "reciprocal rank"]
        rows = [[*row, *_evidence(lens, i)] for i, row in enumerate(rows)]
    return [f"### {model}: {title}", "", said, "", *table(heads, rows)]


def _evidence(lens: Found, place: int) -> list[str]:
    return [
        f"{lens['evidence_kept'][place]:.2f}",
        f"{lens['other_kept'][place]:.2f}",
        "{:+.2f} to {:+.2f}".format(*lens["difference_interval"][place]),
        f"{lens['mrr'][place]:.2f}",
    ]


def _methods(sets: Found) -> list[str]:
    return list(dict.fromkeys(method for one in sets.values() for method in one["methods"]))


def _best(sets: Found) -> list[str]:
    """For each method and set, the figure at the layer that is best on the other sets."""
    right = ["-" if one["accuracy"] is None else f"{one['accuracy']:.0%}" for one in sets.values()]
    rows = [["the model is right", *right]]
    rows += [[f"`{method}`", *(_cell(sets, name, method) for name in sets)] for method in _methods(sets)]
    note = (
        "Each method at the layer with the best mean on the other sets; `random` as the mean of all layers:"
    )
    return [note, "", *table(["method", *(name.replace("_", " ") for name in sets)], rows)]


def _cell(sets: Found, name: str, method: str) -> str:
    if method not in sets[name]["methods"]:
        return "-"
    found, at = sets[name]["methods"][method], best_elsewhere(sets, name, method)
    if method == "random":
        return f"{np.mean(found['mrr']):.2f}"
    low, high = found["mrr_interval"][at]
    return f"{found['mrr'][at]:.2f} [{low:.2f}, {high:.2f}], {site_name(found['sites'][at])}"


def best_elsewhere(sets: Found, name: str, method: str) -> int:
    """The place of the site with the best mean over all other sets that have the method."""
    others = {key: one for key, one in sets.items() if key != name and method in one["methods"]}
    return int(np.argmax(by_layer(others, method)[1])) if others else 0


def by_layer(sets: Found, method: str, measure: str = "mrr") -> tuple[list[int], np.ndarray]:
    """The sites of a method and its mean over the sets at each."""
    parts = [one["methods"][method] for one in sets.values() if method in one["methods"]]
    return parts[0]["sites"], np.mean([part[measure] for part in parts], 0)


def _layers(sets: Found) -> list[str]:
    """Mean over the sets at every layer: reciprocal rank and dot product."""
    methods = _methods(sets)
    found: dict[str, dict[int, str]] = {}
    for method in methods:
        sites, ranks = by_layer(sets, method)
        shares = by_layer(sets, method, "dot")[1]
        cells = (f"{rank:.2f} ({share:.2f})" for rank, share in zip(ranks, shares, strict=True))
        found[method] = dict(zip(sites, cells, strict=True))
    every = sorted({site for some in found.values() for site in some})
    rows = [[site_name(site), *(found[method].get(site, "") for method in methods)] for site in every]
    note = "Mean over the sets at each layer, and the dot product in brackets:"
    return [note, "", *table(["layer", *(f"`{method}`" for method in methods)], rows)]
