"""masklens: integrated gradients, 50 steps."""

import masklens as ml


def ready(folder):
    subject = ml.Subject.from_pretrained(folder)

    def explain(texts):
        return ml.explain(subject, texts, "integrated_gradients")

    return explain
