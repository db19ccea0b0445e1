"""LIT: integrated gradients, 50 steps, from Python, on the wrapper for a model that LIT asks for."""

import torch
from lit_nlp.api import model as lit_model
from lit_nlp.api import types as lit_types
from lit_nlp.components.gradient_maps import IntegratedGradients
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Sentiment(lit_model.BatchedModel):
    def __init__(self, folder):
        self.model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.labels = list(self.model.config.id2label.values())

    def max_minibatch_size(self):
        return 32

    def input_spec(self):
        return {
            "text": lit_types.TextSegment(),
            "vectors": lit_types.TokenEmbeddings(align="tokens", required=False),
            "target": lit_types.CategoryLabel(vocab=self.labels, required=False),
        }

    def output_spec(self):
        return {
            "tokens": lit_types.Tokens(parent="text"),
            "vectors": lit_types.TokenEmbeddings(align="tokens"),
            "slopes": lit_types.TokenGradients(
                align="tokens", grad_for="vectors", grad_target_field_key="target"
            ),
            "classes": lit_types.MulticlassPreds(vocab=self.labels, parent="target"),
            "target": lit_types.CategoryLabel(vocab=self.labels, required=False),
        }

    def predict_minibatch(self, inputs):
        encoded = self.tokenizer([one["text"] for one in inputs], return_tensors="pt", padding=True)
        vectors = self.model.get_input_embeddings()(encoded["input_ids"]).detach()
        for i, one in enumerate(inputs):
            if one.get("vectors") is not None:
                given = torch.as_tensor(one["vectors"])
                vectors[i, : len(given)] = given
        vectors.requires_grad_()
        logits = self.model(inputs_embeds=vectors, attention_mask=encoded["attention_mask"]).logits
        found = logits.argmax(-1).tolist()
        chosen = [
            self.labels.index(one["target"]) if one.get("target") else found[i]
            for i, one in enumerate(inputs)
        ]
        score = logits[torch.arange(len(inputs)), torch.tensor(chosen)].sum()
        (slopes,) = torch.autograd.grad(score, vectors)
        for i, length in enumerate(encoded["attention_mask"].sum(1).tolist()):
            yield {
                "tokens": self.tokenizer.convert_ids_to_tokens(encoded["input_ids"][i, :length]),
                "vectors": vectors[i, :length].detach().numpy(),
                "slopes": slopes[i, :length].numpy(),
                "classes": logits[i].softmax(-1).detach().numpy(),
                "target": self.labels[chosen[i]],
            }


def ready(folder):
    model, method = Sentiment(folder), IntegratedGradients(interpolation_steps=50)

    def explain(texts):
        return method.run([{"text": text} for text in texts], model, None)

    return explain
