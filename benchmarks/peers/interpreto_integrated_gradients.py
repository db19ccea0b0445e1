"""interpreto: integrated gradients, 50 steps (it calls them perturbations)."""

from interpreto import IntegratedGradients
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def ready(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    method = IntegratedGradients(model, tokenizer, batch_size=4, n_perturbations=50)

    def explain(texts):
        return method(texts)

    return explain
