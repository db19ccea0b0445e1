"""Every family's sites, found by rule or table; the forms in which models come; loading."""

import json

import numpy as np
import pytest
import torch
import transformers as hf
from torch import nn

import tiny
from masklens import DiffMask, Subject, explain, explain_generation, register_family
from masklens.errors import ModelError
from masklens.model.families import FAMILIES, find_points, longest_input

FAMILY_NAMES = list(tiny.FAMILIES)


def shown(output):
    """Impossible answers are -inf in every output."""
    return torch.nan_to_num(output, neginf=0.0)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_sites_can_be_read_replaced_and_differentiated(family, unchanged):
    head = tiny.FAMILIES[family].heads[-1]
    subject = tiny.subject(family, head)
    unchanged(subject.module)
    batch = subject.encode(tiny.texts(family, head))
    output, states = subject.states(batch)
    assert subject.sites == (0, 1, 2, 3, 4)
    for site in subject.sites:
        assert torch.equal(subject.run(batch, replace={site: lambda state: state.clone()}).output, output)
        assert torch.equal(subject.run(batch, replace={site: states[site]}).output, output)
        zero = subject.run(batch, replace={site: torch.zeros_like(states[site])}).output
        assert not torch.allclose(shown(zero), shown(output)), f"site {site}"
        leaf = states[site].clone().requires_grad_()
        score = subject.task.score(
            subject.run(batch, replace={site: leaf}).output, subject.task.resolve(None, output, batch)
        )
        assert torch.autograd.grad(score.sum(), leaf)[0].abs().sum() > 0
    unchanged(subject.module)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), list(tiny.cases()))
def test_every_head_of_every_family(family, head, unchanged):
    subject = tiny.subject(family, head)
    unchanged(subject.module)
    batch = subject.encode(tiny.texts(family, head))
    output, states = subject.states(batch)
    for site in subject.sites:
        assert torch.equal(subject.run(batch, replace={site: states[site]}).output, output)
        zero = subject.run(batch, replace={site: lambda state: state * 0}).output
        assert not torch.allclose(shown(zero), shown(output)), f"site {site}"
    unchanged(subject.module)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_states_agree_with_the_library(family):
    """Where the library reports hidden states, ours are the same; its last one may be after a final norm."""
    subject = tiny.subject(family)
    batch = subject.encode(tiny.TEXTS)
    states = subject.states(batch).states
    with torch.no_grad():
        theirs = subject.module(**batch.inputs, output_hidden_states=True)
    hidden = theirs.get("encoder_hidden_states") or theirs.hidden_states
    assert len(hidden) == len(subject.sites) - 1
    for site, state in zip(subject.sites[1:-1], hidden[:-1], strict=True):
        assert torch.allclose(states[site], state, atol=1e-5), f"site {site}"


@pytest.mark.parametrize(("groups", "inner"), [(1, 1), (2, 1), (2, 2), (1, 3)])
def test_albert_shares_layers_in_groups(groups, inner):
    subject = tiny.subject("albert", num_hidden_layers=4, num_hidden_groups=groups, inner_group_num=inner)
    batch = subject.encode(tiny.TEXTS)
    assert len(subject.sites) == 2 + 4 * inner
    output, states = subject.states(batch)
    with torch.no_grad():
        hidden = subject.module(**batch.inputs, output_hidden_states=True).hidden_states
    for site, state in zip(subject.sites[1:], hidden, strict=True):
        assert torch.equal(states[site], state)
        assert torch.equal(subject.run(batch, replace={site: states[site]}).output, output)
        assert not torch.equal(subject.run(batch, replace={site: states[site] * 0}).output, output)


def test_deberta_convolution_is_part_of_the_first_block():
    """With a convolution that also reads the embeddings, an edit of the bare block's output would leak."""
    subject = tiny.subject("deberta-v2", conv_kernel_size=3)
    batch = subject.encode(tiny.TEXTS)
    output, states = subject.states(batch)
    above = subject.run(batch, replace={2: states[2], 0: lambda state: state * 0}).output
    assert torch.equal(above, output)
    assert torch.equal(subject.run(batch, replace={3: states[3]}).output, output)


def test_an_embedding_shared_by_encoder_and_decoder_is_edited_in_the_encoder_only():
    model = tiny.model("bart", "seq2seq")
    model.model.decoder.embed_tokens = model.model.encoder.embed_tokens
    subject = Subject(model, tiny.roberta_bpe())
    batch = subject.encode([("a funny movie", "the plot is")])
    state = subject.states(batch, [0]).states[0]
    assert state.shape[:2] == batch.shape
    assert torch.equal(state, model.model.encoder.embed_tokens(batch.inputs["input_ids"]))


class OddConfig(hf.PretrainedConfig):
    model_type = "odd"


class OddForSequenceClassification(hf.PreTrainedModel):
    """Its blocks are in no list, so that no rule finds them."""

    config_class = OddConfig
    base_model_prefix = "body"

    def __init__(self, config):
        super().__init__(config)
        self.body = nn.Module()
        self.body.words = nn.Embedding(200, 8)
        self.body.trunk = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        self.score = nn.Linear(8, 2)
        self.post_init()

    def get_input_embeddings(self):
        return self.body.words

    def forward(self, input_ids, attention_mask=None):
        hidden = self.body.trunk(self.body.words(input_ids))
        pooled = (hidden * attention_mask[:, :, None]).sum(1)
        return hf.modeling_outputs.SequenceClassifierOutput(logits=self.score(pooled))


def test_an_unknown_architecture_says_what_was_looked_for_and_can_be_registered(monkeypatch):
    monkeypatch.setattr("masklens.model.families.FAMILIES", dict(FAMILIES))
    model = OddForSequenceClassification(OddConfig())
    message = r"no list of blocks found in OddForSequenceClassification.*ModuleList.*register_family\('odd'"
    with pytest.raises(ModelError, match=message):
        Subject(model, tiny.wordpiece())
    register_family("odd", blocks="stem.trunk")
    with pytest.raises(ModelError, match="no module 'stem.trunk'.*it starts with words, trunk"):
        Subject(model, tiny.wordpiece())
    register_family("odd", embeddings="words", blocks="trunk")
    subject = Subject(model, tiny.wordpiece())
    assert subject.sites == (0, 1, 2, 3)
    batch = subject.encode(tiny.TEXTS)
    output, states = subject.states(batch)
    assert torch.equal(subject.run(batch, replace={2: states[2]}).output, output)


def test_a_plain_module_and_a_model_without_a_head_are_turned_away():
    with pytest.raises(ModelError, match="Linear is not a Hugging Face model; use Subject.from_module"):
        Subject(nn.Linear(2, 2), tiny.wordpiece())
    with pytest.raises(ModelError, match="no task known for BertModel.*pass task= to Subject"):
        Subject(tiny.model("bert").bert, tiny.wordpiece())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_half_precision(family, dtype):
    model = tiny.model(family).to(dtype)
    subject = Subject(model, tiny.FAMILIES[family].tokenizer())
    batch = subject.encode(tiny.TEXTS)
    output, states = subject.states(batch)
    assert output.dtype == torch.float32 and states[2].dtype == dtype
    leaf = states[2].float().requires_grad_()
    (gradient,) = torch.autograd.grad(subject.run(batch, replace={2: leaf}).output.sum(), leaf)
    assert gradient.dtype == torch.float32 and gradient.abs().sum() > 0
    whole = tiny.subject(family)
    assert torch.allclose(output, whole.states(whole.encode(tiny.TEXTS)).output, atol=0.3)


def test_gradient_checkpointing(unchanged):
    plain = tiny.subject("bert")
    model = tiny.model("bert").train()
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    subject = Subject(model, tiny.wordpiece())
    unchanged(model)
    ours, theirs = (explain(s, tiny.TEXTS, method="gradient", sites="all") for s in (subject, plain))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(torch.tensor(a.scores), torch.tensor(b.scores), atol=1e-5)
    unchanged(model)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_lora(family, unchanged):
    peft = pytest.importorskip("peft")
    options = peft.LoraConfig(task_type="SEQ_CLS", target_modules="all-linear")
    model = peft.get_peft_model(tiny.model(family), options)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    model.train()
    subject = Subject(model, tiny.FAMILIES[family].tokenizer())
    unchanged(model)
    batch = subject.encode(tiny.TEXTS)
    output, states = subject.states(batch)
    plain = tiny.subject(family)
    assert not torch.allclose(output, plain.states(batch).output), "the adapter was not used"
    with torch.no_grad():
        assert torch.equal(output, model.eval()(**batch.inputs).logits)
    model.train()
    assert torch.equal(subject.run(batch, replace={3: states[3]}).output, output)
    assert len(subject.attentions(batch)) == 3
    unchanged(model)


def test_an_answer_of_a_model_with_lora(unchanged):
    """The scores are those of the model into which the adapter is merged."""
    peft = pytest.importorskip("peft")
    options = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")
    model = peft.get_peft_model(tiny.model("llama", "causal"), options)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    subject, text = Subject(model, tiny.sentencepiece()), "the plot is dull"
    explain_generation(subject, text, max_new_tokens=1)  # the first answer leaves a config in PEFT's wrapper
    unchanged(model)
    made = [explain_generation(subject, text, m, max_new_tokens=3) for m in ("gradient", "occlusion")]
    unchanged(model)
    plain = explain_generation(tiny.subject("llama", "causal"), text, max_new_tokens=3)
    assert not np.allclose(plain.probabilities, made[0].probabilities), "the adapter was not used"
    merged = Subject(model.merge_and_unload(), tiny.sentencepiece())
    for one in made:
        again = explain_generation(merged, text, one.method, max_new_tokens=3)
        assert one.answer == again.answer
        np.testing.assert_allclose(one.scores, again.scores, atol=1e-4)


def test_prompt_tuning_is_turned_away():
    peft = pytest.importorskip("peft")
    options = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)
    model = peft.get_peft_model(tiny.model("bert"), options)
    with pytest.raises(ModelError, match="adds tokens that are not in the text"):
        Subject(model, tiny.wordpiece())


@pytest.mark.parametrize("form", ["wrapped", "in place", "blocks"])
def test_compiled_models_obey_edits(form):
    model = tiny.model("bert")
    compiled = model
    if form == "wrapped":
        compiled = torch.compile(model, backend="eager")
    elif form == "in place":
        model.compile(backend="eager")
    else:
        for block in model.bert.encoder.layer:
            block.compile(backend="eager")
    subject = Subject(compiled, tiny.wordpiece())
    batch = subject.encode(tiny.TEXTS)
    with torch.no_grad():
        own = compiled(**batch.inputs).logits  # compiled before any hook is set
    output, states = subject.states(batch)
    assert torch.allclose(output, own, atol=1e-6)
    plain = tiny.subject("bert")
    for site in subject.sites:
        edited = subject.run(batch, replace={site: lambda state: state * 2}).output
        assert torch.allclose(
            edited, plain.run(batch, replace={site: lambda state: state * 2}).output, atol=1e-6
        )
        assert not torch.allclose(edited, output)


def test_tied_weights():
    subject = tiny.subject("gpt2", "causal")
    model = subject.module
    assert model.lm_head.weight is model.transformer.wte.weight
    batch = subject.encode(tiny.TEXTS)
    output, states = subject.states(batch)
    changed = subject.run(batch, replace={0: states[0] * 0}).output
    assert not torch.allclose(changed, output), "the input table must change"
    top = subject.run(batch, replace={4: states[4]}).output
    assert torch.equal(top, output), "the output table must not"
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_weights_that_are_loaded_as_needed(family):
    """As `device_map` does: parameters are on the meta device until a module runs."""
    accelerate = pytest.importorskip("accelerate")
    whole = tiny.subject(family)
    model = tiny.model(family)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    subject = Subject(model, tiny.FAMILIES[family].tokenizer())
    assert subject.device.type == "cpu" and next(model.parameters()).device.type == "meta"
    ours, theirs = (explain(s, tiny.TEXTS, method="grad_x_input", sites="all") for s in (subject, whole))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(torch.tensor(a.scores), torch.tensor(b.scores), atol=1e-5)
    assert all(p.requires_grad for p in model.parameters())
    assert next(model.parameters()).device.type == "meta"


@pytest.mark.parametrize(("family", "head"), [("bert", "classification"), ("llama", "causal")])
def test_device_map_auto_loads_the_same_model(family, head, tmp_path):
    pytest.importorskip("accelerate")
    tiny.model(family, head).save_pretrained(tmp_path)
    tiny.FAMILIES[family].tokenizer().save_pretrained(tmp_path)
    spread = Subject.from_pretrained(tmp_path, device_map="auto")
    plain = Subject.from_pretrained(tmp_path, device=spread.device)
    for method in ("gradient", "occlusion"):
        assert explain(spread, tiny.TEXTS, method) == explain(plain, tiny.TEXTS, method)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device: a GPU beside the CPU")
@pytest.mark.parametrize("method", ["grad_x_input", "integrated_gradients", "occlusion", "diffmask"])
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_a_model_spread_over_two_devices(family, method):
    """As `device_map` spreads it over GPUs: a block runs where its weights are, and its input is moved."""
    whole, spread = tiny.subject(family), Subject(spread_out(family), tiny.FAMILIES[family].tokenizer())
    assert {p.device.type for p in spread.module.parameters()} == {"cpu", "cuda"}
    quick = {"diffmask": {"steps": 3}, "integrated_gradients": {"n_steps": 4}}.get(method, {})
    ours, theirs = (explain(s, tiny.TEXTS, method=method, **quick) for s in (spread, whole))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(torch.tensor(a.scores), torch.tensor(b.scores), atol=1e-3)
    states = spread.states(spread.encode(tiny.TEXTS)).states
    lens = DiffMask.fit(spread, list(tiny.TEXTS) * 4, over="inputs", steps=3, seed=0)
    assert len(lens.explain(tiny.TEXTS)[0].sites) == len(lens.sites) <= len(states)


def spread_out(family):
    """The family's tiny model with its first block on the CPU and everything else on the GPU."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    model = tiny.model(family)
    blocks = [point.module for point in find_points(model)[1].values()]
    model.to("cuda")
    blocks[0].to("cpu")
    add_hook_to_module(model, AlignDevicesHook(execution_device="cuda", io_same_device=True))
    for block in blocks:
        home = next(block.parameters()).device
        add_hook_to_module(block, AlignDevicesHook(execution_device=home, io_same_device=True))
    return model


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_attention_weights_and_restored_implementation(family, implementation, unchanged):
    subject = tiny.subject(family)
    if subject.module._can_set_attn_implementation():
        subject.module.set_attn_implementation(implementation)
    unchanged(subject.module)
    batch = subject.encode(tiny.TEXTS)
    weights = subject.attentions(batch)
    unchanged(subject.module)
    assert list(weights) == list(subject.blocks)
    for site, one in weights.items():
        assert one.shape[:2] == (3, 2) and one.shape[2:] == (batch.shape[1],) * 2
        rows = one[batch.valid[:, None].expand(-1, 2, -1)]  # attention of real tokens
        assert torch.allclose(rows.sum(-1), torch.ones(len(rows)), atol=1e-4), f"site {site}"
        hidden = (~batch.valid)[:, None, None].expand_as(one) & batch.valid[:, None, :, None]
        assert one[hidden].abs().max() < 1e-6, "padding is attended to"


def test_attention_implementation_is_restored_after_an_exception(unchanged):
    subject = tiny.subject("bert")
    unchanged(subject.module)
    with pytest.raises(ZeroDivisionError), subject.eager_attention():
        assert subject.module.config._attn_implementation == "eager"
        raise ZeroDivisionError
    unchanged(subject.module)


def test_a_decoder_that_classifies_needs_a_padding_token():
    model = tiny.model("gpt2")
    model.config.pad_token_id = None
    with pytest.raises(ModelError, match="last token that is not padding.*set model.config.pad_token_id"):
        Subject(model, tiny.byte_bpe())


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "t5", "bart"])
def test_padding_does_not_matter_where_tokenizer_and_model_disagree_about_it(family):
    """Padding is what the model's config says, on the right, whatever the tokenizer says."""
    tokenizer = tiny.FAMILIES[family].tokenizer()
    model = tiny.model(family)
    other = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        pad_token=tokenizer.convert_ids_to_tokens(9),
        padding_side="left",
    )
    subject = Subject(model, other)
    together = subject.states(subject.encode(tiny.TEXTS)).output
    for text, output in zip(tiny.TEXTS, together, strict=True):
        assert torch.allclose(subject.states(subject.encode([text])).output[0], output, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "limit"), [("bert", 64), ("roberta", 62), ("mpnet", 62), ("gpt2", 64), ("t5", None)]
)
def test_longest_input(family, limit):
    subject = tiny.subject(family)
    assert longest_input(subject.module, tiny.FAMILIES[family].tokenizer()) == limit
    if limit:
        ids = torch.full((1, limit), 20)
        subject.module(input_ids=ids, attention_mask=torch.ones_like(ids))
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            ids = torch.full((1, limit + 1), 20)
            subject.module(input_ids=ids, attention_mask=torch.ones_like(ids))


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", "classification"),
        ("gpt2", "causal"),
        ("t5", "seq2seq"),
        ("roberta", "qa"),
        ("albert", "mlm"),
        ("bert", "tagging"),
    ],
)
def test_from_pretrained_reads_the_head_from_the_config(tmp_path, family, head):
    built = tiny.subject(family, head)
    built.module.save_pretrained(tmp_path)
    built.tokenizer.save_pretrained(tmp_path)
    subject = Subject.from_pretrained(tmp_path, device="cpu", dtype="float32")
    assert type(subject.module) is type(built.module) and type(subject.task) is type(built.task)
    texts = tiny.texts(family, head)
    assert torch.equal(subject.states(subject.encode(texts)).output, built.states(built.encode(texts)).output)
    half = Subject.from_pretrained(tmp_path, dtype=torch.bfloat16, truncate=True, max_length=20)
    assert half.module.dtype == torch.bfloat16


def test_from_pretrained_refuses_pickle_and_models_without_a_head(tmp_path):
    built = tiny.subject("bert")
    built.tokenizer.save_pretrained(tmp_path)
    built.module.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(built.module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        Subject.from_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    with pytest.raises(ModelError, match=r"names \['BertModel'\]: no head to explain"):
        Subject.from_pretrained(tmp_path)


@pytest.fixture
def checkpoint(tmp_path):
    """A function that saves a tiny classifier with a change to its weights."""
    from safetensors.torch import load_file, save_file

    def save(change):
        built = tiny.subject("bert")
        built.tokenizer.save_pretrained(tmp_path)
        built.module.save_pretrained(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        save_file(change(weights), tmp_path / "model.safetensors", metadata={"format": "pt"})
        return tmp_path

    return save


def test_another_head_in_the_checkpoint_is_not_worth_a_word(checkpoint, capfd, recwarn):
    import transformers

    path = checkpoint(lambda weights: weights | {"cls.predictions.bias": torch.zeros(9)})
    before = transformers.logging.get_verbosity()
    Subject.from_pretrained(path)
    assert "REPORT" not in capfd.readouterr().err and not recwarn.list
    assert transformers.logging.get_verbosity() == before


@pytest.mark.parametrize("part", ["classifier.", "bert.encoder.layer.1."])
def test_missing_weights_are_an_error(checkpoint, part):
    path = checkpoint(lambda weights: {k: v for k, v in weights.items() if not k.startswith(part)})
    with pytest.raises(ModelError, match=rf"lacks \d+ weights of BertForSequence\w+, such as {part}"):
        Subject.from_pretrained(path)


def test_blocks_that_the_config_does_not_know_get_a_warning(checkpoint):
    name = "bert.encoder.layer.{}.output.dense.bias"
    path = checkpoint(lambda weights: weights | {name.format(99): weights[name.format(0)].clone()})
    with pytest.warns(UserWarning, match="no place for 1 weights.*layer.99"):
        Subject.from_pretrained(path)


def test_find_points_keeps_to_the_outer_list():
    """A list of experts inside each block may be longer than the list of blocks."""
    model = tiny.model("bert")
    for block in model.bert.encoder.layer:
        block.experts = nn.ModuleList([nn.Linear(2, 2) for _ in range(8)])
    points, blocks = find_points(model)
    assert [point.module for point in blocks.values()] == list(model.bert.encoder.layer)
