"""Weights in 8 bits: what is read is what was kept, to half a step of each row."""

import pytest
import torch
from safetensors.torch import save_file
from tests import tiny

from masklens import Subject, explain
from masklens.errors import ModelError
from masklens.model import int8


def test_a_matrix_comes_back_to_half_a_step_of_its_row():
    """The second row is small: a scale for the whole matrix would leave nothing of it."""
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1.0], [1e-4], [0]])
    kept = int8.packed({"a": rows})
    assert kept["a"].dtype == torch.int8
    steps = rows.abs().amax(1, keepdim=True) / 127
    assert ((int8.unpacked(kept)["a"] - rows).abs() <= 0.501 * steps).all()
    whole_scale = (rows / steps.max()).round() * steps.max()
    assert not ((whole_scale - rows).abs() <= 0.501 * steps).all()


def test_vectors_are_kept_in_half_precision():
    vector = torch.tensor([0.1, -3.0])
    kept = int8.packed({"bias": vector})
    assert list(kept) == ["bias"]
    torch.testing.assert_close(int8.unpacked(kept)["bias"], vector.half().float(), rtol=0, atol=0)


@pytest.fixture
def folder(tmp_path):
    """A tiny classifier with its weights in 8 bits."""
    model = tiny.model("bert", "classification")
    model.save_pretrained(tmp_path)
    tiny.wordpiece().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    save_file(int8.packed(model.state_dict()), tmp_path / int8.FILE)
    return tmp_path, model


def test_a_folder_in_8_bits_loads_as_any_other(folder):
    path, model = folder
    subject = Subject.from_pretrained(path)
    expected = int8.unpacked(int8.packed(model.state_dict()))
    found = subject.module.state_dict()
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)
    assert explain(subject, ["a b"], "gradient")[0].scores.max() > 0


def test_a_model_that_was_trained_on_and_saved_there_is_loaded(folder):
    path, _ = folder
    trained = Subject.from_pretrained(path)
    trained.module.classifier.bias.data += 1
    for size in ("1GB", "20KB"):  # in one file, and in several with an index
        trained.module.save_pretrained(path, max_shard_size=size)
        found = Subject.from_pretrained(path).module.classifier.bias
        torch.testing.assert_close(found, trained.module.classifier.bias, rtol=0, atol=0)


def test_a_matrix_without_its_scales_is_refused(folder):
    path, model = folder
    kept = int8.packed(model.state_dict())
    save_file(
        {name: value for name, value in kept.items() if "query.weight.scale" not in name}, path / int8.FILE
    )
    with pytest.raises(ModelError, match="no model could be loaded"):
        Subject.from_pretrained(path)
