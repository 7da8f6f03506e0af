"""MultiAgentGAE: team signals, masks and ends against a loop over each agent's own rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import KeyMissingError, SpecError
from rl_core.registry import registry
from rl_core.testing import EstimatorKit
from rl_core.testing.kit import overrides_check
from rl_marl.estimators.multi_agent_gae import MultiAgentGAE
from rl_objectives import GAE, generalized_advantage_estimate, masked_generalized_advantage_estimate

GAMMA, LMBDA = 0.9, 0.8


class TestMultiAgentGAEOfATeamKeepsItsPromises(EstimatorKit):
    def make_estimator(self, value_network, **options):
        return MultiAgentGAE(gamma=GAMMA, lmbda=LMBDA, value_network=value_network, **options)


class TestMultiAgentGAEOfAgentsKeepsItsPromises(TestMultiAgentGAEOfATeamKeepsItsPromises):
    def make_batch(self):
        alone = super().make_batch()
        return alone.apply(lambda entry: torch.stack([entry, entry], 2).clone())

    @overrides_check(reason="the entries have a dimension of agents")
    def test_it_writes_its_out_keys_into_the_batch_and_returns_it(self):
        estimator, batch = self.make_estimator(self.make_network()), self.make_batch()
        assert estimator(batch) is batch
        for key in estimator.out_keys:
            assert batch.get(key).shape == (3, 6, 2, 1)


class TestMultiAgentGAEOfMaskedAgentsKeepsItsPromises(TestMultiAgentGAEOfAgentsKeepsItsPromises):
    def make_batch(self):
        batch = super().make_batch()
        return batch.set(("agents", "mask"), torch.ones(3, 6, 2, dtype=torch.bool))


# ---------------------------------------------------------------------------------------------------- the reference


def own_trajectory(value, next_value, reward, done, terminated, acts, exists):
    """What one agent saw, row by row: (row, reward, next value, terminated, ended) of each of its own rows."""
    closed, row, earned = [], None, 0.0
    for t in range(len(value)):
        if not exists[t]:
            if row is not None:
                closed.append((row, earned, next_value[t - 1], False, True))
            row = None
            continue
        if acts[t]:
            if row is not None:
                waited = t - 1 > row
                closed.append((row, earned, value[t] if waited else next_value[row], False, False))
            row, earned = t, 0.0
        if row is None:
            continue
        earned += reward[t]
        if done[t] or terminated[t]:
            closed.append((row, earned, next_value[t], terminated[t], True))
            row = None
    if row is not None:
        closed.append((row, earned, next_value[-1], False, False))
    return closed


def loop_gae(value, next_value, reward, done, terminated, acts, exists):
    """Advantages of one agent, by the textbook recursion over its own rows."""
    advantage, ahead = [0.0] * len(value), 0.0
    rows = own_trajectory(value, next_value, reward, done, terminated, acts, exists)
    for row, earned, following, dies, ends in reversed(rows):
        delta = earned + GAMMA * (0.0 if dies else following) - value[row]
        ahead = delta + GAMMA * LMBDA * (0.0 if ends else ahead)
        advantage[row] = ahead
    return advantage


def loop_over_agents(value, next_value, reward, done, terminated, acts, exists):
    """The same for every agent of every environment: tensors [B, T, n, 1], exists [B, T]."""
    out = torch.zeros_like(value)
    for b in range(value.shape[0]):
        for i in range(value.shape[2]):
            series = [x[b, :, i, 0].tolist() for x in (value, next_value, reward, done, terminated, acts)]
            out[b, :, i, 0] = torch.tensor(loop_gae(*series, exists[b].tolist()), dtype=out.dtype)
    return out


@st.composite
def random_series(draw, steps=6, agents=2):
    """Values, rewards, ends and masks [1, T, n, 1], exists [1, T]."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    numbers = torch.randn(3, 1, steps, agents, 1, generator=generator, dtype=torch.float64)

    def flags(count):
        return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)))

    shape = (1, steps, agents, 1)
    done, terminated = flags(steps * agents).view(shape), flags(steps * agents).view(shape)
    acts = flags(steps * agents).view(shape)
    return (*numbers, done | (terminated & done), terminated & done, acts, flags(steps).view(1, steps))


@settings(max_examples=300, deadline=None)
@given(random_series())
def test_masked_gae_equals_gae_on_each_agents_own_rows(series):
    value, next_value, reward, done, terminated, acts, exists = series
    result, target = masked_generalized_advantage_estimate(
        GAMMA, LMBDA, value, next_value, reward, done, terminated, acts, exists[..., None, None], time_dim=-3
    )
    valid = acts & exists[..., None, None]
    torch.testing.assert_close(result, loop_over_agents(*series))
    torch.testing.assert_close(target, result + value)
    assert (result[~valid] == 0).all()


@settings(max_examples=60, deadline=None)
@given(random_series())
def test_the_compiled_and_the_differentiable_path_agree(series):
    value, next_value, reward, done, terminated, acts, exists = series
    rest = (reward, done, terminated, acts, exists[..., None, None])
    compiled = masked_generalized_advantage_estimate(GAMMA, LMBDA, value, next_value, *rest, time_dim=-3)
    traced = masked_generalized_advantage_estimate(
        GAMMA, LMBDA, value.clone().requires_grad_(), next_value.clone().requires_grad_(), *rest, time_dim=-3
    )
    assert traced[0].requires_grad
    torch.testing.assert_close(traced[0].detach(), compiled[0])
    torch.testing.assert_close(traced[1].detach(), compiled[1])


@settings(max_examples=60, deadline=None)
@given(random_series())
def test_rewards_within_spans_are_conserved(series):
    """With gamma = lambda = 1 and no values, the first own row of a trajectory returns all that follows in it."""
    _, _, reward, done, terminated, acts, exists = series
    nothing = torch.zeros_like(reward)
    result, _ = masked_generalized_advantage_estimate(
        1.0, 1.0, nothing, nothing, reward, done, terminated, acts, exists[..., None, None], time_dim=-3
    )
    for i in range(2):
        columns = [x[0, :, i, 0].tolist() for x in (nothing, nothing, reward, done, terminated, acts)]
        rows = own_trajectory(*columns, exists[0].tolist())
        starts = [k for k, row in enumerate(rows) if k == 0 or rows[k - 1][4]]
        for k, stop in zip(starts, [*starts, len(rows)][1:], strict=True):
            assert result[0, rows[k][0], i, 0].item() == pytest.approx(sum(row[1] for row in rows[k:stop]))


# ------------------------------------------------------------------------------------------------------- the module


def make_critic(in_key=("agents", "observation"), out_key=("agents", "state_value")):
    torch.manual_seed(1)
    return TensorDictModule(nn.Linear(3, 1), in_keys=[in_key], out_keys=[out_key]).double()


def make_gae(critic=None, kind=MultiAgentGAE, **options):
    gae = kind(gamma=GAMMA, lmbda=LMBDA, value_network=critic, **options)
    names = {"value": "state_value", "advantage": "advantage", "value_target": "value_target"}
    gae.set_keys(**{name: ("agents", leaf) for name, leaf in names.items()})
    gae.set_keys(reward=("agents", "reward"), done=("agents", "done"), terminated=("agents", "terminated"))
    return gae


def make_rollout(batch=(2,), steps=6, agents=3, seed=0):
    """A rollout without ends, its next observations the following rows' ones."""
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randn(*batch, steps + 1, agents, 3, generator=generator, dtype=torch.float64)
    observation, following = seen[..., :-1, :, :].clone(), seen[..., 1:, :, :].clone()
    shape, flag = (*batch, steps, agents, 1), torch.zeros(*batch, steps, agents, 1, dtype=torch.bool)
    group = {
        "observation": following,
        "reward": torch.randn(shape, generator=generator, dtype=torch.float64),
        "done": flag.clone(),
        "terminated": flag.clone(),
        "truncated": flag.clone(),
    }
    size = (*batch, steps)
    return TensorDict(
        {
            "agents": TensorDict({"observation": observation}, (*size, agents)),
            "next": TensorDict({"agents": TensorDict(group, (*size, agents))}, size),
        },
        size,
    )


def agent_alone(batch, agent, rows):
    """One agent's rows as a trajectory of its own, [1, T', 1]."""
    single = batch[:, rows]
    group, following = single["agents"][:, :, agent : agent + 1], single["next", "agents"][:, :, agent : agent + 1]
    return TensorDict({"agents": group, "next": TensorDict({"agents": following}, single.batch_size)}, single.shape)


def test_without_masks_it_is_plain_gae():
    critic, batch = make_critic(), make_rollout()
    batch["next", "agents", "done"][0, 2, 1] = True
    expected = make_gae(critic, GAE)(batch.clone())
    result = make_gae(critic)(batch.clone())
    for key in ("advantage", "value_target", "state_value"):
        assert torch.equal(result["agents", key], expected["agents", key])


def test_a_mask_without_idle_rows_changes_nothing():
    critic, batch = make_critic(), make_rollout()
    batch["next", "agents", "done"][0, 2, 1] = True
    expected = make_gae(critic)(batch.clone())["agents", "advantage"]
    batch["agents", "mask"] = torch.ones(2, 6, 3, dtype=torch.bool)
    torch.testing.assert_close(make_gae(critic)(batch)["agents", "advantage"], expected)


def test_a_dead_agent_equals_its_own_trimmed_trajectory():
    critic, batch = make_critic(), make_rollout((1,))
    batch["next", "agents", "done"][0, 2:, 1] = True  # once raised, the flags of a dead agent stay
    batch["next", "agents", "terminated"][0, 2:, 1] = True
    trimmed = make_gae(critic)(agent_alone(batch, 1, slice(0, 3)))["agents", "advantage"]
    others = make_gae(critic)(batch.clone())["agents", "advantage"][:, :, [0, 2]]
    mask = torch.ones(1, 6, 3, dtype=torch.bool)
    mask[0, 3:, 1] = False
    batch["agents", "mask"] = mask
    batch["agents", "observation"][~mask] = float("nan")
    batch["next", "agents", "observation"][~mask] = float("nan")
    batch["next", "agents", "reward"][~mask] = float("nan")
    result = make_gae(critic)(batch)["agents", "advantage"]
    torch.testing.assert_close(result[:, :3, 1:2], trimmed)
    torch.testing.assert_close(result[:, :, [0, 2]], others)
    assert (result[:, 3:, 1] == 0).all()


def test_an_agent_that_comes_back_starts_anew():
    critic, batch = make_critic(), make_rollout((1,))
    batch["next", "agents", "done"][0, 1, 1] = batch["next", "agents", "terminated"][0, 1, 1] = True
    first = make_gae(critic)(agent_alone(batch, 1, slice(0, 2)))["agents", "advantage"]
    second = make_gae(critic)(agent_alone(batch, 1, slice(4, 6)))["agents", "advantage"]
    mask = torch.ones(1, 6, 3, dtype=torch.bool)
    mask[0, 2:4, 1] = False
    batch["agents", "mask"] = mask
    result = make_gae(critic)(batch)["agents", "advantage"]
    torch.testing.assert_close(result[:, :2, 1:2], first)
    torch.testing.assert_close(result[:, 4:, 1:2], second)


def turn_based():
    """Three agents in turn, each acting in every third of six rows; the agents' own rows as trajectories."""
    batch = make_rollout((1,))
    mask = torch.zeros(1, 6, 3, dtype=torch.bool)
    for t in range(6):
        mask[0, t, t % 3] = True
    return batch.set(("agents", "mask"), mask)


def test_turn_based_agents_equal_their_own_trajectories():
    """Two own rows k and k + 3: by hand, with rewards that arrive while others act."""
    critic, batch = make_critic(), turn_based()
    out = make_gae(critic)(batch.clone())
    value, next_value = out["agents", "state_value"][0, ..., 0], out["next", "agents", "state_value"][0, ..., 0]
    reward = batch["next", "agents", "reward"][0, ..., 0]
    for i in range(3):
        late = reward[i + 3 :, i].sum() + GAMMA * next_value[5, i] - value[i + 3, i]
        early = reward[i : i + 3, i].sum() + GAMMA * value[i + 3, i] - value[i, i] + GAMMA * LMBDA * late
        torch.testing.assert_close(out["agents", "advantage"][0, i, i, 0], early)
        torch.testing.assert_close(out["agents", "advantage"][0, i + 3, i, 0], late)


def test_it_makes_no_difference_where_a_waiting_agent_is_paid():
    critic, batch = make_critic(), turn_based()
    expected = make_gae(critic)(batch.clone())["agents", "advantage"]
    reward = batch["next", "agents", "reward"]
    for i in range(3):
        for k in (i, i + 3):
            stop = min(k + 3, 6)
            reward[0, k, i] = reward[0, k:stop, i].sum()
            reward[0, k + 1 : stop, i] = 0
        reward[0, :i, i] = 77.0  # before its first action in the batch: nobody's
    torch.testing.assert_close(make_gae(critic)(batch)["agents", "advantage"], expected)


def test_an_end_while_the_agent_waits_ends_its_latest_action():
    """Agent 0 acts in row 3 and is beaten by agent 1 in row 4: it gets the loss there, and no value beyond."""
    critic, batch = make_critic(), turn_based()
    for name in ("done", "terminated"):
        batch["next", "agents", name][0, 4:] = True
    out = make_gae(critic)(batch.clone())
    reward, value = batch["next", "agents", "reward"][0, ..., 0], out["agents", "state_value"][0, ..., 0]
    torch.testing.assert_close(out["agents", "advantage"][0, 3, 0, 0], reward[3, 0] + reward[4, 0] - value[3, 0])


# ------------------------------------------------------------------------------------------------ team and per agent


@pytest.mark.parametrize("masked", [False, True])
def test_team_signals_equal_the_same_signals_per_agent(masked):
    critic, batch = make_critic(), make_rollout()
    done = torch.rand(2, 6, 1, generator=torch.Generator().manual_seed(3)) < 0.3
    reward, terminated = torch.randn(2, 6, 1, dtype=torch.float64), done.roll(1, 0) & done
    if masked:
        batch["agents", "mask"] = torch.rand(2, 6, 3) < 0.7
    for name, signal in (("reward", reward), ("done", done), ("terminated", terminated)):
        batch["next", "agents", name] = signal.unsqueeze(-2).expand(2, 6, 3, 1).clone()
    expected = make_gae(critic)(batch.clone())["agents", "advantage"]
    for name, signal in (("reward", reward), ("done", done), ("terminated", terminated)):
        del batch["next", "agents", name]
        batch["next", name] = signal
    fallen_back = make_gae(critic)(batch.clone())["agents", "advantage"]
    assert torch.equal(fallen_back, expected)
    named = make_gae(critic)
    named.set_keys(reward="reward", done="done", terminated="terminated")
    assert torch.equal(named(batch)["agents", "advantage"], expected)


def test_a_teams_end_cuts_the_agents_that_were_not_done():
    critic, batch = make_critic(), make_rollout((1,))
    batch["next", "agents", "done"][0, 2, 1] = batch["next", "agents", "terminated"][0, 2, 1] = True
    done = torch.zeros(1, 6, 1, dtype=torch.bool)
    done[0, 2] = True
    batch["next", "done"], batch["next", "terminated"] = done, done  # the episode ends with the first agent
    result = make_gae(critic)(batch.clone())["agents", "advantage"]
    for i in range(3):
        torch.testing.assert_close(
            result[:, :3, i : i + 1], make_gae(critic)(agent_alone(batch, i, slice(0, 3)))["agents", "advantage"]
        )


def test_a_group_with_done_alone_takes_every_end_for_a_termination():
    critic, batch = make_critic(), make_rollout((1,))
    batch["next", "agents", "done"][0, 2, 1] = True
    both = batch.clone()
    both["next", "agents", "terminated"] = both["next", "agents", "done"].clone()
    del batch["next", "agents", "terminated"]
    batch["next", "terminated"] = torch.zeros(1, 6, 1, dtype=torch.bool)
    expected = make_gae(critic)(both)["agents", "advantage"]
    torch.testing.assert_close(make_gae(critic)(batch)["agents", "advantage"], expected)


def test_a_teams_value_is_every_agents_value():
    batch = make_rollout()
    batch["state"] = torch.randn(2, 6, 3, dtype=torch.float64)
    batch["next", "state"] = torch.randn(2, 6, 3, dtype=torch.float64)
    gae = make_gae(make_critic("state", "state_value"))
    gae.set_keys(value="state_value")
    out = gae(batch)
    assert out["state_value"].shape == (2, 6, 1)
    value, next_value = out["state_value"], out["next", "state_value"]
    for i in range(3):
        step = [batch["next", "agents", name][:, :, i] for name in ("reward", "done", "terminated")]
        expected, _ = generalized_advantage_estimate(GAMMA, LMBDA, value, next_value, *step)
        torch.testing.assert_close(out["agents", "advantage"][:, :, i], expected)


def test_a_team_without_any_entry_per_agent_still_writes_into_its_group():
    batch = make_rollout()
    for name in ("reward", "done", "terminated", "truncated"):
        batch["next", name] = batch["next", "agents", name][:, :, 0]
        del batch["next", "agents", name]
    batch["state_value"] = batch["next", "state_value"] = torch.zeros(2, 6, 1, dtype=torch.float64)
    gae = make_gae()
    gae.set_keys(value="state_value")
    assert gae(batch)["agents", "advantage"].shape == (2, 6, 3, 1)


def test_padding_ends_the_trajectories_of_all_agents():
    critic, batch = make_critic(), make_rollout((1,))
    short = make_gae(critic)(batch[:, :4].clone())["agents", "advantage"]
    rows = torch.ones(1, 6, dtype=torch.bool)
    rows[:, 4:] = False
    for agents in (None, torch.ones(1, 6, 3, dtype=torch.bool)):
        padded = batch.clone()
        padded["collector", "mask"] = rows
        padded["next", "agents", "reward"][:, 4:] = float("nan")
        if agents is not None:
            padded["agents", "mask"] = agents
        result = make_gae(critic)(padded)["agents", "advantage"]
        torch.testing.assert_close(result[:, :4], short)
        assert (result[:, 4:] == 0).all()


def test_average_gae_standardises_each_agent_over_its_own_rows():
    critic, batch = make_critic(), make_rollout()
    mask = torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(5)) < 0.6
    batch["agents", "mask"] = mask
    raw = make_gae(critic)(batch.clone())
    result = make_gae(critic, average_gae=True)(batch)
    for i in range(3):
        own = raw["agents", "advantage"][:, :, i, 0][mask[:, :, i]]
        expected = (own - own.mean()) / own.std()
        torch.testing.assert_close(result["agents", "advantage"][:, :, i, 0][mask[:, :, i]], expected)
    assert (result["agents", "advantage"][~mask] == 0).all()
    torch.testing.assert_close(result["agents", "value_target"], raw["agents", "value_target"])


def test_time_may_lie_elsewhere():
    critic, batch = make_critic(), make_rollout()
    batch["agents", "mask"] = torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(5)) < 0.6
    expected = make_gae(critic)(batch.clone())["agents", "advantage"]
    turned = batch.transpose(0, 1).contiguous()
    result = make_gae(critic, time_dim=0)(turned)["agents", "advantage"]
    torch.testing.assert_close(result.transpose(0, 1), expected)


def test_n_step_data_discounts_by_the_teams_count_of_steps():
    critic, batch = make_critic(), make_rollout()
    batch["steps_to_next_obs"] = torch.full((2, 6, 1), 3)
    out = MultiAgentGAE(gamma=GAMMA, lmbda=0.0, value_network=critic)
    out.set_keys(value=("agents", "state_value"), reward=("agents", "reward"), done=("agents", "done"))
    batch = out(batch.set(("next", "done"), torch.zeros(2, 6, 1, dtype=torch.bool)))
    expected = batch["next", "agents", "reward"] + GAMMA**3 * batch["next", "agents", "state_value"]
    torch.testing.assert_close(batch["value_target"], expected)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "shape"), [("reward", (2, 6, 2, 1)), ("reward", (2, 6, 3)), ("done", (2, 6, 1, 1)), ("terminated", (2, 1))]
)
def test_a_signal_that_is_neither_per_agent_nor_the_teams_is_refused_with_both_keys(name, shape):
    batch, gae = make_rollout(), make_gae(make_critic())
    del batch["next", "agents", name]
    gae.set_keys(**{name: f"odd_{name}"})
    batch["next"].batch_size = [2]
    batch["next", f"odd_{name}"] = torch.zeros(shape, dtype=torch.bool if name != "reward" else torch.float64)
    with pytest.raises(SpecError) as error:
        gae(batch)
    for part in (f'("next", "odd_{name}") {list(shape)}', "[2, 6, 3, 1]", "[2, 6, 1]", "'agents'", "3 agents"):
        assert part in str(error.value)


def test_team_entries_of_different_shapes_are_refused_with_both_keys():
    batch = make_rollout().exclude("agents")
    batch["state_value"] = batch["next", "state_value"] = torch.zeros(2, 6)
    done = torch.zeros(2, 6, 1, dtype=torch.bool)
    batch["next"] = {"reward": done.double(), "done": done, "terminated": done, "state_value": torch.zeros(2, 6)}
    with pytest.raises(SpecError, match=r'"state_value" \[2, 6\] and \("next", "\w+"\) \[2, 6, 1\]'):
        MultiAgentGAE(gamma=GAMMA, lmbda=LMBDA)(batch)


def test_a_mask_of_another_team_size_is_refused():
    batch = make_rollout()
    batch["crew", "mask"] = torch.ones(2, 6, 2, dtype=torch.bool)
    gae = make_gae(make_critic())
    gae.set_keys(agent_mask=("crew", "mask"))
    with pytest.raises(SpecError, match=r'"crew", "mask".*3 agents'):
        gae(batch)


@pytest.mark.parametrize("name", ["reward", "done"])
def test_a_signal_that_is_nowhere_is_named(name):
    batch = make_rollout()
    del batch["next", "agents", name]
    with pytest.raises(KeyMissingError, match=rf'MultiAgentGAE needs \("next", "agents", "{name}"\)'):
        make_gae(make_critic())(batch)


def test_wrong_options_are_refused():
    with pytest.raises(SpecError, match=r"agent_dim is -2.*got 0"):
        MultiAgentGAE(gamma=GAMMA, lmbda=LMBDA, agent_dim=0)
    with pytest.raises(SpecError, match=r"lmbda lies in \[0, 1\]; got 2"):
        MultiAgentGAE(gamma=GAMMA, lmbda=2)


def test_it_is_registered():
    assert registry.estimators.get("multi_agent_gae") is MultiAgentGAE
