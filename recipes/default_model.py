"""Make the model that ships inside the package from the reference checkpoints minilm-sst2 and minilm-mlm.

    python recipes/default_model.py model MODEL_DIR DATA_DIR     # the model with its LM head
    python recipes/default_model.py lens MODEL_DIR DATA_DIR      # its two lenses (on a GPU where there is one)
    python recipes/default_model.py card MODEL_DIR DATA_DIR      # its card, with what it does on SST-2 dev

The vocabulary is cut to the pieces that matter for film reviews and everyday English; a word that loses its own
piece is spelled with smaller ones. Weights are in half precision.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from masklens import DiffMask, Subject
from masklens.reproduce.running import fast_products
from masklens.reproduce.treebank import read_split

HOME = Path(__file__).parents[1] / "src" / "masklens" / "assets" / "sentiment"
PIECES = 8000
GENERAL_WORDS = 12_000
"""the most frequent English words are counted once each, beside the reviews"""
MARGIN = 0.1
STEPS, RESPONSE, FLOOR = 4000, 10.0, 1.5


def model(model_dir: Path, data: Path) -> None:
    """Cut the vocabulary and write the classifier, its LM head and its tokenizer."""
    spec = json.loads((model_dir / "minilm-sst2" / "tokenizer.json").read_text(encoding="utf-8"))
    old = spec["model"]["vocab"]
    kept = _kept(old, _counts(model_dir, data))
    rows = torch.tensor([old[piece] for piece in kept])
    tensors = load_file(model_dir / "minilm-sst2" / "model.safetensors")
    language = load_file(model_dir / "minilm-mlm" / "model.safetensors")
    tensors |= {name: value for name, value in language.items() if name.startswith("cls.")}
    tensors.pop("cls.predictions.decoder.weight", None)  # tied to the word embeddings
    for name, value in tensors.items():
        if value.shape[:1] == (len(old),):
            tensors[name] = value[rows]
    HOME.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.half().contiguous() if v.is_floating_point() else v for k, v in tensors.items()},
        HOME / "model.safetensors",
        metadata={"format": "pt"},
    )
    _write_tokenizer(spec, {piece: i for i, piece in enumerate(kept)}, model_dir)
    _write_config(model_dir, len(kept))


def _counts(model_dir: Path, data: Path) -> Counter[str]:
    """How often each piece occurs in the training reviews and among the most frequent English words."""
    from transformers import AutoTokenizer
    from wordfreq import top_n_list

    tokenizer = AutoTokenizer.from_pretrained(model_dir / "minilm-sst2")
    reviews = [*read_split(data, "sst5", "train").texts, *read_split(data, "sst2", "train").texts]
    counts: Counter[str] = Counter()
    for texts in (reviews, top_n_list("en", GENERAL_WORDS)):
        for encoding in tokenizer(texts, add_special_tokens=False)["input_ids"]:
            counts.update(tokenizer.convert_ids_to_tokens(encoding))
    return counts


def _kept(old: dict[str, int], counts: Counter[str]) -> list[str]:
    """Special tokens, single characters (so that every word can be spelled), then the most frequent pieces."""
    special = [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if piece in old]
    ascii_only = [p for p in old if len(p.removeprefix("##")) == 1 and p.isascii()]
    kept = dict.fromkeys([*special, *ascii_only])
    for piece, _ in sorted(counts.items(), key=lambda item: (-item[1], old[item[0]])):
        if len(kept) == PIECES:
            break
        kept[piece] = None
    return list(kept)


def _write_tokenizer(spec: dict[str, Any], vocabulary: dict[str, int], model_dir: Path) -> None:
    spec["model"]["vocab"] = vocabulary
    for token in spec["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    for name, token in spec["post_processor"].get("special_tokens", {}).items():
        token["ids"] = [vocabulary[name]]
    spec["truncation"] = spec["padding"] = None
    (HOME / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    about = json.loads((model_dir / "minilm-sst2" / "tokenizer_config.json").read_text(encoding="utf-8"))
    about.pop("added_tokens_decoder", None)
    (HOME / "tokenizer_config.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


def _write_config(model_dir: Path, pieces: int) -> None:
    config = json.loads((model_dir / "minilm-sst2" / "config.json").read_text(encoding="utf-8"))
    config |= {"vocab_size": pieces, "pad_token_id": 0, "dtype": "float16"}
    for name in ("_name_or_path", "transformers_version", "torch_dtype"):
        config.pop(name, None)
    (HOME / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _subject() -> Subject:
    """The model in full precision: half is how it is kept, not how it is run."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Subject.from_pretrained(HOME, device=device, dtype="float32", truncate=True)


def lens(model_dir: Path, data: Path, overs: tuple[str, ...] = ("inputs", "states")) -> None:
    """Fit on the training sentences and longer phrases; settle on the sentences of SST's test set.

    No label is used. The dev set is left for the card.
    """
    subject = _subject()
    phrases = [t for t in read_split(data, "sst2", "train").texts if len(t.split()) >= 8]
    texts = [*read_split(data, "sst5", "train").texts, *phrases]
    unseen = read_split(data, "sst5", "test").texts
    for over in overs:
        with fast_products(subject.device.type):
            made = DiffMask.fit(
                subject,
                texts,
                over,
                MARGIN,
                seed=0,
                held_out=unseen[1::2],
                validation=unseen[::2],
                steps=STEPS,
                response=RESPONSE,
                floor=FLOOR,
                show_progress=True,
            )
        made.save_pretrained(HOME / f"lens-{over}")


if __name__ == "__main__":
    what, *folders = sys.argv[1:]
    {"model": model, "lens": lens}[what](*(Path(folder) for folder in folders[:2]), *((tuple(folders[2:]),) if folders[2:] else ()))
