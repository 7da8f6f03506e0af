"""VMAS: groups, rows that are the simulator's own, time limits, partial resets and random streams."""

import subprocess
import sys

import pytest
import torch
import vmas

from rl_collectors import Collector
from rl_core import Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, check_env_specs, registry
from rl_core.errors import EnvError, PolicyError, SpecError, UnknownNameError
from rl_marl.groups import MarlGroupMapType
from rl_marl.vmas.env import VmasEnv, VmasWrapper, all_scenarios
from rl_marl.vmas.provider import VmasProvider


def navigation(**kwargs):
    return VmasEnv("navigation", **{"num_envs": 4, "n_agents": 3, **kwargs})


def actions_of(env, n, seed=0):
    torch.manual_seed(seed)
    return [env.rand_action().get(("agents", "action")) for _ in range(n)]


def test_agents_alone_are_called_agents_and_lie_in_one_group():
    env = navigation()
    data = env.rollout(5)
    assert env.group_map == {"agents": ["agent_0", "agent_1", "agent_2"]} and env.batch_size == (4,)
    assert data.shape == (4, 5) and data["agents"].batch_size == (4, 5, 3)
    assert data["agents", "observation"].shape == (4, 5, 3, 18)
    assert data["next", "agents", "reward"].shape == (4, 5, 3, 1) and data["next", "done"].shape == (4, 5, 1)
    assert data["agents", "info", "pos_rew"].shape == (4, 5, 3, 1)


def test_agents_of_two_names_lie_in_two_groups():
    env = VmasEnv("simple_tag", num_envs=2)
    assert env.group_map == {"adversary": ["adversary_0", "adversary_1", "adversary_2"], "agent": ["agent_0"]}
    data = env.rollout(3)
    assert data["adversary", "observation"].shape == (2, 3, 3, 16)
    assert data["agent", "observation"].shape == (2, 3, 1, 14)


def test_a_name_that_breaks_the_rule_puts_everybody_into_one_group():
    assert VmasEnv("het_mass", num_envs=2).group_map == {"agents": ["agent 0", "agent 1"]}


def test_a_group_map_orders_the_rows():
    groups = {"back": ["agent_2", "agent_0"], "front": ["agent_1"]}
    split, whole = navigation(group_map=groups, seed=1), navigation(seed=1)
    one, other = split.reset(), whole.reset()["agents", "observation"]
    assert torch.equal(one["back", "observation"], other[:, [2, 0]])
    assert torch.equal(one["front", "observation"], other[:, [1]])
    alone = navigation(group_map=MarlGroupMapType.ONE_GROUP_PER_AGENT)
    assert alone.rollout(2)["agent_1", "observation"].shape == (4, 2, 1, 18)
    with pytest.raises(SpecError, match="'agent_1' is in no group"):
        navigation(group_map={"g": ["agent_0", "agent_2"]})


def test_agents_of_other_shapes_in_one_group_are_an_error_that_names_them():
    groups = {"g": ["speaker_0", "listener_0"]}
    with pytest.raises(SpecError, match=r"group 'g' differ in their action space: 'speaker_0'.*'listener_0'"):
        VmasEnv("simple_speaker_listener", num_envs=2, group_map=groups)


def test_rows_are_what_the_simulator_itself_gives():
    env = navigation(seed=5)
    actions = actions_of(env, 6)
    queue = iter(actions)
    data = env.rollout(6, lambda td: td.set(("agents", "action"), next(queue)))
    plain = vmas.make_env("navigation", num_envs=4, n_agents=3)
    observations = plain.reset(seed=5)
    for t, action in enumerate(actions):
        assert torch.equal(data["agents", "observation"][:, t], torch.stack(observations, 1))
        observations, rewards, _, infos = plain.step(list(action.unbind(1)))
        assert torch.equal(data["next", "agents", "reward"][:, t, :, 0], torch.stack(rewards, 1))
        found = data["next", "agents", "info", "pos_rew"][:, t, :, 0]
        assert torch.equal(found, torch.stack([info["pos_rew"] for info in infos], 1))


def test_the_time_limit_truncates_and_the_scenarios_own_end_terminates():
    env = navigation(max_steps=3)
    data = env.rollout(9)
    assert data.shape == (4, 3)
    assert data["next", "truncated"][:, -1].all() and not data["next", "terminated"].any()

    plain = vmas.make_env("navigation", num_envs=2, n_agents=2, max_steps=4)
    plain.scenario.done = lambda: torch.tensor([plain.steps[0] >= 2, plain.steps[1] >= 4])
    data = VmasWrapper(plain).rollout(4, break_when_any_done=False)
    assert data["next", "terminated"][0].flatten().tolist() == [False, True, False, True]
    assert data["next", "truncated"][0].flatten().tolist() == [False] * 4
    both = data["next"][1, -1]
    assert both["terminated"].item() and both["truncated"].item() and both["done"].item()


def test_an_environment_made_elsewhere_tells_the_two_ends_apart_too():
    plain = vmas.make_env("navigation", num_envs=2, n_agents=2, max_steps=2)
    data = VmasWrapper(plain).rollout(5)
    assert data.shape == (2, 2) and data["next", "truncated"][:, 1].all() and not data["next", "terminated"].any()


def test_a_partial_reset_touches_only_its_rows():
    env, twin = navigation(seed=2), navigation(seed=2)
    first = actions_of(env, 3)
    td, other = env.reset(), twin.reset()
    for action in first[:2]:
        td = env.step_mdp(env.step(td.set(("agents", "action"), action)))
        other = twin.step_mdp(twin.step(other.set(("agents", "action"), action)))
    before = td.clone()
    td["_reset"] = torch.tensor([[False], [True], [False], [True]])
    td = env.reset(td)
    kept, fresh = [0, 2], [1, 3]
    assert torch.equal(td["agents", "observation"][kept], before["agents", "observation"][kept])
    assert (td["agents", "observation"][fresh] != before["agents", "observation"][fresh]).any(-1).all()
    assert env.simulator.steps.tolist() == [2, 0, 2, 0]
    stepped = env.step(td.set(("agents", "action"), first[2]))["next", "agents", "observation"]
    wanted = twin.step(other.set(("agents", "action"), first[2]))["next", "agents", "observation"]
    assert torch.equal(stepped[kept], wanted[kept])


def test_the_last_observation_of_an_episode_stays_under_next():
    env = navigation(max_steps=2, seed=0)
    data = env.rollout(4, break_when_any_done=False)
    assert not torch.equal(data["next", "agents", "observation"][:, 1], data["agents", "observation"][:, 2])
    assert torch.equal(data["next", "agents", "observation"][:, 0], data["agents", "observation"][:, 1])


def test_rows_end_at_different_times_and_go_on():
    plain = vmas.make_env("navigation", num_envs=3, n_agents=2)
    lengths = torch.tensor([2, 3, 5])
    plain.scenario.done = lambda: plain.steps >= lengths
    data = VmasWrapper(plain).rollout(6, break_when_any_done=False)
    ends = data["next", "done"].squeeze(-1).int().tolist()
    assert ends == [[0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 1, 0]]


def test_draws_of_one_environment_do_not_change_those_of_another():
    def episodes(env, between=lambda: None):
        env.set_seed(7)
        found = []
        for _ in range(3):
            found.append(env.reset()["agents", "observation"])
            between()
        return torch.stack(found)

    alone = episodes(navigation())
    other = navigation(seed=1)
    assert torch.equal(episodes(navigation(), between=other.reset), alone)


def test_a_seed_repeats_and_another_does_not():
    one, same, other = (navigation(seed=seed).rollout(3)["agents", "observation"][:, 0] for seed in (3, 3, 4))
    assert torch.equal(one, same) and not torch.equal(one, other)
    torch.manual_seed(0)
    drawn = navigation().reset()["agents", "observation"]
    torch.manual_seed(0)
    assert torch.equal(navigation().reset()["agents", "observation"], drawn)


def test_the_simulator_leaves_torchs_generator_alone():
    env = navigation(seed=0)
    env.reset()
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    env.reset()
    env.step(env.reset().set(("agents", "action"), torch.zeros(4, 3, 2)))
    assert torch.equal(torch.rand(4), wanted)


@pytest.mark.parametrize(
    ("kwargs", "kind", "shape"),
    [
        ({}, Bounded, (4, 3, 2)),
        ({"continuous_actions": False}, Categorical, (4, 3)),
        ({"continuous_actions": False, "categorical_actions": False}, OneHot, (4, 3, 9)),
        ({"continuous_actions": False, "multidiscrete_actions": True}, MultiCategorical, (4, 3, 2)),
        (
            {"continuous_actions": False, "multidiscrete_actions": True, "categorical_actions": False},
            MultiOneHot,
            (4, 3, 6),
        ),
    ],
)
def test_every_kind_of_action_has_its_spec(kwargs, kind, shape):
    env = navigation(**kwargs)
    assert type(env.action_spec) is kind and tuple(env.action_spec.shape) == shape
    assert env.action_key == ("agents", "action") and env.reward_key == ("agents", "reward")
    assert env.done_keys == ["done", "terminated", "truncated"]
    check_env_specs(env)


def test_a_choice_moves_its_own_agent_whichever_way_it_is_written():
    numbers, hot = (navigation(continuous_actions=False, categorical_actions=given, seed=0) for given in (True, False))
    choice = torch.tensor([[1, 0, 2]]).expand(4, 3)
    one = numbers.step(numbers.reset().set(("agents", "action"), choice))
    vectors = torch.nn.functional.one_hot(choice, 9).bool()
    other = hot.step(hot.reset().set(("agents", "action"), vectors))
    assert torch.equal(one["next", "agents", "observation"], other["next", "agents", "observation"])
    assert choice[0].tolist() == [1, 0, 2]
    still = one["next", "agents", "observation"][:, 1, :2] - one["agents", "observation"][:, 1, :2]
    moved = one["next", "agents", "observation"][:, 0, :2] - one["agents", "observation"][:, 0, :2]
    assert not still.any() and moved.any(-1).all()


def test_an_action_out_of_range_is_explained():
    env = navigation()
    with pytest.raises(PolicyError, match="clamp_actions=True"):
        env.step(env.reset().set(("agents", "action"), torch.full((4, 3, 2), 5.0)))
    clamped = navigation(clamp_actions=True)
    clamped.step(clamped.reset().set(("agents", "action"), torch.full((4, 3, 2), 5.0)))


def test_gradients_pass_through_the_simulator_where_asked_for():
    env = navigation(grad_enabled=True)
    action = torch.zeros(4, 3, 2, requires_grad=True)
    env.step(env.reset().set(("agents", "action"), action))["next", "agents", "reward"].sum().backward()
    assert action.grad.abs().sum() > 0


@pytest.mark.parametrize("scenario", ["balance", "wheel", "discovery", "football", "simple_world_comm", "drone"])
def test_scenarios_agree_with_their_specs(scenario):
    check_env_specs(VmasEnv(scenario, num_envs=3, max_steps=2))


def test_the_wrapper_refuses_what_it_cannot_read():
    with pytest.raises(TypeError, match="got int"):
        VmasWrapper(3)
    with pytest.raises(EnvError, match="dict_spaces=False"):
        VmasWrapper(vmas.make_env("navigation", num_envs=2, dict_spaces=True))


def test_scenario_arguments_may_be_given_in_a_dict():
    env = VmasEnv("navigation", num_envs=2, scenario_kwargs={"n_agents": 5})
    assert len(env.group_map["agents"]) == 5 and env.num_envs == 2 and "navigation" in repr(env)


def test_an_observation_by_parts_keeps_them():
    plain = vmas.make_env("navigation", num_envs=2, n_agents=2)
    flat = plain.scenario.observation
    plain.scenario.observation = lambda agent: {"place": agent.state.pos, "all": flat(agent)}
    env = VmasWrapper(plain)
    check_env_specs(env)
    data = env.rollout(3)
    assert data["agents", "observation", "place"].shape == (2, 3, 2, 2)
    assert torch.equal(data["agents", "observation", "place"], data["agents", "observation", "all"][..., :2])


def test_the_provider_makes_lists_and_describes():
    provider = VmasProvider()
    assert {"navigation", "simple_tag", "waterfall"} <= set(provider.ids()) == set(all_scenarios())
    facts = provider.describe("balance")
    assert facts["groups"] == {"agents": ["agent_0", "agent_1", "agent_2"]} and "Bounded" in facts["action spec"]
    with registry.isolated():
        registry.envs.register("sim", provider)
        assert registry.envs.make("sim:balance", num_envs=2, max_steps=3).rollout(9).shape == (2, 3)
    with pytest.raises(UnknownNameError, match="did you mean 'navigation'"):
        provider.make("navigaton", num_envs=2)


def test_without_vmas_the_pip_command_is_named():
    script = (
        "import sys; sys.modules['vmas'] = None\n"
        "from rl_core.errors import PluginNotInstalledError\n"
        "try:\n    import rl_marl.vmas.env\n"
        "except PluginNotInstalledError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "pip install 'rl-marl[vmas]'" in said


def test_a_collector_goes_on_from_batch_to_batch():
    env = navigation(max_steps=5)
    batches = list(Collector(env, frames_per_batch=16, total_frames=32))
    assert [tuple(batch.shape) for batch in batches] == [(4, 4), (4, 4)]
    done = torch.cat([batch["next", "done"] for batch in batches], 1).squeeze(-1)
    assert done.int().tolist() == [[0, 0, 0, 0, 1, 0, 0, 0]] * 4
    joint = torch.equal(batches[0]["next", "agents", "observation"][:, -1], batches[1]["agents", "observation"][:, 0])
    assert joint


def test_moving_to_another_device_begins_anew():
    env = navigation(seed=0)
    assert env.to("cpu") is env and env.device == torch.device("cpu")
