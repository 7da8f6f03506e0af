"""``DreamerEnv``: imagination as an environment, which steps a world model from latent state to latent state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from rl_core import Composite, ModelBasedEnvBase, TensorEnv, Unbounded
from rl_core.envs.base import EnvBase
from rl_core.errors import EnvError
from rl_core.policy import row_policy

__all__ = ["DreamerEnv"]


class DreamerEnv(TensorEnv, ModelBasedEnvBase):
    """Steps a world model on "state" and "belief", with the actions and rewards of the real environment.

    A reset gives zero state and belief, for any batch size; usually imagination starts from states that a posterior
    inferred, ``env.rollout(15, actor, auto_reset=False, tensordict=states)``. Episodes never end: their end is for a
    loss to weigh. Gradients flow through steps. Where the world model can be called on tensors (a chain of modules
    with keys), rollouts need no TensorDict per step.

    Args:
        world_model: reads "state", "belief" and the action, writes the next "state" and "belief" and the reward.
        prior_shape: shape of a state.
        belief_shape: shape of a belief.
        obs_decoder: from "state" and "belief" to an observation, for :meth:`decode_obs`.
        device: where to imagine.
        batch_size: the prefix of every shape.

    Hafner et al., 2020, Dream to Control: Learning Behaviors by Latent Imagination, section 3, arXiv 1912.01603.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> from tensordict.nn import TensorDictModule
        >>> model = TensorDictModule(
        ...     lambda state, belief, action: (state + action, belief, -state.abs()),
        ...     in_keys=["state", "belief", "action"],
        ...     out_keys=["state", "belief", "reward"],
        ... )
        >>> env = DreamerEnv(model, prior_shape=(1,), belief_shape=(4,))
        >>> env.set_specs_from_env(CountingEnv())
        >>> env.rollout(5, tensordict=TensorDict({}, [3])).batch_size
        torch.Size([3, 5])
    """

    def __init__(
        self,
        world_model: Callable[[TensorDictBase], TensorDictBase],
        prior_shape: Sequence[int],
        belief_shape: Sequence[int],
        obs_decoder: nn.Module | None = None,
        device: torch.device | str | None = None,
        batch_size: Sequence[int] | torch.Size | None = None,
    ) -> None:
        super().__init__(world_model, device=device, batch_size=batch_size)
        self.obs_decoder = obs_decoder
        self.prior_shape, self.belief_shape = torch.Size(prior_shape), torch.Size(belief_shape)
        latent = Composite(
            state=Unbounded(shape=(*self.batch_size, *self.prior_shape)),
            belief=Unbounded(shape=(*self.batch_size, *self.belief_shape)),
            shape=self.batch_size,
        )
        self.observation_spec, self.state_spec = latent, latent.clone()

    def set_specs_from_env(self, env: EnvBase) -> None:
        """Take over actions, rewards and end flags of the environment that the model imitates."""
        dims = len(env.batch_size)
        for kind in ("action", "reward", "done"):
            spec = env._spec(kind)
            single = spec[(0,) * dims] if dims else spec
            whole = (*self.batch_size, *single.shape)
            self._set_spec(kind, single.expand(whole) if self.batch_size else single, kind)

    def rollout(self, *args: Any, tensordict: TensorDictBase | None = None, **options: Any) -> TensorDictBase:
        """See :meth:`rl_core.EnvBase.rollout`; states to start from need no end flags."""
        if tensordict is not None and options.get("auto_reset") is False:
            absent = [key for key in self.done_keys if tensordict.get(key, None) is None]
            ends = self.full_done_spec.zero(tensordict.batch_size)
            tensordict = tensordict.copy()
            for key in absent:
                tensordict.set(key, ends.get(key))
        return super().rollout(*args, tensordict=tensordict, **options)

    def decode_obs(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write what the decoder makes of states and beliefs.

        Raises:
            EnvError: there is no decoder.
        """
        if self.obs_decoder is None:
            raise EnvError("DreamerEnv.decode_obs needs a decoder: DreamerEnv(..., obs_decoder=...)")
        decoded: TensorDictBase = self.obs_decoder(tensordict)
        return decoded

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        batch = self.batch_size if tensordict is None else tensordict.batch_size
        device = self.device if tensordict is None or self.device is not None else tensordict.device
        shapes = {"state": self.prior_shape, "belief": self.belief_shape}
        zeros = {name: torch.zeros(*batch, *shape, device=device) for name, shape in shapes.items()}
        return TensorDict(zeros, batch_size=batch, device=device)

    def _step_entries(self, entries: dict[str, Any]) -> dict[str, Any]:
        plan = row_policy(self.world_model)
        if plan is None:
            return self._step_container(entries)
        names = [str(key) for key in plan.in_keys]
        absent = [key for key in names if key not in entries]
        if absent:
            raise EnvError(
                f"the world model reads {absent}; a step has {sorted(map(str, entries))}. Imagination starts from "
                "states: env.rollout(..., auto_reset=False, tensordict=states), or env.reset()"
            )
        written = dict(zip(plan.out_keys, plan.call(*[entries[key] for key in names]), strict=True))
        return self._wanted(written)

    def _step_container(self, entries: dict[str, Any]) -> dict[str, Any]:
        """A world model that can only be called on a TensorDict."""
        size = entries["state"].shape[: entries["state"].ndim - len(self.prior_shape)]
        given = {key: value for key, value in entries.items() if key != "next"}
        result = self.world_model(TensorDict(given, batch_size=size))
        if not isinstance(result, TensorDictBase):
            raise EnvError(f"the world model returned {type(result).__name__}; it must return a TensorDict")
        carried: dict[Any, Any] = entries
        stale = {key for key in self.reward_keys if result.get(key, None) is carried.get(key)}
        return self._wanted({key: value for key, value in result.items() if key not in stale})

    def _wanted(self, written: dict[Any, Any]) -> dict[str, Any]:
        """The entries that a step is declared to write."""
        found = {key: written[key] for key in ("state", "belief", *self.reward_keys) if key in written}
        if len(found) < 2 + len(self.reward_keys):
            needed = ["state", "belief", *self.reward_keys]
            raise EnvError(f"the world model writes {list(written)}; a step needs {needed}")
        return found  # type: ignore[return-value]
