"""``PendulumEnv``: the pendulum of gymnasium's Pendulum-v1 in torch, stateless and batched, with gradients."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Bounded, Composite, TensorEnv, Unbounded, make_composite_from_td
from rl_core.errors import KeyMissingError

__all__ = ["PendulumEnv"]

_CONSTANTS = ("max_speed", "max_torque", "dt", "g", "m", "l")


class PendulumEnv(TensorEnv):
    r"""Swing a pendulum up and keep it there.

    With angle :math:`\theta` (0 is upright), speed :math:`\dot\theta` and torque :math:`u`:

    .. math::
        \dot\theta' = \mathrm{clip}\left(\dot\theta + \left(\tfrac{3g}{2l}\sin\theta + \tfrac{3}{ml^2}u\right) dt\right)
        \qquad \theta' = \theta + \dot\theta'\,dt
        \qquad r = -\left(\theta_{[-\pi,\pi)}^2 + 0.1\,\dot\theta^2 + 0.001\,u^2\right)

    The state is "th" and "thdot" (shape ``[*B]``), also given as "observation" = (cos th, sin th, thdot); the
    constants lie under "params", which :meth:`gen_params` makes and every step carries on. Nothing is kept in this
    object: any batch size works, and gradients flow through steps. Episodes do not end (append
    ``StepCounter(max_steps=200)``).

    Args:
        td_params: constants, from :meth:`gen_params`; the bounds of the specs follow from them.
        seed: seeds the first states; None draws them from torch's generator.
        device: where to compute.

    Example:
        >>> env = PendulumEnv()
        >>> td = env.reset(env.gen_params(batch_size=[10]))
        >>> env.rollout(5, auto_reset=False, tensordict=td).batch_size
        torch.Size([10, 5])
    """

    def __init__(
        self,
        td_params: TensorDictBase | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(device=device)
        params = self.gen_params() if td_params is None else td_params
        self.params: TensorDictBase = params.get("params").clone()
        if self.device is not None:
            self.params = self.params.to(self.device)
        self._generator: torch.Generator | None = None
        self._make_specs(float(self.params.get("max_speed").max()), float(self.params.get("max_torque").max()))
        if seed is not None:
            self.set_seed(seed)

    def _make_specs(self, speed: float, torque: float) -> None:
        self.observation_spec = Composite(
            observation=Bounded(
                low=torch.tensor([-1.0, -1.0, -speed]), high=torch.tensor([1.0, 1.0, speed]), shape=(3,)
            ),
            th=Unbounded(shape=(), dtype=torch.float32),
            thdot=Bounded(low=-speed, high=speed, shape=(), dtype=torch.float32),
        )
        constants = make_composite_from_td(self.params.flatten()[0] if self.params.batch_dims else self.params)
        self.state_spec = Composite(
            th=Unbounded(shape=(), dtype=torch.float32),
            thdot=Unbounded(shape=(), dtype=torch.float32),
            params=Composite({key: Unbounded(shape=(), dtype=leaf.dtype) for key, leaf in constants.items(True, True)}),
        )
        self.action_spec = Bounded(low=-torque, high=torque, shape=(1,), dtype=torch.float32)
        self.reward_spec = Unbounded(shape=(1,), dtype=torch.float32)

    @staticmethod
    def gen_params(
        g: float = 10.0, batch_size: Sequence[int] | None = None, device: torch.device | str | None = None
    ) -> TensorDict:
        """Constants of the pendulum under "params".

        Args:
            g: gravity, m/s^2.
            batch_size: one set of constants for each of so many pendulums.
            device: where they live.

        Returns:
            TensorDict of that batch size: "max_speed" (rad/s), "max_torque" (N m), "dt" (s), "g", "m" (kg), "l" (m).
        """
        numbers = {"max_speed": 8.0, "max_torque": 2.0, "dt": 0.05, "g": g, "m": 1.0, "l": 1.0}
        params = TensorDict({key: torch.tensor(number) for key, number in numbers.items()}, batch_size=[])
        td = TensorDict({"params": params}, batch_size=[], device=device)
        return td.expand(torch.Size(batch_size)).contiguous() if batch_size else td

    # ---------------------------------------------------------------- environment
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        batch = self.batch_size if tensordict is None else tensordict.batch_size
        params = None if tensordict is None else tensordict.get("params", None)
        if params is None:
            params = self.params.expand(batch) if self.params.batch_size != batch else self.params
        drawn = torch.rand(*batch, 2, generator=self._generator, device=self.device) * 2 - 1
        th, thdot = drawn[..., 0] * math.pi, drawn[..., 1]
        return TensorDict({**_state(th, thdot), "params": params.clone()}, batch_size=batch, device=self.device)

    @property
    def stack_key(self) -> Hashable | None:
        """The constants, for steps that are given none."""
        return None if self.params.batch_dims else tuple(self.params.get(name).item() for name in _CONSTANTS)

    def _step_entries(self, entries: dict[str, Any]) -> dict[str, Any]:
        th, thdot = entries.get("th"), entries.get("thdot")
        if th is None or thdot is None:
            raise KeyMissingError(
                "PendulumEnv is stateless: a step reads 'th' and 'thdot'; start with td = env.reset()"
            )
        constants = dict(entries.get("params", self.params).items())
        u, sin = _clip(entries["action"].squeeze(-1), constants["max_torque"]), th.sin()
        new_thdot = _clip(_accelerated(thdot, sin, u, constants), constants["max_speed"])
        new_th = torch.addcmul(th, new_thdot, constants["dt"])
        return {**_state(new_th, new_thdot), "reward": _reward(_wrapped(th), thdot, u)}

    def _set_seed(self, seed: int) -> None:
        """A generator of this environment's own, from then on."""
        self._generator = torch.Generator(self.device or "cpu").manual_seed(seed)


# The time of a step is the number of its operations; addcmul and addcdiv take a number along at less than the cost of a
# multiplication by it.


def _clip(value: Tensor, bound: Tensor) -> Tensor:
    """The value in [-bound, bound]."""
    return value.clamp(-bound, bound)


def _accelerated(thdot: Tensor, sin: Tensor, u: Tensor, constants: dict[str, Tensor]) -> Tensor:
    """The speed after dt: thdot + 3 / (2 l) (g sin(th) + 2 u / (m l)) dt."""
    length = constants["l"]
    pull = torch.addcdiv(constants["g"] * sin, u, constants["m"] * length, value=2.0)
    return torch.addcdiv(thdot, pull * constants["dt"], length, value=1.5)


def _wrapped(angle: Tensor) -> Tensor:
    """The angle in [-pi, pi); atan2 would give vectors other last bits than single numbers."""
    return torch.remainder(angle + math.pi, 2 * math.pi) - math.pi


def _reward(upright: Tensor, thdot: Tensor, u: Tensor) -> Tensor:
    """The negative cost ``[*B, 1]``, with the angle in [-pi, pi]."""
    cost = torch.addcmul(torch.addcmul(upright * upright, thdot, thdot, value=0.1), u, u, value=0.001)
    return -cost.unsqueeze(-1)


def _state(th: Tensor, thdot: Tensor) -> dict[str, Tensor]:
    return {"th": th, "thdot": thdot, "observation": torch.stack([th.cos(), th.sin(), thdot], -1)}
