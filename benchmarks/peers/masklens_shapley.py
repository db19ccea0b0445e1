"""masklens: Shapley values from 25 sampled orders."""

import masklens as ml


def ready(folder):
    subject = ml.Subject.from_pretrained(folder)

    def explain(texts):
        return ml.explain(subject, texts, "shapley")

    return explain
