"""The experiments of the papers, from a clone: python -m experiments NAME --out DIR"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from masklens.errors import MasklensError


def count(text: str) -> int:
    """A whole number, 1 or more."""
    if (value := int(text)) < 1:
        raise ValueError
    return value


OPTIONS: dict[str, dict[str, Any]] = {
    "out": {"type": Path, "required": True, "help": "where results go; what is done there is not done again"},
    "seed": {"type": int, "default": 0, "help": "0 by default"},
    "seeds": {"type": int, "action": "append", "help": "may be repeated; the first one is shown in detail"},
    "steps": {
        "type": count,
        "help": "steps of fitting a lens, instead of the default; few of them to try it",
    },
    "model_dir": {"type": Path, "required": True, "help": "the folder of the reference checkpoints"},
    "data": {"type": Path, "required": True, "help": "the folder of the data sets"},
    "model": {
        "help": "such as mpnet-sst5; of saliency and shortcuts, mpnet or minilm; of contrastive, smollm2 or "
        "a GGUF file"
    },
    "lens": {"type": Path, "help": "a folder of fitted lenses, instead of fitting them"},
    "part": {"action": "append", "help": "do only this part, such as lens or lens/inputs; may be repeated"},
    "jobs": {"type": count, "default": 1, "help": "processes side by side"},
    "device": {"help": "such as cuda; by default a GPU where there is one"},
    "limit": {"type": count, "help": "use at most so many texts of each set, to try it"},
    "task": {"action": "append", "help": "one of lexical, count, two_hops and mixed; by default all"},
    "alone": {"action": "store_true", "help": "also fit a lens for each site alone"},
}
"""every option of an experiment; "seeds" is given as --seed"""


class Experiment(NamedTuple):
    summary: str
    options: tuple[str, ...]


ON_A_MODEL = ("out", "model_dir", "data", "model", "lens", "part", "device", "limit", "steps", "seed")
EXPERIMENTS = {
    "toy": Experiment("DiffMask where the right answer is known (section 3.1)", ("out", "seeds", "steps")),
    "sst": Experiment("DiffMask on sentiment (section 3.2)", ON_A_MODEL),
    "squad": Experiment("DiffMask on question answering (section 3.3)", ON_A_MODEL),
    "saliency": Experiment("Decoded Grad-CAM: hiding, revealing, word overlap", (*ON_A_MODEL, "jobs")),
    "lenses": Experiment(
        "Lenses by the defaults: margins, seeds, sites alone",
        ("out", "model_dir", "data", "model", "part", "device", "limit", "steps", "seed"),
    ),
    "emergence": Experiment(
        "Planted transformers: what lenses drop at each layer",
        ("out", "task", "seeds", "alone", "steps"),
    ),
    "contrastive": Experiment(
        "Language models: do explanations point to the known evidence?",
        ("out", "data", "model", "part", "device", "limit", "steps", "seed"),
    ),
    "shortcuts": Experiment(
        "Planted words that decide: which methods find them",
        ("out", "model_dir", "data", "model", "part", "device", "limit", "seed"),
    ),
}


class Parser(ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        fail(message)


def fail(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    sys.exit(2)


def flag(option: str) -> str:
    return f"--{option.removesuffix('s') if option == 'seeds' else option.replace('_', '-')}"


def parser() -> Parser:
    made = Parser(prog="python -m experiments", description=__doc__, allow_abbrev=False)
    commands = made.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, experiment in EXPERIMENTS.items():
        command = commands.add_parser(
            name, help=experiment.summary, description=experiment.summary, allow_abbrev=False
        )
        for option in experiment.options:
            command.add_argument(flag(option), dest=option, **OPTIONS[option])
    return made


def main(arguments: Sequence[str]) -> None:
    """Run an experiment and print its results; what is wrong is one line, with exit code 2."""
    given, unknown = parser().parse_known_args(arguments)
    if unknown:
        takes = ", ".join(flag(option) for option in EXPERIMENTS[given.name].options)
        fail(f"{given.name} does not take {unknown[0]}; it takes {takes}")
    options = {name: value for name, value in vars(given).items() if name != "name" and value is not None}
    try:
        import_module(f"experiments.{given.name}.experiment").run(**options)
    except MasklensError as error:
        fail(str(error))
    print((given.out / "results.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(sys.argv[1:])
