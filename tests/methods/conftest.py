"""Fixtures that every method's test shares."""

from __future__ import annotations

import pytest
import torch
from tests.methods.tiny_models import TEXTS, SecondWordReader, encode_words, make_tokenizer, tiny_config

from masklens.methods.registry import Request
from masklens.model.subject import Subject
from masklens.model.tap import Point
from masklens.tasks.classification import BinaryClassification


@pytest.fixture(scope="session")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="session")
def subject(tokenizer) -> Subject:
    """A random three-class BERT of three blocks, in float64 so that formulas can be compared closely."""
    from transformers import BertForSequenceClassification

    torch.manual_seed(0)
    return Subject(BertForSequenceClassification(tiny_config()).double().eval(), tokenizer)


@pytest.fixture
def ask(subject):
    """Make a Request for texts (the shared ones by default)."""

    def make(sites=(0,), texts=TEXTS, on=subject, **more) -> Request:
        return Request(on, on.encode(texts), tuple(sites), **more)

    return make


@pytest.fixture(scope="session")
def planted() -> Subject:
    net = SecondWordReader()
    return Subject.from_module(net, [Point(net.embed), Point(net.body)], BinaryClassification(), encode_words)
