"""`masklens evaluate`: how faithful explanations are to the model, in one table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import masklens

from ..progress import stage
from . import options
from .choose import choose as choose_method
from .console import print_json, show, tell, working
from .inputs import (
    check_methods,
    choose_ways,
    explain_all,
    gather,
    load_lenses,
    load_subject,
    read_target,
)

of_measure = partial(options.option, "Measure")
METRIC = "A metric, such as hiding, revealing or log_odds; repeat for several."
NORMALISED = "Scale area scores from 0 to 1 between each text's best and worst order."
CHOOSE = "Find the method and layer to use for these texts, and print the command."
ATTRIBUTIONS = "A file that explain wrote, a file with text, tokens and scores, or a corpus run."


def evaluate(
    ctx: typer.Context,
    texts: options.Texts = None,
    input: options.Input = None,
    column: options.Column = None,
    pair: options.Pair = False,
    label_column: options.LabelColumn = None,
    attributions: Annotated[
        list[str] | None, options.of_texts("--attributions", "FILE|FOLDER", ATTRIBUTIONS)
    ] = None,
    limit: options.Limit = None,
    model: options.Model = None,
    device: options.Device = None,
    truncate: options.Truncate = False,
    max_length: options.MaxLength = None,
    trust_remote_code: options.TrustRemoteCode = False,
    method: options.Method = None,
    option: options.MethodOption = None,
    lens: options.Lenses = None,
    lm_head: options.Head = None,
    target: options.Target = None,
    windows: options.Windows = None,
    metric: Annotated[
        list[str] | None, of_measure("--metric", "NAME", METRIC, show_default="seven of them")
    ] = None,
    draws: Annotated[int, of_measure("--draws", "N", "Random orders to compare with.", min=0)] = 20,
    normalised: Annotated[bool, of_measure("--normalised", options.FLAG, NORMALISED)] = False,
    choose: Annotated[bool, of_measure("--choose", options.FLAG, CHOOSE)] = False,
    out: Annotated[Path | None, options.of_output("--out", "FILE", "Write the table to a json file.")] = None,
    as_json: options.Json = False,
    seed: options.Seed = 0,
) -> None:
    """Measure how faithful explanations are, with random ones for comparison, in one table.

    [bold]Examples[/bold]

      masklens evaluate --input reviews.csv --method gradcam --method occlusion
      masklens evaluate --model FOLDER --input reviews.csv --choose
      masklens evaluate --attributions theirs.json --metric hiding --draws 5
    """
    if choose:
        choose_method(ctx)
        return
    with working():
        from ..corpus.evaluate import evaluate_corpora
        from ..corpus.shards import corpus_runs
        from ..evaluation.evaluate import check_metrics
        from ..evaluation.imported import read_attributions
        from ..files import check_writable

        if out:
            check_writable(out)
        check_metrics(metric)
        check_methods(method)
        wanted = gather(texts, input, column, limit, pair) if texts or input else []
        gold = read_gold(input, label_column, limit)
        runs = corpus_runs(attributions or [], alone=not (texts or input))
        sets: dict[str, Any] = (
            {} if runs else {Path(path).stem: read_attributions(path) for path in attributions or []}
        )
        subject = load_subject(model, device, truncate, max_length, trust_remote_code)
        if gold is not None:
            subject.task.check_labels(gold, len(wanted) if wanted else len(gold))
        if wanted:
            lenses = load_lenses(model, subject, lens, method)
            ways = choose_ways(subject, method, lenses, lm_head, option)
            sets |= explain_all(subject, wanted, ways, target, seed, windows)
        how: dict[str, Any] = {"random_draws": draws, "seed": seed, "normalised": normalised}
        with stage("measuring"):
            if runs:
                table = evaluate_corpora(subject, runs, metric, limit=limit, **how)
            else:
                table = masklens.evaluate(subject, sets, gold, metric, **how)
        if out:
            table.to_json(out)
            tell(f"wrote {out}")
    if as_json:
        print_json(table.to_dict())
    else:
        show(table)


def read_gold(pattern: str | None, column: str | None, limit: int | None) -> list[Any] | None:
    """The gold labels of the texts in files: ids, names, or lists of answers."""
    if not pattern or not column:
        return None
    from ..files.reading import read_labels

    return [read_target(label) for label in read_labels(pattern, column, limit)]
