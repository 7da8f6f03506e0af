"""PendulumEnv against gymnasium, with batches and with gradients."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl_core import TransformedEnv, check_env_specs
from rl_core.errors import KeyMissingError
from rl_envs import PendulumEnv, RewardSum, StepCounter


def at(td, th, thdot):
    """The state of the other simulator, so that roundings do not add up."""
    return td.update({"th": torch.tensor(float(th)), "thdot": torch.tensor(float(thdot))})


def test_it_follows_gymnasium_step_by_step():
    env, raw = PendulumEnv(), gymnasium.make("Pendulum-v1").unwrapped
    generator = np.random.default_rng(0)
    for _ in range(5):
        raw.reset(seed=int(generator.integers(1000)))
        th, thdot = raw.state
        td = at(env.reset(), th, thdot)
        for _ in range(100):
            action = generator.uniform(-3, 3, 1).astype(np.float32)
            observation, reward, *_ = raw.step(action)
            td = env.step(td.set("action", torch.tensor(action)))
            assert td["next", "reward"].item() == pytest.approx(float(reward), abs=1e-5)
            assert np.allclose(td["next", "observation"].numpy(), observation, atol=1e-5)
            td = at(env.step_mdp(td), *raw.state)


def test_a_step_is_the_formula_for_any_state_and_any_constants():
    draw = torch.Generator().manual_seed(0)
    drawn = torch.rand(7, 1000, generator=draw)
    th, thdot, action = (drawn[0] - 0.5) * 100, (drawn[1] - 0.5) * 16, ((drawn[2] - 0.5) * 8).unsqueeze(-1)
    params = PendulumEnv.gen_params(batch_size=[1000])
    params["params"].update({"g": drawn[3] * 20, "m": drawn[4] + 0.5, "l": drawn[5] + 0.5, "dt": drawn[6] / 10})
    td = params.update({"th": th, "thdot": thdot, "action": action})
    nxt = PendulumEnv().step(td)["next"]

    th, thdot, u = th.double(), thdot.double(), action.double().squeeze(-1).clamp(-2, 2)
    g, m, length, dt = (td["params", name].double() for name in ("g", "m", "l", "dt"))
    upright = (th + math.pi) % (2 * math.pi) - math.pi
    speed = (thdot + (3 * g / (2 * length) * th.sin() + 3 / (m * length**2) * u) * dt).clamp(-8, 8)
    cost = upright**2 + 0.1 * thdot**2 + 0.001 * u**2
    assert torch.allclose(nxt["reward"].squeeze(-1).double(), -cost, atol=2e-5, rtol=1e-5)
    assert torch.allclose(nxt["thdot"].double(), speed, atol=1e-5)
    assert torch.allclose(nxt["th"].double(), th + speed * dt, atol=1e-5)


@pytest.mark.parametrize("batch", [[], [5]])
def test_a_rollout_is_the_loop_of_steps(batch):
    env = PendulumEnv()
    policy = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    td = start = env.reset(env.gen_params(batch_size=batch))
    data = env.rollout(20, policy, auto_reset=False, tensordict=start)
    for t in range(20):
        td = env.step(policy(td))
        assert all(torch.equal(data[..., t][key], td[key]) for key in td.keys(True, True))
        td = env.step_mdp(td)


def test_first_states_are_drawn_as_in_gymnasium():
    td = PendulumEnv(seed=0).reset(PendulumEnv.gen_params(batch_size=[4000]))
    assert td["th"].abs().max() <= math.pi and td["th"].std().item() == pytest.approx(2 * math.pi / 12**0.5, rel=0.05)
    assert td["thdot"].abs().max() <= 1 and td["thdot"].std().item() == pytest.approx(2 / 12**0.5, rel=0.05)
    assert torch.equal(td["observation"], torch.stack([td["th"].cos(), td["th"].sin(), td["thdot"]], -1))


def test_specs_hold_for_one_and_for_many():
    env = PendulumEnv()
    check_env_specs(env)
    check_env_specs(env, tensordict=env.gen_params(batch_size=[2, 3]))
    check_env_specs(TransformedEnv(PendulumEnv(), StepCounter(max_steps=2)), tensordict=env.gen_params(batch_size=[4]))


def test_the_rollout_demo_of_the_field():
    env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=200))
    policy = TensorDictModule(torch.nn.LazyLinear(1), in_keys=["observation"], out_keys=["action"])
    data = env.rollout(32, policy)
    assert data.batch_size == (32,) and data.names == ["time"]
    assert data["next", "step_count"].flatten().tolist() == list(range(1, 33))


def test_a_batch_is_rolled_out_from_its_parameters():
    env = PendulumEnv()
    td = env.reset(env.gen_params(batch_size=[10]))
    assert td["params", "g"].shape == (10,)
    policy = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    data = env.rollout(100, policy, auto_reset=False, tensordict=td)
    assert data.batch_size == (10, 100) and data["params", "g"].shape == (10, 100)
    assert torch.equal(data["next", "th"][:, :-1], data["th"][:, 1:])


def test_a_transformed_batch_counts_and_sums_and_is_cut():
    env = TransformedEnv(PendulumEnv(), StepCounter(max_steps=5))
    env.append_transform(RewardSum())
    td = env.reset(env.gen_params(batch_size=[10]))
    data = env.rollout(8, auto_reset=False, tensordict=td)
    assert data.batch_size == (10, 5) and data["next", "truncated"][:, -1].all()
    assert torch.allclose(data["next", "episode_reward"], data["next", "reward"].cumsum(1))


def test_a_partial_reset_draws_new_states_for_its_rows_only():
    env = PendulumEnv()
    td = env.reset(env.gen_params(batch_size=[3]))
    mask = torch.tensor([[False], [True], [False]])
    fresh = env.reset(td.clone().set("_reset", mask))
    assert torch.equal(fresh["th"] != td["th"], mask.squeeze(-1))


def test_gradients_flow_through_steps():
    env = PendulumEnv(seed=0)
    td, gain = env.reset(), torch.zeros(1, requires_grad=True)
    for _ in range(5):
        td.set("action", gain * td["thdot"])
        td = env.step(td)
        loss = -td["next", "reward"].sum()
        td = env.step_mdp(td)
    loss.backward()
    assert gain.grad.abs().item() > 0


def test_constants_differ_from_row_to_row():
    env = PendulumEnv()
    params = env.gen_params(batch_size=[2])
    params["params", "g"] = torch.tensor([0.0, 10.0])
    td = (
        env.reset(params).set("th", torch.full((2,), 1.0)).set("thdot", torch.zeros(2)).set("action", torch.zeros(2, 1))
    )
    speed = env.step(td)["next", "thdot"]
    assert speed[0] == 0 and speed[1].item() == pytest.approx(15 * math.sin(1.0) * 0.05)


def test_constants_of_the_constructor_are_used_and_bound_the_specs():
    params = PendulumEnv.gen_params(g=5.0)
    params["params", "max_torque"] = torch.tensor(3.0)
    env = PendulumEnv(params)
    assert env.action_spec.high.item() == 3 and env.reset()["params", "g"] == 5


def test_a_seed_is_its_own_and_torch_seeds_the_rest():
    one, two = PendulumEnv(seed=4), PendulumEnv(seed=4)
    torch.manual_seed(0)
    first = one.reset()["th"]
    torch.manual_seed(1)
    assert torch.equal(two.reset()["th"], first)
    torch.manual_seed(0)
    loose = PendulumEnv().reset()["th"]
    torch.manual_seed(0)
    assert torch.equal(PendulumEnv().reset()["th"], loose)


def test_a_step_without_a_state_says_how_to_begin():
    with pytest.raises(KeyMissingError, match=r"env.reset"):
        PendulumEnv().step(TensorDict(action=torch.zeros(1)))
