"""Imagination as an environment: latent states stepped by a world model, observations by a model of the next one."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import nn

from rl_core import OneHot, registry
from rl_core.errors import EnvError
from rl_core.testing import CountingEnv, EnvKit
from rl_envs import DreamerEnv, ImaginedEnv, PendulumEnv


class Latent(nn.Module):
    """Next state, next belief and reward of linear latents."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 6)

    def forward(self, state, belief, action):
        outputs = torch.tanh(self.net(torch.cat([state, belief, action], -1)))
        return tuple(part.clone() for part in outputs.split([2, 3, 1], -1))


def make_model():
    torch.manual_seed(0)
    return TensorDictModule(Latent(), ["state", "belief", "action"], ["state", "belief", "reward"])


def make_dreamer(model=None, **options):
    env = DreamerEnv(make_model() if model is None else model, prior_shape=(2,), belief_shape=(3,), **options)
    env.set_specs_from_env(CountingEnv(batch_size=[4]))
    return env


class Opaque(TensorDictModuleBase):
    """A module that can only be called on a TensorDict."""

    def __init__(self, module):
        super().__init__()
        self.inner, self.in_keys, self.out_keys = module, module.in_keys, module.out_keys

    def forward(self, tensordict):
        return self.inner(tensordict)


class TestDreamerEnv(EnvKit):
    distribution = "rl-envs"
    random_start = False

    def make_env(self):
        return make_dreamer()


class TestOpaqueDreamerEnv(EnvKit):
    distribution = "rl-envs"
    random_start = False

    def make_env(self):
        return make_dreamer(Opaque(make_model()))


def states(*batch):
    torch.manual_seed(1)
    return TensorDict({"state": torch.randn(*batch, 2), "belief": torch.randn(*batch, 3)}, list(batch))


def make_actor():
    torch.manual_seed(2)
    net = nn.Linear(5, 1)
    return TensorDictModule(lambda s, b: net(torch.cat([s, b], -1)), ["state", "belief"], ["action"]), net


def test_imagination_from_given_states_is_the_model_step_by_step():
    env, (actor, _) = make_dreamer(), make_actor()
    data = env.rollout(4, actor, auto_reset=False, tensordict=states(3))
    assert data.batch_size == (3, 4) and data.names[-1] == "time" and not data["next", "done"].any()
    td = states(3)
    for t in range(4):
        td = actor(td)
        torch.testing.assert_close(data["state"][:, t], td["state"])
        torch.testing.assert_close(data["action"][:, t], td["action"])
        td = env.world_model(td)
        torch.testing.assert_close(data["next", "reward"][:, t], td["reward"])
        torch.testing.assert_close(data["next", "belief"][:, t], td["belief"])


def test_known_and_opaque_world_models_imagine_the_same_with_the_same_gradients():
    found = []
    for model in (make_model(), Opaque(make_model())):
        actor, net = make_actor()
        data = make_dreamer(model).rollout(5, actor, auto_reset=False, tensordict=states(2, 3))
        data["next", "reward"].sum().backward()
        found.append((data["next", "reward"], net.weight.grad))
    assert found[0][0].shape == (2, 3, 5, 1) and found[0][1].abs().sum() > 0
    torch.testing.assert_close(found[0], found[1])


def test_specs_are_those_of_the_real_environment_without_its_batch():
    env = make_dreamer()
    assert env.action_spec == CountingEnv().action_spec and env.batch_size == ()
    assert env.observation_spec["state"].shape == (2,) and env.observation_spec["belief"].shape == (3,)
    env.action_spec = OneHot(3)
    assert env.rand_action(states(5))["action"].shape == (5, 3)


def test_what_a_world_model_lacks_is_named():
    model = make_model()
    model.out_keys[2] = "gain"
    for wrong in (model, Opaque(model)):
        with pytest.raises(EnvError, match="reward"):
            make_dreamer(wrong).rollout(2)
    reading = TensorDictModule(Latent(), ["state", "context", "action"], ["state", "belief", "reward"])
    with pytest.raises(EnvError, match="context"):
        make_dreamer(reading).rollout(2)
    with pytest.raises(EnvError, match="TensorDict"):
        make_dreamer(lambda td: None).rollout(2)


def test_states_are_decoded_where_there_is_a_decoder():
    decoder = TensorDictModule(lambda s, b: torch.cat([s, b], -1), ["state", "belief"], ["reco_pixels"])
    td = make_dreamer(obs_decoder=decoder).decode_obs(states(3))
    torch.testing.assert_close(td["reco_pixels"], torch.cat([td["state"], td["belief"]], -1))
    with pytest.raises(EnvError, match="obs_decoder"):
        make_dreamer().decode_obs(states(3))


def test_they_are_made_by_name():
    options = {"world_model": make_model(), "prior_shape": (2,), "belief_shape": (3,)}
    assert isinstance(registry.envs.make("model_based:Dreamer", **options), DreamerEnv)
    assert registry.envs.ids("model_based") == ["Dreamer", "Imagined"]
    assert "world model" in registry.envs.describe("model_based:Dreamer")


# ---------------------------------------------------------------- observations


def counting_model(**written):
    def step(td):
        result = TensorDict({("next", "observation"): td["observation"] + td["action"]}, td.batch_size)
        for key, value in written.items():
            result["next", key] = value(td)
        return result

    return step


class TestImaginedEnv(EnvKit):
    distribution = "rl-envs"
    random_start = False

    def make_env(self):
        return ImaginedEnv(counting_model(reward=lambda td: td["observation"] - 1), CountingEnv())


def test_observations_follow_the_model_from_real_first_ones():
    env = ImaginedEnv(
        counting_model(), CountingEnv(batch_size=[2]), batch_size=[5], reward_fn=lambda o, a, n: 10 * o + a + n
    )
    data = env.rollout(4)
    assert data.batch_size == (5, 4) and bool((data["observation"][:, 0] == 0).all())
    torch.testing.assert_close(data["next", "observation"], data["action"].cumsum(1))
    expected = 10 * data["observation"] + data["action"] + data["next", "observation"]
    torch.testing.assert_close(data["next", "reward"], expected)


def test_episodes_end_where_the_model_says_so():
    model = counting_model(
        reward=lambda td: td["observation"], terminated=lambda td: (td["observation"] + td["action"]).abs() > 0.2
    )
    data = ImaginedEnv(model, CountingEnv()).rollout(200)
    ended = data["next", "terminated"].flatten()
    assert bool(ended[-1]) and not ended[:-1].any()


def test_first_observations_of_a_stateless_environment_are_drawn_together():
    model = TensorDictModule(lambda o, a: o, ["observation", "action"], [("next", "observation")])
    env = ImaginedEnv(model, PendulumEnv(seed=3), batch_size=7, reward_fn=lambda o, a, n: o[..., :1])
    first = env.reset()["observation"]
    assert first.shape == (7, 3) and len(first.unique(dim=0)) == 7


def test_what_an_imagined_environment_lacks_is_named():
    with pytest.raises(EnvError, match="picture"):
        ImaginedEnv(counting_model(), CountingEnv(), next_observation_key=("next", "picture"))
    with pytest.raises(EnvError, match="reward_fn"):
        ImaginedEnv(counting_model(), CountingEnv()).rollout(2)
    with pytest.raises(EnvError, match="observation"):
        ImaginedEnv(lambda td: TensorDict({}, td.batch_size), CountingEnv()).rollout(2)
