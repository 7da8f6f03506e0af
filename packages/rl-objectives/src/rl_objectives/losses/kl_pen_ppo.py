"""Proximal policy optimisation with an adaptive penalty on the KL divergence in place of a clip."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import kl_divergence

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_core.losses.reduction import masked_mean
from rl_objectives.losses.ppo import PPOLoss

__all__ = ["KLPENPPOLoss"]


class KLPENPPOLoss(PPOLoss):
    r"""PPO with a KL penalty.

    .. math:: L = -r A + \beta \, \mathrm{KL}(\pi_{old} \| \pi) + c_v \, d(V, G) - c_e H

    The old policy is rebuilt from the distribution's parameters that the batch holds (``loc`` and ``scale``, or
    ``logits``): collect with a policy that writes them, which is the default. Returns what :class:`PPOLoss` returns,
    and the detached log ``kl``.

    Beta changes only in :meth:`update_beta`, to be called once per batch of the collector, after optimising on it.

    Args:
        actor_network: a stochastic policy with ``get_dist`` and ``build_dist_from_params``, such as ProbabilisticActor.
        critic_network: see :class:`PPOLoss`.
        dtarg: the KL divergence that is aimed at, in nats.
        beta: the first weight of the penalty. May be assigned later; state_dict holds it.
        increment: what beta is multiplied by where the divergence is larger than 1.5 ``dtarg``, > 1.
        decrement: what it is multiplied by where it is smaller than ``dtarg / 1.5``, in (0, 1).
        samples_mc_kl: samples that estimate the divergence where it has no closed form.
        **options: of :class:`PPOLoss`.

    Raises:
        SpecError: the policy has no ``build_dist_from_params``, or a number is out of range.

    Schulman et al., 2017, Proximal Policy Optimization Algorithms, eq. 8 and section 4, arXiv 1707.06347.
    """

    beta: Any
    """Weight of the penalty, a scalar tensor to which numbers may be assigned."""

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module | None = None,
        *,
        dtarg: float = 0.01,
        beta: float = 1.0,
        increment: float = 2.0,
        decrement: float = 0.5,
        samples_mc_kl: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, critic_network, **options)
        if not callable(getattr(actor_network, "build_dist_from_params", None)):
            raise SpecError(
                f"{type(self).__name__} needs an actor_network with build_dist_from_params(tensordict), such as "
                f"ProbabilisticActor, to rebuild the policy that collected; got {type(actor_network).__name__}"
            )
        if not increment > 1.0 or not 0.0 < decrement < 1.0:
            raise SpecError(f"increment is > 1 and decrement in (0, 1); got {increment} and {decrement}")
        if not dtarg > 0 or samples_mc_kl < 1:
            raise SpecError(f"dtarg is > 0 and samples_mc_kl at least 1; got {dtarg} and {samples_mc_kl}")
        self.add_scalar("dtarg", dtarg)
        self.add_scalar("beta", beta)
        self.increment, self.decrement, self.samples_mc_kl = increment, decrement, samples_mc_kl

    def update_beta(self, kl: Tensor | float | TensorDictBase) -> float:
        """Adapt the weight of the penalty to the divergence that the last optimisation led to.

        Args:
            kl: the mean divergence in nats, or what the loss returned.

        Returns:
            The new weight.

        >>> from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        >>> net = TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"])
        >>> draw = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> loss = KLPENPPOLoss(ProbabilisticTensorDictSequential(net, draw), dtarg=0.01)
        >>> loss.update_beta(0.02), loss.update_beta(0.01), loss.update_beta(0.001)
        (2.0, 2.0, 1.0)
        """
        value = float(kl.get("kl") if isinstance(kl, TensorDictBase) else kl)
        target, beta = float(self._buffers["dtarg"]), float(self._buffers["beta"])  # type: ignore[arg-type]
        if value > 1.5 * target:
            beta *= self.increment
        elif value < target / 1.5:
            beta *= self.decrement
        self.beta = beta
        return beta

    def default_in_keys(self) -> list[Key]:
        parameters = getattr(self._modules["actor_network"], "dist_params_keys", ())
        return list(dict.fromkeys([*super().default_in_keys(), *map(as_key, parameters)]))

    def objective_logs(self) -> list[str]:
        return [*super().objective_logs(), "kl"]

    def penalty(
        self, batch: TensorDictBase, distribution: Any, advantage: Tensor, mask: Tensor | None
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The weighted divergence, per row, and its mean."""
        actor = self._modules["actor_network"]
        with torch.no_grad():
            old = actor.build_dist_from_params(batch)  # type: ignore[union-attr, operator]
        kl = self._like_advantage("kl", self._kl(old, distribution), advantage)
        return self.beta * kl, {"kl": masked_mean(kl.detach(), mask)}

    def _kl(self, old: Any, new: Any) -> Tensor:
        """KL(old || new) per row: in closed form, else by samples of the old policy."""
        try:
            return kl_divergence(old, new)
        except NotImplementedError:
            with torch.no_grad():
                samples = old.sample((self.samples_mc_kl,))
                log_old = old.log_prob(samples)
            return (log_old - new.log_prob(samples)).mean(0)
