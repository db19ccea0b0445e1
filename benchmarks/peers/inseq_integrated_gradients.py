"""Inseq: integrated gradients, 50 steps; it explains generation, and says what it does with a classifier."""

import inseq
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def ready(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    method = inseq.load_model(model, "integrated_gradients", tokenizer=tokenizer)

    def explain(texts):
        return method.attribute(texts, n_steps=50)

    return explain
