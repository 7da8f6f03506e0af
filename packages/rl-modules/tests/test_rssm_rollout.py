"""Recurrent state-space models over sequences: steps and sequences agree, and no state passes to another episode."""

import copy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import nn

from rl_core.errors import KeyMissingError, SpecError
from rl_modules import RSSMPosterior, RSSMPosteriorV3, RSSMPrior, RSSMPriorV3, RSSMRollout, RSSMRolloutV3
from rl_modules.world_models import categorical, gaussian
from rl_modules.world_models.rollout_steps import steps_known

ACTION, BELIEF, EMBED = 2, 8, 5
KINDS = ("normal", "categorical", "block_gru")


def state_dim(kind):
    return 3 if kind == "normal" else 12


def make_modules(kind):
    torch.manual_seed(0)
    if kind == "normal":
        prior = RSSMPrior(action_dim=ACTION, hidden_dim=6, rnn_hidden_dim=BELIEF, state_dim=3)
        posterior = RSSMPosterior(hidden_dim=6, state_dim=3, rnn_hidden_dim=BELIEF, obs_embed_dim=EMBED)
        names = ["mean", "std"]
    else:
        shape = {"hidden_dim": 6, "num_categoricals": 3, "num_classes": 4, "unimix": 0.1}
        model = "gru" if kind == "categorical" else "block_gru"
        prior = RSSMPriorV3(action_dim=ACTION, rnn_hidden_dim=BELIEF, recurrent_model=model, num_blocks=2, **shape)
        posterior = RSSMPosteriorV3(rnn_hidden_dim=BELIEF, obs_embed_dim=EMBED, use_rms_norm=True, **shape)
        names = ["logits"]
    return (
        TensorDictModule(
            prior, ["state", "belief", "action"], [*(("next", f"prior_{n}") for n in names), "_", ("next", "belief")]
        ),
        TensorDictModule(
            posterior,
            [("next", "belief"), ("next", "encoded_latents")],
            [*(("next", f"posterior_{n}") for n in names), ("next", "state")],
        ),
    )


def make_rollout(kind, **options):
    make = RSSMRollout if kind == "normal" else RSSMRolloutV3
    return make(*make_modules(kind), **options)


class Opaque(TensorDictModuleBase):
    """A module that can only be called on a TensorDict."""

    def __init__(self, module):
        super().__init__()
        self.inner, self.in_keys, self.out_keys = module, module.in_keys, module.out_keys

    def forward(self, tensordict):
        return self.inner(tensordict)


def make_sequences(kind, rows, steps, starts=(), seed=1):
    torch.manual_seed(seed)
    is_init = torch.zeros(rows, steps, 1, dtype=torch.bool)
    for row, step in starts:
        is_init[row, step] = True
    return TensorDict(
        {
            "state": torch.randn(rows, steps, state_dim(kind)),
            "belief": torch.randn(rows, steps, BELIEF),
            "action": torch.randn(rows, steps, ACTION),
            "encoded_latents": torch.randn(rows, steps, EMBED),
            "is_init": is_init,
            "next": {"encoded_latents": torch.randn(rows, steps, EMBED)},
        },
        [rows, steps],
    )


def outputs(rollout, data, seed=3):
    torch.manual_seed(seed)
    data = rollout(data.clone())
    return {key: data.get(key) for key in rollout.out_keys}


def opaque(rollout):
    rollout.rssm_prior, rollout.rssm_posterior = Opaque(rollout.rssm_prior), Opaque(rollout.rssm_posterior)
    return rollout


@pytest.fixture
def no_chance(monkeypatch):
    """Means and most probable classes in the place of samples."""
    monkeypatch.setattr(gaussian, "_sample", lambda mean, std, noise: mean)
    monkeypatch.setattr(
        categorical,
        "sample_classes",
        lambda logits, uniform=None: torch.nn.functional.one_hot(logits.argmax(-1), 4).to(logits.dtype).flatten(-2),
    )


@pytest.mark.parametrize("infer_first", [False, True])
@pytest.mark.parametrize("wrap", [lambda rollout: rollout, opaque], ids=["known", "any"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_in_the_middle_equals_two_sequences(kind, wrap, infer_first, no_chance):
    rollout = wrap(make_rollout(kind, infer_first=infer_first))
    data = make_sequences(kind, 2, 5, starts=[(0, 3), (1, 1)])
    whole = outputs(rollout, data)
    for row, start in ((0, 3), (1, 1)):
        first, second = data[row : row + 1, :start], data[row : row + 1, start:].clone()
        second["state"].fill_(9.0)  # what was stored there is not read
        second["belief"].fill_(9.0)
        parts = [outputs(rollout, part) for part in (first, second)]
        for key, value in whole.items():
            torch.testing.assert_close(value[row : row + 1], torch.cat([part[key] for part in parts], 1))


@pytest.mark.parametrize("kind", KINDS)
def test_steps_one_by_one_with_their_samples_equal_the_sequence(kind):
    rollout = make_rollout(kind)
    prior, posterior = rollout.rssm_prior, rollout.rssm_posterior
    data = make_sequences(kind, 3, 4)
    found = outputs(rollout, data)
    torch.manual_seed(3)
    state, belief = data["state"][:, 0], data["belief"][:, 0]
    for t in range(4):
        torch.testing.assert_close(found["state"][:, t], state)
        torch.testing.assert_close(found["belief"][:, t], belief)
        belief = prior.module.next_belief(state, belief, data["action"][:, t])
        *parameters, state = posterior.module(belief, data["next", "encoded_latents"][:, t])
        torch.testing.assert_close(found["next", "belief"][:, t], belief)
        torch.testing.assert_close(found["next", "state"][:, t], state)
        for key, value in zip(posterior.out_keys, parameters, strict=False):
            torch.testing.assert_close(found[key][:, t], value)
        for key, value in zip(prior.out_keys, prior.module.parameters_of(belief), strict=False):
            torch.testing.assert_close(found[key][:, t], value)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gradient_passes_an_episodes_beginning(kind):
    rollout = make_rollout(kind)
    data = make_sequences(kind, 1, 4, starts=[(0, 2)])
    data["action"].requires_grad_()
    data["next", "encoded_latents"].requires_grad_()
    after = rollout(data.clone())["next", "belief"][:, 2:].sum()
    gradients = torch.autograd.grad(after, [data["action"], data["next", "encoded_latents"]])
    assert all(bool((gradient[:, :2] == 0).all()) for gradient in gradients)
    assert bool((gradients[0][:, 2:] != 0).any())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_both_modules_through_the_samples(kind):
    rollout = make_rollout(kind)
    rollout(make_sequences(kind, 2, 4))["next", "belief"][:, -1].square().sum().backward()
    posterior = [p.grad for p in rollout.rssm_posterior.parameters()]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in posterior)
    assert any(bool((grad != 0).any()) for grad in posterior)  # the last belief knows states by their samples alone


def test_the_known_modules_and_any_modules_agree(no_chance):
    for kind in KINDS:
        fast, slow = make_rollout(kind), opaque(make_rollout(kind))
        assert steps_known(fast.rssm_prior, fast.rssm_posterior)
        assert not steps_known(slow.rssm_prior, slow.rssm_posterior)
        data = make_sequences(kind, 3, 6, starts=[(0, 0), (1, 4)])
        expected = outputs(slow, data)
        for key, value in outputs(fast, data).items():
            torch.testing.assert_close(value, expected[key])


def test_a_hook_is_never_skipped():
    rollout = make_rollout("normal")
    seen = []
    rollout.rssm_prior.module.register_forward_hook(lambda *call: seen.append(1))
    assert not steps_known(rollout.rssm_prior, rollout.rssm_posterior)
    rollout(make_sequences("normal", 2, 4))
    assert len(seen) == 4


def test_a_sample_of_the_prior_is_written_where_it_has_a_key():
    prior, posterior = make_modules("normal")
    prior.out_keys[2] = ("next", "prior_state")
    data = RSSMRollout(prior, posterior)(make_sequences("normal", 2, 4))
    assert data["next", "prior_state"].shape == (2, 4, 3)


def test_without_stored_states_a_sequence_begins_at_zero():
    for kind in KINDS:
        rollout, data = make_rollout(kind), make_sequences(kind, 2, 3)
        bare = data.exclude("state", "belief", "is_init")
        data["state"].zero_()
        data["belief"].zero_()
        expected = outputs(rollout, data)
        for key, value in outputs(rollout, bare).items():
            torch.testing.assert_close(value, expected[key])
    with pytest.raises(KeyMissingError, match="state"):
        opaque(make_rollout("normal"))(bare)


def test_the_first_state_is_inferred_from_the_first_observation(no_chance):
    rollout = make_rollout("categorical", infer_first=True)
    data = make_sequences("categorical", 2, 4, starts=[(0, 0), (1, 2)])
    found = outputs(rollout, data)
    for row, step in ((0, 0), (1, 2)):
        seen = rollout.rssm_posterior.module(torch.zeros(BELIEF), data["encoded_latents"][row, step])[-1]
        torch.testing.assert_close(found["state"][row, step], seen)
        assert bool((found["belief"][row, step] == 0).all())
    torch.testing.assert_close(found["state"][1, 0], data["state"][1, 0])  # not a first step: as it was stored


def test_a_previous_action_is_dropped_at_first_steps_and_the_present_one_is_not(no_chance):
    prior, posterior = make_modules("categorical")
    prior.in_keys[2] = "previous_action"
    data = make_sequences("categorical", 1, 4, starts=[(0, 2)]).rename_key_("action", "previous_action")
    found = outputs(RSSMRolloutV3(prior, posterior, action_key="previous_action"), data)
    kept = outputs(RSSMRolloutV3(prior, posterior), data)
    zeroed = data.clone()
    zeroed["previous_action"][0, 2] = 0
    expected = outputs(RSSMRolloutV3(prior, posterior), zeroed)
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key])
    assert not torch.allclose(kept["next", "belief"][0, 2], found["next", "belief"][0, 2])
    with pytest.raises(SpecError, match="does not read"):
        RSSMRolloutV3(prior, posterior, action_key="action")


def test_any_number_of_batch_dimensions_and_only_declared_entries():
    rollout, data = make_rollout("categorical"), make_sequences("categorical", 6, 4, starts=[(2, 1)])
    flat = outputs(rollout, data)
    deep = rollout_of_shape(rollout, data, (2, 3, 4))
    assert set(deep.keys(True, True)) - set(data.keys(True, True)) == set(rollout.out_keys) - {"state", "belief"}
    for key, value in flat.items():
        torch.testing.assert_close(deep[key].reshape(value.shape), value)
    assert rollout.in_keys == ["action", ("next", "encoded_latents")]


def rollout_of_shape(rollout, data, shape):
    torch.manual_seed(3)
    return rollout(data.reshape(*shape))


def test_what_does_not_fit_is_named():
    prior, posterior = make_modules("normal")
    with pytest.raises(SpecError, match="next belief"):
        RSSMRollout(posterior, prior)
    rollout, data = RSSMRollout(prior, posterior), make_sequences("normal", 2, 3)
    with pytest.raises(KeyMissingError, match="encoded_latents"):
        rollout(data.exclude(("next", "encoded_latents")))
    with pytest.raises(SpecError, match="is_init"):
        rollout(data.set("is_init", data["is_init"].float()))
    with pytest.raises(SpecError, match="no dimensions"):
        rollout(data[0, 0])
    with pytest.raises(KeyMissingError, match="encoded_latents"):
        RSSMRollout(prior, posterior, infer_first=True)(make_sequences("normal", 2, 3).exclude("encoded_latents"))


def test_a_copy_is_of_its_own():
    rollout = make_rollout("categorical")
    other = copy.deepcopy(rollout)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    data = make_sequences("categorical", 2, 3)
    assert not torch.equal(outputs(rollout, data)["next", "belief"], outputs(other, data)["next", "belief"])
    assert isinstance(other.rssm_prior.module.rnn, nn.GRUCell)
