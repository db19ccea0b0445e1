"""`masklens explain`: heat maps in the terminal, or a file, with their verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ..errors import MethodError
from ..progress import numbered, stage, step
from ..records.layers import site_number
from . import options
from .console import draw, print_json, tell, working
from .generate import (
    answer_all,
    gather_prompts,
    generation_options,
    keep_answers,
    prove_answers,
    read_units,
    show_answers,
)
from .inputs import (
    check_methods,
    check_unused,
    choose_ways,
    explain_all,
    gather,
    load_lenses,
    load_subject,
    read_options,
)

if TYPE_CHECKING:
    from ..attribution import Attribution
    from ..methods.ways import Way
    from ..model.subject import Subject

T = TypeVar("T")


def explain(
    texts: options.Texts = None,
    input: options.Input = None,
    column: options.Column = None,
    pair: options.Pair = False,
    limit: options.Limit = None,
    generate: options.Generate = False,
    chat: options.Chat = None,
    model: options.Model = None,
    device: options.Device = None,
    truncate: options.Truncate = False,
    max_length: options.MaxLength = None,
    trust_remote_code: options.TrustRemoteCode = False,
    method: options.Method = None,
    option: options.MethodOption = None,
    lens: options.Lenses = None,
    lm_head: options.Head = None,
    layer: options.Layers = None,
    target: options.Target = None,
    rather_than: options.RatherThan = None,
    windows: options.Windows = None,
    units: options.Units = "tokens",
    max_new_tokens: options.NewTokens = None,
    continuation: options.Continuation = None,
    generation_option: options.GenerationOptions = None,
    template_option: options.TemplateOptions = None,
    verify: options.Verify = True,
    guard: options.Guard = None,
    out: Annotated[
        Path | None, options.of_output("--out", "FILE", "Write a json, parquet, png, svg or html file.")
    ] = None,
    as_json: options.Json = False,
    seed: options.Seed = 0,
) -> None:
    """Show which tokens a prediction rests on, layer by layer.

    [bold]Examples[/bold]

      masklens explain "a fast, funny movie"
      masklens explain --model FOLDER --method gradcam --input reviews.csv
      masklens explain --model FOLDER --chat messages.json --units sentences
    """
    with working():
        from ..attribution import record
        from ..reports.export import check_output, write
        from ..reports.layers import read_layers

        if out:
            check_output(out)
        if not verify:
            check_unused({"--guard": guard}, "--verify")
        if not chat:
            check_unused({"--template-option": template_option}, "--chat")
        check_methods(method)
        sites = [site_number(name) for name in layer] if layer else None
        if generate or chat:
            unused: dict[str, Any] = {"--pair": pair, "--lens": lens, "--lm-head": lm_head}
            unused |= {"--windows": windows, "--guard": guard, "--truncate": truncate}
            check_unused(unused, "texts to explain without --generate or --chat")
            own = {"--max-new-tokens": max_new_tokens, "--generation-option": generation_option}
            if continuation:
                check_unused(own, "an answer without --continuation")
            if target is None:
                check_unused({"--rather-than": rather_than}, "--target")
            generated = generation_options(generation_option)
            filled = read_options(template_option, "--template-option")
            parts = read_units(units, turns=chat is not None)
            prompts = gather_prompts(chat, texts, input, column, limit)
            if not isinstance(parts, str) and len(prompts) > 1:
                raise MethodError(f"the spans of {units} are for one prompt; there are {len(prompts)}")
        else:
            mine: dict[str, Any] = {"--units": units != "tokens", "--continuation": continuation}
            mine |= {"--rather-than": rather_than, "--generation-option": generation_option}
            check_unused(mine | {"--max-new-tokens": max_new_tokens}, "--generate or --chat")
            wanted = gather(texts, input, column, limit, pair)
        subject = load_subject(model, device, truncate, max_length, trust_remote_code)
        if generate or chat:
            wished = target if rather_than is None else (target, rather_than)
            asked: dict[str, Any] = {"units": parts, "target": wished, "seed": seed, **generated}
            asked |= {"continuation": continuation, "template_options": filled}
            if max_new_tokens:
                asked["max_new_tokens"] = max_new_tokens
            made = answer_all(subject, prompts, method, option, sites, **asked)
            made = prove_answers(subject, made) if verify else made
            if out:
                keep_answers(made, out)
        else:
            lenses = load_lenses(model, subject, lens, method)
            ways = choose_ways(subject, method, lenses, lm_head, option)
            found: Mapping[str, Sequence[Attribution]]
            found = explain_all(subject, wanted, ways, target, seed, windows, sites)
            lines: list[str] = []
            proved: Mapping[str, Sequence[Attribution]] = {}
            if verify:
                proved, lines = prove(subject, found, ways, guard)
            attributions = text_by_text(list((proved if verify else found).values()))
            if out:
                with stage(f"writing {out}"):
                    write(attributions, out, subject, lenses, guard, verify)
                tell(f"wrote {out}")
            layers = None if as_json else read_layers(subject, attributions)
    if generate or chat:
        show_answers(made, as_json)
    elif as_json:
        print_json([record(attribution) for attribution in attributions])
    else:
        draw(attributions, layers)
        for line in lines:
            typer.echo(line)


def prove(
    subject: Subject,
    found: Mapping[str, Sequence[Attribution]],
    ways: Mapping[str, Way],
    guard: float | None,
) -> tuple[dict[str, list[Attribution]], list[str]]:
    """Every attribution with its verification at the deepest layer that ranks words, and a line about each
    method.

    A lens brings its own baseline.
    """
    from ..evaluation.ranking import ranking_site
    from ..evaluation.verify import Question, Verifier
    from ..records.layers import site_name
    from ..records.verification import control_line

    question, lines, proved = Question(guard=guard), [], {}
    with stage("verifying"):
        verifier = Verifier(subject, [a.text for a in next(iter(found.values()))])
        random = verifier.random(question) if any(not way.lenses for way in ways.values()) else []
        for number, (name, some) in numbered(found.items(), "method"):
            lenses, site = ways[name].lenses, ranking_site(some)
            with step(number), step(f"verifying {name}"):
                (proofs,) = verifier.at_sites(some, [site], (*lenses, "mask")[0], question)
            proved[name] = [replace(a, verification=p) for a, p in zip(some, proofs, strict=True)]
            lines.append(f"{name}, {site_name(site)}, {control_line(proofs, [] if lenses else random)}")
    return proved, lines if len(verifier.texts) > 1 else []


def text_by_text(found: Sequence[Sequence[T]]) -> list[T]:
    """The results of several methods, ordered by text: all of the first text, then all of the second, ..."""
    return [one for of_one_text in zip(*found, strict=True) for one in of_one_text]
