"""Dreamer: a world model learns from sequences, an actor by gradients through its imagination, a value net too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.estimators import ValueEstimators
from rl_core.keys import Key
from rl_core.losses.keys import entry, quoted
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors, read_inputs
from rl_objectives.functional.distance import check_distance, distance_loss
from rl_objectives.functional.dreamer import gaussian_kl, imagination_weights
from rl_objectives.losses.imagination import (
    ImaginedEnvironment,
    LossWithData,
    check_horizon,
    frozen,
    imagine,
    no_graph,
    output_at,
)

__all__ = [
    "DreamerActorKeys",
    "DreamerActorLoss",
    "DreamerModelKeys",
    "DreamerModelLoss",
    "DreamerValueKeys",
    "DreamerValueLoss",
]

_STEP = "The environment writes it."
_PRIOR = "The world model's prior writes it."
_POSTERIOR = "The world model's posterior writes it."
_STATE = "DreamerModelLoss gives it: losses, data = model_loss(batch)."
_IMAGINED = "DreamerActorLoss gives it: losses, imagined = actor_loss(data)."


@dataclass(frozen=True)
class DreamerModelKeys(LossKeys):
    """The entries of :class:`DreamerModelLoss`, all under "next"."""

    reward: Key = field(default="reward", metadata=entry(producer=_STEP, under_next=True))
    """[*B, T, 1]: that of the batch, and where the world model writes its own."""
    true_reward: Key = field(default="true_reward", metadata=entry(under_next=True))
    """Where the data keeps the reward of the batch."""
    prior_mean: Key = field(default="prior_mean", metadata=entry(producer=_PRIOR, under_next=True))
    """[*B, T, S]."""
    prior_std: Key = field(default="prior_std", metadata=entry(producer=_PRIOR, under_next=True))
    """[*B, T, S]."""
    posterior_mean: Key = field(default="posterior_mean", metadata=entry(producer=_POSTERIOR, under_next=True))
    """[*B, T, S]."""
    posterior_std: Key = field(default="posterior_std", metadata=entry(producer=_POSTERIOR, under_next=True))
    """[*B, T, S]."""
    pixels: Key = field(default="pixels", metadata=entry(producer=_STEP, under_next=True))
    """[*B, T, *E]: what is reconstructed, images or vectors."""
    reco_pixels: Key = field(default="reco_pixels", metadata=entry(producer="A decoder writes it.", under_next=True))
    """[*B, T, *E]: its reconstruction."""


class DreamerModelLoss(LossWithData):
    r"""The loss of a world model with normal latents: reconstruction, reward, and the divergence of its two beliefs.

    .. math:: L = \lambda_o \, d(\hat o, o) + \lambda_r \, d(\hat r, r) + \lambda_{KL} \max(KL(q || p), n)

    Distances and divergences are summed over their event and averaged over steps. Returns ``loss_model_kl``,
    ``loss_model_reco``, ``loss_model_reward`` (add them up), and the data: the batch with all that the world model
    wrote, without a graph, in which the true reward has moved to "true_reward". A vector is reconstructed as an image:
    ``loss.set_keys(pixels="observation", reco_pixels="reco_observation")``.

    Args:
        world_model: reads a batch [*B, T] and writes priors, posteriors, reconstructions and rewards under "next".
        lambda_kl: weight of the divergence.
        lambda_reco: weight of the reconstruction.
        lambda_reward: weight of the reward's prediction.
        reco_loss: "l2" (the default), "l1" or "smooth_l1".
        reward_loss: likewise.
        free_nats: the divergence below which nothing is gained, in nats.
        delayed_clamp: apply that limit to the mean over all steps, as the paper does, instead of to each step.
        global_average: average over the dimensions of an event instead of summing.
        reduction: "mean", "sum" or "none".

    Raises:
        SpecError: an option is not admitted.

    Hafner et al., 2020, Dream to Control: Learning Behaviors by Latent Imagination, eq. 10, arXiv 1912.01603.
    """

    default_keys: ClassVar[Any] = DreamerModelKeys()

    def __init__(
        self,
        world_model: nn.Module,
        *,
        lambda_kl: float = 1.0,
        lambda_reco: float = 1.0,
        lambda_reward: float = 1.0,
        reco_loss: str | None = None,
        reward_loss: str | None = None,
        free_nats: float = 3.0,
        delayed_clamp: bool = False,
        global_average: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if delayed_clamp and reduction != "mean":
            raise SpecError(f"delayed_clamp limits a mean; got reduction={reduction!r}")
        self.add_network("world_model", world_model)
        self.reco_loss = check_distance(reco_loss or "l2")
        self.reward_loss = check_distance(reward_loss or "l2")
        self.delayed_clamp, self.global_average = delayed_clamp, global_average
        for name, value in {
            "lambda_kl": lambda_kl,
            "lambda_reco": lambda_reco,
            "lambda_reward": lambda_reward,
            "free_nats": free_nats,
        }.items():
            self.add_scalar(name, value)

    def default_in_keys(self) -> list[Key]:
        return [*self.world_model.in_keys, self.path("reward"), self.path("pixels")]

    def default_out_keys(self) -> list[Key]:
        return ["loss_model_kl", "loss_model_reco", "loss_model_reward"]

    def compute_with_data(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], TensorDictBase]:
        """The losses of a batch [*B, T], and the batch with the world model's entries."""
        data = run_world_model(self, batch)
        dims, mask = batch.ndim, self.valid_rows(batch)
        names = ("posterior_mean", "posterior_std", "prior_mean", "prior_std")
        kl = self._per_step(gaussian_kl(*(self.read(data, name) for name in names)), dims)
        image = self.read(data, "reco_pixels")
        reco = distance_loss(image, like(image, self.read(data, "pixels")), self.reco_loss)
        reward = distance_loss(self.read(data, "reward"), self.read(data, "true_reward"), self.reward_loss)
        free = self.free_nats
        reduced_kl = self.reduce(kl, mask).maximum(free) if self.delayed_clamp else self.reduce(kl.maximum(free), mask)
        losses = {
            "loss_model_kl": self.lambda_kl * reduced_kl,
            "loss_model_reco": self.lambda_reco * self.reduce(self._per_step(reco, dims), mask),
            "loss_model_reward": self.lambda_reward * self.reduce(self._per_step(reward, dims), mask),
        }
        return losses, no_graph(data)

    def _per_step(self, values: Tensor, dims: int) -> Tensor:
        """Values [*B, T, *E] as one number per step."""
        event = values.flatten(dims)
        return event.mean(-1) if self.global_average else event.sum(-1)


def run_world_model(loss: Any, batch: TensorDictBase) -> TensorDictBase:
    """A shallow copy of the batch with what the world model writes; the reward of the batch is kept as "true_reward".

    Raises:
        KeyMissingError: the batch has no reward.
    """
    data = batch.copy()
    data.set(loss.path("true_reward"), loss.read(batch, "reward"))
    data.pop(loss.path("reward"))  # so that a world model that predicts none is found out
    written: TensorDictBase = loss.world_model(data)
    return written


def like(prediction: Tensor, target: Tensor) -> Tensor:
    """The target in the prediction's dtype (images are stored as bytes).

    Raises:
        LossError: the shapes differ.
    """
    if prediction.shape != target.shape:
        raise LossError(f"the reconstruction {list(prediction.shape)} and its target {list(target.shape)} differ")
    return target.to(prediction.dtype)


@dataclass(frozen=True)
class DreamerActorKeys(LossKeys):
    """The entries of :class:`DreamerActorLoss`."""

    state: Key = field(default="state", metadata=entry(producer=_STATE))
    """[*B, S]: sampled latents."""
    belief: Key = field(default="belief", metadata=entry(producer=_STATE))
    """[*B, H]: the recurrent state."""
    reward: Key = field(default="reward", metadata=entry(producer="The world model writes it.", under_next=True))
    """[*B, H, 1], imagined."""
    value: Key = "state_value"
    """The output of the value model."""
    done: Key = field(default="done", metadata=entry(producer=_STEP, under_next=True))
    """bool [*B, H, 1], imagined."""
    terminated: Key = field(default="terminated", metadata=entry(producer=_STEP, under_next=True))
    """bool [*B, H, 1], imagined."""
    lambda_target: Key = "lambda_target"
    """[*B, H, 1]: written into the data."""


class DreamerActorLoss(LossWithData):
    r"""The actor's loss: the negative lambda-returns of imagined trajectories, differentiated through the world model.

    .. math:: L = -\mathrm{mean}_t \; \gamma^t V_\lambda(s_t)

    Only the actor moves: world model and value model pass gradients on and get none. Their parameters are not listed by
    ``loss.parameters()``. Returns ``loss_actor``, and the imagined data [*B, H] with "lambda_target", without a graph.

    Args:
        actor_model: a policy on "state" and "belief" whose samples are differentiable.
        value_model: reads "state" and "belief", writes "state_value".
        model_based_env: steps the world model (``DreamerEnv``).
        imagination_horizon: H.
        discount_loss: weigh step t by gamma to the power of t.
        gamma: discount per step; more by :meth:`make_value_estimator`.
        lmbda: mixture weight of the lambda-return.
        reduction: "mean", "sum" or "none".

    Raises:
        SpecError: the horizon is below 1.

    Hafner et al., 2020, eq. 6 and 7, arXiv 1912.01603.
    """

    default_keys: ClassVar[Any] = DreamerActorKeys()
    default_value_estimator = "td_lambda"
    value_network_name = ""

    def __init__(
        self,
        actor_model: nn.Module,
        value_model: nn.Module,
        model_based_env: ImaginedEnvironment,
        *,
        imagination_horizon: int = 15,
        discount_loss: bool = True,
        gamma: float | None = None,
        lmbda: float | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.add_network("actor_model", actor_model)
        self._keep("value_model", value_model)
        self._keep("model_based_env", model_based_env)
        self.imagination_horizon = check_horizon(imagination_horizon)
        self.discount_loss = discount_loss
        given = {"gamma": gamma, "lmbda": lmbda}
        self.make_value_estimator(**{name: value for name, value in given.items() if value is not None})

    def make_value_estimator(self, value_type: Any = None, **hyperparameters: Any) -> LossModule:
        """Choose how returns are estimated; gradients flow through them unless ``differentiable=False``."""
        options = {"gamma": 0.99, "differentiable": True, **hyperparameters}
        if value_type in (None, ValueEstimators.TDLambda, "td_lambda"):
            options = {"lmbda": 0.95, **options}
        return super().make_value_estimator(value_type, **options)

    def default_in_keys(self) -> list[Key]:
        return [self.path("state"), self.path("belief")]

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor"]

    def compute_with_data(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], TensorDictBase]:
        """The loss from every state of a batch [*B], and the imagined trajectories."""
        value_model, env = self.value_model, self.model_based_env
        keys = [self.path("state"), self.path("belief")]
        name = type(self).__name__
        with frozen(env.world_model, value_model):
            data = imagine(env, self.actor_model, batch, keys, self.imagination_horizon, self)
            following = output_at(value_model, data, self.path("value"), name, ahead=True)
            target = self.value_estimator.value_estimate(data, next_value=following)
        gain = target
        if self.discount_loss:
            gamma = torch.as_tensor(self.value_estimator.gamma, dtype=target.dtype, device=target.device)
            gain = imagination_weights(gamma.expand(target.shape)) * target
        data.set(self.path("lambda_target"), target)
        return {"loss_actor": self.reduce(-gain.squeeze(-1), self.valid_rows(data))}, no_graph(data)


@dataclass(frozen=True)
class DreamerValueKeys(LossKeys):
    """The entries of :class:`DreamerValueLoss`."""

    value: Key = "state_value"
    """The output of the value model."""
    lambda_target: Key = field(default="lambda_target", metadata=entry(producer=_IMAGINED))
    """[*B, H, 1]."""


class DreamerValueLoss(LossWithData):
    r"""The value model's loss: its distance from the lambda-returns of imagined trajectories.

    .. math:: L = \mathrm{mean}_t \; \gamma^t \, d(V(s_t), V_\lambda(s_t))

    Returns ``loss_value``, and the data it was given.

    Args:
        value_model: reads "state" and "belief", writes "state_value".
        value_loss: "l2" (the default), "l1" or "smooth_l1".
        discount_loss: weigh step t by gamma to the power of t.
        gamma: discount per step, that of the actor's loss.
        reduction: "mean", "sum" or "none".

    Raises:
        SpecError: there is no such distance.

    Hafner et al., 2020, eq. 8, arXiv 1912.01603 (up to its factor 1/2).
    """

    default_keys: ClassVar[Any] = DreamerValueKeys()

    def __init__(
        self,
        value_model: nn.Module,
        value_loss: str | None = None,
        discount_loss: bool = True,
        gamma: float = 0.99,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.add_network("value_model", value_model)
        self.value_loss = check_distance(value_loss or "l2")
        self.discount_loss = discount_loss
        self.add_scalar("gamma", gamma)

    def default_in_keys(self) -> list[Key]:
        return [*self.value_model.in_keys, self.path("lambda_target")]

    def default_out_keys(self) -> list[Key]:
        return ["loss_value"]

    def compute_with_data(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], TensorDictBase]:
        """The loss of imagined trajectories [*B, H]."""
        target = self.read(batch, "lambda_target").detach()
        inputs = read_inputs(self.value_model, batch, type(self).__name__)
        value = call_on_tensors(self.value_model, inputs, self.path("value"), batch.batch_size)
        if value.shape != target.shape:
            raise LossError(
                f"{type(self).__name__}: {quoted(self.path('value'))} {list(value.shape)} and "
                f"{quoted(self.path('lambda_target'))} {list(target.shape)} must have one shape"
            )
        distance = distance_loss(value, target, self.value_loss)
        if self.discount_loss:
            distance = imagination_weights(self.gamma.to(distance).expand(distance.shape)) * distance
        return {"loss_value": self.reduce(distance.squeeze(-1), self.valid_rows(batch))}, batch
