"""TemperatureLoss: off-policy losses of stochastic policies whose entropy is kept up by a temperature."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_objectives.functional.soft_value import temperature_loss
from rl_objectives.losses.off_policy import OffPolicyLoss

__all__ = ["TemperatureLoss", "check_stochastic", "sample_with_log_prob"]


class TemperatureLoss(OffPolicyLoss):
    """Base of the soft actor-critic losses: a temperature ``alpha`` that is learnt or fixed.

    ``loss.log_alpha`` is the learnt parameter (a buffer where alpha is fixed), ``loss.alpha`` the temperature. The
    wanted entropy ``loss.target_entropy`` may be assigned; under "auto" it is minus the number of components of an
    action, read from the data. That suits actions within (-1, 1): the entropy is that of the action in its own unit,
    which for bounds of -h and h is log h larger per component.

    Args:
        alpha_init: the temperature at first, above 0.
        min_alpha: the smallest temperature; None: no bound.
        max_alpha: the largest one; None: no bound.
        fixed_alpha: keep the temperature as it is; ``loss_alpha`` is then 0.
        target_entropy: the wanted entropy in nats, or "auto".
        **options: of :class:`OffPolicyLoss`.

    Raises:
        SpecError: a temperature is not positive, lies outside of its bounds, or target_entropy is another word.
    """

    def __init__(
        self,
        *,
        alpha_init: float,
        min_alpha: float | None,
        max_alpha: float | None,
        fixed_alpha: bool,
        target_entropy: float | Tensor | str,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        low, high = (None if bound is None else float(bound) for bound in (min_alpha, max_alpha))
        if not (alpha_init > 0 and (low is None or 0 < low <= alpha_init) and (high is None or alpha_init <= high)):
            raise SpecError(
                f"{type(self).__name__} needs 0 < min_alpha <= alpha_init <= max_alpha; got min_alpha={min_alpha}, "
                f"alpha_init={alpha_init}, max_alpha={max_alpha}"
            )
        self.fixed_alpha = fixed_alpha
        self._action_size: int | None = None
        self.min_log_alpha = None if low is None else math.log(low)
        self.max_log_alpha = None if high is None else math.log(high)
        self.add_scalar("alpha_init", alpha_init)
        start = torch.tensor(math.log(alpha_init), dtype=torch.get_default_dtype())
        self.log_alpha: Tensor
        if fixed_alpha:
            self.register_buffer("log_alpha", start)
        else:
            self.log_alpha = nn.Parameter(start)
        if isinstance(target_entropy, str):
            if target_entropy != "auto":
                raise SpecError(f"target_entropy is a number or 'auto'; got {target_entropy!r}")
        else:
            self.add_scalar("target_entropy", float(target_entropy))

    @property
    def alpha(self) -> Tensor:
        """The temperature, a scalar without gradient."""
        return self.log_alpha.detach().exp()

    def wanted_entropy(self) -> Tensor | float:
        """The target of the entropy: as given, or minus the number of components of an action.

        Raises:
            SpecError: it is "auto", and no batch has told the size of an action.
        """
        given = self._buffers.get("target_entropy")
        if given is not None:
            return given
        if self._action_size is None:
            raise SpecError(
                f"{type(self).__name__}: target_entropy='auto' is minus the number of an action's components, which no "
                "batch has told so far. Compute the actor's loss first, or give target_entropy a number."
            )
        return -float(self._action_size)

    def keep_alpha_in_bounds(self) -> None:
        """Project the temperature onto its bounds, which a step of the optimiser may have left."""
        if self.fixed_alpha or (self.min_log_alpha is None and self.max_log_alpha is None):
            return
        with torch.no_grad():
            self.log_alpha.clamp_(self.min_log_alpha, self.max_log_alpha)

    def alpha_rows(self, log_prob: Tensor) -> Tensor:
        """The temperature's loss per row, [*B]."""
        if self.fixed_alpha:
            return torch.zeros_like(log_prob)
        return temperature_loss(self.log_alpha, log_prob, self.wanted_entropy())

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """The temperature's loss, for scripts that update one part at a time.

        Args:
            log_prob: [*B], the log-probabilities that came with the actor's loss.

        Returns:
            The loss, reduced over all rows.
        """
        self.keep_alpha_in_bounds()
        return self.reduce(self.alpha_rows(log_prob))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "target_entropy" and name not in self.__dict__["_scalar_names"]:
            self.add_scalar(name, float(value))  # until now it was "auto"
            return
        super().__setattr__(name, value)


def check_stochastic(actor: nn.Module, owner: str) -> None:
    """Raise SpecError unless the actor gives a distribution."""
    if not callable(getattr(actor, "get_dist", None)):
        raise SpecError(
            f"{owner} needs an actor_network with get_dist(tensordict), such as ProbabilisticActor; got "
            f"{type(actor).__name__}"
        )


def sample_with_log_prob(distribution: Any, owner: str) -> tuple[Tensor, Tensor]:
    """A reparametrised action [*B, A] and its log-probability [*B].

    Raises:
        SpecError: the distribution passes no gradient through its samples.
    """
    if not distribution.has_rsample:
        raise SpecError(
            f"{owner} differentiates through actions, but {type(distribution).__name__} has no rsample. Use a "
            "distribution such as TanhNormal; for discrete actions use DiscreteSACLoss."
        )
    joint = getattr(distribution, "rsample_and_log_prob", None)
    if joint is not None:
        # Squashed distributions lose digits when they invert a saturated sample; those that offer both at once do not.
        return joint()
    action = distribution.rsample()
    return action, distribution.log_prob(action)
