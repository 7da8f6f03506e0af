"""DreamerV3's actor and value losses: policy gradients on imagined trajectories, whatever the scale of returns."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.estimators import ValueEstimators
from rl_core.keys import Key, as_key
from rl_core.losses.keys import entry, quoted
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors, distribution_on_tensors, read_inputs
from rl_objectives.functional.dreamer import imagination_weights
from rl_objectives.functional.symlog import symexp_bins, symlog, two_hot, two_hot_cross_entropy, two_hot_mean
from rl_objectives.functional.td import td_lambda_return_estimate
from rl_objectives.losses.dreamer import DreamerActorKeys
from rl_objectives.losses.imagination import (
    ImaginedEnvironment,
    LossWithData,
    check_horizon,
    frozen,
    imagine,
    no_graph,
    output_at,
)
from rl_objectives.losses.percentile_norm import PercentileValueNorm

__all__ = ["DreamerV3ActorKeys", "DreamerV3ActorLoss", "DreamerV3ValueKeys", "DreamerV3ValueLoss"]

_IMAGINED = "DreamerV3ActorLoss gives it: losses, imagined = actor_loss(data)."
_LAMBDA = {"td0": 0.0, "td1": 1.0}


@dataclass(frozen=True)
class DreamerV3ActorKeys(DreamerActorKeys):
    """The entries of :class:`DreamerV3ActorLoss`."""

    action: Key = "action"
    """[*B, H, A], imagined."""
    continuation: Key = "continuation"
    """The output of the continuation model: the probability that the episode goes on, [*B, H, 1]."""
    discount_weight: Key = "discount_weight"
    """[*B, H, 1]: written into the data."""


class DreamerV3ActorLoss(LossWithData):
    r"""The actor's loss on imagined trajectories: a policy gradient with the advantage in units of the returns' range.

    .. math::
        L = -\mathrm{mean}_t \; w_t \left[ sg\!\left(\frac{R_t - V(s_t)}{\max(1, S)}\right) \log\pi(a_t|s_t)
            + \eta H(\pi(\cdot|s_t)) \right]

    with lambda-returns R under the discount :math:`\gamma c_t`, c the predicted continuation, and weights w of
    :func:`imagination_weights`. Without ``use_reinforce`` the returns' gradient through the world model takes the place
    of the first term, :math:`R_t / \max(1, S)`, for actions whose samples are differentiable.

    Only the actor moves; world model, continuation and value model are evaluated, and their parameters are not listed.
    Returns ``loss_actor``; the detached logs ``return_low``, ``return_high``, ``return_scale``, ``continuation_mean``,
    ``entropy``; and the imagined data [*B, H] with "lambda_target" and "discount_weight", without a graph. In training
    mode each call moves the range of returns.

    Args:
        actor_model: a stochastic policy on "state" and "belief": a module with ``in_keys`` and ``get_dist``.
        value_model: reads "state" and "belief", writes "state_value" (the number, not its symlog).
        model_based_env: steps the world model (``DreamerEnv``).
        continuation_model: reads "state" and "belief", writes "continuation"; None: episodes never end.
        imagination_horizon: H.
        discount_loss: use the weights w.
        entropy_bonus: eta, may be assigned later.
        use_reinforce: the policy gradient above; needed for discrete actions.
        return_normalization: divide by the range of returns.
        return_normalization_rate: see :class:`PercentileValueNorm`.
        return_normalization_quantiles: likewise.
        return_normalization_min_scale: likewise.
        gamma: discount per step, 0.997 unless given; more by :meth:`make_value_estimator`. 1 where the continuation
            model was taught a discount (``continue_target_scale``).
        lmbda: mixture weight of the lambda-return, 0.95 unless given.
        reduction: "mean", "sum" or "none".

    Raises:
        SpecError: an option is not admitted.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 6 and 7, arXiv 2301.04104.
    """

    default_keys: ClassVar[Any] = DreamerV3ActorKeys()
    default_value_estimator = "td_lambda"
    value_network_name = ""

    def __init__(
        self,
        actor_model: nn.Module,
        value_model: nn.Module,
        model_based_env: ImaginedEnvironment,
        *,
        continuation_model: nn.Module | None = None,
        imagination_horizon: int = 15,
        discount_loss: bool = True,
        entropy_bonus: float = 3e-4,
        use_reinforce: bool = False,
        return_normalization: bool = True,
        return_normalization_rate: float = 0.01,
        return_normalization_quantiles: tuple[float, float] = (0.05, 0.95),
        return_normalization_min_scale: float = 1.0,
        gamma: float | None = None,
        lmbda: float | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.add_network("actor_model", actor_model)
        self._keep("value_model", value_model)
        self._keep("model_based_env", model_based_env)
        self._keep("continuation_model", continuation_model)
        self.imagination_horizon = check_horizon(imagination_horizon)
        self.discount_loss, self.use_reinforce = discount_loss, use_reinforce
        self.return_normalization = return_normalization
        self.add_scalar("entropy_bonus", entropy_bonus)
        self.return_norm = PercentileValueNorm(
            quantiles=return_normalization_quantiles,
            rate=return_normalization_rate,
            min_scale=return_normalization_min_scale,
        )
        given = {"gamma": gamma, "lmbda": lmbda}
        self.make_value_estimator(**{name: value for name, value in given.items() if value is not None})

    def make_value_estimator(self, value_type: Any = None, **hyperparameters: Any) -> LossModule:
        """Choose gamma and lambda: td_lambda, or td0 and td1 for lambda 0 and 1.

        Raises:
            SpecError: it is another estimator, which has no form with a discount per step.
        """
        name = "td_lambda" if value_type is None else getattr(value_type, "value", value_type)
        if name not in ("td_lambda", *_LAMBDA):
            known = [ValueEstimators.TD0, ValueEstimators.TD1, ValueEstimators.TDLambda]
            raise SpecError(f"{type(self).__name__} estimates returns by one of {known}; got {value_type!r}")
        lmbda = {} if name in _LAMBDA else {"lmbda": 0.95}
        super().make_value_estimator(name, **{"gamma": 0.997, "differentiable": True, **lmbda, **hyperparameters})
        self._lmbda = _LAMBDA.get(name, getattr(self.value_estimator, "lmbda", 0.0))
        return self

    def default_in_keys(self) -> list[Key]:
        return [self.path("state"), self.path("belief")]

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor", "return_low", "return_high", "return_scale", "continuation_mean", "entropy"]

    def compute_with_data(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], TensorDictBase]:
        """The loss from every state of a batch [*B], and the imagined trajectories."""
        env, value_model, continuation_model = self.model_based_env, self.value_model, self.continuation_model
        keys, name = [self.path("state"), self.path("belief")], type(self).__name__
        with frozen(env.world_model, value_model, continuation_model), self._recording():
            data = imagine(env, self.actor_model, batch, keys, self.imagination_horizon, self)
            following = output_at(value_model, data, self.path("value"), name, ahead=True)
            goes_on = torch.ones_like(following)
            if continuation_model is not None:
                goes_on = output_at(continuation_model, data, self.path("continuation"), name, ahead=True)
            target, weight = self._returns(data, following, goes_on)
            mask = self.valid_rows(data)
            if self.training and self.return_normalization:
                self.return_norm.update(target, mask)
        entropy, gain = self._gain(data, target)
        loss = -(weight * (gain + self.entropy_bonus * entropy)).squeeze(-1)
        data.set(self.path("lambda_target"), target)
        data.set(self.path("discount_weight"), weight)
        norm = self.return_norm
        logs = {
            "return_low": norm.low.mean(),
            "return_high": norm.high.mean(),
            "return_scale": norm.scale().mean(),
            "continuation_mean": self.reduce(goes_on.detach().squeeze(-1), mask),
            "entropy": self.reduce(entropy.detach().squeeze(-1), mask),
        }
        return {"loss_actor": self.reduce(loss, mask), **logs}, no_graph(data)

    def _recording(self) -> Any:
        """REINFORCE needs no graph of the imagination."""
        return torch.no_grad() if self.use_reinforce else nullcontext()

    def _returns(self, data: TensorDictBase, following: Tensor, goes_on: Tensor) -> tuple[Tensor, Tensor]:
        """Lambda-returns under the discount of each step, and the weights of steps."""
        gamma = torch.as_tensor(self.value_estimator.gamma, dtype=goes_on.dtype, device=goes_on.device)
        discount = gamma * goes_on
        flags = [self.read(data, name) for name in ("done", "terminated")]
        target = td_lambda_return_estimate(discount, self._lmbda, following, self.read(data, "reward"), *flags)
        weight = imagination_weights(discount) if self.discount_loss else torch.ones_like(target)
        return target, weight.detach()

    def _gain(self, data: TensorDictBase, target: Tensor) -> tuple[Tensor, Tensor]:
        """Entropy and objective of each step, [*B, H, 1]."""
        name, scale = type(self).__name__, self.return_norm.scale() if self.return_normalization else 1.0
        inputs = read_inputs(self.actor_model, data, name)
        distribution = distribution_on_tensors(self.actor_model, inputs, data.batch_size)
        log_prob: Tensor | None = None
        if self.use_reinforce:
            with torch.no_grad():
                value = output_at(self.value_model, data, self.path("value"), name)
            log_prob = _per_step(distribution.log_prob(self.read(data, "action").detach()), data, self.path("action"))
            gain = ((target - value) / scale).detach() * log_prob
        else:
            gain = target / scale
        return self._entropy(distribution, data), gain

    def _entropy(self, distribution: Any, data: TensorDictBase) -> Tensor:
        """The entropy of each step; without a closed form minus the log-probability of a sample."""
        try:
            entropy = distribution.entropy()
        except NotImplementedError:
            entropy = -distribution.log_prob(distribution.rsample())
        return _per_step(entropy, data, self.path("action"))


def _per_step(values: Tensor, data: TensorDictBase, key: Key) -> Tensor:
    """One number per step [*B, H, 1].

    Raises:
        LossError: the actor's distribution is not one over whole actions.
    """
    if values.shape == data.batch_size:
        return values.unsqueeze(-1)
    raise LossError(
        f"the actor gives {quoted(key)} log-probabilities {list(values.shape)} for {list(data.batch_size)} steps; a "
        "distribution over a vector of actions sums over it (Independent)"
    )


@dataclass(frozen=True)
class DreamerV3ValueKeys(LossKeys):
    """The entries of :class:`DreamerV3ValueLoss`."""

    value: Key = "state_value"
    """The output of the value model, a number; read with ``value_loss="symlog_mse"``."""
    value_logits: Key = "state_value_logits"
    """The output of the value model, logits over bins; read with ``value_loss="two_hot"``."""
    lambda_target: Key = field(default="lambda_target", metadata=entry(producer=_IMAGINED))
    """[*B, H, 1]."""
    discount_weight: Key = field(default="discount_weight", metadata=entry(producer=_IMAGINED))
    """[*B, H, 1]; read with ``discount_loss``."""


class DreamerV3ValueLoss(LossWithData):
    r"""The value model's loss on imagined trajectories.

    .. math:: L = \mathrm{mean}_t \; w_t \left[ CE(f(s_t), R_t) + \rho \, CE(f(s_t), V'(s_t)) \right]

    with the cross-entropy CE to the two-hot code of a number, or the squared distance of the two symlogs. The second
    term keeps the value model near a slowly moving copy of itself, V'; a target updater moves it:
    ``SoftUpdate(value_loss, tau=0.02)``. Returns ``loss_value``, and the data it was given.

    Args:
        value_model: reads "state" and "belief"; writes "state_value_logits" for "two_hot", else "state_value".
        value_loss: "symlog_mse" or "two_hot".
        discount_loss: use the weights w.
        gamma: accepted for compatibility: the weights come with the data.
        num_value_bins: K.
        slow_critic_regularization: rho; 0: no copy is made.
        reduction: "mean", "sum" or "none".

    Raises:
        SpecError: there is no such loss.

    Hafner et al., 2023, eq. 8 to 11 and page 8, arXiv 2301.04104.
    """

    default_keys: ClassVar[Any] = DreamerV3ValueKeys()
    bins: Tensor

    def __init__(
        self,
        value_model: nn.Module,
        value_loss: Literal["symlog_mse", "two_hot"] = "symlog_mse",
        discount_loss: bool = True,
        gamma: float = 0.99,
        num_value_bins: int = 255,
        *,
        slow_critic_regularization: float = 0.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if value_loss not in ("symlog_mse", "two_hot"):
            raise SpecError(f"value_loss is 'symlog_mse' or 'two_hot'; got {value_loss!r}")
        self.value_loss, self.discount_loss = value_loss, discount_loss
        self.add_network("value_model", value_model, delayed=slow_critic_regularization > 0)
        self.add_scalar("slow_critic_regularization", slow_critic_regularization)
        self.register_buffer("bins", symexp_bins(num_value_bins), persistent=False)

    def default_in_keys(self) -> list[Key]:
        keys = [*(as_key(key) for key in self.value_model.in_keys), self.path("lambda_target")]
        return [*keys, self.path("discount_weight")] if self.discount_loss else keys

    def default_out_keys(self) -> list[Key]:
        return ["loss_value"]

    def compute_with_data(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], TensorDictBase]:
        """The loss of imagined trajectories [*B, H]."""
        inputs = read_inputs(self.value_model, batch, type(self).__name__)
        key = self.path("value_logits" if self.value_loss == "two_hot" else "value")
        output = call_on_tensors(self.value_model, inputs, key, batch.batch_size)
        loss = self._distance(output, self.read(batch, "lambda_target").detach(), key)
        if self.target_names:
            with torch.no_grad():
                slow = call_on_tensors(self.target_or_online("value_model"), inputs, key, batch.batch_size)
            loss = loss + self.slow_critic_regularization * self._distance_to(output, slow)
        if self.discount_loss:
            loss = self.read(batch, "discount_weight").squeeze(-1) * loss
        return {"loss_value": self.reduce(loss, self.valid_rows(batch))}, batch

    def _distance(self, output: Tensor, target: Tensor, key: Key) -> Tensor:
        """The distance to a number, per step."""
        if output.shape[:-1] != target.shape[:-1] or target.shape[-1] != 1:
            raise LossError(
                f"{type(self).__name__}: {quoted(key)} {list(output.shape)} and {quoted(self.path('lambda_target'))} "
                f"{list(target.shape)} must be [*B, H, K] and [*B, H, 1]"
            )
        if self.value_loss == "two_hot":
            return two_hot_cross_entropy(output, target.squeeze(-1), self.bins)
        return (symlog(output) - symlog(target)).square().squeeze(-1)

    def _distance_to(self, output: Tensor, slow: Tensor) -> Tensor:
        """The distance to the slow copy's prediction, per step."""
        if self.value_loss == "two_hot":
            code = two_hot(two_hot_mean(slow, self.bins), self.bins)
            return -(code * output.log_softmax(-1)).sum(-1)
        return (symlog(output) - symlog(slow)).square().squeeze(-1)
