"""Make the model that ships inside the package from the reference checkpoints minilm-sst2 and minilm-mlm.

    python recipes/default_model.py model MODEL_DIR DATA_DIR     # the model with its LM head; needs wordfreq
    python recipes/default_model.py lens MODEL_DIR DATA_DIR      # its lenses, on a GPU where there is one
    python recipes/default_model.py judge MODEL_DIR DATA_DIR     # measures its lenses again after "model"
    python recipes/default_model.py card MODEL_DIR DATA_DIR      # its card, with what it does on SST-2 dev

The vocabulary is cut to the pieces that matter for film reviews and everyday English; a word that loses its
own piece is spelled with smaller ones. Weights are kept in 8 bits (`masklens.model.int8`).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from experiments.sst.treebank import read_split
from safetensors.torch import load_file, save_file

from masklens import DiffMask, Subject
from masklens.diffmask.class_bias import class_biases
from masklens.diffmask.judging import judge
from masklens.diffmask.texts import FrozenTexts
from masklens.diffmask.trainer import diagnostics
from masklens.model import int8
from masklens.model.default import HOME, OVER
from masklens.records.layers import site_name

PIECES = 8000
GENERAL_WORDS = 12_000
"""the most frequent English words are counted once each, beside the reviews"""
MARGIN = 0.1
MEMORY = 4 * 10**9
"""bytes for the states of texts"""


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
    save_file(int8.packed(tensors), HOME / int8.FILE)
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
    """Special tokens, single characters (so that every word can be spelled), then the most frequent."""
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
    config |= {"vocab_size": pieces, "pad_token_id": 0, "dtype": "float32"}
    for name in ("_name_or_path", "transformers_version", "torch_dtype"):
        config.pop(name, None)
    (HOME / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _subject() -> Subject:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Subject.from_pretrained(HOME, device=device, truncate=True)


def lens(model_dir: Path, data: Path, overs: Sequence[str] = OVER) -> None:
    """Fit by the defaults on the training sentences; calibrate on half of the sentences of SST's test set.

    No label is used. The other half is for the lens's own card, the dev set for the model's.
    """
    subject = _subject()
    texts, unseen = read_split(data, "sst5", "train").texts, read_split(data, "sst5", "test").texts
    for over in overs:
        made = DiffMask.fit(
            subject, texts, over, MARGIN, held_out=unseen[1::2], validation=unseen[::2], show_progress=True
        )
        _save(made, over)


def judge_again(model_dir: Path, data: Path) -> None:
    """Measure the lenses on their held-out texts with the model as it is now, and bind them to it.

    For a change of the weights that is too small to fit again: a lens that leaves its margin is not saved.
    """
    subject = _subject()
    unseen = read_split(data, "sst5", "test").texts
    held = FrozenTexts(subject, unseen[1::2], subject.sites, MEMORY)
    for over in OVER:
        made = DiffMask.default(subject, over)
        with subject.frozen():
            made.diagnostics = diagnostics(made.probe.rows, judge(made.probe, held), MARGIN)
            made.events = [str(one) for one in class_biases(made.probe, held)]
        if made.remarks:
            raise SystemExit("\n".join([f"fit the lens over {over} again", *made.remarks]))
        _save(made, over)


def _save(made: DiffMask, over: str) -> None:
    """Weights in half precision; what was measured, and what tells models apart, stay as they are."""
    made.probe.half()
    made.save_pretrained(HOME / f"lens-{over}")


def card(model_dir: Path, data: Path) -> None:
    """Measure the model and its lenses, as they are kept, on SST-2's dev set, and write the card."""
    subject, dev = _subject(), read_split(data, "sst2", "dev")
    frozen = FrozenTexts(subject, dev.texts, subject.sites, MEMORY)
    with subject.frozen():
        right = sum(_right(frozen, dev.labels, rows) for rows in frozen.chunks())
        tables = [_lens_table(subject, over, frozen) for over in OVER]
    measured = {"accuracy": right / len(dev.labels), "texts": len(dev.labels)}
    size = (HOME / int8.FILE).stat().st_size / 10**6
    text = CARD.format(pieces=PIECES, margin=MARGIN, megabytes=size, **measured)
    (HOME / "README.md").write_text("\n".join([text, *tables]), encoding="utf-8")


def _right(frozen: FrozenTexts, labels: Sequence[int], rows: Sequence[int]) -> int:
    """How many of these texts the model classifies as they are labelled."""
    said = frozen.draw(rows).output.argmax(1).tolist()
    return sum(one == labels[i] for one, i in zip(said, rows, strict=True))


def _lens_table(subject: Subject, over: str, frozen: FrozenTexts) -> str:
    made = DiffMask.default(subject, over)
    found = judge(made.probe, frozen)
    rows = [
        f"| {site_name(site)} | {j.divergence:.3f} | {1 - j.kept:.1%} | {j.agreement:.1%} |"
        for site, j in zip(made.sites, found, strict=True)
    ]
    head = [
        "",
        f"## The lens over {over}",
        "",
        "| layer | divergence | masked | agreement |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


CARD = """# The packaged sentiment model

A sentence classifier (negative, positive) with 6 blocks of width 384, the BERT architecture, and the LM head
of the masked language model it was fine-tuned from. It ships with masklens so that all of it can be tried
without a download. It knows film reviews; it is not meant for decisions about people.

- Base: all-MiniLM-L6-v2 (Apache-2.0), trained further on masked language modelling and then on SST-2.
- The vocabulary was cut from 30,522 to {pieces:,} word pieces: the most frequent in SST's training texts and
  in everyday English, and all single characters. A word that lost its own piece is spelled with smaller ones.
- The file `model-int8.safetensors` ({megabytes:.1f} MB) keeps every matrix in 8 bits with one scale a row.
  masklens makes float32 of it when it loads the model. transformers alone cannot read it.
- Accuracy on the {texts} sentences of SST-2's dev set: {accuracy:.1%} (89.9% before the vocabulary was cut,
  89.3% after that in half precision).
- The model was made by `recipes/default_model.py` in the repository of masklens; the cards of the lenses say
  how they were fitted. They were fitted with the weights in half precision. All figures here and on their
  cards were measured with the weights in 8 bits.

Below: each lens's hard masks on the same dev sentences, in nats and shares of tokens (margin {margin}). The
model and its lenses never saw them. The cards in `lens-inputs` and `lens-states` have the settings, and
figures on other texts.
"""


if __name__ == "__main__":
    what, model_dir, data, *overs = sys.argv[1:]
    step = {"model": model, "lens": lens, "judge": judge_again, "card": card}[what]
    step(Path(model_dir), Path(data), *([overs] if overs else []))
