"""The command line: thin commands over the public functions.

Results go to standard output, everything else to standard error. torch and its company are imported inside
the commands, so that help stays quick.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperGroup

import masklens

from .errors import MasklensError, MethodError, TextError

if TYPE_CHECKING:
    from rich.table import Table

    from .attribution import Attribution, Text
    from .diffmask.lens import DiffMask
    from .evaluation.verifying import Verification
    from .subject import Subject

DEFAULT_METHOD = "integrated_gradients"
T = TypeVar("T")


class Commands(TyperGroup):
    """Reports a user's mistake in one line, with exit code 2 and no traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MasklensError as error:
            tell(f"masklens: {' '.join(str(error).split())}")
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Show how a decision emerges across the layers of a neural text model.",
)

ModelOption = Annotated[str, typer.Option("--model", help="The model: a folder or a hub id.")]


def complete_method(incomplete: str) -> list[str]:
    """The methods whose names begin as given, for the shell."""
    from .completion import method_names

    return [name for name in method_names() if name.startswith(incomplete)]


MethodOption = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        show_default=DEFAULT_METHOD,
        help="A method; repeat for several.",
        autocompletion=complete_method,
    ),
]
InputOption = Annotated[
    str | None,
    typer.Option("--input", help="A file of texts, or a pattern: txt (one a line), csv, jsonl, parquet."),
]
DataOption = Annotated[str, typer.Option("--data", "--input", help="The texts to fit on, as for explain.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option("--column", show_default="text", help="The column of the texts; two for pairs."),
]
MaybeModelOption = Annotated[
    str | None,
    typer.Option("--model", show_default="the packaged one", help="The model: a folder or a hub id."),
]
LensesOption = Annotated[list[Path] | None, typer.Option("--lens", help="A fitted lens; repeat for several.")]
LensOption = Annotated[Path | None, typer.Option("--lens", help="A fitted lens, for diffmask.")]
HeadOption = Annotated[
    str | None, typer.Option("--lm-head", help="A model with the LM head, for decoded_gradcam.")
]
TargetOption = Annotated[
    str | None, typer.Option("--target", show_default="the prediction", help="A class id or label name.")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Such as cpu, cuda or cuda:1.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Same seed, same result.")]
LimitOption = Annotated[int | None, typer.Option("--limit", min=1, help="Use at most so many texts.")]
PairOption = Annotated[
    bool, typer.Option("--pair", help="Take the texts two by two: a question and its context, say.")
]
WindowsOption = Annotated[
    int | None,
    typer.Option(
        "--windows", min=0, help="Find answers in long contexts: by how many tokens windows overlap."
    ),
]
GuardOption = Annotated[
    float | None,
    typer.Option(
        "--guard",
        min=0,
        help="Keep more of a text until it keeps its prediction and moves by at most so many nats.",
    ),
]
TruncateOption = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")]
LengthOption = Annotated[
    int | None,
    typer.Option(
        "--max-length", min=1, show_default="the model's", help="Tokens the model is given at most."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print machine-readable output alone.")]


def main() -> None:
    """Run the command line."""
    app()


def tell(message: str) -> None:
    """Say something to the user without mixing it with the results."""
    from .viz.labels import printable

    typer.echo(printable(message), err=True)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"masklens {masklens.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """List the methods: what each computes, costs and needs."""
    with redirect_stdout(sys.stderr):
        from .methods import METHODS, load_all

        load_all()
    fields = ("name", "summary", "cost", "needs", "paper")
    show([{name: getattr(method, name) for name in fields} for _, method in sorted(METHODS.items())], as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder for the report.")] = Path("out/demo"),
    device: DeviceOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Explain a few reviews with the packaged model and write a report to open."""
    with redirect_stdout(sys.stderr):
        from .demo import run

        made, shown, summary = run(out, device, seed)
    if as_json:
        print_json({"report": str(made), "summary": summary})
        return
    draw([shown])
    typer.echo(f"{summary}\n\nOpen {made} in a browser.")


@app.command()
def explain(
    texts: Annotated[list[str] | None, typer.Argument(help="The texts to explain.")] = None,
    model: MaybeModelOption = None,
    input: InputOption = None,
    column: ColumnOption = None,
    pair: PairOption = False,
    method: MethodOption = None,
    lens: LensOption = None,
    lm_head: HeadOption = None,
    target: TargetOption = None,
    windows: WindowsOption = None,
    truncate: TruncateOption = False,
    max_length: LengthOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a json, parquet, png, svg or html file.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Remove what is called unneeded and run again.")
    ] = True,
    guard: GuardOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which tokens a prediction rests on, at every site of the model."""
    with redirect_stdout(sys.stderr):
        from .attribution import record
        from .export import check_ending, write
        from .methods import find

        if out:
            check_ending(out)
        if not verify:
            check_unused({"--guard": guard}, "--verify")
        wanted = gather(texts or [], input, column, limit, pair)
        names = [find(name).name for name in method or ["diffmask" if lens or not model else DEFAULT_METHOD]]
        subject = load_subject(model, device, truncate, max_length)
        options = method_options(names, subject, lens, lm_head)
        if not model and not lens and "diffmask" in names:
            options["diffmask"]["lens"] = packaged_lens(subject, "inputs")
        common: dict[str, Any] = {
            "target": read_target(target),
            "seed": seed,
            "windows": windows,
            "show_progress": sys.stderr.isatty(),
        }
        found = [masklens.explain(subject, wanted, name, **common, **options[name]) for name in names]
        attributions = text_by_text(found)
        if out:
            lenses = [chosen["lens"] for chosen in options.values() if "lens" in chosen]
            write(attributions, out, subject if verify else None, lenses, guard)
            tell(f"wrote {out}")
        proofs = None
        if verify:
            proofs = text_by_text([proofs_of(subject, one, options, guard) for one in found])
    if as_json:
        rows = [record(attribution) for attribution in attributions]
        print_json(
            [row | {"verification": asdict(p)} for row, p in zip(rows, proofs, strict=True)]
            if proofs
            else rows
        )
    else:
        draw(attributions, proofs)


@app.command()
def fit(
    model: ModelOption,
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", help="The folder that will hold the lens.")],
    over: Annotated[
        Literal["inputs", "states"], typer.Option("--over", help="What the masks are over.")
    ] = "inputs",
    margin: Annotated[float, typer.Option("--margin", help="The divergence the masks may cause.")] = 0.1,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of training.")] = None,
    column: ColumnOption = None,
    truncate: TruncateOption = False,
    max_length: LengthOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a DiffMask lens on a set of texts and report how it does on held-out ones.

    On several GPUs: torchrun --nproc-per-node N -m masklens fit ...
    """
    with redirect_stdout(sys.stderr):
        from .processes import is_main, own_device

        texts = gather([], data, column, limit)
        subject = load_subject(model, own_device(device), truncate, max_length)
        settings: dict[str, Any] = {} if steps is None else {"steps": steps}
        if is_main():
            tell(f"fitting masks over {over} on {len(texts):,} texts")
            settings |= {"report": tell, "show_progress": True}
        lens = masklens.DiffMask.fit(subject, texts, over, margin, seed, folder=out / "training", **settings)
        if is_main():
            lens.save_pretrained(out)
            shutil.rmtree(out / "training", ignore_errors=True)  # kept only to go on from
            for event in lens.events:
                tell(event)
            tell(f"wrote {out}")
    if is_main():
        show(diagnostics(lens), as_json)


@app.command()
def evaluate(
    model: ModelOption,
    texts: Annotated[list[str] | None, typer.Argument(help="The texts to explain and evaluate.")] = None,
    input: InputOption = None,
    column: ColumnOption = None,
    pair: PairOption = False,
    label_column: Annotated[
        str | None, typer.Option("--label-column", help="The column of the gold labels.")
    ] = None,
    method: MethodOption = None,
    attributions: Annotated[
        list[str] | None,
        typer.Option(
            "--attributions",
            help="Attributions from a file: as explain writes them, or text, tokens, scores; or the folder "
            "of a corpus run.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="A metric; repeat for several.")
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=0, help="Random orders to compare with.")] = 20,
    lens: LensOption = None,
    lm_head: HeadOption = None,
    target: TargetOption = None,
    windows: WindowsOption = None,
    truncate: TruncateOption = False,
    max_length: LengthOption = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the table to a json file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how true explanations are to the model, beside random ones, in one table."""
    with redirect_stdout(sys.stderr):
        from .corpus.shards import corpus_runs
        from .evaluation.imported import read_attributions
        from .evaluation.streaming import evaluate_corpora
        from .texts import read_labels

        subject = load_subject(model, device, truncate, max_length)
        runs = corpus_runs(attributions or [], alone=not (texts or input))
        sets: dict[str, Any] = (
            {} if runs else {Path(path).stem: read_attributions(path) for path in attributions or []}
        )
        labels = read_labels(input, label_column, limit) if input and label_column else None
        if texts or input:
            names = method or ["diffmask" if lens else DEFAULT_METHOD]
            wanted, options = (
                gather(texts or [], input, column, limit, pair),
                method_options(names, subject, lens, lm_head),
            )
            for name in names:
                tell(f"explaining {len(wanted)} texts with {name}")
                common: dict[str, Any] = {"target": read_target(target), "seed": seed, "windows": windows}
                sets[name] = masklens.explain(subject, wanted, name, **common, **options[name])
        gold = None if labels is None else [read_target(label) for label in labels]
        table = (
            evaluate_corpora(subject, runs, metric, random_draws=draws, seed=seed, limit=limit)
            if runs
            else masklens.evaluate(subject, sets, gold, metric, random_draws=draws, seed=seed)
        )
        if out:
            table.to_json(out)
            tell(f"wrote {out}")
    if as_json:
        print_json(table.to_dict())
    else:
        typer.echo(str(table))


@app.command()
def corpus(
    model: ModelOption,
    input: Annotated[
        str,
        typer.Option(
            "--input", help="A path, URL or pattern: jsonl, csv, parquet, txt, or data sets saved to disk."
        ),
    ],
    out: Annotated[str, typer.Option("--out", help="The folder, or its URL, for shards and manifest.")],
    method: Annotated[
        str | None,
        typer.Option(
            "--method", show_default=DEFAULT_METHOD, help="The method.", autocompletion=complete_method
        ),
    ] = None,
    column: ColumnOption = None,
    label_column: Annotated[
        str | None, typer.Option("--label-column", help="The column of the gold labels, to take along.")
    ] = None,
    lens: LensOption = None,
    lm_head: HeadOption = None,
    target: TargetOption = None,
    site: Annotated[list[int] | None, typer.Option("--site", help="A site; repeat for several.")] = None,
    verify: Annotated[bool, typer.Option(help="Verify every explanation by running the model again.")] = True,
    guard: GuardOption = None,
    truncate: TruncateOption = False,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Texts in a batch.")] = 32,
    shard_rows: Annotated[int, typer.Option("--shard-rows", min=1, help="Rows of a shard.")] = 2048,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", show_default="all GPUs, or cpu", help="Such as cuda:1, or cuda:0,cuda:1."),
    ] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="Run on this Ray cluster.")
    ] = None,
    cores: Annotated[int, typer.Option("--cores", min=1, help="CPU cores of a Ray worker.")] = 1,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain a whole corpus into Parquet shards; the same command goes on after a stop."""
    with redirect_stdout(sys.stderr):
        from .corpus import Job, run

        job = Job(
            model=model,
            input=input,
            method=method or ("diffmask" if lens else DEFAULT_METHOD),
            lens=None if lens is None else str(lens),
            lm_head=lm_head,
            columns=tuple(column or ["text"]),
            label_column=label_column,
            target=read_target(target),
            sites=tuple(site) if site else None,
            verify=verify,
            guard=guard,
            truncate=truncate,
            batch_size=batch_size,
            shard_rows=shard_rows,
            limit=limit,
            seed=seed,
            trust_remote_code=trust_remote_code,
        )
        totals = run(job, out, device, strict, ray, cores, report=tell)
    show([totals._asdict()], as_json)


@app.command()
def report(
    texts: Annotated[list[str] | None, typer.Argument(help="The texts to explain.")] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", help="Attributions that explain wrote (json, parquet), or texts as there."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="The html file to write.")] = Path("report.html"),
    model: MaybeModelOption = None,
    column: ColumnOption = None,
    pair: PairOption = False,
    label_column: Annotated[
        str | None, typer.Option("--label-column", help="The column of the gold labels.")
    ] = None,
    method: MethodOption = None,
    lens: LensesOption = None,
    lm_head: HeadOption = None,
    target: TargetOption = None,
    windows: WindowsOption = None,
    truncate: TruncateOption = False,
    max_length: LengthOption = None,
    games: Annotated[bool, typer.Option("--games", help="Play the hiding and revealing games.")] = False,
    guard: GuardOption = None,
    parts_of_speech: Annotated[
        bool, typer.Option("--parts-of-speech", help="Scores by part of speech (English; needs spaCy).")
    ] = False,
    title: Annotated[str, typer.Option("--title", help="The title of the report.")] = "masklens report",
    device: DeviceOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write explanations and their verification to one HTML file to explore."""
    with redirect_stdout(sys.stderr):
        from . import reporting
        from .evaluation.imported import read_attributions

        made = read_attributions(input) if input and reporting.holds_attributions(input) else None
        if made is not None:
            check_unused({"--method": method, "--target": target, "--lm-head": lm_head, "a text": texts})
        if made is not None and not model:
            check_unused({"--lens": lens, "--games": games, "--guard": guard}, "the model: add --model")
        subject = load_subject(model, device, truncate, max_length) if model or made is None else None
        lenses = load_lenses(model, subject, lens) if subject else []
        labels = (
            reporting.read_answers(input, label_column, limit, subject) if input and label_column else None
        )
        if made is not None:
            sets = reporting.named(reporting.first_texts(made, limit))
        elif subject is not None:
            wanted = gather(texts or [], input, column, limit, pair)
            chosen = reporting.choose(method or [], DEFAULT_METHOD, lenses, lm_head)
            tell(f"explaining {len(wanted)} texts with {', '.join(chosen)}")
            common: dict[str, Any] = {"target": read_target(target), "seed": seed, "windows": windows}
            common["show_progress"] = sys.stderr.isatty()
            sets = reporting.explain_ways(subject, wanted, chosen, **common)
        table = masklens.evaluate(subject, sets, metrics=["hiding", "revealing"]) if games else None
        more: dict[str, Any] = {"labels": labels, "evaluation": table, "parts_of_speech": parts_of_speech}
        more["guard"] = guard
        masklens.report(sets, out, title, subject, lenses, **more)
        tell(f"wrote {out}")
    if as_json:
        print_json({"report": str(out), "bytes": out.stat().st_size, "methods": list(sets)})


@app.command()
def serve(
    model: MaybeModelOption = None,
    lens: LensesOption = None,
    lm_head: HeadOption = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any free port.")] = 8765,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
    device: DeviceOption = None,
    seed: SeedOption = 0,
) -> None:
    """Open a page on this machine to type texts into and see them explained."""
    with redirect_stdout(sys.stderr):
        from .serve import serve as serve_page

        subject = load_subject(model, device)
        lenses = load_lenses(model, subject, lens)

        def ready(address: str) -> None:
            tell(f"the page is at {address} (Ctrl-C ends it)")
            if open_browser:
                typer.launch(address)

        title = f"masklens · {Path(model).name}" if model else "masklens"
        serve_page(subject, lenses, head_of(model, lm_head), port, seed, title, ready)


@app.command()
def reproduce(
    section: Annotated[
        Literal["toy", "sst", "squad", "saliency"],
        typer.Argument(help="The part of the papers to reproduce."),
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder for results.json, results.md and figures.")],
    model_dir: Annotated[
        Path | None, typer.Option("--model-dir", help="The folder of the reference checkpoints.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="The folder of the data sets.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Such as minilm, or mpnet-sst5 for sst.")
    ] = None,
    lens: LensOption = None,
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help="Do only this part, such as sst2/gradcam; may be repeated."),
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes side by side.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps of fitting a lens.")] = None,
    device: DeviceOption = None,
    seed: SeedOption = 0,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reproduce a published experiment and set its figures beside ours."""
    options: dict[str, Any] = {
        "model_dir": model_dir,
        "data": data,
        "model": model,
        "lens": lens,
        "parts": part,
    }
    options |= {"jobs": jobs, "steps": steps, "device": device, "limit": limit}
    with redirect_stdout(sys.stderr):
        run_section(section, out=out, seed=seed, **options)
        tell(f"wrote {out}")
    if as_json:
        print_json(json.loads((out / "results.json").read_text(encoding="utf-8")))
    else:
        typer.echo((out / "results.md").read_text(encoding="utf-8"))


def run_section(section: str, **options: Any) -> None:
    """Run a part of the papers with the options that it takes; one it does not take is an error."""
    import inspect
    from importlib import import_module

    run = import_module(f"masklens.reproduce.{section}").run
    given = {name: value for name, value in options.items() if value is not None}
    takes = inspect.signature(run).parameters
    unknown = [name for name in given if name not in takes]
    missing = [n for n, p in takes.items() if p.default is p.empty and n not in given]
    if unknown or missing:
        said = f"takes no --{unknown[0]}" if unknown else f"needs --{missing[0]}"
        raise MethodError(f"reproduce {section} {said.replace('_', '-')}")
    run(**given)


def check_unused(given: Mapping[str, Any], needs: str = "texts, not attributions") -> None:
    """Raise for an option that would do nothing with what else was given."""
    for name, value in given.items():
        if value:
            raise MethodError(f"{name} needs {needs}, or leave it out")


def load_subject(
    model: str | None, device: str | None, truncate: bool = False, max_length: int | None = None
) -> Subject:
    """The model that was named, or the packaged one."""
    how: dict[str, Any] = {"truncate": truncate, "max_length": max_length}
    if model is not None:
        return masklens.Subject.from_pretrained(model, device=device, **how)
    subject = masklens.Subject.default(device)
    return masklens.Subject(subject.module, subject.tokenizer, **how) if any(how.values()) else subject


def packaged_lens(subject: Subject, over: str) -> DiffMask:
    """The packaged model's lens over its inputs or its states."""
    from . import packaged

    return packaged.lens(subject, over)


def load_lenses(model: str | None, subject: Subject, given: Sequence[Path] | None) -> list[DiffMask]:
    """The lenses that were named; without a model, those of the packaged one."""
    if given or model is not None:
        return [masklens.DiffMask.from_pretrained(one, subject) for one in given or []]
    return [packaged_lens(subject, over) for over in ("inputs", "states")]


def head_of(model: str | None, given: str | None) -> str | None:
    """The LM head that was named; without a model, that of the packaged one."""
    if given is not None or model is not None:
        return given
    from . import packaged

    return str(packaged.HOME)


def proofs_of(
    subject: Subject,
    attributions: Sequence[Attribution],
    options: Mapping[str, dict[str, Any]],
    guard: float | None,
) -> list[Verification]:
    """One method's verifications, at its deepest site; a lens brings its own baseline."""
    replace = options[attributions[0].method].get("lens", "mask")
    return masklens.verify(subject, attributions, replace=replace, guard=guard)


def text_by_text(found: Sequence[Sequence[T]]) -> list[T]:
    """What several methods gave for the same texts: all of the first text, then all of the second, ..."""
    return [one for of_one_text in zip(*found, strict=True) for one in of_one_text]


def gather(
    texts: Sequence[str],
    pattern: str | None,
    columns: Sequence[str] | None,
    limit: int | None,
    pair: bool = False,
) -> list[Text]:
    """The texts given as arguments, two by two for pairs, and those in files, at most `limit` of them."""
    from .texts import read_texts

    if pair and (len(texts) % 2 or not texts):
        raise TextError(f"--pair takes two texts for each pair; {len(texts)} texts were given")
    found: list[Text] = list(zip(texts[::2], texts[1::2], strict=True)) if pair else list(texts)
    if pattern is not None:
        found += read_texts(pattern, columns or ["text"], limit)
    if not found:
        raise TextError("no text was given; give one or more as arguments, or a file with --input")
    return found[:limit]


def method_options(
    names: Iterable[str], subject: Subject, lens: Path | None, lm_head: str | None
) -> dict[str, dict[str, Any]]:
    """For each method, the options that only it takes; an option that no method takes is an error."""
    options: dict[str, dict[str, Any]] = {name: {} for name in names}
    if lens:
        options_of(options, "diffmask", "--lens")["lens"] = masklens.DiffMask.from_pretrained(lens, subject)
    if lm_head:
        options_of(options, "decoded_gradcam", "--lm-head")["lm_head"] = lm_head
    return options


def options_of(options: Mapping[str, dict[str, Any]], method: str, flag: str) -> dict[str, Any]:
    """The options of the method that a flag is for."""
    if method not in options:
        raise MethodError(
            f"{flag} is for {method}, but the methods asked for are {', '.join(options)}; "
            f"add --method {method} or leave {flag} out"
        )
    return options[method]


def read_target(target: Any) -> Any:
    """A class id if the target is a whole number, else what was given, such as a label name."""
    return int(target) if isinstance(target, str) and target.isdecimal() else target


def diagnostics(lens: DiffMask) -> list[dict[str, Any]]:
    """The lens's held-out measurements, one row a site."""
    return [row._asdict() for row in lens.diagnostics]


def draw(attributions: Sequence[Attribution], proofs: Sequence[Verification] | None = None) -> None:
    """Print every attribution as a heat map, with its verification."""
    from rich.console import Console

    from .viz.terminal import heat_map, proof_line

    console = Console()
    for i, attribution in enumerate(attributions):
        console.print(heat_map(attribution))
        if proofs:
            console.print(proof_line(attribution, proofs[i]))
        console.print()


def show(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print rows that have the same fields, as JSON or as a table."""
    if as_json:
        print_json(rows)
        return
    from rich.console import Console

    Console().print(table(rows))


def print_json(data: Any) -> None:
    """Print data alone on standard output; what JSON does not know is printed as a string."""
    typer.echo(json.dumps(data, default=str))


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table with one column a field."""
    from rich.table import Table

    result = Table(*(rows[0] if rows else ()))
    for row in rows:
        result.add_row(*map(plain, row.values()))
    return result


def plain(value: Any) -> str:
    """A value for a table: numbers with four digits, lists joined by commas, no markup."""
    from rich.markup import escape

    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return escape(", ".join(map(str, value)))
    return escape("" if value is None else str(value))
