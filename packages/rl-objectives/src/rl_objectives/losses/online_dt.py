"""The online decision transformer's loss: likelihood of the dataset's actions, with entropy kept above a bound."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_core.losses.module import LossModule
from rl_core.losses.networks import distribution_on_tensors, read_inputs
from rl_core.losses.reduction import masked_mean
from rl_objectives.functional.online_dt import entropy_dual
from rl_objectives.losses.action_samples import entropy_per_row
from rl_objectives.losses.decision_transformer import DTKeys
from rl_objectives.losses.imitation import check_stochastic, log_prob_of, weighted_rows

__all__ = ["OnlineDTLoss"]


class OnlineDTLoss(LossModule):
    r"""The likelihood of the dataset's actions under a sequence policy whose entropy has a lower bound.

    .. math::
        L_{LL} = -\log \pi(a_t | \hat R_{\le t}, s_{\le t}, a_{<t}), \qquad
        L_H = -\lambda H(\pi), \qquad L_\lambda = \lambda (H(\pi) - \beta)

    at each step, with lambda fixed in the second and H in the third. Returns ``loss_log_likelihood``,
    ``loss_entropy``, ``loss_alpha`` (add them up) and the detached logs ``alpha`` (lambda) and ``entropy``. Steps of
    padding are kept out by the mask (``loss.set_keys(mask="mask")``).

    Args:
        actor_network: a stochastic policy over windows [*B, T, ...], such as a ``ProbabilisticActor`` over an
            ``OnlineDTActor``.
        alpha_init: lambda at first, above 0.
        min_alpha: the smallest lambda; None: no bound.
        max_alpha: the largest one; None: no bound.
        fixed_alpha: keep lambda as it is; ``loss_alpha`` is then 0.
        target_entropy: beta in nats per step, or "auto": minus the number of components of an action. May be assigned
            later.
        samples_mc_entropy: draws that estimate the entropy where the distribution has no closed form.
        reduction: "mean", "sum" or "none" (per step).

    Raises:
        SpecError: an option is not admitted.

    Zheng et al., 2022, Online Decision Transformer, eq. 2 to 5, arXiv 2202.05607.
    """

    default_keys: ClassVar[Any] = DTKeys()

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        samples_mc_entropy: int = 1,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        owner = type(self).__name__
        check_stochastic(actor_network, owner)
        low, high = (alpha_init if bound is None else bound for bound in (min_alpha, max_alpha))
        if not 0 < low <= alpha_init <= high:
            raise SpecError(
                f"{owner} needs 0 < min_alpha <= alpha_init <= max_alpha; got min_alpha={min_alpha}, "
                f"alpha_init={alpha_init}, max_alpha={max_alpha}"
            )
        if samples_mc_entropy < 1:
            raise SpecError(f"{owner}: samples_mc_entropy is at least 1; got {samples_mc_entropy}")
        if isinstance(target_entropy, str) and target_entropy != "auto":
            raise SpecError(f"target_entropy is a number or 'auto'; got {target_entropy!r}")
        self.add_network("actor_network", actor_network)
        self.add_scalar("alpha_init", alpha_init)
        self.fixed_alpha = fixed_alpha
        self._log_bounds = [None if bound is None else math.log(bound) for bound in (min_alpha, max_alpha)]
        start = torch.tensor(math.log(alpha_init), dtype=torch.get_default_dtype())
        self.log_alpha: Tensor
        if fixed_alpha:
            self.register_buffer("log_alpha", start)
        else:
            self.log_alpha = nn.Parameter(start)
        self.target_entropy = target_entropy
        self.samples_mc_entropy = samples_mc_entropy

    @property
    def alpha(self) -> Tensor:
        """Lambda, a scalar without gradient."""
        return self.log_alpha.detach().exp()

    def default_in_keys(self) -> list[Key]:
        inputs = [as_key(key) for key in self._modules["actor_network"].in_keys]  # type: ignore[union-attr]
        return list(dict.fromkeys([*inputs, self.path("action_target")]))

    def default_out_keys(self) -> list[Key]:
        return ["loss_log_likelihood", "loss_entropy", "loss_alpha", "alpha", "entropy"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch of windows."""
        owner, actor = type(self).__name__, self._modules["actor_network"]
        assert actor is not None
        self._keep_alpha_in_bounds()
        mask, action = self.valid_rows(batch), self.read(batch, "action_target")
        distribution = distribution_on_tensors(actor, read_inputs(actor, batch, owner), batch.batch_size)
        log_prob = log_prob_of(self, distribution, action, "action_target")
        entropy = entropy_per_row(distribution, self.samples_mc_entropy)
        if entropy.shape != log_prob.shape:
            raise SpecError(
                f"{owner}: the policy's entropy {list(entropy.shape)} and log-probability {list(log_prob.shape)} must "
                "have one shape"
            )
        size = action.numel() // max(log_prob.numel(), 1)
        rows = {
            "loss_log_likelihood": -log_prob,
            "loss_entropy": -self.alpha * entropy,
            "loss_alpha": self._alpha_rows(entropy, size),
        }
        losses = {name: self.reduce(weighted_rows(self, batch, values), mask) for name, values in rows.items()}
        return {**losses, "alpha": self.alpha, "entropy": masked_mean(entropy.detach(), mask)}

    def _alpha_rows(self, entropy: Tensor, action_size: int) -> Tensor:
        if self.fixed_alpha:
            return torch.zeros_like(entropy.detach())
        target = self.target_entropy
        return entropy_dual(self.log_alpha.exp(), entropy, -float(action_size) if isinstance(target, str) else target)

    def _keep_alpha_in_bounds(self) -> None:
        """Project lambda onto its bounds, which a step of the optimiser may have left."""
        low, high = self._log_bounds
        if self.fixed_alpha or (low is None and high is None):
            return
        with torch.no_grad():
            self.log_alpha.clamp_(low, high)
