"""EnvPool's asynchronous mode: every result belongs to the environment that it names, ends and resets included."""

import pytest
import torch
from tensordict import TensorDict

from rl_core.errors import EnvError, UnknownNameError
from rl_envs import EnvPoolAsync, EnvPoolEnv


@pytest.fixture
def carts():
    pool = EnvPoolAsync("CartPole-v1", 6, 2, True, max_episode_steps=9, num_threads=2)
    pool.set_seed(7)
    yield pool
    pool.close()


def started(pool):
    pool.async_reset_send()
    root = pool.async_reset_recv(min_get=pool.num_workers)
    return root[root["env_index"].argsort()]


def reference(name, count, seed, actions, **kwargs):
    """Rollouts of a synchronous pool with the same seed, of which each row gets its own list of actions."""
    env = EnvPoolEnv(name, count, True, **kwargs)
    td, rows = env.reset(seed=[seed] * count), []
    for t in range(actions.shape[1]):
        stepped, td = env.step_and_maybe_reset(td.set("action", actions[:, t]))
        rows.append(stepped.clone())
    env.close()
    return torch.stack(rows, 1)


@pytest.mark.parametrize("name", ["CartPole-v1", "HalfCheetah-v4", "CheetahRun-v1", "Breakout-v5"])
def test_every_environment_lives_as_in_a_synchronous_pool(name):
    count, steps, kwargs = 6, 14, {"max_episode_steps": 6}
    pool = EnvPoolAsync(name, count, 2, True, num_threads=2, **kwargs)
    torch.manual_seed(0)
    actions = torch.stack([pool.rand_action()["action"] for _ in range(steps)], 1)
    expected = reference(name, count, 3, actions, **kwargs)
    pool.set_seed(3)
    root, taken, found = started(pool), torch.zeros(count, dtype=torch.int64), [[] for _ in range(count)]
    while min(map(len, found)) < steps:
        index = root["env_index"]
        pool.async_step_and_maybe_reset_send(root.set("action", actions[index, taken[index] % steps]))
        taken[index] += 1
        stepped, root = pool.async_step_and_maybe_reset_recv()
        assert torch.equal(stepped["env_index"], root["env_index"]) and not root["done"].any()
        for row in stepped:
            found[int(row["env_index"])].append(row)
    pool.close()
    keys = list(pool.observation_spec.keys(True, True))
    results = [*keys, "reward", "done", "terminated", "truncated"]
    for number, rows in enumerate(found):
        data, same = torch.stack(rows[:steps]), expected[number]
        for key in ["action", *keys, *(("next", key) for key in results)]:
            assert torch.equal(data[key], same[key]), (number, key)
    assert expected["next", "truncated"].any() and expected["next", "done"].sum() >= 2 * count


def test_results_come_in_the_size_of_an_answer_or_as_many_as_are_asked_for(carts):
    root = started(carts)
    assert root["env_index"].tolist() == list(range(6)) and (root["observation"].abs() <= 0.05).all()
    carts.async_step_send(carts.rand_action(root))
    first = carts.async_step_recv()
    assert len(first) == 2 and first["env_index"].dtype is torch.int64
    one = carts.async_step_recv(max_get=1)
    rest = carts.async_step_recv(min_get=3)
    every = torch.cat([first, one, rest])
    assert len(one) == 1 and sorted(every["env_index"].tolist()) == list(range(6))
    order = every["env_index"].argsort()
    assert torch.equal(every["observation"][order], root["observation"])
    assert (every["next", "reward"] == 1).all() and not torch.equal(every["next", "observation"], every["observation"])


def test_chosen_environments_are_waited_for(carts):
    carts.async_step_send(carts.rand_action(started(carts)))
    assert sorted(carts.async_step_recv(env_index=[1, 4])["env_index"].tolist()) == [1, 4]
    assert sorted(carts.async_step_recv(4)["env_index"].tolist()) == [0, 2, 3, 5]


def test_entries_that_are_sent_come_back_and_specs_hold(carts):
    root = carts.rand_action(started(carts))
    root["policy", "log_prob"] = -torch.arange(6.0)[:, None]
    carts.async_step_send(root)
    found = carts.async_step_recv(6)
    assert torch.equal(found["policy", "log_prob"][:, 0], -found["env_index"].float())
    assert carts.action_spec.is_in(found["action"][0])
    assert carts.observation_spec.is_in(found["next"].select("observation")[0])
    assert carts.reward_spec.is_in(found["next", "reward"][0]) and found["next", "done"].shape == (6, 1)


def test_ended_environments_are_reset_before_they_are_stepped_again(carts):
    root = started(carts)
    right = torch.ones(6, dtype=torch.int64)
    for t in range(9):  # the time limit; to and fro, so that none falls before
        carts.async_step_send(root.set("action", right * (t % 2)))
        stepped = carts.async_step_recv(6)
        root = stepped["next"].set("env_index", stepped["env_index"])
    assert stepped["next", "truncated"].all() and not stepped["next", "terminated"].any()
    with pytest.raises(EnvError, match=r"environment \d is not inside an episode.*async_reset_send"):
        carts.async_step_send(root.set("action", right))
    carts.async_reset_send(env_index=[3, 4])
    fresh = carts.async_reset_recv(2)
    assert sorted(fresh["env_index"].tolist()) == [3, 4] and (fresh["observation"].abs() <= 0.05).all()
    carts.async_step_send(fresh.set("action", right[:2]))
    assert (carts.async_step_recv(2)["next", "reward"] == 1).all()  # no dummy step, which is rewarded with 0


def test_what_could_never_come_is_refused_instead_of_waited_for(carts):
    with pytest.raises(EnvError, match="nothing is under way"):
        carts.async_step_recv()
    with pytest.raises(EnvError, match="before its first reset"):
        carts.async_step_send(carts.rand_action())
    with pytest.raises(EnvError, match="begins all 6"):
        carts.async_reset_send(env_index=2)
    root = carts.rand_action(started(carts))
    with pytest.raises(EnvError, match="asks for 1 results and 0 are on their way"):
        carts.async_step_recv()
    carts.async_step_send(root[2], env_index=2)
    with pytest.raises(EnvError, match="answers 2 environments at a time and only 1 are under way"):
        carts.async_step_recv()
    with pytest.raises(EnvError, match=r"environment 2 still has a step to do.*async_step_recv"):
        carts.async_step_send(root[2], env_index=2)
    with pytest.raises(EnvError, match="set_seed while"):
        carts.set_seed(1)
    carts.async_step_send(root[5], env_index=5)
    assert sorted(carts.async_step_recv()["env_index"].tolist()) == [2, 5]


def test_seeds_reproduce_and_make_the_pool_anew(carts):
    first = started(carts)["observation"]
    second = started(carts)["observation"]
    assert not torch.equal(first, second)
    carts.set_seed(7)
    assert torch.equal(started(carts)["observation"], first)


def test_sizes_names_and_rows_are_checked(carts):
    for size in (0, 4):
        with pytest.raises(EnvError, match="from 1 to num_envs=3"):
            EnvPoolAsync("CartPole-v1", 3, size)
    with pytest.raises(UnknownNameError, match="CartPole-v1"):
        EnvPoolAsync("CartPol-v1", 3, 2)
    root = carts.rand_action(started(carts))
    with pytest.raises(EnvError, match="env_index 6 is not one of"):
        carts.async_step_send(root, env_index=[0, 6])
    with pytest.raises(EnvError, match="twice"):
        carts.async_step_send(root[:2], env_index=[1, 1])
    with pytest.raises(EnvError, match=r"batch size \(6,\) for 2 environments"):
        carts.async_step_send(root, env_index=[0, 1])
    with pytest.raises(EnvError, match="'action' is expected"):
        carts.async_step_send(TensorDict({}, [1]), env_index=[0])
    with pytest.raises(ValueError, match="min_get"):
        carts.async_step_recv(min_get=0)
    carts.close()
    with pytest.raises(EnvError, match="closed"):
        carts.async_reset_send()


def test_one_hot_actions_are_read():
    pool = EnvPoolAsync("CartPole-v1", 2, 1)
    root = pool.rand_action(started(pool))
    assert root["action"].shape == (2, 2) and (root["action"].sum(-1) == 1).all()
    pool.async_step_send(root)
    assert len(pool.async_step_recv(2)) == 2
    pool.close()
