"""The options of the command line. Each is written once and means the same in every command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import check_seed
from ..methods.usual import NEXT_TOKEN, USUAL
from .completion import complete_method


def option(panel: str, names: str, value: str, help: str, **about: Any) -> Any:
    """An option that help shows in a group: its names, what stands for its value, what it does."""
    return typer.Option(*names.split(), metavar=value, help=help, rich_help_panel=panel, **about)


of_texts, of_model, of_method, of_output, of_run = (
    partial(option, panel) for panel in ("Texts", "Model", "Method", "Output", "Run")
)
FLAG = ""
"""the value of an option that takes no value"""

INPUT = "A file of texts, or a pattern: txt, csv, tsv, json, jsonl, parquet, gz; - is standard input."
Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT", help="The texts; - reads them from standard input."),
]
Input = Annotated[str | None, of_texts("--input", "FILE", INPUT)]
Data = Annotated[str, of_texts("--data --input", "FILE", "The texts to fit on; files as for explain.")]
Column = Annotated[
    list[str] | None,
    of_texts("--column", "NAME", "The column with the texts; give two for pairs.", show_default="text"),
]
LabelColumn = Annotated[str | None, of_texts("--label-column", "NAME", "The column with the gold labels.")]
Pair = Annotated[
    bool, of_texts("--pair", FLAG, "Read the texts two by two as pairs, such as a question and its context.")
]
Limit = Annotated[int | None, of_texts("--limit", "N", "Use at most N texts.", min=1)]

GENERATE = "Read the texts as prompts: a causal language model answers, and its answer is explained."
Generate = Annotated[bool, of_texts("--generate", FLAG, GENERATE)]
Chat = Annotated[
    Path | None, of_texts("--chat", "FILE", "A json file with the messages of one chat, or a list of chats.")
]

Model = Annotated[
    str | None,
    of_model("--model", "FOLDER|HUB_ID", "The model to explain.", show_default="the packaged one"),
]
Device = Annotated[str | None, of_model("--device", "NAME", "Such as cpu, cuda or cuda:1.")]
Truncate = Annotated[bool, of_model("--truncate", FLAG, "Cut texts that are too long.")]
MaxLength = Annotated[
    int | None,
    of_model("--max-length", "N", "The longest input, in tokens.", min=1, show_default="the model's"),
]
TrustRemoteCode = Annotated[
    bool, of_model("--trust-remote-code", FLAG, "Run Python code that comes with the model.")
]

naming_methods = partial(of_method, "--method", "NAME", autocompletion=complete_method)
naming_several = partial(naming_methods, "A method (see: masklens methods); repeat for several.")
BY_MODEL = f"{USUAL}; for the next token of a language model {NEXT_TOKEN}"
Method = Annotated[list[str] | None, naming_several(show_default=f"the lenses, else {BY_MODEL}")]
MethodOption = Annotated[
    list[str] | None,
    of_method("--option", "NAME=VALUE", "An option of the method (see: masklens methods NAME); repeatable."),
]
Lens = Annotated[Path | None, of_method("--lens", "FOLDER", "A fitted lens.")]
Lenses = Annotated[list[Path] | None, of_method("--lens", "FOLDER", "A fitted lens; repeat for several.")]
Head = Annotated[
    str | None,
    of_method("--lm-head", "FOLDER|HUB_ID", "The pre-trained language model, for decoded_gradcam."),
]
Layers = Annotated[
    list[str] | None,
    of_method(
        "--layer",
        "LAYER",
        "A layer to explain: words, embeddings or 'block K'; repeat for several.",
        show_default="the method's",
    ),
]
Target = Annotated[
    str | None,
    of_method("--target", "ID|LABEL", "The class or answer to explain.", show_default="the prediction"),
]
SEVERAL = "The class or answer to explain; repeat to switch between several in the report."
Targets = Annotated[
    list[str] | None,
    of_method("--target", "ID|LABEL", SEVERAL, show_default="the prediction"),
]
WINDOWS = "Cut a long context into windows that overlap by N tokens, and explain the best answer."
Windows = Annotated[int | None, of_method("--windows", "N", WINDOWS, min=0)]
GUARD = "Keep more tokens of a text until its prediction stays and the output moves by at most NATS."
Guard = Annotated[float | None, of_method("--guard", "NATS", GUARD, min=0)]
VERIFY = "Remove the tokens that are not needed, and run the model again."
Verify = Annotated[bool, of_method("--verify/--no-verify", FLAG, VERIFY)]

UNITS = "The parts that are scored and removed: tokens, words, sentences, turns, or a json file of strings."
Units = Annotated[str, of_method("--units", "NAME|FILE", UNITS)]
Continuation = Annotated[
    str | None, of_method("--continuation", "TEXT", "Explain this answer instead of the model's own.")
]
NewTokens = Annotated[
    int | None,
    of_method("--max-new-tokens", "N", "The longest answer, in tokens.", min=1, show_default="64"),
]
RATHER_THAN = "Explain why the answer has --target rather than this text."
RatherThan = Annotated[str | None, of_method("--rather-than", "TEXT", RATHER_THAN)]
GenerationOptions = Annotated[
    list[str] | None,
    of_method(
        "--generation-option", "NAME=VALUE", "An option of generate, such as do_sample=true; repeatable."
    ),
]
TEMPLATE_OPTION = "An option of the chat template, such as enable_thinking=false; repeatable."
TemplateOptions = Annotated[list[str] | None, of_method("--template-option", "NAME=VALUE", TEMPLATE_OPTION)]

Json = Annotated[bool, of_output("--json", FLAG, "Print JSON, and nothing else, to standard output.")]


def _checked_seed(seed: int) -> int:
    check_seed(seed)
    return seed


Seed = Annotated[
    int,
    of_run("--seed", "N", "The seed of all random numbers: same seed, same result.", callback=_checked_seed),
]
