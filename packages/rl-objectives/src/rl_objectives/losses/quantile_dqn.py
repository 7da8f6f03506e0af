"""Quantile regression of value distributions: fixed quantiles (QR-DQN) and sampled ones (IQN)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import missing_key, quoted
from rl_core.losses.networks import call_on_tensors
from rl_core.losses.reduction import masked_mean
from rl_objectives.functional.distributional import pick_action
from rl_objectives.functional.q_learning import action_index, one_step_target
from rl_objectives.functional.quantile import quantile_huber_loss, quantile_midpoints
from rl_objectives.losses.q_values import QKeys, QLoss, mask_rows

__all__ = ["IQNKeys", "IQNLoss", "QRDQNLoss"]


class _QuantileLoss(QLoss):
    """What both have in common once the quantiles are known."""

    value_dims: ClassVar[int] = 2

    def __init__(self, value_network: nn.Module, *, kappa: float = 1.0, **options: Any) -> None:
        super().__init__(value_network, **options)
        if kappa < 0:
            raise SpecError(f"kappa is at least 0; got {kappa}")
        self.kappa = float(kappa)

    def regression(
        self, batch: TensorDictBase, quantiles: Tensor, levels: Tensor, target: Tensor, mask: Tensor | None
    ) -> dict[str, Tensor]:
        """The loss and logs, from the quantiles [*B, N] of taken actions and samples [*B, M] of their targets."""
        target = mask_rows(target, mask)
        rows = self.scaled(quantile_huber_loss(quantiles, levels, target, self.kappa))
        pred_value, target_value = quantiles.detach().mean(-1, keepdim=True), target.mean(-1, keepdim=True)
        error = (pred_value - target_value).abs()
        self.report(batch, error, mask)
        return {
            "loss": self.reduce_rows(rows, self.weights(batch, rows), mask),
            "td_error": masked_mean(error, mask),
            "pred_value": masked_mean(pred_value, mask),
            "target_value": masked_mean(target_value, mask),
        }

    def scaled(self, rows: Tensor) -> Tensor:
        """The paper's factor of the loss."""
        return rows


class QRDQNLoss(_QuantileLoss):
    r"""Q-learning of value distributions by their quantiles.

    .. math:: L = \sum_i E_j \left[ \rho^\kappa_{\hat\tau_i}
        (r + \gamma (1 - m) \theta'_j(s', a^*) - \theta_i(s, a)) \right]

    where rho is :func:`quantile_huber_loss` and ``a*`` has the largest mean of quantiles.

    Returns ``loss`` and the detached logs ``td_error`` (mean absolute difference of the two means), ``pred_value`` and
    ``target_value``. Each row's difference is written under ``td_error`` as its priority. The batch is read as by
    :class:`DQNLoss`.

    Args:
        value_network: a module with ``in_keys`` that writes ``action_value`` [*B, N, n]: N quantiles for each of n
            actions, at the levels (2 i - 1) / 2 N; e.g. a ``QuantileQValueActor``.
        kappa: Huber's threshold; 0 is plain quantile regression.
        **options: ``delay_value``, ``double_dqn``, ``gamma``, ``action_space``, ``reduction``,
            ``use_prioritized_weights``, ``priority_type``: see :class:`QLoss`.

    Raises:
        SpecError: an option is not admitted.

    Dabney et al., 2017, Distributional Reinforcement Learning with Quantile Regression, eq. 10 and algorithm 1,
    arXiv 1710.10044.
    """

    def losses(self, batch: TensorDictBase, values: Tensor, action: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        quantiles = pick_action(values, action_index(values, action, self.space.name or ""))
        levels = quantile_midpoints(quantiles.shape[-1], dtype=quantiles.dtype, device=quantiles.device)
        return self.regression(batch, quantiles, levels, self.target(batch, quantiles, mask), mask)

    @torch.no_grad()
    def target(self, batch: TensorDictBase, quantiles: Tensor, mask: Tensor | None) -> Tensor:
        """Samples of the distribution that the quantiles are moved to, [*B, N]."""
        step = self.read_step(batch, quantiles[..., :1])
        following = self.action_values(self.target_name(), batch, "next")
        judge = self.action_values("value_network", batch, "next") if self.double_dqn else following
        best = self.best_next(batch, judge.mean(-2), step, mask)
        return one_step_target(step.reward, pick_action(following, best), step.terminated, step.discount)


@dataclass(frozen=True)
class IQNKeys(QKeys):
    """The entries of :class:`IQNLoss`."""

    taus: Key = "taus"
    """[*B, N] in (0, 1): the network reads under this key the levels whose quantiles it is asked for; the loss draws
    them, the batch need not have them."""


class IQNLoss(_QuantileLoss):
    r"""Q-learning of value distributions by quantiles at sampled levels.

    .. math:: L = \frac{1}{N'} \sum_{i=1}^N \sum_{j=1}^{N'} \frac{1}{\kappa}
        \rho^\kappa_{\tau_i}(r + \gamma (1 - m) Z'_{\tau'_j}(s', a^*) - Z_{\tau_i}(s, a))

    with levels drawn uniformly, anew for every row; ``a*`` has the largest mean of K further quantiles. Returns and
    writes what :class:`QRDQNLoss` does.

    Args:
        value_network: a module that writes ``action_value`` [*B, N, n], quantiles of n actions at the levels that it
            reads under ``taus`` [*B, N]; e.g. an ``ImplicitQuantileNet`` with ``in_keys=["observation", "taus"]``.
        num_taus: N, levels of the prediction.
        num_target_taus: N', levels of the target.
        num_policy_taus: K, levels of the greedy choice.
        kappa: Huber's threshold; 0 is plain quantile regression.
        **options: see :class:`QRDQNLoss`.

    Raises:
        SpecError: an option is not admitted, or the network does not read ``taus``.

    Dabney et al., 2018, Implicit Quantile Networks for Distributional Reinforcement Learning, eq. 2, 3 and
    algorithm 1, arXiv 1806.06923.
    """

    default_keys: ClassVar[Any] = IQNKeys()

    def __init__(
        self,
        value_network: nn.Module,
        *,
        num_taus: int = 8,
        num_target_taus: int = 8,
        num_policy_taus: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(value_network, **options)
        if min(num_taus, num_target_taus, num_policy_taus) < 1:
            raise SpecError(
                f"IQNLoss draws at least one level each; got {num_taus}, {num_target_taus} and {num_policy_taus}"
            )
        self.num_taus = num_taus
        self.num_target_taus = num_target_taus
        self.num_policy_taus = num_policy_taus

    def default_in_keys(self) -> list[Key]:
        taus = self.path("taus")
        return [key for key in super().default_in_keys() if key not in (taus, join("next", taus))]

    def draw_taus(self, rows: torch.Size, count: int, like: Tensor) -> Tensor:
        """Levels [*rows, count], uniform in [0, 1)."""
        return torch.rand((*rows, count), dtype=like.dtype, device=like.device)

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        mask = self.valid_rows(batch)
        levels, values = self._quantiles("value_network", batch, (self.num_taus,))
        action = self.read(batch, "action")
        if not self._checked:
            self.check_once(values, action)
        quantiles = pick_action(values, action_index(values, action, self.space.name or ""))
        return self.regression(batch, quantiles, levels, self.target(batch, quantiles, mask), mask)

    def scaled(self, rows: Tensor) -> Tensor:
        return rows / self.kappa if self.kappa else rows

    @torch.no_grad()
    def target(self, batch: TensorDictBase, quantiles: Tensor, mask: Tensor | None) -> Tensor:
        """Samples of the distribution that the quantiles are moved to, [*B, N']."""
        step = self.read_step(batch, quantiles[..., :1])
        counts = (self.num_target_taus,) if self.double_dqn else (self.num_target_taus, self.num_policy_taus)
        following = self._quantiles(self.target_name(), batch, counts, "next")[1]
        if self.double_dqn:
            judge = self._quantiles("value_network", batch, (self.num_policy_taus,), "next")[1]
        else:
            following, judge = following.split(counts, -2)  # one call of the network for both
        best = self.best_next(batch, judge.mean(-2), step, mask)
        return one_step_target(step.reward, pick_action(following, best), step.terminated, step.discount)

    def _quantiles(
        self, name: str, batch: TensorDictBase, counts: tuple[int, ...], under: Key | None = None
    ) -> tuple[Tensor, Tensor]:
        """Fresh levels [*B, N] and their quantiles [*B, N, n], N being the sum of the counts."""
        owner, taus = type(self).__name__, self.path("taus")
        part = self._value_part.of(self._modules[name])
        keys = [as_key(key) for key in part.in_keys]  # type: ignore[union-attr]
        if taus not in keys:
            raise SpecError(
                f"{owner}: value_network must read the levels it is asked for under {quoted(taus)}; it reads "
                f"{', '.join(map(quoted, keys))}. Add it to its in_keys, or call loss.set_keys(taus=...)."
            )
        levels = self.draw_taus(batch.batch_size, sum(counts), self.read(batch, "reward"))
        inputs = []
        for key in keys:
            full = key if under is None else join(under, key)
            value = levels if key == taus else batch.get(full, None)
            if value is None:
                raise missing_key(owner, full, batch, f"It is an in_key of {type(part).__name__}.")
            inputs.append(value)
        return levels, call_on_tensors(part, inputs, self._paths["action_value"], batch.batch_size)
