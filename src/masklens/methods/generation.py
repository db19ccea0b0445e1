"""`explain_generation`: on which tokens of the prompt each token of a language model's answer rests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import MethodError, ModelError, TargetError, TextError, check_seed
from ..model.batch import Batch, check_unicode
from ..model.prompt import Messages, Prompt, beginnings, read_prompt
from ..model.subject import Subject, as_subject
from ..records.generation import Generation, Guess
from ..records.units import Layout, check_removable, check_units, find_spans, unit_groups
from ..tasks.lm import CausalLM, Continuation
from ..words import Span, word_span
from .explain import chosen_sites, finite_scores, run_method, shown_settings
from .logit_lens import layer_outputs, settled_at
from .registry import Method, Request, check_count, find
from .steps import Dialogue, Step, check_target, plan_steps
from .usual import NEXT_TOKEN

RUNNERS_UP = 5
TRIED = 8
"""how many tokens of a prompt are used to find out whether a model is causal"""
SAMPLING = ("temperature", "top_p", "top_k")
"""options of a model's own config that a greedy answer has no use for"""
STEPS_AT_ONCE = 16
"""how many steps are explained in one batch by methods that run each step separately"""


def explain_generation(
    subject: Any,
    prompt: str | Messages,
    method: str = NEXT_TOKEN,
    max_new_tokens: int = 64,
    continuation: str | None = None,
    units: Any = "tokens",
    target: Any = None,
    sites: Sequence[int | str] | str | None = None,
    baselines: Any = None,
    seed: int = 0,
    method_options: Mapping[str, Any] | None = None,
    template_options: Mapping[str, Any] | None = None,
    **generation_options: Any,
) -> Generation:
    """Let a causal language model answer, and explain every token of its answer.

        messages = [{"role": "user", "content": "What is the capital of France?"}]
        made = explain_generation(subject, messages, sites="all", max_new_tokens=20)
        made.steps, made.scores.shape

    Args:
        prompt: a string, or messages with "role" and "content", for the tokenizer's chat template. Where the
            last message is one of the assistant, it is the beginning of the answer.
        continuation: the answer to explain, instead of one that the model generates.
        units: the parts that are scored and removed as a whole: "tokens", "words", "sentences", "turns", or
            spans of the prompt, as strings or as (start, end) characters.
        target: which part of the answer to explain. None explains each of its tokens. A string in the answer,
            or a slice of its tokens, explains that span as one step. A pair (A, B) explains why the
            model says A rather than B, where A is in the answer.
        sites, baselines, seed: as in `explain`.
        method_options: the options of the method, by name.
        template_options: options of the chat template, such as enable_thinking, tools or documents.
        generation_options: options of the model's own `generate`, such as do_sample; the default is greedy.
    """
    subject, chosen = as_subject(subject), find(method)
    options = dict(method_options or {})
    chosen.check_options(list(options))
    check_seed(seed)
    check_generation(chosen, continuation, max_new_tokens, generation_options)
    options = chosen.prepare(subject, options)
    if not isinstance(subject.task, CausalLM):
        raise ModelError(
            f"explain_generation is for causal language models, not for {type(subject.task).__name__}; use "
            f"masklens.explain"
        )
    check_units(units, turns=not isinstance(prompt, str))
    check_target(target)
    where = chosen_sites(subject, chosen, sites, options.get("lens"))
    asked = read_prompt(subject, prompt, template_options)
    units = find_spans(asked.text, units)
    check_removable(Layout(asked.text, (), asked.offsets, asked.special, asked.turns), units)
    given = None if continuation is None else _continuation_ids(subject, continuation)
    _check_length(subject, asked, max_new_tokens if given is None else len(given))
    several = given is None and target is None and max_new_tokens > 1
    early = _early_output(subject, asked, chosen, where) if several else None
    answer = given or generate(subject, asked.ids, max_new_tokens, seed, generation_options)
    dialogue = _dialogue(subject, asked, answer)
    settings = {"seed": seed, "baselines": baselines, **options}
    work = _Work(subject, chosen, where, settings, dialogue, units, early)
    made = work.record(plan_steps(subject, dialogue, target))
    how = {"template_options": template_options or None}
    if continuation is None:
        how |= _how_generated(subject, max_new_tokens, generation_options)
    return replace(made, settings={**made.settings, **shown_settings(how)})


def check_generation(
    method: Method, continuation: str | None, max_new_tokens: Any, options: Mapping[str, Any]
) -> None:
    """Raise a MethodError for options that cannot be used, before any work is done."""
    for name in options:
        if name in method.options:
            raise MethodError(f"{name} is an option of {method.name}; give method_options={{{name!r}: ...}}")
        if continuation is not None:
            raise MethodError(f"{name} is for generation; leave it out, or the continuation")
        if name in ("generation_config", "max_length"):
            raise MethodError(
                f"{name} is not taken; give max_new_tokens, and other options by name, such as do_sample=True"
            )
    if continuation is None:
        check_count("max_new_tokens", max_new_tokens)
    several = options.get("num_return_sequences")
    if several not in (None, 1):
        raise MethodError(
            f"num_return_sequences is {several!r}; one answer is explained at a time: leave it out, and give "
            f"another seed= for another answer"
        )


def _how_generated(subject: Subject, max_new_tokens: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options that shaped an answer, for the record."""
    how = {"do_sample": False, **options, "max_new_tokens": max_new_tokens}
    return {**_own_options(subject, bool(how["do_sample"])), **how}


def _own_options(subject: Subject, sampled: bool) -> dict[str, Any]:
    """The options of the model's own generation config that shape its answers, such as a repetition
    penalty."""
    config: Any = getattr(subject.module, "generation_config", None)
    found = config.to_diff_dict() if hasattr(config, "to_diff_dict") else {}
    other = ("transformers_version", "max_length", *(() if sampled else SAMPLING))
    return {
        k: v for k, v in found.items() if not (k.startswith("_") or k.endswith("_token_id") or k in other)
    }


def _continuation_ids(subject: Subject, continuation: str) -> list[int]:
    check_unicode(continuation)
    ids = list(subject.tokenizer(continuation, add_special_tokens=False)["input_ids"])
    if not ids:
        raise TargetError(f"the continuation {continuation!r} has no tokens; give one with at least one")
    return ids


def _check_length(subject: Subject, prompt: Prompt, answer: int) -> None:
    """Raise a TextError for a prompt that is too long for the model with an answer of so many tokens."""
    limit = getattr(subject._encode, "max_length", None)
    if limit is not None and len(prompt.ids) + answer > limit:
        raise TextError(
            f"a prompt of {len(prompt.ids)} tokens and an answer of {answer} are too long: the model "
            f"takes {limit}. Shorten the prompt or lower max_new_tokens"
        )


def generate(
    subject: Subject, ids: Sequence[int], max_new_tokens: int, seed: int, options: dict[str, Any]
) -> list[int]:
    """The ids of the model's own answer to token ids: greedy, unless the options say otherwise."""
    model: Any = subject.module
    if not callable(getattr(model, "generate", None)):
        raise ModelError(f"{type(model).__name__} cannot generate; give the answer as continuation=")
    given = torch.tensor([list(ids)], device=subject.device)
    greedy = {} if options.get("do_sample") else dict.fromkeys(SAMPLING)
    pad = subject._encode.pad_id  # type: ignore[attr-defined]
    settings = {
        "do_sample": False,
        "pad_token_id": pad,
        **greedy,
        **options,
        "max_new_tokens": max_new_tokens,
    }
    with torch.no_grad(), subject.frozen(), torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            made = model.generate(given, attention_mask=torch.ones_like(given), **settings)
        except (ValueError, TypeError) as error:
            if options:
                names = ", ".join(options)
                raise MethodError(f"the model's generate, called with {names}, says: {error}") from error
            raise ModelError(
                f"{type(model).__name__} cannot generate: {error}; give the answer as continuation="
            ) from error
    found = getattr(made, "sequences", made)[0, len(ids) :].tolist()
    if not found:
        raise TextError("the model gave no answer to this prompt; give one as continuation=")
    return found


def _dialogue(subject: Subject, prompt: Prompt, answer: Sequence[int]) -> Dialogue:
    tokenizer = subject.tokenizer
    text, spans = written(tokenizer, prompt.ids, answer)
    shift = len(prompt.text)
    marks = subject._encode.markers  # type: ignore[attr-defined]
    whole = Prompt(
        prompt.text + text,
        (*prompt.ids, *answer),
        (*prompt.offsets, *((start + shift, end + shift) for start, end in spans)),
        (*prompt.special, *(token in marks for token in answer)),
        prompt.turns,
    )
    return Dialogue(whole, len(prompt.ids), _names(tokenizer, whole, len(prompt.ids)), text)


def _names(tokenizer: Any, whole: Prompt, start: int) -> tuple[str, ...]:
    """The tokenizer's names of tokens. A token of the answer that holds a part of a character is named by its
    text: the last part by the character, the others \ufffd."""
    names = tokenizer.convert_ids_to_tokens(list(whole.ids))
    for i in range(start, len(names)):
        if "\ufffd" in tokenizer.decode([whole.ids[i]]):
            names[i] = whole.text[slice(*whole.offsets[i])] or "\ufffd"
    return tuple(names)


def written(tokenizer: Any, before: Sequence[int], ids: Sequence[int]) -> tuple[str, list[Span]]:
    """The text of tokens that follow other tokens, and the span of characters of each of them.

    If a character is split over several tokens, the last of them has the character and the others have an
    empty span.
    """

    def read(some: Sequence[int]) -> str:
        return tokenizer.decode(list(some), clean_up_tokenization_spaces=False)

    context = list(before[-8:])  # the first token of a decoded text may lose its space
    start, text = len(read(context)), read([*context, *ids])
    ends: list[int] = []
    for k in range(1, len(ids) + 1):
        part = read([*context, *ids[:k]]).rstrip("\ufffd")
        ends.append(min(max(len(part), start, *ends[-1:]), len(text)))
    ends[-1] = len(text)
    return text[start:], [(a - start, b - start) for a, b in zip([start, *ends], ends, strict=False)]


@dataclass
class _Work:
    """Everything that is prepared before the steps are explained."""

    subject: Subject
    method: Method
    sites: tuple[int, ...]
    settings: dict[str, Any]
    dialogue: Dialogue
    units: Any
    early: Tensor | None
    """what `_early_output` gave"""

    def record(self, steps: Sequence[Step]) -> Generation:
        whole = self.dialogue.whole
        layout = Layout(whole.text, self.dialogue.names, whole.offsets, whole.special, whole.turns)
        groups = [part for group in unit_groups(layout, self.units) for part in self._sides(group)]
        causal = len(steps) == 1 or reads_causally(self.subject, self.dialogue, self.early)
        scores, outputs = self._explained(steps, groups, causal)
        guesses = [self._guesses(step, output) for step, output in zip(steps, outputs, strict=True)]
        return Generation(
            prompt=whole.text[: len(whole.text) - len(self.dialogue.answer)],
            answer=self.dialogue.answer,
            ids=whole.ids,
            units=tuple(unit for unit, group in enumerate(groups) for _ in group),
            tokens=tuple(self._name(group) for group in groups),
            offsets=tuple(self._place(group) for group in groups),
            special=tuple(whole.special[group[0]] for group in groups),
            turns=whole.turns,
            steps=tuple(step.name for step in steps),
            pieces=tuple(step.piece for step in steps),
            places=tuple(step.place for step in steps),
            targets=tuple(tuple(step.target.ids) for step in steps),
            rather_than=tuple(step.target.other for step in steps),
            ends=tuple(max(end for _, end in whole.offsets[: step.place]) for step in steps),
            sites=self.sites,
            scores=merged(scores, groups, self.method.merge),
            probabilities=tuple(probability for probability, _ in guesses),
            runners_up=tuple(others for _, others in guesses),
            method=self.method.name,
            kind=self.units if isinstance(self.units, str) else "spans",
            settings=shown_settings({**self.method.options, **self.settings}),
            merge=self.method.merge,
            **(self._layers(steps) if causal else {}),
        )

    def _sides(self, group: Sequence[int]) -> list[list[int]]:
        """A unit without tokens of both prompt and answer."""
        sides = [[i for i in group if (i < self.dialogue.start) == first] for first in (True, False)]
        return [side for side in sides if side]

    def _name(self, group: Sequence[int]) -> str:
        whole = self.dialogue.whole
        written = whole.text[slice(*self._place(group))].strip()
        return written if written and self.units != "tokens" else self.dialogue.names[group[0]]

    def _place(self, group: Sequence[int]) -> Span:
        whole = self.dialogue.whole
        if len(group) == 1:
            return whole.offsets[group[0]]
        return word_span(whole.text, [whole.offsets[i] for i in group])

    def _explained(
        self, steps: Sequence[Step], groups: Sequence[Sequence[int]], causal: bool
    ) -> tuple[np.ndarray, list[Tensor]]:
        """Scores (steps, sites, tokens), and the output of each step, (its tokens, vocabulary)."""
        shared = self.method.shares and len(steps) > 1 and causal
        size = len(steps) if shared else STEPS_AT_ONCE
        scores = np.zeros((len(steps), len(self.sites), len(self.dialogue.whole.ids)), dtype=np.float32)
        outputs: list[Tensor] = []
        for at in range(0, len(steps), size):
            some = steps[at : at + size]
            request = self._request(some, groups, shared)
            found = finite_scores(self.method, run_method(request, self.method, self.settings))
            valid = request.batch.valid.cpu().numpy()
            scores[at : at + size, :, : found.shape[2]] = found * valid[:, None]
            outputs += request.reference.unbind(0)
        return scores, outputs

    def _request(self, steps: Sequence[Step], groups: Sequence[Sequence[int]], shared: bool) -> Request:
        wanted: list[Any] = [step.target for step in steps]
        batch = step_batch(self.subject, self.dialogue, steps)
        heads = torch.tensor([group[0] for group in groups for _ in group], device=batch.valid.device)
        more = batch.shape[1] - len(heads)
        heads = heads[: batch.shape[1]] if more <= 0 else F.pad(heads, (0, more))
        plain = self.units == "tokens"
        return Request(
            self.subject,
            batch,
            self.sites,
            wanted,
            self.settings["seed"],
            self.settings["baselines"],
            None if plain else heads.expand(len(steps), -1),
            shared,
        )

    def _layers(self, steps: Sequence[Step]) -> dict[str, Any]:
        """The head's prediction at each layer for each step, from one run for all states."""
        whole = Request(self.subject, step_batch(self.subject, self.dialogue, steps), self.sites).whole
        wanted = torch.tensor([step.target.ids[0] for step in steps], device=whole.valid.device)
        guesses, right = {}, []
        for site, output in layer_outputs(self.subject, whole, self.subject.sites):
            best = output[0].softmax(-1).max(-1)  # (steps,) of the likeliest token
            names = self.subject.tokenizer.batch_decode(best.indices[:, None].tolist())
            guesses[site] = [Guess(*one) for one in zip(names, best.values.tolist(), strict=True)]
            right.append((best.indices == wanted).tolist())
        sites = tuple(guesses)
        first = [settled_at(sites, some) if some[-1] else None for some in zip(*right, strict=True)]
        return {
            "logit_lens_sites": sites,
            "logit_lens": tuple(zip(*guesses.values(), strict=True)),
            "settled": tuple(first),
        }

    def _guesses(self, step: Step, output: Tensor) -> tuple[float, tuple[Guess, ...]]:
        """The probability of a step, and the likeliest other tokens at its first token. The probability of "A
        rather than B" is that of A among the two."""
        chosen = F.log_softmax(output.float(), -1)  # (tokens, vocabulary)
        ids = torch.tensor(step.target.ids, device=chosen.device)
        value = chosen[torch.arange(len(ids)), ids].sum()
        other = step.target.other
        probability = float(value.exp() if other is None else (value - chosen[0, other]).sigmoid())
        best = chosen[0].topk(RUNNERS_UP + 1)
        pairs = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        others = [(i, p) for i, p in pairs if i != step.target.ids[0]][:RUNNERS_UP]
        return probability, tuple(Guess(self.subject.tokenizer.decode([i]), p) for i, p in others)


def step_batch(subject: Subject, dialogue: Dialogue, steps: Sequence[Step]) -> Batch:
    """The text before each step, as a batch that is prepared for the step's target."""
    lengths = [step.place for step in steps]
    batch = beginnings(subject, dialogue.whole, dialogue.names, lengths, dialogue.whole.text)
    return subject.task.prepare(batch, [step.target for step in steps]).to(subject.device)


def merged(scores: np.ndarray, groups: Sequence[Sequence[int]], merge: str) -> np.ndarray:
    """Scores of units (steps, sites, units) from scores of tokens, merged by the method's rule."""
    reduce: Any = {"sum": np.add, "max": np.maximum, "mean": np.add}[merge]
    firsts = [group[0] for group in groups]
    found = reduce.reduceat(scores, firsts, axis=2)
    return found / [len(group) for group in groups] if merge == "mean" else found


@torch.no_grad()
def reads_causally(subject: Subject, dialogue: Dialogue, early: Tensor | None = None) -> bool:
    """Whether the output at a token does not depend on later tokens. This is tried on the first tokens.

    `early` is the output at the last of them without later ones, if it is known.
    """
    short = min(TRIED, dialogue.start)
    alone = _beginning_output(subject, dialogue, short) if early is None else early
    longer = _beginning_output(subject, dialogue, min(2 * short, len(dialogue.names)))
    return bool(torch.allclose(alone, longer, rtol=1e-3, atol=1e-3))


def _beginning_output(subject: Subject, dialogue: Dialogue, length: int, edits: Any = None) -> Tensor:
    """The output at the last of the first tokens of a prompt, of which the model reads `length` tokens."""
    batch = step_batch(subject, dialogue, [Step(length, Continuation([], []), "")])
    position = torch.full((1, 1), min(TRIED, dialogue.start) - 1, device=batch.valid.device)
    return subject.run(replace(batch, marks={"positions": position}), edits).output


def _early_output(subject: Subject, prompt: Prompt, method: Method, sites: Sequence[int]) -> Tensor | None:
    """For a method that needs gradients, the output that `reads_causally` needs first, made with gradients:
    a model that passes none is refused before it answers, and this takes no further run."""
    if not method.needs.startswith("gradients"):
        return None
    count = len(prompt.ids)
    dialogue = Dialogue(prompt, count, _names(subject.tokenizer, prompt, count), "")
    edits = {min(sites): lambda state: state.detach().requires_grad_()}
    with subject.frozen(), torch.enable_grad():
        return _beginning_output(subject, dialogue, min(TRIED, count), edits).detach()
