"""Monte-Carlo tree search in an environment that can be copied."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_core import Categorical, EnvBase, OneHot
from rl_core.errors import PolicyError
from rl_core.keys import Key, as_key, parent_path
from rl_modules.planning.scores import PUCTScore, UCBScore

__all__ = ["MCTSPolicy"]


@dataclass
class _Node:
    """A state: what a policy would see there, and what was learned about its actions."""

    td: TensorDictBase
    env: EnvBase
    legal: Tensor
    prior: Tensor
    ended: bool = False
    wins: Tensor = field(init=False)
    visits: Tensor = field(init=False)
    rewards: dict[int, float] = field(default_factory=dict)
    children: dict[int, _Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.wins, self.visits = torch.zeros_like(self.prior), torch.zeros_like(self.prior)


class MCTSPolicy(TensorDictModuleBase):
    """Acts by the most visited action of a tree search from the present state.

    Each simulation walks down by the score, adds one node, values it (by ``value``, or by playing on at random), and
    hands the discounted return up. The environment is never stepped itself: a stateless one is stepped from copies of
    the data, a stateful one is deep-copied at every node.

    Args:
        env: one environment (batch size ``[]``) with one choice as action: Categorical or OneHot. A bool
            ``action_mask [n]`` beside the action in the data says which choices are legal.
        num_simulations: simulations for each action.
        score: :class:`PUCTScore` or :class:`UCBScore`; UCB with c = sqrt 2 unless given.
        prior: from a state's TensorDict to probabilities ``[n]``; uniform unless given.
        value: from a state's TensorDict to its value, a number for the player who is to act there; random play unless
            given.
        gamma: discount of each step.
        two_player: players alternate and one's reward is the other's loss; rewards are those of the player who acted.
        max_steps: steps of random play at most.
        action_key: the action.

    Source: Browne et al. 2012, "A Survey of Monte Carlo Tree Search Methods", algorithm 2.
    """

    def __init__(
        self,
        env: EnvBase,
        num_simulations: int = 100,
        score: PUCTScore | UCBScore | None = None,
        *,
        prior: Callable[[TensorDictBase], Tensor] | None = None,
        value: Callable[[TensorDictBase], float | Tensor] | None = None,
        gamma: float = 1.0,
        two_player: bool = False,
        max_steps: int = 1000,
        action_key: Key = "action",
    ) -> None:
        super().__init__()
        spec = env.full_action_spec[action_key]
        if len(env.batch_size) or not isinstance(spec, (Categorical, OneHot)):
            raise PolicyError(
                f"MCTSPolicy searches one environment with a Categorical or OneHot action; {type(env).__name__} has "
                f"batch size {list(env.batch_size)} and the action {spec!r}"
            )
        if num_simulations < 1:
            raise ValueError(f"num_simulations is {num_simulations}; a search takes at least one")
        self.env, self.num_simulations, self.gamma, self.max_steps = env, num_simulations, gamma, max_steps
        self.score = UCBScore(2.0**0.5) if score is None else score
        self.prior, self.value = prior, value
        self.sign = -1.0 if two_player else 1.0
        self._spec, self._n = spec, int(spec.n)
        self.action_key = as_key(action_key)
        self._mask_key = as_key((*parent_path(action_key), "action_mask"))
        self.in_keys = list(env.observation_keys)  # type: ignore[arg-type]
        self.out_keys = [self.action_key]  # type: ignore[list-item]

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the action."""
        visits = self.search(tensordict)
        return tensordict.set(self.action_key, self._action(int(visits.argmax())))

    def search(self, tensordict: TensorDictBase) -> Tensor:
        """How often each action was tried ``[n]``.

        Args:
            tensordict: the present state; a stateful environment must be in it.
        """
        root = self._node(tensordict.copy().exclude("next"), self._copy(self.env), False)
        for _ in range(self.num_simulations):
            self._simulate(root)
        return root.visits

    # ---------------------------------------------------------------- one simulation
    def _simulate(self, root: _Node) -> None:
        path: list[tuple[_Node, int]] = []
        node = root
        while not node.ended:
            action = self._choose(node)
            path.append((node, action))
            known = node.children.get(action)
            if known is None:
                node = self._expand(node, action)
                break
            node = known
        outcome = 0.0 if node.ended else self._evaluate(node)
        for parent, action in reversed(path):
            outcome = parent.rewards[action] + self.gamma * self.sign * outcome
            parent.wins[action] += outcome
            parent.visits[action] += 1

    def _choose(self, node: _Node) -> int:
        total = 1 + node.visits.sum(-1, keepdim=True)  # the node's own evaluation is a visit: priors count at once
        given = [node.wins, node.visits, total, *([node.prior] if isinstance(self.score, PUCTScore) else [])]
        (score,) = self.score.forward_tensors(*given)
        return int(score.masked_fill(~node.legal, -torch.inf).argmax())

    def _expand(self, node: _Node, action: int) -> _Node:
        env = self._copy(node.env)
        td, reward, ended = self._step(env, node.td, action)
        child = self._node(td, env, ended)
        node.rewards[action], node.children[action] = reward, child
        return child

    def _evaluate(self, node: _Node) -> float:
        """The value of a new node for the player who is to act there."""
        if self.value is not None:
            return float(self.value(node.td))
        env, td = self._copy(node.env), node.td
        total, weight = 0.0, 1.0
        for _ in range(self.max_steps):
            legal = self._legal(td).to(torch.float32)
            td, reward, ended = self._step(env, td, int(torch.multinomial(legal, 1)))
            total += weight * reward
            if ended:
                break
            weight *= self.gamma * self.sign
        return total

    # ---------------------------------------------------------------- the environment
    def _copy(self, env: EnvBase) -> EnvBase:
        return copy.deepcopy(env) if env.batch_locked else env

    def _step(self, env: EnvBase, td: TensorDictBase, action: int) -> tuple[TensorDictBase, float, bool]:
        stepped = env.step(td.copy().set(self.action_key, self._action(action)))
        reward = sum(float(stepped.get(("next", *_path(key))).sum()) for key in env.reward_keys)
        return env.step_mdp(stepped), reward, env.any_done(stepped.get("next"))

    def _node(self, td: TensorDictBase, env: EnvBase, ended: bool) -> _Node:
        legal = torch.ones(self._n, dtype=torch.bool) if ended else self._legal(td)
        prior = torch.full((self._n,), 1.0 / self._n)
        if self.prior is not None and not ended:
            prior = torch.as_tensor(self.prior(td), dtype=torch.float32).reshape(self._n)
        return _Node(td, env, legal, prior, ended)

    def _legal(self, td: TensorDictBase) -> Tensor:
        mask = td.get(self._mask_key, None)
        if mask is None:
            return torch.ones(self._n, dtype=torch.bool)
        if not bool(mask.any()):
            raise PolicyError(f"{self._mask_key!r} allows no action in a state that has not ended")
        return mask.reshape(self._n)

    def _action(self, index: int) -> Tensor:
        number = torch.tensor(index)
        encoded = F.one_hot(number, self._n) if isinstance(self._spec, OneHot) else number
        return encoded.to(self._spec.dtype).reshape(self._spec.shape)


def _path(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key
