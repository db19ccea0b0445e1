"""What ferret's own evaluators say of fixed scores for some sentences, to compare our metrics with.

    python benchmarks/peers/metrics.py CHECKPOINT SENTENCES.tsv > tests/evaluation/data/ferret.json

Runs where ferret is installed and needs nothing of ours. ferret cuts tokens out, decodes the rest and
tokenises it again, so only sentences are taken whose tokens are whole words and survive that. Scores and
marks ("what people chose") are drawn. Beside ferret's values it writes down what the model said to every text
that ferret asked it about, in double precision.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from ferret.evaluators import faithfulness_measures as faithfulness
from ferret.evaluators import plausibility_measures as plausibility
from ferret.explainers.explanation import ExplanationWithRationale
from ferret.model_utils import ModelHelper
from transformers import AutoModelForSequenceClassification, AutoTokenizer

COUNT, SHORTEST, LONGEST = 8, 6, 10


class Recorder(ModelHelper):
    """Keeps what the model said, by the tokens of the text."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__(model, tokenizer)
        self.said: dict[str, list[float]] = {}

    def _forward(self, text: Any, **options: Any) -> Any:
        outputs, logits = super()._forward(text, **options)
        texts = [text] if isinstance(text, str) else text
        for one, row in zip(texts, logits.softmax(-1).tolist(), strict=True):
            self.said[" ".join(self.tokenizer.tokenize(one))] = row
        return outputs, logits


def survives(text: str, tokenizer: Any) -> bool:
    """Whether its tokens are whole words that are the same after decoding, one by one and together."""
    tokens = tokenizer.tokenize(text)
    plain = all(token.isalpha() or token in ",." for token in tokens)
    return plain and SHORTEST <= len(tokens) <= LONGEST and len(set(tokens)) == len(tokens)


def measure(text: str, helper: Recorder, generator: np.random.Generator) -> dict[str, Any]:
    """One sentence, its scores and marks, and ferret's values."""
    tokens = helper.get_tokens(text)
    scores = generator.normal(size=len(tokens)).round(3)
    marks = (generator.random(len(tokens)) < 0.4).astype(int)
    marks[[0, -1]], marks[1] = 0, 1
    helper.said = {}
    target = int(helper._forward(text, output_hidden_states=False)[1].argmax())
    explanation = ExplanationWithRationale(text, tokens, scores, "drawn", target, marks)
    values = {name: float(value) for name, value in evaluate(explanation, helper, len(tokens) - 2).items()}
    return {
        "text": text,
        "tokens": tokens,
        "scores": scores.tolist(),
        "marks": marks.tolist(),
        "target": target,
        "ferret": values,
        "said": {words: round(row[target], 12) for words, row in helper.said.items()},
    }


def evaluate(explanation: Any, helper: Recorder, count: int) -> dict[str, float]:
    """ferret's default settings, and its removal of the top 1, 2, ..., all tokens.

    For the latter scores are raised above 0: ferret leaves out tokens below, and its option not to fails with
    NumPy 1.25 and later.
    """
    raised = replace(explanation, scores=explanation.scores - explanation.scores.min() + 1)
    every = {"removal_args": {"based_on": "k", "thresholds": range(1, count + 1)}}
    removing = (faithfulness.AOPC_Comprehensiveness_Evaluation, faithfulness.AOPC_Sufficiency_Evaluation)
    others = (
        faithfulness.TauLOO_Evaluation,
        plausibility.AUPRC_PlausibilityEvaluation,
        plausibility.Tokenf1_PlausibilityEvaluation,
        plausibility.TokenIOU_PlausibilityEvaluation,
    )

    def value(kind: Any, given: Any, **options: Any) -> float:
        evaluator = kind(helper.model, helper.tokenizer)
        evaluator.helper = helper
        return evaluator.compute_evaluation(given, given.target, **options).score

    found = {kind.SHORT_NAME: value(kind, explanation) for kind in (*removing, *others)}
    return found | {f"{kind.SHORT_NAME}_every": value(kind, raised, **every) for kind in removing}


def main(checkpoint: str, sentences: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).double().eval()
    helper, generator = Recorder(model, tokenizer), np.random.default_rng(0)
    lines = Path(sentences).read_text(encoding="utf-8").splitlines()[1:]
    texts = (line.split("\t")[0].strip() for line in lines)
    chosen = islice((text for text in texts if survives(text, tokenizer)), COUNT)
    rows = [measure(text, helper, generator) for text in chosen]
    lines = ",\n".join(json.dumps(row) for row in rows)
    name, made_by = json.dumps(Path(checkpoint).name), json.dumps(version("ferret-xai"))
    print(f'{{"ferret": {made_by}, "checkpoint": {name}, "texts": [\n{lines}\n]}}')


if __name__ == "__main__":
    main(*sys.argv[1:])
