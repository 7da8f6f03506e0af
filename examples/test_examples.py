"""The examples run as a newcomer runs them, and the usage that the field's texts show works."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import ExplorationType, TransformedEnv, set_exploration_type, step_mdp

HERE = Path(__file__).parent


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ppo_on_pendulum_runs_and_prints_rewards():
    lines = run("ppo_pendulum.py", "3000").splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("avg reward:") and -17 < float(line.split(":")[1]) < 0


def test_ppo_on_pendulum_takes_less_than_a_hundred_lines():
    assert len((HERE / "ppo_pendulum.py").read_text().splitlines()) < 100


def test_the_rollout_demo_runs():
    assert "batch_size=[32]" in run("rollout_demo.py")


def test_the_loop_by_hand():
    from rl_envs import GymEnv
    from rl_modules import SafeModule

    env = GymEnv("Pendulum-v1")
    tensordict = env.reset()
    policy = SafeModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    out = []
    for _ in range(5):
        tensordict = policy(tensordict)
        tensordict = env.step(tensordict)
        out.append(tensordict)
        tensordict = step_mdp(tensordict)  # renames next observations to observations
    data = torch.stack(out, 0)
    assert data.shape == torch.Size([5])
    assert torch.equal(data["next", "observation"][:-1], data["observation"][1:])


def test_the_spec_of_a_batched_environment_contains_its_rollouts_actions():
    from rl_envs import GymEnv

    env = GymEnv("Pendulum-v1", num_envs=4)
    tensordict = env.rollout(max_steps=20, policy=None)
    assert tensordict.shape == torch.Size([4, 20])
    assert env.action_spec.is_in(tensordict["action"])


def test_transforms_are_inserted_and_know_their_parent():
    from rl_core import Compose
    from rl_envs import GymEnv, InitTracker, ObservationNorm, StepCounter

    env = TransformedEnv(GymEnv("Pendulum-v1"), Compose(StepCounter(), ObservationNorm(loc=0.5, scale=1.0)))
    env.insert_transform(0, InitTracker())
    parent_env = env.transform[1].parent
    assert "is_init" in parent_env.observation_spec
    assert "step_count" not in parent_env.observation_spec
    assert env.rollout(3)["is_init"].flatten().tolist() == [True, False, False]


def test_the_pixel_actor_critic_of_the_field():
    from rl_modules import (
        MLP,
        ActorValueOperator,
        ConvNet,
        NormalParamsWrapper,
        SafeModule,
        SafeProbabilisticModule,
        SafeProbabilisticTensorDictSequential,
        TanhNormal,
        ValueOperator,
    )

    common_module = ConvNet(
        bias_last_layer=True, depth=None, num_cells=[32, 64, 64], kernel_sizes=[8, 4, 3], strides=[4, 2, 1]
    )
    common_module = SafeModule(common_module, in_keys=["pixels"], out_keys=["hidden"])
    policy_module = SafeModule(
        NormalParamsWrapper(MLP(num_cells=[64, 64], out_features=32, activation_class=nn.ELU)),
        in_keys=["hidden"],
        out_keys=["loc", "scale"],
    )
    policy_module = SafeProbabilisticTensorDictSequential(
        policy_module,
        SafeProbabilisticModule(in_keys=["loc", "scale"], out_keys=["action"], distribution_class=TanhNormal),
    )
    value_module = ValueOperator(MLP(num_cells=[64, 64], out_features=1, activation_class=nn.ELU), in_keys=["hidden"])
    actor_value = ActorValueOperator(common_module, policy_module, value_module)
    standalone_policy = actor_value.get_policy_operator()
    td = standalone_policy(TensorDict({"pixels": torch.rand(2, 3, 84, 84)}, [2]))
    assert td["action"].shape == (2, 16)
    assert actor_value(td)["state_value"].shape == (2, 1)


def test_exploration_follows_the_context():
    from rl_core.specs import OneHot
    from rl_modules import EGreedyWrapper

    policy = TensorDictModule(lambda x: nn.functional.one_hot(x.argmax(-1), 4), ["observation"], ["action"])
    explore = EGreedyWrapper(policy, spec=OneHot(4, dtype=torch.int64), eps_init=1.0)
    td = TensorDict({"observation": torch.eye(4)[1].expand(200, 4)}, [200])
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert (explore(td.clone())["action"].argmax(-1) == 1).all()
    with set_exploration_type(ExplorationType.RANDOM):
        assert len(explore(td.clone())["action"].argmax(-1).unique()) > 1


def test_returns_are_functions_of_tensors():
    from rl_objectives.functional import vec_td_lambda_return_estimate

    shape = (2, 5, 1)
    ends = torch.zeros(shape, dtype=torch.bool)
    returns = vec_td_lambda_return_estimate(0.9, 0.95, torch.ones(shape), torch.ones(shape), ends, ends)
    assert torch.allclose(returns[:, -1], torch.tensor(1.9))


@pytest.mark.parametrize("dim", [0, 1])
def test_tensordicts_stack_and_reshape(dim):
    rows = [TensorDict({"x": torch.ones(3)}, [3]) for _ in range(2)]
    stacked = torch.stack(rows, dim)
    assert stacked.reshape(-1).shape == (6,) and stacked.permute(1, 0).shape == stacked.shape[::-1]


def test_multi_agent_ppo_learns_to_navigate_a_little():
    lines = run("multi_agent_ppo.py", "12000").splitlines()
    returns = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("iteration")]
    assert len(returns) == 2 and returns[1] > returns[0]


def test_a_chat_uses_python_and_a_function():
    shown = run("llm_tools.py")
    assert "[tool]" in shown and "385" in shown and "three eight five" in shown


def test_the_language_model_snippet_of_the_field():
    from rl_llm import (
        ChatEnv,
        GRPOLoss,
        LLMCollector,
        PythonInterpreter,
        TransformersWrapper,
        char_tokenizer,
        tiny_llama,
    )
    from rl_modules import ValueOperator

    tokenizer = char_tokenizer()
    model = tiny_llama(tokenizer)
    env = ChatEnv(tokenizer=tokenizer, system_prompt="You can execute Python code.", batch_size=[1]).append_transform(
        PythonInterpreter()
    )
    llm = TransformersWrapper(
        model=model, tokenizer=tokenizer, input_mode="history", generate_kwargs={"max_new_tokens": 8}
    )

    obs = env.reset(TensorDict({"query": "Calculate 2+2"}, batch_size=[1]))
    llm_output = llm(obs)  # generates an answer
    obs = env.step(llm_output)  # the environment takes it in
    roles = [message["role"] for message in obs["next", "history"].prompt.to_chats()[0]]
    assert roles == ["system", "user", "assistant"]

    critic = ValueOperator(nn.Linear(1, 1), in_keys=["progress"])
    assert GRPOLoss(llm, critic, gamma=0.99).gamma == 0.99
    assert LLMCollector(env, llm, frames_per_batch=100) is not None
