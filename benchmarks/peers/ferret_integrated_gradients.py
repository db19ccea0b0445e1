"""ferret: integrated gradients times input, its default settings."""

from ferret import IntegratedGradientExplainer
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def ready(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    method = IntegratedGradientExplainer(model, tokenizer, multiply_by_inputs=True)

    def explain(texts):
        found = []
        for text in texts:
            target = int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())
            found.append(method(text, target=target))
        return found

    return explain
