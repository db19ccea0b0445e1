"""Subject: run a model with states recorded and replaced, and leave it as it was."""

import copy

import pytest
import torch
from torch import nn

import tiny
from masklens import Subject, explain
from masklens.errors import ModelError, OutputError, SiteError
from masklens.model.batch import Batch
from masklens.model.nans import looking_later
from masklens.model.tap import Point
from masklens.tasks.classification import BinaryClassification


def counted(subject):
    """How often each block computes, by site: a list that fills up as the subject runs."""
    calls = []
    for site, point in subject.blocks.items():
        part = next(m for m in point.module.modules() if isinstance(m, nn.Linear))
        part.register_forward_hook(lambda *_, site=site: calls.append(site))
    return calls


def test_states_are_those_of_the_model(bert):
    batch = bert.encode(tiny.TEXTS)
    run = bert.states(batch)
    with torch.no_grad():
        own = bert.module.bert.embeddings
        assert torch.equal(run.states[0], own.word_embeddings(batch.inputs["input_ids"]))
        assert torch.equal(run.states[1], own(batch.inputs["input_ids"]))
        assert torch.equal(run.output, bert.module(**batch.inputs).logits)
        last = bert.module.bert(**batch.inputs).last_hidden_state
    assert torch.equal(run.states[4], last)
    assert bert.sites == (0, 1, 2, 3, 4)


def test_it_is_shown_in_a_line(bert):
    labels = "Classification: negative, neutral, positive"
    assert repr(bert) == f"Subject(BertForSequenceClassification; {labels}; 3 blocks; cpu)"


def test_blocks_below_a_given_state_are_not_computed():
    subject = tiny.subject("bert")
    batch = subject.encode(tiny.TEXTS)
    output, states = subject.states(batch)
    subject.run(batch, replace={4: states[4]})  # measures once what the blocks return
    calls = counted(subject)
    for site, computed in [(4, []), (3, [4]), (2, [3, 4]), (1, [2, 3, 4]), (0, [2, 3, 4])]:
        calls.clear()
        assert torch.equal(subject.run(batch, replace={site: states[site]}).output, output)
        assert calls == computed, f"site {site}"


def test_blocks_that_something_else_needs_are_computed():
    subject = tiny.subject("bert")
    batch = subject.encode(tiny.TEXTS)
    output, states = subject.states(batch)
    subject.run(batch, replace={4: states[4]})
    calls = counted(subject)
    recorded = subject.run(batch, replace={4: states[4]}, record=[2]).states[2]
    assert torch.equal(recorded, states[2]) and calls == [2, 3, 4]
    calls.clear()
    subject.run(batch, replace={4: lambda state: state})
    assert calls == [2, 3, 4]
    calls.clear()
    # A recorded site above the given state does not need what is below.
    subject.run(batch, replace={3: states[3]}, record=[4])
    assert calls == [4]


def test_skipping_is_off_where_a_block_hands_on_more_than_its_state():
    subject = tiny.subject("t5")
    batch = subject.encode(["Paris"])
    output, states = subject.states(batch)
    assert torch.equal(subject.run(batch, replace={3: states[3]}).output, output)
    assert subject._lengths == {}


def test_two_replacements_both_count(bert):
    batch = bert.encode(tiny.TEXTS)
    _, states = bert.states(batch)
    other = states[2].flip(2)
    both = bert.run(batch, replace={2: other, 4: lambda state: state * 2}).output
    first = bert.run(batch, replace={2: other}).output
    second = bert.run(batch, replace={4: lambda state: state * 2}).output
    assert not torch.allclose(both, first) and not torch.allclose(both, second)


def test_gradients_reach_every_replaced_state_and_no_parameter(bert):
    batch = bert.encode(tiny.TEXTS)
    _, states = bert.states(batch)
    for site in bert.sites:
        leaf = states[site].clone().requires_grad_()
        output = bert.run(batch, replace={site: leaf}).output
        (gradient,) = torch.autograd.grad(output.sum(), leaf)
        assert gradient[batch.valid].abs().sum() > 0, f"site {site}"
        # The last block's other tokens do not reach the classifier.
        assert torch.allclose(gradient[~batch.valid], torch.zeros(()), atol=1e-6)
    assert all(p.grad is None for p in bert.module.parameters())


def test_gradient_at_a_state_agrees_with_finite_differences():
    subject = Subject(tiny.model("bert").double(), tiny.wordpiece())
    batch = subject.encode(["a funny movie"])
    leaf = subject.states(batch).states[2].clone().requires_grad_()
    torch.autograd.gradcheck(lambda state: subject.run(batch, replace={2: state}).output, leaf, eps=1e-6)


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ({7: torch.zeros(1)}, r"unknown site 7; this subject has sites \[0, 1, 2, 3, 4\]"),
        (
            {2: torch.zeros(1, 2, 16)},
            r"site 2 holds a state of shape \(3, 13, 16\); the replacement is \(1, 2, 16\)",
        ),
    ],
)
def test_errors_name_what_was_given_and_what_is_allowed(bert, unchanged, replace, message):
    unchanged(bert.module)
    with pytest.raises(SiteError, match=message):
        bert.run(bert.encode(tiny.TEXTS), replace=replace)
    unchanged(bert.module)


def test_a_nan_output_names_the_text(bert, unchanged):
    unchanged(bert.module)

    def spoil(state):
        state = state.clone()
        state[1] = torch.nan
        return state

    with pytest.raises(OutputError, match="NaN for text 1 of the batch .*the plot is dull"):
        bert.run(bert.encode(tiny.TEXTS), replace={0: spoil})
    with looking_later() as looks:
        output = bert.run(bert.encode(tiny.TEXTS), replace={0: spoil}).output
    with pytest.raises(OutputError, match="NaN for text 1 of the batch .*the plot is dull"):
        looks[0].check()
    assert output[1].isnan().all() and not output[0].isnan().any()
    unchanged(bert.module)


def test_after_a_text_that_is_nan_blocks_can_still_be_skipped():
    subject = Subject(copy.deepcopy(tiny.model("bert")), tiny.wordpiece())
    with torch.no_grad():
        word = subject.tokenizer.convert_tokens_to_ids("sold")
        subject.module.get_input_embeddings().weight[word] = torch.nan
    with pytest.raises(OutputError, match="NaN"):
        explain(subject, ["she sold the red car"], method="integrated_gradients", sites=[2])
    explain(subject, ["the plot is dull"], method="integrated_gradients", sites=[2])
    assert len(subject._lengths) == len(subject.blocks)


def test_the_model_comes_back_as_it_was(unchanged):
    model = tiny.model("bert").train()
    model.bert.embeddings.eval()
    model.bert.pooler.requires_grad_(False)
    subject = Subject(model, tiny.wordpiece())
    unchanged(model)
    batch = subject.encode(tiny.TEXTS)
    first, second = subject.states(batch).output, subject.states(batch).output
    assert torch.equal(first, second), "dropout was on"
    unchanged(model)
    with pytest.raises(ZeroDivisionError):
        subject.run(batch, replace={2: lambda state: 1 // 0})
    unchanged(model)
    with pytest.raises(KeyError), subject.frozen(), subject.frozen():
        raise KeyError
    unchanged(model)


def test_frozen_turns_parameters_and_dropout_off_inside():
    model = tiny.model("bert").train()
    subject = Subject(model, tiny.wordpiece())
    with subject.frozen():
        with subject.frozen():
            pass
        assert not any(m.training for m in model.modules())
        assert not any(p.requires_grad for p in model.parameters())
    assert all(m.training for m in model.modules())


def test_check_sites(bert):
    assert bert.check_sites([3, 1]) == (3, 1)
    for bad in ([9], []):
        with pytest.raises(SiteError, match="this subject has sites"):
            bert.check_sites(bad)


def test_a_state_that_is_not_by_token_is_an_error():
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 1))
    subject = Subject.from_module(net, [Point(net[0])], BinaryClassification(), lambda texts: None)
    valid = torch.ones(2, 3, dtype=torch.bool)
    batch = Batch(
        {"input": torch.zeros(2, 3, 2)},
        valid,
        ~valid,
        valid.long(),
        ((),) * 2,
        ((),) * 2,
        ("", ""),
        (False,) * 2,
    )
    with pytest.raises(SiteError, match=r"site 0 has shape \(2, 6\); \(examples, tokens, width\)"):
        subject.run(batch, record=[0])


def test_only_subjects_and_pipelines_can_be_explained(bert):
    import transformers

    pipe = transformers.pipeline("text-classification", model=bert.module, tokenizer=bert.tokenizer)
    from masklens.model.subject import as_subject

    assert as_subject(bert) is bert
    assert as_subject(pipe).sites == bert.sites
    with pytest.raises(ModelError, match="cannot explain a int"):
        explain(3, "a text", method="gradient")


class GRUClassifier(nn.Module):
    """Reads the last state of a GRU, from its sequence of outputs or from h_n."""

    def __init__(self, read: str):
        super().__init__()
        self.read = read
        self.embed, self.gru, self.head = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, ids, lengths):
        outputs, last = self.gru(self.embed(ids))
        if self.read == "outputs":
            last = outputs[torch.arange(len(ids)), lengths - 1]
        return self.head(last.reshape(len(ids), -1))


def gru_subject(read: str) -> Subject:
    net = GRUClassifier(read)

    def encode(texts):
        rows = [[int(digit) + 1 for digit in text] for text in texts]
        length = max(map(len, rows))
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        lengths = torch.tensor([len(row) for row in rows])
        valid = ids > 0
        offsets = tuple(tuple((i, i + 1) for i in range(len(row))) for row in rows)
        inputs = {"ids": ids, "lengths": lengths}
        tokens = tuple(tuple(text) for text in texts)
        return Batch(
            inputs, valid, ~valid, valid.long() * 0, tokens, offsets, tuple(texts), (False,) * len(rows)
        )

    return Subject.from_module(net, [Point(net.embed), Point(net.gru)], BinaryClassification(), encode)


def test_from_module_explains_a_gru_classifier(unchanged):
    subject = gru_subject("outputs")
    unchanged(subject.module)
    batch = subject.encode(["123", "4"])
    output, states = subject.states(batch)
    assert [tuple(state.shape) for state in states.values()] == [(2, 3, 8), (2, 3, 8)]
    for site in subject.sites:
        assert torch.equal(subject.run(batch, replace={site: states[site]}).output, output)
        leaf = states[site].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(subject.run(batch, replace={site: leaf}).output.sum(), leaf)
        assert gradient[1, 0].abs().sum() > 0 and gradient[1, 1:].abs().sum() == 0
    assert not torch.allclose(subject.run(batch, replace={1: states[1] * 0}).output, output)
    (alone,) = explain(subject, "123", method="gradient")
    assert alone.tokens == ("1", "2", "3") and alone.prediction in ("yes", "no")
    unchanged(subject.module)


def test_replacing_a_gru_output_does_not_reach_h_n():
    """nn.GRU gives (outputs, h_n); a site holds the first. A classifier that reads h_n must be given another
    site, such as the embeddings: an edit of the outputs has no effect on it."""
    subject = gru_subject("h_n")
    batch = subject.encode(["123"])
    output, states = subject.states(batch)
    assert torch.equal(subject.run(batch, replace={1: states[1] * 0}).output, output)
    assert not torch.allclose(subject.run(batch, replace={0: states[0] * 0}).output, output)


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=pytest.mark.slow)])
def test_explaining_many_texts_holds_one_batch_of_states(bert, monkeypatch, count):
    """States of earlier batches are gone when the next batch is recorded."""
    import weakref

    alive: list[weakref.ref] = []
    seen = most = 0
    run = Subject.run

    def watched(self, batch, replace=None, record=()):
        nonlocal seen, most
        result = run(self, batch, replace, record)
        alive[:] = [r for r in alive if r() is not None]
        most = max(most, len({r() for r in alive} | set(result.states.values())))
        alive.extend(weakref.ref(state) for state in result.states.values())
        seen += len(result.states)
        return result

    monkeypatch.setattr(Subject, "run", watched)
    texts = [tiny.TEXTS[i % len(tiny.TEXTS)] for i in range(count)]
    explain(bert, texts, method="gradient", sites="all", batch_size=4)
    assert seen >= count // 4 * len(bert.sites)
    assert most <= len(bert.sites)


def test_a_half_precision_checkpoint_runs_in_full_on_a_cpu(tmp_path):
    tiny.model("bert").half().save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    assert {p.dtype for p in Subject.from_pretrained(tmp_path).module.parameters()} == {torch.float32}
    asked = Subject.from_pretrained(tmp_path, dtype="float16")
    assert {p.dtype for p in asked.module.parameters()} == {torch.float16}
    tiny.model("bert").bfloat16().save_pretrained(tmp_path)
    assert {p.dtype for p in Subject.from_pretrained(tmp_path).module.parameters()} == {torch.bfloat16}
