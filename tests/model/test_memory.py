"""Batches by texts or by tokens, and what becomes of them when memory does not suffice."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from masklens.errors import MethodError
from masklens.model.memory import BatchSize, tokens_at_once

LENGTHS = [3, 9, 1, 4, 4, 7]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_every_text_is_in_one_batch_and_no_batch_has_too_many_tokens(lengths, tokens):
    batches = list(BatchSize(None, tokens).cut(lengths))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens


def test_the_longest_come_first_and_a_number_of_texts_is_kept_to():
    assert list(BatchSize(4, 1).cut(LENGTHS)) == [[1, 5, 3, 4], [0, 2]]
    assert list(BatchSize(None, 30).cut([10, 10, 9, 8])) == [[0, 1, 2], [3]]
    with pytest.raises(MethodError, match="batch_size is 0"):
        BatchSize(0, 1)


@pytest.mark.parametrize("texts", [None, 6])
def test_what_did_not_fit_is_not_tried_again(texts):
    """Memory is enough for 8 tokens."""
    size, tried = BatchSize(texts, 27), []

    def work(rows):
        tried.append(rows)
        if len(rows) * max(LENGTHS[i] for i in rows) > 8 and len(rows) > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return len(rows)

    done = [i for rows in size.cut(LENGTHS) for some, _ in size.within_memory(work, rows) for i in some]
    assert sorted(done) == list(range(len(LENGTHS)))
    tried.clear()
    again = [i for rows in size.cut(LENGTHS) for some, _ in size.within_memory(work, rows) for i in some]
    assert sorted(again) == list(range(len(LENGTHS))) and len(tried[0]) == 1


def test_another_error_is_no_matter_of_memory():
    size = BatchSize(None, 100)
    with pytest.raises(ValueError, match="bad"):
        list(size.within_memory(lambda rows: (_ for _ in ()).throw(ValueError("bad")), [0, 1]))
    assert size.tokens == 100


def test_a_gpu_takes_as_many_tokens_as_fit_beside_the_model(monkeypatch):
    module = torch.nn.Linear(2, 2)
    module.config = type("Config", (), {"hidden_size": 100, "num_hidden_layers": 10})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (34 * 10 * 100 * 4 * 4 * 50, 10**12))
    assert tokens_at_once(module, torch.device("cuda")) == 50
    assert tokens_at_once(torch.nn.Linear(2, 2), torch.device("cuda")) == 32768
    assert tokens_at_once(module, torch.device("cpu")) == 1024
