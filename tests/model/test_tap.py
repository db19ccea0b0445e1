"""tap: record and replace states of any module."""

import pytest
import torch
from torch import nn

from masklens.errors import SiteError
from masklens.model.tap import Point, keeping_hooks, output_lengths, tap


class Pair(nn.Module):
    """Gives a tuple, as some blocks do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, hidden, extra=None):
        return self.inner(hidden), "kept"


class Net(nn.Module):
    """An embedding, a block called twice, a block that gives a tuple, and a module that is never called."""

    def __init__(self):
        super().__init__()
        self.embed, self.shared, self.pair = nn.Embedding(10, 4), nn.Linear(4, 4), Pair()
        self.unused = nn.Linear(4, 4)

    def forward(self, ids):
        h = self.shared(torch.tanh(self.shared(self.embed(ids))))
        h, extra = self.pair(hidden=h)
        assert extra == "kept"
        return h.sum(1)


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture
def points(net):
    return {
        0: Point(net.embed),
        1: Point(net.shared, "input", call=0),
        2: Point(net.shared, call=0),
        3: Point(net.shared, call=1),
        4: Point(net.pair, "input"),
        5: Point(net.pair),
    }


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def test_records_what_each_call_gave(net, points):
    with tap(points, record=points) as seen:
        net(IDS)
    first = net.shared(net.embed(IDS))
    assert torch.equal(seen[0], net.embed(IDS)) and torch.equal(seen[1], seen[0])
    assert torch.equal(seen[2], first)
    assert torch.equal(seen[3], net.shared(torch.tanh(first)))
    assert torch.equal(seen[4], seen[3])
    assert torch.equal(seen[5], net.pair.inner(seen[4]))


@pytest.mark.parametrize("site", range(6))
def test_identity_changes_nothing_and_zero_changes_the_output(net, points, site):
    before = net(IDS)
    with tap(points, replace={site: lambda state: state.clone()}):
        assert torch.equal(net(IDS), before)
    with tap(points, replace={site: torch.zeros(2, 3, 4)}):
        assert not torch.allclose(net(IDS), before)
    assert torch.equal(net(IDS), before)


def test_a_recorded_state_is_the_one_the_model_goes_on_with(net, points):
    new = torch.ones(2, 3, 4)
    with tap(points, record=[2, 3], replace={2: new}) as seen:
        net(IDS)
    assert torch.equal(seen[2], new)
    assert torch.equal(seen[3], net.shared(torch.tanh(new)))


def test_gradients_reach_replaced_and_recorded_states(net, points):
    state = net.embed(IDS).detach().requires_grad_()
    with tap(points, record=[3], replace={0: state}) as seen:
        total = net(IDS).sum()
    to_input, to_middle = torch.autograd.grad(total, [state, seen[3]])
    # The network above the middle is linear: every token's gradient is the column sums of its weight.
    assert torch.allclose(to_middle, net.pair.inner.weight.sum(0).expand(2, 3, 4))
    assert to_input.abs().min() > 0


@pytest.mark.parametrize("bad", [torch.zeros(2, 3, 5), torch.zeros(3, 4), "text"])
def test_a_replacement_of_another_shape_is_an_error(net, points, bad):
    replacement = bad if isinstance(bad, torch.Tensor) else lambda state: bad
    with pytest.raises(SiteError, match=r"site 2 holds a state of shape \(2, 3, 4\)"):  # noqa: SIM117
        with tap(points, replace={2: replacement}):
            net(IDS)


def test_unknown_site(net, points):
    with pytest.raises(SiteError, match=r"unknown site 9; this subject has sites \[0, 1, 2, 3, 4, 5\]"):  # noqa: SIM117
        with tap(points, record=[9]):
            net(IDS)


@pytest.mark.parametrize("point", ["unused", "third call"])
def test_a_site_that_never_fires_is_an_error(net, point):
    points = {0: Point(net.unused) if point == "unused" else Point(net.shared, call=2)}
    with pytest.raises(SiteError, match="never reached in the forward pass: site 0"):  # noqa: SIM117
        with tap(points, record=[0]):
            net(IDS)


def test_skipped_calls_hand_on_their_input(net, points):
    with tap({0: points[0], 3: points[3]}, record=[0, 3], skip={points[2]: 0}) as seen:
        net(IDS)
    assert torch.equal(seen[3], net.shared(torch.tanh(seen[0])))
    with tap(points, skip={points[5]: 2}):
        hidden, rest = net.pair(hidden=IDS)  # a tuple keeps its length
    assert hidden is IDS and rest is None
    assert "forward" not in net.shared.__dict__ and "forward" not in net.pair.__dict__


def test_output_lengths_leaves_out_blocks_that_hand_on_more(net, points):
    with output_lengths([points[2], points[5]]) as lengths:
        net(IDS)
    assert lengths == {points[2]: 0}


@pytest.mark.parametrize("where", ["in the model", "in the replacement", "in the block"])
def test_everything_is_undone_after_an_exception(net, points, unchanged, where):
    unchanged(net)

    def fail(state):
        raise RuntimeError(where)

    with pytest.raises((RuntimeError, IndexError)):  # noqa: SIM117
        with tap(
            points,
            record=[0, 3],
            replace={2: fail} if where == "in the replacement" else {},
            skip={points[2]: 0},
        ):
            net(IDS + 100 if where == "in the model" else IDS)
            raise RuntimeError(where)
    unchanged(net)


def test_an_error_of_the_model_is_not_hidden_by_sites_that_did_not_fire(net, points):
    with pytest.raises(IndexError), tap(points, record=[3]):
        net(IDS + 100)


def test_keeping_hooks_takes_away_new_ones_only(net, unchanged):
    net.embed.register_forward_hook(lambda *_: None)
    unchanged(net)
    with keeping_hooks(net):
        net.shared.register_forward_hook(lambda *_: None)
        net.pair.register_forward_pre_hook(lambda *_: None)
        net._output_capturing_hooks_installed = True
    unchanged(net)
    assert len(net.embed._forward_hooks) == 1
