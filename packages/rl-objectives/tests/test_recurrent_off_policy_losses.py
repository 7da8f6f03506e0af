"""Off-policy losses of networks with a memory, against an LSTM that is unrolled step by step, in float64."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import nn

from rl_core import CarriedState, StateCarrier, Unbounded, recurrent_burn_in, recurrent_mode, set_recurrent_mode
from rl_core.errors import LossError
from rl_objectives import (
    AWACLoss,
    CQLLoss,
    CrossQLoss,
    DDPGLoss,
    DiscreteSACLoss,
    DQNLoss,
    IQLLoss,
    REDQLoss,
    SACLoss,
    TD3Loss,
    TQCLoss,
)

ROWS, TIME, HIDDEN, GAMMA = 3, 6, 4, 0.9


@pytest.fixture(autouse=True)
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


class Memory(StateCarrier, TensorDictModuleBase):
    """An LSTM of observations that follows the recurrent mode."""

    def __init__(self, name, reads="observation"):
        super().__init__()
        self.cell, self.states = nn.LSTMCell(3, HIDDEN), [f"{name}_h", f"{name}_c"]
        self.in_keys = [reads, *self.states, "is_init"]
        self.out_keys = [f"{name}_features", *(("next", state) for state in self.states)]

    def carried_state(self):
        spec = Unbounded(shape=(HIDDEN,), dtype=torch.float64)
        return CarriedState(dict.fromkeys(self.states, spec), ["is_init"])

    def reads_sequences(self):
        return recurrent_mode() is True

    def forward(self, td):
        value, state = td[self.in_keys[0]], [td[key] for key in self.states]
        if not self.reads_sequences():
            state = [part * ~td["is_init"] for part in state]
            state = self.cell(value, state)
            output = state[0]
        else:
            state, outputs = [part[:, 0] for part in state], []
            for t in range(value.shape[1]):
                state = [part.detach() for part in state] if t == recurrent_burn_in() else state
                state = self.cell(value[:, t], [part * ~td["is_init"][:, t] for part in state])
                outputs.append(state[0])
            output = torch.stack(outputs, 1)
            state = [part.unsqueeze(1).expand(-1, value.shape[1], -1) for part in state]
        for key, result in zip(self.out_keys, (output, *state), strict=True):
            td[key] = result
        return td


def recurrent(name, head, out_key, *more):
    """A memory and a head behind it."""
    return TensorDictSequential(Memory(name), TensorDictModule(head, [f"{name}_features", *more], [out_key]))


class Joined(nn.Linear):
    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, -1))


class Fixed:
    """A distribution without chance, so that a reference can be written down."""

    has_rsample = True

    def __init__(self, loc):
        self.loc = loc

    def rsample_and_log_prob(self, shape=()):
        return self.loc.expand(*shape, *self.loc.shape), -self.loc.square().sum(-1).expand(*shape, *self.loc.shape[:-1])

    def log_prob(self, value):
        return -(value - self.loc).square().sum(-1)

    def entropy(self):
        return self.loc.sum(-1) * 0


class Policy(TensorDictSequential):
    """A recurrent policy."""

    def __init__(self):
        super().__init__(Memory("actor"), TensorDictModule(nn.Linear(HIDDEN, 2), ["actor_features"], ["action"]))

    def get_dist(self, td):
        return Fixed(self(td.copy())["action"].tanh())


def critic(name="critic"):
    return recurrent(name, Joined(HIDDEN + 2, 1), "state_action_value", "action")


def sequences(action, burn_in=2):
    """Slices: the first row holds two episodes, the second begins one, and the third ends with one."""
    done, is_init = torch.zeros(2, ROWS, TIME, 1, dtype=torch.bool)
    done[0, 2], is_init[0, 3], is_init[1, 0], done[2, -1] = True, True, True, True
    observation = torch.randn(ROWS, TIME, 3)
    following = observation.roll(-1, 1)
    following[0, 2], following[:, -1] = torch.randn(3), torch.randn(ROWS, 3)
    states = {f"{name}_{part}": torch.randn(ROWS, TIME, HIDDEN) for name in ("q", "actor") for part in "hc"}
    step = {
        "observation": following,
        "reward": torch.randn(ROWS, TIME, 1),
        "done": done,
        "terminated": done & (torch.arange(ROWS) == 0).reshape(-1, 1, 1),
    }
    mask = (torch.arange(TIME) >= burn_in).expand(ROWS, TIME)
    data = {"observation": observation, "is_init": is_init, "action": action, "learning_mask": mask, "next": step}
    return TensorDict({**data, **states}, batch_size=[ROWS, TIME])


def unrolled(memory, batch, row, burn_in=2):
    """The features of an LSTM at each step of a row, and at the observation that it led to, one after the other.

    The state behind the burn-in is taken as a constant, as Kapturowski et al., 2019, section 3, has it.
    """
    cell, features, ahead = memory.cell, [], []
    h, c = (batch[key][row, 0] if key in batch.keys() else torch.zeros(HIDDEN) for key in memory.states)  # noqa: SIM118
    for t in range(TIME):
        if t == burn_in:
            h, c = h.detach(), c.detach()
        if batch["is_init"][row, t]:
            h, c = torch.zeros(HIDDEN), torch.zeros(HIDDEN)
        weights = cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh
        h, c = (part[0] for part in torch.lstm_cell(batch["observation"][row, None, t], (h[None], c[None]), *weights))
        features.append(h)
        then = torch.lstm_cell(batch["next", "observation"][row, None, t], (h[None], c[None]), *weights)
        ahead.append(then[0][0])
    return torch.stack(features), torch.stack(ahead)


def moved(loss):
    """A loss whose targets differ from their sources."""
    with torch.no_grad():
        for name, value in loss.state_dict().items():
            if "target_" in name and value.ndim:
                value.add_(0.3 * torch.randn_like(value))
    return loss


def compare(loss, given, expected):
    """Value and gradients."""
    parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    torch.testing.assert_close(given, expected)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True, retain_graph=True)
    found = torch.autograd.grad(given, parameters, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.zeros(()) if one is None else one, torch.zeros(()) if other is None else other)


def target_of(batch, row, next_value):
    step = batch["next"][row]
    return step["reward"] + GAMMA * next_value * ~step["terminated"]


@pytest.mark.parametrize("double_dqn", [False, True])
def test_dqn_reads_slices_along_time_with_burn_in(double_dqn):
    loss = moved(DQNLoss(recurrent("q", nn.Linear(HIDDEN, 2), "action_value"), gamma=GAMMA, double_dqn=double_dqn))
    loss.set_keys(mask="learning_mask")
    batch = sequences(torch.randint(2, (ROWS, TIME)))
    total = 0.0
    for row in range(ROWS):
        online, target = loss.value_network.module, loss.target_value_network.module
        features, ahead = unrolled(online[0], batch, row)
        with torch.no_grad():
            next_values = target[1].module(unrolled(target[0], batch, row)[1])
            judged = online[1].module(ahead) if double_dqn else next_values
            wanted = target_of(batch, row, next_values.gather(-1, judged.argmax(-1, True)))
        taken = online[1].module(features).gather(-1, batch["action"][row].unsqueeze(-1))
        total = total + (taken - wanted)[2:].square().sum()
    compare(loss, loss(batch.clone())["loss"], total / (ROWS * (TIME - 2)))


def critic_values(module, batch, row, action, ahead=False, burn_in=2):
    return module[1].module(unrolled(module[0], batch, row, burn_in)[ahead], action)


def test_td3_reads_slices_along_time():
    actor = recurrent("actor", nn.Linear(HIDDEN, 2), "action")
    loss = TD3Loss(actor, [critic(), critic()], bounds=(-9.0, 9.0), policy_noise=0.0, gamma=GAMMA, loss_function="l2")
    batch = sequences(torch.randn(ROWS, TIME, 2))
    moved(loss)
    given, qvalue, gain = loss(batch.clone()), 0.0, 0.0
    for row in range(ROWS):
        features, _ = unrolled(loss.actor_network.module[0], batch, row, burn_in=0)
        drawn = loss.actor_network.module[1].module(features)
        held = [critic_values(member.module, batch, row, drawn, burn_in=0) for member in loss.qvalue_network.members]
        gain = gain + held[0].sum()
        with torch.no_grad():
            policy = loss.target_actor_network.module
            action = policy[1].module(unrolled(policy[0], batch, row)[1])
            ahead = [
                critic_values(m.module, batch, row, action, ahead=True) for m in loss.target_qvalue_network.members
            ]
            wanted = target_of(batch, row, torch.minimum(*ahead))
        for member in loss.qvalue_network.members:
            value = critic_values(member.module, batch, row, batch["action"][row], burn_in=0)
            qvalue = qvalue + (value - wanted).square().sum()
    count = ROWS * TIME
    compare(loss, given["loss_qvalue"], qvalue / count)
    torch.testing.assert_close(given["loss_actor"], -gain / count)
    parameters = list(loss.actor_network.parameters())
    found, wanted = (torch.autograd.grad(value, parameters) for value in (given["loss_actor"], -gain / count))
    torch.testing.assert_close(found, wanted)
    for parameter in loss.qvalue_network.parameters():
        assert parameter.requires_grad


@pytest.mark.parametrize("recurrent_critics", [False, True])
def test_sac_reads_slices_along_time(recurrent_critics):
    plain = [TensorDictModule(Joined(5, 1), ["observation", "action"], ["state_action_value"]) for _ in range(2)]
    loss = SACLoss(Policy(), [critic(), critic()] if recurrent_critics else plain, gamma=GAMMA, loss_function="l2")
    loss.set_keys(mask="learning_mask")
    batch = sequences(torch.randn(ROWS, TIME, 2))
    moved(loss)

    def values(members, row, action, ahead=False):
        if recurrent_critics:
            return [critic_values(member.module, batch, row, action, ahead) for member in members]
        observation = (batch["next"] if ahead else batch)["observation"][row]
        return [member.module(observation, action) for member in members]

    qvalue, actor = 0.0, 0.0
    for row in range(ROWS):
        features, ahead = unrolled(loss.actor_network.module[0], batch, row)
        action, following = (loss.actor_network.module[1].module(part).tanh() for part in (features, ahead))
        gain = torch.minimum(*values(loss.qvalue_network.members, row, action))
        actor = actor + (-action.square().sum(-1, keepdim=True) - gain)[2:].sum()
        with torch.no_grad():
            soft = torch.minimum(*values(loss.target_qvalue_network.members, row, following, ahead=True))
            wanted = target_of(batch, row, soft + following.square().sum(-1, keepdim=True))
        for value in values(loss.qvalue_network.members, row, batch["action"][row]):
            qvalue = qvalue + (value - wanted)[2:].square().sum()
    given, count = loss(batch.clone()), ROWS * (TIME - 2)
    compare(loss, given["loss_qvalue"], qvalue / count)
    torch.testing.assert_close(given["loss_actor"], actor / count)
    alone, _ = loss.qvalue_loss(batch.clone())
    torch.testing.assert_close(alone, given["loss_qvalue"])


def test_ddpg_reads_slices_along_time():
    actor = recurrent("actor", nn.Linear(HIDDEN, 2), "action")
    loss = moved(DDPGLoss(actor, critic(), delay_actor=True, gamma=GAMMA))
    batch, value, gain = sequences(torch.randn(ROWS, TIME, 2)), 0.0, 0.0
    online, target = (network.members[0].module for network in (loss.value_network, loss.target_value_network))
    for row in range(ROWS):
        policy, delayed = loss.actor_network.module, loss.target_actor_network.module
        drawn = policy[1].module(unrolled(policy[0], batch, row, burn_in=0)[0])
        gain = gain + critic_values(online, batch, row, drawn, burn_in=0).sum()
        with torch.no_grad():
            following = delayed[1].module(unrolled(delayed[0], batch, row)[1])
            wanted = target_of(batch, row, critic_values(target, batch, row, following, ahead=True))
        taken = critic_values(online, batch, row, batch["action"][row], burn_in=0)
        value = value + (taken - wanted).square().sum()
    given, count = loss(batch), ROWS * TIME
    compare(loss, given["loss_value"], value / count)
    compare(loss.actor_network, given["loss_actor"], -gain / count)


def drawn_action(loss, batch, row, ahead=False):
    """The action of :class:`Fixed`, and its log-probability."""
    policy = loss.actor_network.module
    action = policy[1].module(unrolled(policy[0], batch, row)[ahead]).tanh()
    return action, -action.square().sum(-1, keepdim=True)


def test_redq_reads_slices_along_time():
    loss = REDQLoss(Policy(), [critic(), critic(), critic()], sub_sample_len=3, gamma=GAMMA, loss_function="l2")
    loss.set_keys(mask="learning_mask")
    moved(loss)
    batch, qvalue, actor = sequences(torch.randn(ROWS, TIME, 2)), 0.0, 0.0
    online, target = loss.qvalue_network.members, loss.target_qvalue_network.members
    for row in range(ROWS):
        action, log_prob = drawn_action(loss, batch, row)
        gain = sum(critic_values(member.module, batch, row, action) for member in online) / 3
        actor = actor + (log_prob - gain)[2:].sum()
        with torch.no_grad():
            action, log_prob = drawn_action(loss, batch, row, ahead=True)
            ahead = torch.stack([critic_values(m.module, batch, row, action, ahead=True) for m in target])
            wanted = target_of(batch, row, ahead.amin(0) - log_prob)
        for member in online:
            taken = critic_values(member.module, batch, row, batch["action"][row])
            qvalue = qvalue + (taken - wanted)[2:].square().sum() / 3
    given, count = loss(batch), ROWS * (TIME - 2)
    compare(loss, given["loss_qvalue"], qvalue / count)
    compare(loss.actor_network, given["loss_actor"], actor / count)


def quantile_distance(atoms, targets):
    """Eq. 11 of Kuznetsov et al., 2020, of one critic at one step, pair by pair."""
    total, count = 0.0, len(atoms)
    for index, atom in enumerate(atoms):
        for target in targets:
            error = target - atom
            level = abs((index + 0.5) / count - float(error < 0))
            total = total + level * (error.square() / 2 if error.abs() < 1 else error.abs() - 0.5)
    return total / (count * len(targets))


def test_tqc_reads_slices_along_time():
    critics = [recurrent(f"c{i}", Joined(HIDDEN + 2, 4), "state_action_value", "action") for i in range(2)]
    loss = TQCLoss(Policy(), critics, top_quantiles_to_drop_per_net=1, gamma=GAMMA)
    loss.set_keys(mask="learning_mask")
    moved(loss)
    batch, qvalue, actor = sequences(torch.randn(ROWS, TIME, 2)), 0.0, 0.0
    online, target = loss.qvalue_network.members, loss.target_qvalue_network.members
    for row in range(ROWS):
        action, log_prob = drawn_action(loss, batch, row)
        gain = sum(critic_values(member.module, batch, row, action).mean(-1, keepdim=True) for member in online) / 2
        actor = actor + (log_prob - gain)[2:].sum()
        with torch.no_grad():
            action, log_prob = drawn_action(loss, batch, row, ahead=True)
            ahead = torch.cat([critic_values(m.module, batch, row, action, ahead=True) for m in target], -1)
            wanted = target_of(batch, row, ahead.sort(-1).values[:, :6] - log_prob)
        for member in online:
            atoms = critic_values(member.module, batch, row, batch["action"][row])
            qvalue = qvalue + sum(quantile_distance(atoms[t], wanted[t]) for t in range(2, TIME))
    given, count = loss(batch), ROWS * (TIME - 2)
    compare(loss, given["loss_qvalue"], qvalue / count)
    compare(loss.actor_network, given["loss_actor"], actor / count)


class Choice(TensorDictSequential):
    """A recurrent policy over three actions."""

    def __init__(self):
        super().__init__(Memory("actor"), TensorDictModule(nn.Linear(HIDDEN, 3), ["actor_features"], ["logits"]))

    def get_dist(self, td):
        return torch.distributions.Categorical(logits=self(td.copy())["logits"])


def test_discrete_sac_reads_slices_along_time():
    critics = [recurrent(f"c{i}", nn.Linear(HIDDEN, 3), "action_value") for i in range(2)]
    loss = DiscreteSACLoss(Choice(), critics, action_space="categorical", gamma=GAMMA, loss_function="l2")
    loss.set_keys(mask="learning_mask")
    moved(loss)
    batch, qvalue, actor = sequences(torch.randint(3, (ROWS, TIME))), 0.0, 0.0
    policy = loss.actor_network.module
    online, target = ([m.module for m in net.members] for net in (loss.qvalue_network, loss.target_qvalue_network))
    for row in range(ROWS):
        probs, ahead = (policy[1].module(part).softmax(-1) for part in unrolled(policy[0], batch, row))
        values = [module[1].module(unrolled(module[0], batch, row)[0]) for module in online]
        actor = actor + (probs * (probs.log() - torch.minimum(*values).detach()))[2:].sum()
        with torch.no_grad():
            following = torch.minimum(*(module[1].module(unrolled(module[0], batch, row)[1]) for module in target))
            wanted = target_of(batch, row, (ahead * (following - ahead.log())).sum(-1, keepdim=True))
        for value in values:
            qvalue = qvalue + (value.gather(-1, batch["action"][row].unsqueeze(-1)) - wanted)[2:].square().sum()
    given, count = loss(batch), ROWS * (TIME - 2)
    compare(loss, given["loss_qvalue"], qvalue / count)
    compare(loss.actor_network, given["loss_actor"], actor / count)


def test_nothing_but_priorities_is_written():
    loss = SACLoss(Policy(), critic(), gamma=GAMMA)
    batch = sequences(torch.randn(ROWS, TIME, 2))
    before = batch.clone()
    loss(batch)
    written = set(batch.keys(True, True)) - set(before.keys(True, True))
    assert written == {"td_error"}
    assert (batch.exclude("td_error") == before).all()


def test_offline_losses_read_slices_along_time():
    value = recurrent("value", nn.Linear(HIDDEN, 1), "state_value")
    loss = IQLLoss(Policy(), critic(), value, gamma=GAMMA)
    batch = sequences(torch.randn(ROWS, TIME, 2))
    loss.set_keys(mask="learning_mask")
    loss(batch)
    for row in range(ROWS):
        module = loss.value_network.module
        with torch.no_grad():
            expected = module[1].module(unrolled(module[0], batch, row)[1])
            with set_recurrent_mode(True):
                torch.testing.assert_close(loss.state_value(batch, "next")[row], expected)


def test_rows_without_a_time_dimension_are_refused_or_read_on_purpose():
    loss = DQNLoss(recurrent("q", nn.Linear(HIDDEN, 2), "action_value"), gamma=GAMMA)
    batch = sequences(torch.randint(2, (ROWS, TIME))).reshape(-1)
    with pytest.raises(LossError, match=r"needs sequences \[\*B, T\]; this batch is \[18\].*batch.reshape\(-1, T\)"):
        loss(batch)
    with pytest.raises(LossError, match="needs sequences"):
        SACLoss(Policy(), critic(), gamma=GAMMA).qvalue_loss(batch)
    batch["next", "is_init"] = torch.zeros_like(batch["is_init"])
    for name in ("q_h", "q_c"):
        batch["next", name] = torch.randn(ROWS * TIME, HIDDEN)
    with set_recurrent_mode(False):
        value = loss(batch)["loss"]
    module, target = loss.value_network.module, loss.target_value_network.module
    state = [batch[name] * ~batch["is_init"] for name in ("q_h", "q_c")]
    taken = module[1].module(module[0].cell(batch["observation"], state)[0]).gather(-1, batch["action"].unsqueeze(-1))
    following = target[0].cell(batch["next", "observation"], [batch["next", name] for name in ("q_h", "q_c")])[0]
    best = target[1].module(following).amax(-1, keepdim=True)
    wanted = batch["next", "reward"] + GAMMA * best * ~batch["next", "terminated"]
    torch.testing.assert_close(value, (taken - wanted).square().mean())


def test_one_state_key_for_two_memories_is_refused():
    with pytest.raises(LossError, match='under one key, "actor_h"'):
        SACLoss(Policy(), critic("actor"), gamma=GAMMA)


def test_an_action_that_enters_the_memory_is_refused():
    join = TensorDictModule(Joined(5, 3), ["observation", "action"], ["both"])
    head = TensorDictModule(nn.Linear(HIDDEN, 1), ["critic_features"], ["state_action_value"])
    remembering = TensorDictSequential(join, Memory("critic", "both"), head)
    loss = SACLoss(Policy(), remembering, gamma=GAMMA)
    with pytest.raises(LossError, match='"action" enters the memory of a critic'):
        loss(sequences(torch.randn(ROWS, TIME, 2)))


@pytest.mark.parametrize("kind", [CrossQLoss, CQLLoss, AWACLoss])
def test_losses_that_take_rows_apart_refuse_critics_with_a_memory(kind):
    loss = kind(Policy(), critic(), gamma=GAMMA)
    with pytest.raises(LossError, match=f"{kind.__name__} cannot use .* with a memory along time"):
        loss(sequences(torch.randn(ROWS, TIME, 2)))
