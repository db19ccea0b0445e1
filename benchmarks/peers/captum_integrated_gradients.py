"""Captum: integrated gradients at the embeddings, 50 steps, towards the predicted class."""

import torch
from captum.attr import LayerIntegratedGradients
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def ready(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def logits(ids, attention_mask):
        return model(input_ids=ids, attention_mask=attention_mask).logits

    method = LayerIntegratedGradients(logits, model.base_model.embeddings)

    def explain(texts):
        found = []
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt")
            ids, attention_mask = inputs["input_ids"], inputs["attention_mask"]
            with torch.no_grad():
                target = int(logits(ids, attention_mask).argmax())
            scores = method.attribute(
                ids,
                baselines=torch.full_like(ids, tokenizer.pad_token_id),
                target=target,
                additional_forward_args=(attention_mask,),
                n_steps=50,
            )
            tokens = tokenizer.convert_ids_to_tokens(ids[0])
            found.append(list(zip(tokens, scores.sum(-1)[0].tolist(), strict=True)))
        return found

    return explain
