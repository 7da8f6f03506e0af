"""DreamerV3: categorical latents, predictions that need no scale, returns divided by their range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.keys import Key
from rl_core.losses.keys import entry, quoted
from rl_core.losses.module import LossKeys
from rl_objectives.functional.distance import check_distance, distance_loss
from rl_objectives.functional.dreamer import check_unimix, mixed_log_probs, separate_kl
from rl_objectives.functional.symlog import symexp_bins, symlog, two_hot_cross_entropy
from rl_objectives.losses.dreamer import like, run_world_model
from rl_objectives.losses.imagination import LossWithData, no_graph

__all__ = ["DreamerV3ModelKeys", "DreamerV3ModelLoss"]

_STEP = "The environment writes it."
_MODEL = "The world model writes it."


@dataclass(frozen=True)
class DreamerV3ModelKeys(LossKeys):
    """The entries of :class:`DreamerV3ModelLoss`, all under "next"."""

    reward: Key = field(default="reward", metadata=entry(producer=_STEP, under_next=True))
    """[*B, T, 1]: that of the batch; with ``reward_two_hot=False`` also where the world model writes its own."""
    reward_logits: Key = field(default="reward_logits", metadata=entry(producer=_MODEL, under_next=True))
    """[*B, T, K]: logits over bins."""
    true_reward: Key = field(default="true_reward", metadata=entry(under_next=True))
    """Where the data keeps the reward of the batch."""
    prior_logits: Key = field(default="prior_logits", metadata=entry(producer=_MODEL, under_next=True))
    """[*B, T, V, C]: V variables of C classes."""
    posterior_logits: Key = field(default="posterior_logits", metadata=entry(producer=_MODEL, under_next=True))
    """[*B, T, V, C]."""
    pixels: Key = field(default="pixels", metadata=entry(producer=_STEP, under_next=True))
    """[*B, T, *E]: an observation that is reconstructed."""
    reco_pixels: Key = field(default="reco_pixels", metadata=entry(producer=_MODEL, under_next=True))
    """[*B, T, *E]: its reconstruction."""
    vector: Key = field(default="observation", metadata=entry(producer=_STEP, under_next=True))
    """[*B, T, F]: another one, see ``reconstructs``."""
    reco_vector: Key = field(default="reco_observation", metadata=entry(producer=_MODEL, under_next=True))
    """[*B, T, F]: its reconstruction."""
    continue_pred: Key = field(default="continue_pred", metadata=entry(producer=_MODEL, under_next=True))
    """[*B, T, 1]: logit of the probability that the episode goes on."""
    terminated: Key = field(default="terminated", metadata=entry(producer=_STEP, under_next=True))
    """bool [*B, T, 1]; read where the continuation is learnt. A truncated episode could have gone on."""


class DreamerV3ModelLoss(LossWithData):
    r"""The loss of a world model with categorical latents.

    .. math::
        L = \lambda_o L_{reco} + \lambda_r L_{reward} + \lambda_c L_{continue}
            + \lambda_{KL} [\beta_{dyn} \max(b, KL(sg(q) || p)) + \beta_{rep} \max(b, KL(q || sg(p)))]

    Distances are summed over their event, divergences over the variables of a latent, all averaged over steps. Returns
    ``loss_model_reco``, ``loss_model_reward``, with lambda_continue ``loss_model_continue``, and for the divergences
    ``loss_model_kl`` ("balanced") or ``loss_model_dynamic`` and ``loss_model_representation`` ("separate"): add them
    up. Beside them the detached log ``kl``, without weight and free bits, and the data as of
    :class:`DreamerModelLoss`.

    Args:
        world_model: reads a batch [*B, T] and writes logits of priors and posteriors, reconstructions and reward logits
            under "next".
        lambda_kl: weight of the divergences.
        lambda_reco: weight of the reconstruction.
        lambda_reward: weight of the reward's prediction.
        lambda_continue: weight of the continuation's prediction; 0: the world model makes none.
        kl_mode: "separate" weighs the two divergences by the next two arguments (DreamerV3); "balanced" by kl_alpha and
            1 - kl_alpha (DreamerV2, arXiv 2010.02193, eq. 2).
        lambda_dynamic: beta_dyn.
        lambda_representation: beta_rep.
        unimix: uniform share that is mixed into both distributions here; 0 where the modules mix it in themselves.
        continue_target_scale: the target of a step that goes on, 1 or, to teach a discount, ``1 - 1 / horizon``.
        kl_alpha: see kl_mode.
        free_bits: b, the divergence of a step below which nothing is gained, in nats.
        reco_loss: "l2" (squared; the paper has half of it, that is lambda_reco=0.5), "l1" or "smooth_l1".
        reco_symlog: predict the symlog of observations, one bool for all or one for each that is reconstructed. Images
            in [0, 1] need none.
        reward_two_hot: the reward is predicted by logits over bins; False: by one number, the symlog of the reward.
        num_reward_bins: K.
        global_average: average over the dimensions of an observation instead of summing.
        detach_output: cut the data from the graph.
        reconstructs: which observations are: "pixels" (with "reco_pixels"), "vector" (with "reco_vector"), or both.
        reduction: "mean", "sum" or "none".

    Raises:
        SpecError: an option is not admitted.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 4 and 5, arXiv 2301.04104.
    """

    default_keys: ClassVar[Any] = DreamerV3ModelKeys()
    bins: Tensor

    def __init__(
        self,
        world_model: nn.Module,
        *,
        lambda_kl: float = 1.0,
        lambda_reco: float = 1.0,
        lambda_reward: float = 1.0,
        lambda_continue: float = 0.0,
        kl_mode: Literal["balanced", "separate"] = "balanced",
        lambda_dynamic: float = 1.0,
        lambda_representation: float = 0.1,
        unimix: float = 0.0,
        continue_target_scale: float = 1.0,
        kl_alpha: float = 0.8,
        free_bits: float = 1.0,
        reco_loss: str = "l2",
        reco_symlog: bool | Sequence[bool] = True,
        reward_two_hot: bool = True,
        num_reward_bins: int = 255,
        global_average: bool = False,
        detach_output: bool = True,
        reconstructs: Sequence[str] = ("pixels",),
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if kl_mode not in ("balanced", "separate"):
            raise SpecError(f"kl_mode is 'balanced' or 'separate'; got {kl_mode!r}")
        if not reconstructs or not set(reconstructs) <= {"pixels", "vector"}:
            raise SpecError(f"reconstructs names 'pixels', 'vector' or both; got {tuple(reconstructs)}")
        self.reconstructs = tuple(reconstructs)
        self.reco_symlog = _one_each(reco_symlog, self.reconstructs)
        self.reco_loss = check_distance(reco_loss)
        self.kl_mode, self.unimix, self.reward_two_hot = kl_mode, check_unimix(unimix), reward_two_hot
        self.global_average, self.detach_output = global_average, detach_output
        self.predicts_continuation = lambda_continue > 0
        self.add_network("world_model", world_model)
        balanced = kl_mode == "balanced"
        for name, value in {
            "lambda_kl": lambda_kl,
            "lambda_reco": lambda_reco,
            "lambda_reward": lambda_reward,
            "lambda_continue": lambda_continue,
            "lambda_dynamic": kl_alpha if balanced else lambda_dynamic,
            "lambda_representation": 1 - kl_alpha if balanced else lambda_representation,
            "continue_target_scale": continue_target_scale,
            "free_bits": free_bits,
        }.items():
            self.add_scalar(name, value)
        self.register_buffer("bins", symexp_bins(num_reward_bins), persistent=False)

    def default_in_keys(self) -> list[Key]:
        keys = [*self.world_model.in_keys, self.path("reward"), *(self.path(name) for name in self.reconstructs)]
        return [*keys, self.path("terminated")] if self.predicts_continuation else keys

    def default_out_keys(self) -> list[Key]:
        kl = ["loss_model_kl"] if self.kl_mode == "balanced" else ["loss_model_dynamic", "loss_model_representation"]
        keys = [*kl, "loss_model_reco", "loss_model_reward"]
        return [*keys, *(["loss_model_continue"] if self.predicts_continuation else []), "kl"]

    def compute_with_data(self, batch: TensorDictBase) -> tuple[dict[str, Tensor], TensorDictBase]:
        """The losses of a batch [*B, T], and the batch with the world model's entries."""
        data = run_world_model(self, batch)
        mask = self.valid_rows(batch)
        posterior, prior = (
            mixed_log_probs(self.read(data, name), self.unimix) for name in ("posterior_logits", "prior_logits")
        )
        divergence = separate_kl(posterior, prior)
        losses = {
            **self._divergences(*divergence, mask),
            "loss_model_reco": self.lambda_reco * self.reduce(self._reconstruction(data, batch.ndim), mask),
            "loss_model_reward": self.lambda_reward * self.reduce(self._reward(data), mask),
        }
        if self.predicts_continuation:
            losses["loss_model_continue"] = self.lambda_continue * self.reduce(self._continuation(data), mask)
        losses["kl"] = self.reduce(divergence[0].detach(), mask)
        return losses, no_graph(data) if self.detach_output else data

    def _divergences(self, dynamics: Tensor, representation: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """What is minimised of the two divergences [*B, T]."""
        weighted = [
            self.lambda_dynamic * dynamics.maximum(self.free_bits),
            self.lambda_representation * representation.maximum(self.free_bits),
        ]
        if self.kl_mode == "balanced":
            return {"loss_model_kl": self.lambda_kl * self.reduce(weighted[0] + weighted[1], mask)}
        reduced = [self.lambda_kl * self.reduce(part, mask) for part in weighted]
        return dict(zip(("loss_model_dynamic", "loss_model_representation"), reduced, strict=True))

    def _reconstruction(self, data: TensorDictBase, dims: int) -> Tensor:
        total: Any = 0.0
        for name, log in zip(self.reconstructs, self.reco_symlog, strict=True):
            prediction = self.read(data, f"reco_{name}")
            target = like(prediction, self.read(data, name))
            distance = distance_loss(prediction, symlog(target) if log else target, self.reco_loss)
            distance = distance.flatten(dims)
            total = total + (distance.mean(-1) if self.global_average else distance.sum(-1))
        return total

    def _reward(self, data: TensorDictBase) -> Tensor:
        reward = self.read(data, "true_reward")
        if self.reward_two_hot:
            return two_hot_cross_entropy(self.read(data, "reward_logits"), reward.squeeze(-1), self.bins)
        return distance_loss(self.read(data, "reward"), symlog(reward)).squeeze(-1)

    def _continuation(self, data: TensorDictBase) -> Tensor:
        logit, ended = self.read(data, "continue_pred"), self.read(data, "terminated")
        if logit.shape != ended.shape or ended.dtype is not torch.bool:
            raise LossError(
                f"{type(self).__name__}: {quoted(self.path('continue_pred'))} {list(logit.shape)} and the bool "
                f"{quoted(self.path('terminated'))} must have one shape; that is {ended.dtype} {list(ended.shape)}"
            )
        target = (~ended).to(logit.dtype) * self.continue_target_scale
        return F.binary_cross_entropy_with_logits(logit, target, reduction="none").squeeze(-1)


def _one_each(choice: bool | Sequence[bool], names: tuple[str, ...]) -> tuple[bool, ...]:
    choices = (choice,) * len(names) if isinstance(choice, bool) else tuple(choice)
    if len(choices) != len(names):
        raise SpecError(f"reco_symlog has {len(choices)} entries for the {len(names)} of reconstructs={names}")
    return choices
