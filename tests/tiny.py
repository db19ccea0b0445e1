"""Tiny random models of every family and small tokenizers of every kind: built here, nothing downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import tokenizers as tk
import torch
import transformers as hf

from masklens import Subject

SENTENCES = [
    "a fast , funny , highly enjoyable movie .",
    "the plot is dull and the acting is worse than the plot .",
    "Paris is the capital of France , and John Smith lives there .",
    "who lives in the capital ? she sold the red car to her brother .",
    "unbelievable tokenization of uncommon words : antidisestablishment",
]
TEXTS = ["a funny movie .", "the plot is dull and the acting is worse .", "Paris"]
QUESTION = ("who lives there ?", "John Smith lives in Paris , the capital of France .")


WHOLE = sorted({word for text in SENTENCES for word in text.split()} - {"funny", "movie", "acting"})
"""words that are one token each; other words fall apart (trained vocabularies differ from run to run)"""
PARTS = ("fun", "ny", "mo", "vie", "act", "ing")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:?!()"


def _fast(tokenizer: tk.Tokenizer, special: dict[str, str], **options: Any) -> Any:
    tokenizer.add_special_tokens(list(dict.fromkeys(special.values())))
    names: dict[str, Any] = {f"{name}_token": token for name, token in special.items()}
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **options)


@cache
def wordpiece() -> Any:
    """As BERT's: lower case, accents stripped, ## before the later pieces of a word."""
    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    letters = sorted(set(LETTERS.lower()))
    words = [word.lower() for word in WHOLE]
    pieces = [*special.values(), *words, *PARTS, *letters, *(f"##{one}" for one in (*PARTS, *letters))]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = tk.Tokenizer(tk.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tk.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tk.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tk.decoders.WordPiece()
    tokenizer.post_processor = tk.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return _fast(tokenizer, special, model_input_names=["input_ids", "token_type_ids", "attention_mask"])


def _byte_bpe(special: list[str]) -> tk.Tokenizer:
    """Bytes, merged from left to right to words with the space before them, and to the parts of others."""
    vocabulary = [*special, *sorted(tk.pre_tokenizers.ByteLevel.alphabet())]
    merges: dict[tuple[str, str], None] = {}
    for word in [*(f"\u0120{word}" for word in WHOLE), *PARTS]:
        for end in range(1, len(word)):
            merges[word[:end], word[end]] = None
    vocabulary += dict.fromkeys(left + right for left, right in merges)
    ids = {piece: i for i, piece in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = tk.Tokenizer(tk.models.BPE(ids, list(merges)))
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    return tokenizer


@cache
def byte_bpe() -> Any:
    """As GPT-2's: bytes, no special token is added, no padding token and no mask."""
    end = "<|endoftext|>"
    tokenizer = _byte_bpe([end])
    tokenizer.post_processor = tk.processors.ByteLevel(trim_offsets=True)
    return _fast(tokenizer, {"bos": end, "eos": end, "unk": end})


@cache
def roberta_bpe() -> Any:
    """As RoBERTa's: bytes, <s> text </s> </s> text </s>."""
    special = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    tokenizer = _byte_bpe(list(special.values()))
    tokenizer.post_processor = tk.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    return _fast(tokenizer, special | {"cls": "<s>", "sep": "</s>"})


@cache
def sentencepiece() -> Any:
    """As T5's and ALBERT's: a unigram model over text whose spaces are visible."""
    special = {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "[MASK]"}
    words = [f"\u2581{word}" for word in WHOLE]
    scores = dict.fromkeys(special.values(), 0.0) | dict.fromkeys(words, -3.0)
    scores |= dict.fromkeys(PARTS, -4.0) | dict.fromkeys(["\u2581", *LETTERS], -8.0)
    tokenizer = tk.Tokenizer(tk.models.Unigram(list(scores.items()), unk_id=2))
    tokenizer.normalizer = tk.normalizers.NFKC()
    tokenizer.pre_tokenizer = tk.pre_tokenizers.Metaspace()
    tokenizer.decoder = tk.decoders.Metaspace()
    tokenizer.post_processor = tk.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B:1 </s>:1", special_tokens=[("</s>", 1)]
    )
    return _fast(tokenizer, special)


class SlowTokenizer(hf.PythonBackend):
    """A tokenizer in Python that gives no offsets: words and single characters, lower case."""

    vocab_files_names: dict[str, str] = {}
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, **options: Any) -> None:
        words = sorted({word.lower() for text in SENTENCES for word in text.split()})
        letters = [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"]
        self._names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters]
        self._ids = {name: i for i, name in enumerate(self._names)}
        super().__init__(
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            **options,
        )

    @property
    def vocab_size(self) -> int:
        return len(self._names)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        pieces: list[str] = []
        for word in text.lower().split():
            known = word in self._ids or not word.isascii() or not word.isalpha()
            pieces += [word] if known else [f"##{c}" for c in word]
        return pieces

    def _convert_token_to_id(self, token: str) -> int:
        return self._ids.get(token, 1)

    def _convert_id_to_token(self, index: int) -> str:
        return self._names[index]

    def build_inputs_with_special_tokens(
        self, first: list[int], second: list[int] | None = None
    ) -> list[int]:
        return [2, *first, 3] if second is None else [2, *first, 3, *second, 3]

    def get_special_tokens_mask(self, first: list[int], second: Any = None, already_has_special_tokens=False):
        if already_has_special_tokens:
            return [int(i in (0, 2, 3)) for i in first]
        ends = [1, *[0] * len(first), 1]
        return ends if second is None else [*ends, *[0] * len(second), 1]


@dataclass(frozen=True)
class Tiny:
    """A family: its config class, its sizes, its tokenizer and the heads it has."""

    config: str
    tokenizer: Any
    heads: tuple[str, ...]
    sizes: dict[str, Any] = field(default_factory=dict)


_SIZES = dict(
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    initializer_range=0.3,
)
_RENAMED: dict[str, dict[str, Any]] = {
    "DistilBertConfig": dict(dim=16, n_layers=3, n_heads=2, hidden_dim=32, max_position_embeddings=64),
    "GPT2Config": dict(n_embd=16, n_layer=3, n_head=2, n_positions=64),
    "OPTConfig": dict(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, ffn_dim=32, max_position_embeddings=64
    ),
    "T5Config": dict(d_model=16, d_kv=8, d_ff=32, num_layers=3, num_decoder_layers=3, num_heads=2),
    "BartConfig": dict(
        d_model=16,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        init_std=0.3,
    ),
}
for _name in ("DistilBertConfig", "GPT2Config"):
    _RENAMED[_name]["initializer_range"] = 0.3
_RENAMED["OPTConfig"]["init_std"] = 0.3

_CLASSES = ("classification", "multi_label", "regression")
_ENCODER = (*_CLASSES, "pairs", "qa", "tagging", "mlm")
_DECODER = (*_CLASSES, "pairs", "causal")
_GROUPED = dict(num_key_value_heads=1)

FAMILIES: dict[str, Tiny] = {
    "bert": Tiny("BertConfig", wordpiece, _ENCODER),
    "roberta": Tiny("RobertaConfig", roberta_bpe, _ENCODER, dict(type_vocab_size=1)),
    "distilbert": Tiny("DistilBertConfig", wordpiece, _ENCODER),
    "electra": Tiny("ElectraConfig", wordpiece, _ENCODER, dict(embedding_size=12)),
    "albert": Tiny("AlbertConfig", sentencepiece, _ENCODER, dict(embedding_size=12, inner_group_num=1)),
    "mpnet": Tiny("MPNetConfig", wordpiece, _ENCODER),
    "deberta-v2": Tiny(
        "DebertaV2Config",
        sentencepiece,
        _ENCODER,
        dict(
            relative_attention=True,
            position_buckets=8,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
        ),
    ),
    "modernbert": Tiny(
        "ModernBertConfig", roberta_bpe, _ENCODER, dict(local_attention=8, global_attn_every_n_layers=2)
    ),
    "gpt2": Tiny("GPT2Config", byte_bpe, (*_DECODER, "tagging", "qa")),
    "opt": Tiny("OPTConfig", roberta_bpe, (*_DECODER, "qa"), dict(word_embed_proj_dim=12)),
    "gpt_neox": Tiny("GPTNeoXConfig", byte_bpe, (*_DECODER, "tagging", "qa")),
    "llama": Tiny("LlamaConfig", sentencepiece, (*_DECODER, "tagging", "qa"), _GROUPED),
    "mistral": Tiny(
        "MistralConfig", sentencepiece, (*_DECODER, "tagging", "qa"), _GROUPED | dict(sliding_window=8)
    ),
    "qwen2": Tiny("Qwen2Config", byte_bpe, (*_DECODER, "tagging", "qa"), _GROUPED),
    "gemma": Tiny("GemmaConfig", sentencepiece, (*_DECODER, "tagging"), _GROUPED | dict(head_dim=8)),
    "t5": Tiny("T5Config", sentencepiece, (*_CLASSES, "pairs", "qa", "tagging", "seq2seq")),
    "bart": Tiny("BartConfig", roberta_bpe, (*_CLASSES, "pairs", "qa", "seq2seq")),
}
"""by the config's model_type"""

_DECODER_SIZES = _SIZES | dict(num_key_value_heads=1, head_dim=8)
_EXPERTS = dict(num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
_SHARED = dict(decoder_sparse_step=1, shared_expert_intermediate_size=16)
_OLD = dict(n_embd=16, n_layer=3, n_head=2, n_positions=64, initializer_range=0.3)
_BART, _T5 = _RENAMED["BartConfig"], _RENAMED["T5Config"]
_LATENT = dict(
    num_key_value_heads=2,
    kv_lora_rank=8,
    q_lora_rank=8,
    qk_rope_head_dim=4,
    qk_nope_head_dim=4,
    v_head_dim=8,
    first_k_dense_replace=1,
    n_routed_experts=4,
    n_group=2,
    topk_group=1,
)
_MAMBA = dict(hidden_size=16, num_hidden_layers=3, state_size=4, initializer_range=0.3)

LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "apertus": _DECODER_SIZES,
    "arcee": _DECODER_SIZES,
    "bitnet": _DECODER_SIZES,
    "bloom": dict(hidden_size=16, n_layer=3, n_head=2, initializer_range=0.3),
    "codegen": _OLD | dict(n_head=4, rotary_dim=4),
    "cohere": _DECODER_SIZES,
    "cohere2": _DECODER_SIZES,
    "ctrl": _OLD | dict(dff=32),
    "deepseek_v2": _SIZES | _EXPERTS | _LATENT,
    "deepseek_v3": _SIZES | _EXPERTS | _LATENT,
    "diffllama": _DECODER_SIZES | dict(num_attention_heads=4, num_key_value_heads=2),
    "doge": _DECODER_SIZES,
    "ernie4_5": _DECODER_SIZES,
    "exaone4": _DECODER_SIZES,
    "falcon": dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, initializer_range=0.3),
    "falcon_mamba": _MAMBA,
    "gemma2": _DECODER_SIZES,
    "gemma3_text": _DECODER_SIZES,
    "gemma3n_text": _DECODER_SIZES
    | dict(
        laurel_rank=4,
        vocab_size_per_layer_input=100,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=0,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        activation_sparsity_pattern=[0.0, 0.0, 0.0],
        intermediate_size=[32] * 3,
    ),
    "glm4": _DECODER_SIZES,
    "gpt_bigcode": _OLD,
    "gpt_neo": dict(
        hidden_size=16, num_layers=3, num_heads=2, attention_types=[[["global", "local", "global"], 1]]
    ),
    "gpt_oss": _DECODER_SIZES | _EXPERTS,
    "gptj": _OLD | dict(rotary_dim=4),
    "granite": _DECODER_SIZES,
    "granitemoe": _DECODER_SIZES | _EXPERTS,
    "helium": _DECODER_SIZES,
    "jamba": _DECODER_SIZES | _EXPERTS | dict(use_mamba_kernels=False),
    "jetmoe": _DECODER_SIZES | _EXPERTS | dict(kv_channels=8),
    "lfm2": _DECODER_SIZES | dict(full_attn_idxs=[1]),
    "mamba": _MAMBA,
    "minimax": _DECODER_SIZES | _EXPERTS,
    "mixtral": _DECODER_SIZES | _EXPERTS,
    "modernbert-decoder": _SIZES,
    "mpt": dict(d_model=16, n_heads=2, n_layers=3, max_seq_len=64),
    "nemotron": _DECODER_SIZES,
    "olmo": _DECODER_SIZES,
    "olmo2": _DECODER_SIZES,
    "olmo3": _DECODER_SIZES,
    "olmoe": _DECODER_SIZES | _EXPERTS,
    "openai-gpt": _OLD,
    "persimmon": _SIZES,
    "phi": _DECODER_SIZES,
    "phi3": _DECODER_SIZES,
    "phimoe": _DECODER_SIZES | _EXPERTS,
    "qwen2_moe": _DECODER_SIZES | _EXPERTS | _SHARED,
    "qwen3": _DECODER_SIZES,
    "qwen3_moe": _DECODER_SIZES | _EXPERTS,
    "recurrent_gemma": _DECODER_SIZES,
    "reformer": dict(
        is_decoder=True,
        hidden_size=16,
        num_attention_heads=2,
        attention_head_size=8,
        attn_layers=["local", "lsh", "local"],
        feed_forward_size=32,
        axial_pos_embds=False,
    ),
    "rwkv": dict(hidden_size=24, num_hidden_layers=3, context_length=64),
    "seed_oss": _DECODER_SIZES,
    "smollm3": _DECODER_SIZES,
    "stablelm": _DECODER_SIZES,
    "starcoder2": _DECODER_SIZES,
    "xglm": dict(d_model=16, ffn_dim=32, num_layers=3, attention_heads=2, max_position_embeddings=64),
    "xlstm": dict(hidden_size=16, num_hidden_layers=3, num_heads=2),
    "zamba2": _DECODER_SIZES
    | dict(
        mamba_d_state=8,
        n_mamba_heads=4,
        mamba_headdim=8,
        layers_block_type=["mamba", "hybrid", "mamba"],
        hybrid_layer_ids=[1],
        num_mem_blocks=1,
    ),
    "bigbird_pegasus": _BART | dict(attention_type="original_full"),
    "blenderbot": _BART,
    "fsmt": _BART | dict(src_vocab_size=100, tgt_vocab_size=100, langs=["en", "de"]),
    "led": _BART | dict(max_encoder_position_embeddings=64, attention_window=4),
    "longt5": _T5 | dict(local_radius=3),
    "m2m_100": _BART,
    "marian": _BART,
    "mbart": _BART,
    "mt5": _T5,
    "mvp": _BART,
    "pegasus": _BART,
    "pegasus_x": _BART | dict(block_size=4, num_global_tokens=2),
    "plbart": _BART,
    "prophetnet": dict(
        hidden_size=16,
        num_encoder_layers=3,
        num_decoder_layers=3,
        num_encoder_attention_heads=2,
        num_decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
    ),
    "switch_transformers": _T5 | dict(num_experts=4, expert_capacity=64),
    "umt5": _T5,
    "funnel": dict(
        block_sizes=[1, 1], d_model=16, n_head=2, d_head=8, d_inner=32, max_position_embeddings=64
    ),
    "longformer": _SIZES | dict(attention_window=4),
    "yoso": _SIZES,
}
"""sizes of further families by their model_type, each with its language-model head only"""

_MASKED = ("funnel", "longformer", "yoso")


def language_model(family: str) -> Any:
    """A random language model of one of the further families."""
    ids = dict(pad_token_id=0, eos_token_id=1, bos_token_id=1, decoder_start_token_id=0)
    sizes = {"vocab_size": len(sentencepiece())} | LANGUAGE_MODELS[family] | ids
    made = hf.CONFIG_MAPPING[family](**sizes)
    head = "seq2seq" if made.is_encoder_decoder else "mlm" if family in _MASKED else "causal"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return _AUTO[head].from_config(made).eval()


def language_texts(family: str) -> list[Any]:
    return texts("albert", "mlm") if family in _MASKED else TEXTS


_AUTO = {
    "qa": hf.AutoModelForQuestionAnswering,
    "tagging": hf.AutoModelForTokenClassification,
    "mlm": hf.AutoModelForMaskedLM,
    "causal": hf.AutoModelForCausalLM,
    "seq2seq": hf.AutoModelForSeq2SeqLM,
}
_PROBLEMS = {"multi_label": "multi_label_classification", "regression": "regression"}
_LABELS = {
    "tagging": ["O", "B-PER", "I-PER"],
    "classification": ["negative", "neutral", "positive"],
    "pairs": ["contradiction", "neutral", "entailment"],
    "multi_label": ["funny", "sad", "long"],
    "regression": ["stars"],
}


def config(family: str, head: str, **changes: Any) -> Any:
    tiny = FAMILIES[family]
    tokenizer = tiny.tokenizer()
    sizes = _RENAMED.get(tiny.config, _SIZES) | tiny.sizes | {"vocab_size": len(tokenizer)}
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
    if ids["pad_token_id"] is None:
        ids["pad_token_id"] = tokenizer.eos_token_id
    if family in ("t5", "bart"):
        ids["decoder_start_token_id"] = ids["pad_token_id"] if family == "t5" else ids["eos_token_id"]
    if family == "modernbert":
        ids |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    labels = dict(enumerate(_LABELS.get(head, ["0", "1"])))
    extra = {"id2label": labels, "label2id": {name: i for i, name in labels.items()}}
    if head in _PROBLEMS:
        extra["problem_type"] = _PROBLEMS[head]
    return getattr(hf, tiny.config)(**sizes | ids | extra | changes)


def model(family: str, head: str = "classification", seed: int = 0, **changes: Any) -> Any:
    """A random model; the caller may change it."""
    auto = _AUTO.get(head, hf.AutoModelForSequenceClassification)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return auto.from_config(config(family, head, **changes)).eval()


def subject(family: str, head: str = "classification", **changes: Any) -> Subject:
    return Subject(model(family, head, **changes), FAMILIES[family].tokenizer())


def texts(family: str, head: str) -> list[Any]:
    """Texts of different lengths that the task can take."""
    if head == "qa":
        return [QUESTION, ("who ?", "John Smith")]
    if head == "pairs":
        return [("a funny movie .", "the plot is dull"), ("Paris", "John")]
    if head == "mlm":
        mask = FAMILIES[family].tokenizer().mask_token
        return [f"the {mask} is dull .", f"a fast , funny , highly enjoyable {mask} ."]
    return TEXTS


def cases() -> Iterator[tuple[str, str]]:
    """Every family with each of its heads."""
    for family, tiny in FAMILIES.items():
        for head in tiny.heads:
            yield family, head


class PlantedConfig(hf.PretrainedConfig):
    model_type = "planted"

    def __init__(self, effect: float = 3.0, decisive: int = 0, vocabulary: int = 1, **options: Any) -> None:
        self.effect, self.decisive, self.vocabulary = effect, decisive, vocabulary
        super().__init__(**options)


class PlantedBlock(torch.nn.Module):
    """Keeps every token's sign and looks at no other token."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + 0.1 * torch.tanh(hidden)


class PlantedForSequenceClassification(hf.PreTrainedModel):
    """Says 1 if a certain token is in the text; no other token has any effect.

    The first number of a state is positive for the decisive token and negative for all others, and the
    classifier adds up its positive part.
    """

    config_class = PlantedConfig

    def __init__(self, config: PlantedConfig) -> None:
        super().__init__(config)
        self.words = torch.nn.Embedding(config.vocabulary, 8)
        self.blocks = torch.nn.ModuleList([PlantedBlock() for _ in range(3)])
        self.post_init()
        with torch.no_grad():
            self.words.weight[:, 0] = -1.0
            self.words.weight[config.decisive, 0] = 2.0

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.words

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        hidden = self.words(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        found = (hidden[:, :, 0].relu() * attention_mask).sum(1)
        logits = torch.stack([torch.ones_like(found), self.config.effect * found], -1)
        return hf.modeling_outputs.SequenceClassifierOutput(logits=logits)


PLANTED = "dull"
PLANTED_TEXTS = ["the plot is dull and the acting is worse .", "dull car", "she sold the dull , red car"]


def planted(effect: float = 3.0) -> Subject:
    """A model whose decisive token is PLANTED; with effect 0 nothing matters."""
    tokenizer = wordpiece()
    options = PlantedConfig(effect, tokenizer.convert_tokens_to_ids(PLANTED), len(tokenizer), pad_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Subject(PlantedForSequenceClassification(options).eval(), tokenizer)
