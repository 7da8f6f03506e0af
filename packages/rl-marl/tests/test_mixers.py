"""Mixers: the team's value, its monotonicity, and agents that do not act."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl_core.errors import SpecError
from rl_marl.functional.qmix import monotonic_mixture
from rl_marl.mixers.base import Mixer
from rl_marl.mixers.qmix import QMixer
from rl_marl.mixers.vdn import VDNMixer

values_of_three = st.lists(st.floats(-50, 50), min_size=3, max_size=3)


def make_qmixer(seed=0):
    torch.manual_seed(seed)
    return QMixer((2, 2), mixing_embed_dim=8, n_agents=3).double()


def tensor(values):
    return torch.tensor(values, dtype=torch.float64).reshape(1, 3, 1)


STATE = torch.linspace(-1, 1, 4, dtype=torch.float64).reshape(1, 2, 2)


@given(values_of_three)
def test_vdn_is_the_sum(values):
    assert VDNMixer(3)(tensor(values)).item() == pytest.approx(sum(values), abs=1e-9)


@settings(deadline=None)
@given(values_of_three, st.integers(0, 2), st.floats(0, 20), st.integers(0, 5))
def test_qmix_never_falls_in_an_agents_value(values, agent, rise, seed):
    mixer = make_qmixer(seed)
    higher = list(values)
    higher[agent] += rise
    assert mixer(tensor(higher), STATE).item() >= mixer(tensor(values), STATE).item() - 1e-9


@settings(deadline=None)
@given(values_of_three, st.lists(st.booleans(), min_size=3, max_size=3))
def test_agents_that_do_not_act_have_no_influence(values, acting):
    mask = torch.tensor([acting])
    other = [value if acts else value + 10.0 for value, acts in zip(values, acting, strict=True)]
    mixer = make_qmixer()
    assert torch.equal(mixer(tensor(values), STATE, mask), mixer(tensor(other), STATE, mask=mask))
    assert torch.equal(VDNMixer(3)(tensor(values), mask), VDNMixer(3)(tensor(other), mask=mask))
    for inputs, mix in (([STATE], mixer), ([], VDNMixer(3))):
        leaf = tensor(values).requires_grad_()
        mix(leaf, *inputs, mask=mask).sum().backward()
        assert (leaf.grad.squeeze(-1)[~mask] == 0).all() and (leaf.grad.squeeze(-1)[mask] > 0).all()


def test_vdn_sums_over_those_who_act():
    mask = torch.tensor([[True, False, True]])
    assert VDNMixer(3)(tensor([1.0, 2.0, 4.0]), mask).item() == 5.0


def test_qmix_drops_the_terms_of_those_who_do_not_act():
    mixer, values = make_qmixer(), tensor([1.0, -2.0, 3.0])
    smaller = QMixer((2, 2), mixing_embed_dim=8, n_agents=2).double()
    state = mixer.state_dict()
    for name in ("weight", "bias"):
        kept = state[f"weight_net.{name}"].unflatten(0, (3, 8))[[0, 2]].flatten(0, 1)
        state[f"weight_net.{name}"] = kept
    smaller.load_state_dict(state)
    mask = torch.tensor([[True, False, True]])
    torch.testing.assert_close(mixer(values, STATE, mask), smaller(values[:, [0, 2]], STATE))


def test_qmix_equals_the_papers_formula_by_hand():
    # two agents, one hidden feature: |-2| * 1 + |0.5| * (-4) + 1 = 1 -> ELU 1 -> |-3| * 1 + 0.25
    weight, bias = torch.tensor([[[-2.0], [0.5]]]), torch.tensor([[1.0]])
    out = monotonic_mixture(torch.tensor([[1.0, -4.0]]), weight, bias, torch.tensor([[-3.0]]), torch.tensor([[0.25]]))
    assert out.tolist() == [[3.25]]
    # below zero ELU saturates: 2 - 4 - 1 = -3 -> exp(-3) - 1
    low = monotonic_mixture(torch.tensor([[1.0, -8.0]]), weight, bias - 2, torch.tensor([[1.0]]), torch.tensor([[0.0]]))
    assert low.item() == pytest.approx(-0.950212931632136)


def test_qmix_computes_its_weights_from_the_state():
    torch.manual_seed(1)
    mixer, values, state = make_qmixer(), torch.randn(5, 3, 1).double(), torch.randn(5, 2, 2).double()
    for row in range(5):
        flat = state[row].flatten()
        weight = (mixer.weight_net.weight @ flat + mixer.weight_net.bias).reshape(3, 8).abs()
        hidden = F.elu(values[row, :, 0] @ weight + mixer.bias_net.weight @ flat + mixer.bias_net.bias)
        last = (mixer.out_weight_net.weight @ flat + mixer.out_weight_net.bias).abs()
        first, _, second = mixer.out_bias_net
        offset = second.weight @ (first.weight @ flat + first.bias).relu() + second.bias
        torch.testing.assert_close(mixer(values, state)[row], (hidden @ last) + offset)


@pytest.mark.parametrize("batch", [(), (5,), (2, 5), (0,)])
def test_batches_of_any_number_of_dims(batch):
    values, state = torch.zeros(*batch, 3, 1).double(), torch.zeros(*batch, 2, 2).double()
    assert make_qmixer()(values, state).shape == (*batch, 1)
    assert VDNMixer(3)(values).shape == (*batch, 1)


def test_they_run_inside_of_modules_with_keys():
    batch = TensorDict(
        {
            "agents": {
                "chosen_action_value": torch.ones(5, 3, 1),
                "mask": torch.tensor([[True, True, False]]).expand(5, 3),
            },
            "state": torch.zeros(5, 2, 2),
        },
        [5],
    )
    keys = [("agents", "chosen_action_value"), "state", ("agents", "mask")]
    assert TensorDictModule(make_qmixer().float(), keys, ["value"])(batch)["value"].shape == (5, 1)
    module = TensorDictModule(VDNMixer(3), [keys[0], keys[2]], ["value"])
    assert module(batch)["value"].tolist() == [[2.0]] * 5


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ((torch.zeros(5, 2, 1), torch.zeros(5, 2, 2)), r"\[\*B, 3, 1\]"),
        ((torch.zeros(5, 3), torch.zeros(5, 2, 2)), r"\[\*B, 3, 1\]"),
        ((torch.zeros(5, 3, 1), torch.zeros(5, 4)), r"\[5, 2, 2\]"),
        ((torch.zeros(5, 3, 1),), "chosen_action_value, state"),
        ((torch.zeros(5, 3, 1), torch.zeros(5, 2, 2), torch.ones(5, 3)), "float32"),
        ((torch.zeros(5, 3, 1), torch.zeros(5, 2, 2), torch.ones(5, 3, 1) > 0), r"\[5, 3, 1\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs, said):
    with pytest.raises(SpecError, match=said):
        make_qmixer().float()(*inputs)


def test_an_empty_hidden_layer_is_refused():
    with pytest.raises(SpecError, match="mixing_embed_dim=0"):
        QMixer((4,), 0, 3)


def test_a_mixer_of_ones_own_states_only_the_mixture():
    class Best(Mixer):
        def mix(self, values, state):
            return values.amax(-1, keepdim=True)

    assert Best(3)(tensor([1.0, 5.0, 2.0]), torch.tensor([[True, False, True]])).item() == 2.0


def test_it_can_be_pickled_and_restored():
    mixer, other, values = make_qmixer(), make_qmixer(3), tensor([1.0, 2.0, 3.0])
    assert not torch.equal(mixer(values, STATE), other(values, STATE))
    other.load_state_dict(mixer.state_dict())
    for copy in (pickle.loads(pickle.dumps(mixer)), other):
        assert torch.equal(copy(values, STATE), mixer(values, STATE))
