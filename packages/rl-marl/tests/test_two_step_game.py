"""The two-step matrix game of the QMIX paper (section 5.1): QMIX finds the joint optimum, VDN cannot represent it."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl_marl.losses.qmix import QMixerLoss
from rl_marl.mixers.qmix import QMixer
from rl_marl.mixers.vdn import VDNMixer
from rl_marl.networks.mlp import MultiAgentMLP
from rl_modules import QValueActor
from rl_objectives import HardUpdate

SAFE, RISKY, START, OVER = 0, 1, 2, 3
PAYOFF = torch.tensor([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])


def step(state, first, second):
    """(next state, reward): in the first step the first agent's action alone chooses the matrix."""
    if state == START:
        return (SAFE, RISKY)[first], 0.0
    return OVER, PAYOFF[state, first, second].item()


def observe(states):
    """All agents see the state, one-hot; the terminal one is all zeros."""
    return torch.eye(4)[states][:, :3]


def all_transitions():
    rows = [(s, a, b, *step(s, a, b)) for s in (START, SAFE, RISKY) for a in (0, 1) for b in (0, 1)]
    states, first, second, following, rewards = (torch.tensor(column) for column in zip(*rows, strict=True))
    over = (following == OVER).unsqueeze(-1)
    now, then = observe(states), observe(following)
    return TensorDict(
        {
            "agents": {"observation": now.unsqueeze(1).expand(-1, 2, -1), "action": torch.stack([first, second], -1)},
            "state": now,
            "next": {
                "agents": {"observation": then.unsqueeze(1).expand(-1, 2, -1)},
                "state": then,
                "reward": rewards.unsqueeze(-1),
                "done": over,
                "terminated": over,
            },
        },
        [len(rows)],
    )


def train(mixer, keys, seed):
    torch.manual_seed(seed)
    net = MultiAgentMLP(3, 2, 2, centralized=False, share_params=True, agent_id=True, num_cells=[32])
    actor = QValueActor(
        net,
        [("agents", "observation")],
        action_space="categorical",
        action_value_key=("agents", "action_value"),
        action_key=("agents", "action"),
        chosen_action_value_key=("agents", "chosen_action_value"),
    )
    mixer = TensorDictModule(mixer(), [("agents", "chosen_action_value"), *keys], ["chosen_action_value"])
    loss = QMixerLoss(actor, mixer)
    loss.make_value_estimator(gamma=0.99)
    updater, optimizer = HardUpdate(loss, value_network_update_interval=20), torch.optim.Adam(loss.parameters(), 1e-2)
    batch = all_transitions()
    for _ in range(400):
        optimizer.zero_grad()
        loss(batch)["loss"].backward()
        optimizer.step()
        updater.step()
    return actor


def greedy_return(actor):
    state, total = START, 0.0
    while state != OVER:
        observation = observe(torch.tensor([state])).expand(1, 2, 3)
        td = actor(TensorDict({"agents": {"observation": observation}}, [1]))
        state, reward = step(state, *td["agents", "action"][0].tolist())
        total += reward
    return total


@pytest.mark.parametrize("seed", [0, 1])
def test_qmix_finds_the_best_joint_actions(seed):
    assert greedy_return(train(lambda: QMixer((3,), 8, 2), ["state"], seed)) == 8.0


@pytest.mark.parametrize("seed", [0, 1])
def test_the_sum_of_values_settles_for_the_safe_matrix(seed):
    actor = train(lambda: VDNMixer(2), [], seed)
    assert greedy_return(actor) == 7.0
    value = actor(TensorDict({"agents": {"observation": observe(torch.tensor([RISKY])).expand(1, 2, 3)}}, [1]))
    first, second = value["agents", "action_value"][0].detach()
    # the least-squares fit of a sum to 0, 1, 1, 8 underrates the best joint action
    fit = torch.tensor([[-1.5, 2.5], [2.5, 6.5]])
    torch.testing.assert_close(first[:, None] + second, fit, atol=0.05, rtol=0)
