"""Where the sites of a Hugging Face model are, and what its head means.

Sites are found by rule. A family that breaks the rule has a row in the table FAMILIES.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from ..errors import ModelError
from ..tasks.base import Task
from ..tasks.classification import Classification, MultiLabel, Regression
from ..tasks.lm import CausalLM, MaskedLM, Seq2SeqLM
from ..tasks.spans import QuestionAnswering
from ..tasks.tagging import TokenClassification
from .tap import Point, overridden

Blocks = str | Callable[[nn.Module], Sequence[nn.Module]]


@dataclass(frozen=True)
class Family:
    """Where a base model breaks the rules, as dotted paths inside it. None means that the rule holds."""

    embeddings: str | None = None
    """the word-embedding module that is really called"""
    blocks: Blocks | None = None
    """the path of the list of blocks, or a function from the base model to its blocks in the order of their
    calls (a block that is called several times is listed several times)"""
    finish: Mapping[int, str] = field(default_factory=dict)
    """blocks (counted from 0) whose output is completed by another module, and the path of that module"""
    place: Callable[[nn.Module, Tensor], AbstractContextManager[None]] | None = None
    """for a model that computes relative positions itself: a context in which it uses the given positions
    (examples, tokens)"""
    refused: str = ""
    """why this family cannot be explained layer by layer"""
    alone: bool = False
    """whether padding changes the output, so that texts of different lengths cannot share a batch"""


def _albert_blocks(base: Any) -> list[nn.Module]:
    """ALBERT's layers in the order of their calls: each group serves an equal part of the depth."""
    groups = base.encoder.albert_layer_groups
    depth = base.config.num_hidden_layers
    order = [groups[int(i / (depth / len(groups)))] for i in range(depth)]
    return [layer for group in order for layer in group.albert_layers]


def _mpnet_place(base: Any, places: Tensor) -> AbstractContextManager[None]:
    """Correct MPNet's position bias when only some tokens are run: MPNet counts distances in the batch, not
    in the text."""
    encoder = base.encoder

    def position_bias(*_args: Any, **_kwargs: Any) -> Tensor:
        apart = places[:, None, :] - places[:, :, None]  # (examples, tokens, tokens)
        values = encoder.relative_attention_bias(encoder.relative_position_bucket(apart))
        return values.permute(0, 3, 1, 2)  # (examples, heads, tokens, tokens)

    return overridden(encoder, "compute_position_bias", position_bias)


FAMILIES: dict[str, Family] = {
    "albert": Family(blocks=_albert_blocks),
    "deberta-v2": Family(finish={0: "encoder.conv"}),
    "mpnet": Family(place=_mpnet_place),
    **dict.fromkeys(
        ("canine", "funnel", "perceiver"),
        Family(refused="its blocks work on fewer positions than the text has tokens"),
    ),
    **dict.fromkeys(("fsmt", "xlnet"), Family(refused="its blocks keep the tokens before the examples")),
    **dict.fromkeys(
        ("led", "longformer", "pegasus_x"),
        Family(refused="it pads every text to whole windows of its attention before the first block"),
    ),
    "reformer": Family(refused="its reversible blocks hide their states from autograd"),
    **dict.fromkeys(
        ("gemma3n", "gemma3n_text"), Family(refused="its blocks work on four versions of the text's states")
    ),
    # The longest list of like modules is that of the adapters of its shared block.
    **dict.fromkeys(("zamba", "zamba2"), Family(blocks="layers")),
    **dict.fromkeys(("convbert", "fnet", "nystromformer", "yoso"), Family(alone=True)),
    # T5 never calls the module that it reports as its input embeddings; its stacks call copies of it.
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5"), Family(embeddings="encoder.embed_tokens")),
}


def register_family(model_type: str, embeddings: str | None = None, blocks: Blocks | None = None) -> None:
    """Tell masklens where a family has its word embeddings and its blocks, by its config's `model_type`.

        register_family("my-model", embeddings="stem.words", blocks="trunk.layers")

    Paths start at the base model (`model.base_model`).
    """
    FAMILIES[model_type] = Family(embeddings, blocks)


def unwrap(model: Any) -> Any:
    """The module to run. Compiled code ignores hooks that are added later, so the original module is run."""
    return getattr(model, "_orig_mod", model)


def base_of(model: Any) -> Any:
    """The Hugging Face model inside a PEFT wrapper, or the model itself."""
    if not hasattr(model, "peft_config"):
        return model
    if any(getattr(one, "is_prompt_learning", False) for one in model.peft_config.values()):
        raise ModelError(
            "a prompt-learning adapter adds tokens that are not in the text, so states and tokens do not "
            "match; adapters that keep the tokens (LoRA, IA3, ...) work"
        )
    return unwrap(model.get_base_model())


def family_of(model: Any) -> Family:
    """The row of the model's family in the table; an empty row if the rules hold."""
    config = getattr(model, "config", None)
    return FAMILIES.get(getattr(config, "model_type", ""), Family())


def find_points(model: Any) -> tuple[dict[int, Point], dict[int, Point]]:
    """The sites of a model, and its blocks by the site of their output."""
    inner = base_of(model)
    if not hasattr(inner, "config") or not hasattr(inner, "get_input_embeddings"):
        raise ModelError(
            f"{type(inner).__name__} is not a Hugging Face model; use Subject.from_module and name its sites"
        )
    base = inner.base_model
    family = family_of(inner)
    if family.refused:
        raise ModelError(
            f"{type(inner).__name__} cannot be explained layer by layer: {family.refused}. Use another "
            f"model, or Subject.from_module with points of your own"
        )
    blocks = called(find_blocks(inner, base, family))
    outputs = {k + 2: point for k, point in enumerate(blocks)}
    ends = outputs | {k + 2: Point(end) for k, end in _finished(base, family).items()}
    first = Point(blocks[0].module, "input", blocks[0].call)
    return {0: find_embeddings(inner, base, family), 1: first} | ends, outputs


def called(modules: Sequence[nn.Module]) -> list[Point]:
    """Output points of modules in the order of their calls. Repeated modules get a call number."""
    total, so_far = Counter(map(id, modules)), Counter[int]()
    points = []
    for module in modules:
        points.append(Point(module, call=so_far[id(module)] if total[id(module)] > 1 else None))
        so_far[id(module)] += 1
    return points


def find_blocks(model: Any, base: Any, family: Family) -> list[nn.Module]:
    """The longest list of modules of one class that is not inside another list; in the encoder, if any."""
    if callable(family.blocks):
        return list(family.blocks(base))
    if family.blocks is not None:
        found = _submodule(base, family.blocks)
        return list(found) if isinstance(found, nn.ModuleList | nn.Sequential) else [found]
    lists = _outer_lists(_reader(model))
    if not lists:
        raise ModelError(
            f"no list of blocks found in {type(model).__name__}: looked for the longest nn.ModuleList of one "
            f"class. Call masklens.register_family({model.config.model_type!r}, embeddings=..., blocks=...) "
            f"with the paths of its word embeddings and of its blocks inside model.base_model"
        )
    return max(lists, key=len)


def find_embeddings(model: Any, base: Any, family: Family) -> Point:
    """The word embeddings of the part that reads the text."""
    reader = _reader(model)
    if family.embeddings is not None:
        module = _submodule(base, family.embeddings)
    else:
        module = reader.get_input_embeddings()
    # Where encoder and decoder share one module, the encoder is the first to call it.
    return Point(module, call=None if reader is model else 0, copied=True)


def _reader(model: Any) -> Any:
    """The part of the model that reads the text: the encoder of an encoder-decoder, else all of it."""
    return model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model


def _outer_lists(module: nn.Module) -> list[list[nn.Module]]:
    """Lists of one class of modules, without those inside such a list."""
    found: list[list[nn.Module]] = []
    for child in module.children():
        if isinstance(child, nn.ModuleList) and len({type(x) for x in child}) == 1:
            found.append(list(child))
        else:
            found += _outer_lists(child)
    return found


def _finished(base: Any, family: Family) -> dict[int, nn.Module]:
    """{block: the module that completes its output}, for the modules that this model has."""
    ends = {}
    for block, path in family.finish.items():
        parent, _, name = path.rpartition(".")
        end = getattr(base.get_submodule(parent), name, None)
        if end is not None:
            ends[block] = end
    return ends


def _submodule(base: Any, path: str) -> Any:
    try:
        return base.get_submodule(path)
    except AttributeError as error:
        names = ", ".join(name for name, _ in base.named_children())
        raise ModelError(
            f"{type(base).__name__} has no module {path!r} ({error}); it starts with {names}. "
            f"Correct the path given to register_family"
        ) from error


def longest_input(model: Any, tokenizer: Any) -> int | None:
    """How many tokens the model takes, or None where there is no limit."""
    inner = base_of(model)
    positions = getattr(inner.config, "max_position_embeddings", None)
    if positions is not None:
        positions -= _reserved_positions(inner)
    limits = [positions, getattr(tokenizer, "model_max_length", None)]
    known = [n for n in limits if n is not None and 0 < n < 10**6]
    return min(known, default=None)


def _reserved_positions(model: Any) -> int:
    """RoBERTa and similar models count positions after the padding index: 514 positions for 512 tokens."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.padding_idx + 1
    return 0


def takes_positions(model: nn.Module) -> bool:
    """Whether the model takes the position of each token as an input."""
    inner = base_of(model)
    return hasattr(inner, "config") and "position_ids" in inspect.signature(inner.forward).parameters


@contextmanager
def at_places(model: nn.Module, places: Tensor) -> Iterator[dict[str, Tensor]]:
    """Run the model on tokens at the given positions of their texts, counted from 0.

    places: (examples, tokens). Yields what has to be added to the model's inputs.
    """
    inner = base_of(model)
    family = family_of(inner)
    with family.place(inner.base_model, places) if family.place else nullcontext():
        yield {"position_ids": places + _reserved_positions(inner)}


def output_head(model: Any) -> nn.Module | None:
    """The module that turns a language model's states into logits."""
    return getattr(base_of(model), "get_output_embeddings", lambda: None)()


def call_options(model: Any) -> dict[str, Any]:
    """Options for every call of the model: keys and values are not cached.

    Some heads pass all options that they do not know to the base model.
    """
    inner = base_of(model)
    takes = dict(inspect.signature(inner.forward).parameters)
    if any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        takes |= inspect.signature(inner.base_model.forward).parameters
    return {"use_cache": False} if "use_cache" in takes else {}


def accepted_inputs(model: Any) -> Callable[[str], bool]:
    """A function that says whether the model takes a tokenizer's output of some name.

    Token types go only to a model with at least two of them: GPT-2 would add the word embedding of
    token 0 to every token, and RoBERTa has one type.
    """
    inner = base_of(model)
    names = inspect.signature(inner.forward).parameters
    types = getattr(inner.config, "type_vocab_size", None) or 0
    return lambda name: name in names and (name != "token_type_ids" or types > 1)


def padding_id(model: Any, tokenizer: Any) -> int:
    """The padding id: from the model's config, else from the tokenizer, else 0."""
    for owner in (base_of(model).config, tokenizer):
        if getattr(owner, "pad_token_id", None) is not None:
            return int(owner.pad_token_id)
    return 0


def read_task(model: Any, tokenizer: Any) -> Task:
    """The task that the model's head stands for."""
    inner = base_of(model)
    name = type(inner).__name__
    for ending, head in HEADS.items():
        if name.endswith(ending):
            return head.task(inner, tokenizer)
    raise ModelError(
        f"no task known for {name}: its name ends in none of {', '.join(HEADS)}. Load the model with a head, "
        f"or pass task= to Subject"
    )


def _classification(model: Any, tokenizer: Any) -> Task:
    config = model.config
    _check_last_token(model)
    labels = label_names(config)
    if config.problem_type == "regression" or (config.problem_type is None and len(labels) == 1):
        return Regression(labels)
    if config.problem_type == "multi_label_classification":
        return MultiLabel(labels)
    return Classification(labels)


def _check_last_token(model: Any) -> None:
    """Check that a decoder that classifies from the last token knows the padding token."""
    has_pad = getattr(model.config, "pad_token_id", None) is not None
    decoder = "past_key_values" in inspect.signature(model.forward).parameters
    if decoder and not has_pad and not getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{type(model).__name__} classifies from the last token that is not padding, and its config has "
            f"no pad_token_id; set model.config.pad_token_id (often tokenizer.eos_token_id) first"
        )


def names_the_next_token(model: Any) -> bool:
    """Whether the head predicts the token after a position, as in a causal language model."""
    name = type(base_of(model)).__name__
    return any(name.endswith(ending) for ending, head in HEADS.items() if head is _CAUSAL)


def label_names(config: Any) -> list[str]:
    """The names of the classes by id."""
    return [str(config.id2label.get(i, f"LABEL_{i}")) for i in range(config.num_labels)]


def _tagging(model: Any, tokenizer: Any) -> Task:
    return TokenClassification(label_names(model.config))


def _seq2seq(model: Any, tokenizer: Any) -> Task:
    config, generation = model.config, getattr(model, "generation_config", None)
    start = [
        getattr(config, "decoder_start_token_id", None),
        getattr(generation, "forced_bos_token_id", None),
    ]
    if start[0] is None:
        raise ModelError(f"{type(model).__name__} has no config.decoder_start_token_id; set it")
    return Seq2SeqLM(tokenizer, [i for i in start if i is not None])


class Head(NamedTuple):
    """The task of a head, and the class of transformers that loads it."""

    loader: str
    task: Callable[[Any, Any], Task]
    """a function from the model and its tokenizer to the task"""


_CAUSAL = Head("AutoModelForCausalLM", lambda model, tokenizer: CausalLM(tokenizer))
_SEQ2SEQ = Head("AutoModelForSeq2SeqLM", _seq2seq)

HEADS: dict[str, Head] = {
    "ForSequenceClassification": Head("AutoModelForSequenceClassification", _classification),
    "ForQuestionAnswering": Head("AutoModelForQuestionAnswering", lambda *_: QuestionAnswering()),
    "ForTokenClassification": Head("AutoModelForTokenClassification", _tagging),
    "ForMaskedLM": Head("AutoModelForMaskedLM", lambda model, tokenizer: MaskedLM(tokenizer)),
    "ForCausalLM": _CAUSAL,
    "LMHeadModel": _CAUSAL,
    "ForConditionalGeneration": _SEQ2SEQ,
    "MTModel": _SEQ2SEQ,
}
"""heads by the end of the name of the model's class"""
