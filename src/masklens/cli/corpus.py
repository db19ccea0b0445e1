"""`masklens corpus`: explain a corpus of any size and write Parquet shards."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from ..model.default import HOME
from ..progress import stage
from ..records.layers import site_number
from . import options
from .console import print_json, show, tell, working
from .inputs import read_options, read_target

of_shards = partial(options.option, "Shards")
INPUT = "Files, or a pattern: jsonl, csv, parquet, txt ..., or data sets saved to disk."
METHOD = f"diffmask with a lens, else {options.BY_MODEL}"
CONTROL = "Verify random explanations too, for a verdict on every text."


def corpus(
    input: Annotated[str, options.of_texts("--input", "PATH|URL", INPUT)],
    out: Annotated[
        str, options.of_output("--out", "FOLDER|URL", "The folder for the shards and the manifest.")
    ],
    column: options.Column = None,
    label_column: options.LabelColumn = None,
    limit: options.Limit = None,
    model: options.Model = None,
    device: Annotated[
        str | None,
        options.of_model("--device", "NAMES", "Such as cuda:0,cuda:1.", show_default="all GPUs, or cpu"),
    ] = None,
    truncate: options.Truncate = False,
    trust_remote_code: options.TrustRemoteCode = False,
    method: Annotated[
        str | None,
        options.naming_methods("The method (see: masklens methods).", show_default=METHOD),
    ] = None,
    option: options.MethodOption = None,
    lens: options.Lens = None,
    lm_head: options.Head = None,
    target: options.Target = None,
    layer: options.Layers = None,
    verify: options.Verify = True,
    control: Annotated[bool, options.of_method("--control", options.FLAG, CONTROL)] = False,
    guard: options.Guard = None,
    batch_size: Annotated[
        int | None, of_shards("--batch-size", "N", "Texts in a batch; by default as many as fit.", min=1)
    ] = None,
    shard_rows: Annotated[int, of_shards("--shard-rows", "N", "Input rows of one shard.", min=1)] = 2048,
    strict: Annotated[bool, of_shards("--strict", options.FLAG, "Stop at the first bad row.")] = False,
    ray: Annotated[str | None, options.of_run("--ray", "ADDRESS", "Run on this Ray cluster.")] = None,
    cores: Annotated[int, options.of_run("--cores", "N", "CPU cores of a Ray worker.", min=1)] = 1,
    as_json: options.Json = False,
    seed: options.Seed = 0,
) -> None:
    """Explain a corpus of any size and write Parquet shards; the same command resumes a stopped run.

    [bold]Examples[/bold]

      masklens corpus --input 'texts/*.jsonl' --method gradcam --out out/gradcam
      masklens corpus --model HUB_ID --lens FOLDER --input texts.csv --out out/lens
    """
    with working():
        from ..corpus import Job, run

        if lens is None and model is None and method in (None, "diffmask"):
            lens = HOME / "lens-inputs"
        job = Job(
            model=model or str(HOME),
            input=input,
            method=method,
            options=read_options(option),
            lens=None if lens is None else str(lens),
            lm_head=lm_head,
            columns=tuple(column or ["text"]),
            label_column=label_column,
            target=read_target(target),
            sites=tuple(map(site_number, layer)) if layer else None,
            verify=verify,
            control=control,
            guard=guard,
            truncate=truncate,
            batch_size=batch_size,
            shard_rows=shard_rows,
            limit=limit,
            seed=seed,
            trust_remote_code=trust_remote_code,
        )
        with stage("explaining the corpus"):
            totals = run(job, out, device, strict, ray, cores, report=tell)
    if as_json:
        print_json([totals._asdict()])
    else:
        show([totals._asdict()])
