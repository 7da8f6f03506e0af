"""Dreamer's policies on latent states: normal actions, and discrete ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_core import ExplorationType
from rl_core.keys import Key
from rl_modules.distributions.one_hot import OneHotCategorical
from rl_modules.networks.mlp import MLP
from rl_modules.networks.normal_params import NormalParamExtractor
from rl_modules.policies.probabilistic_actor import ProbabilisticActor
from rl_modules.policies.safe_module import SafeModule
from rl_modules.world_models.categorical import check_share, mix_uniform
from rl_modules.world_models.v3_networks import DreamerV3MLP

__all__ = ["DreamerActor", "DreamerV3DiscreteActor"]


class DreamerActor(nn.Module):
    """From state and belief to location and scale of an action, which a tanh squashes.

    Wrap it: ``ProbabilisticActor(SafeModule(DreamerActor(n), ["state", "belief"], ["loc", "scale"]), ["loc", "scale"],
    distribution_class=TanhNormal, distribution_kwargs={"tanh_loc": True})``.

    Args:
        out_features: size of the action.
        depth: hidden layers.
        num_cells: units of each, or one number for each.
        activation_class: of hidden layers.
        std_bias: the scale that a network output of 0 gives.
        std_min_val: smallest scale.
        device: of the parameters.

    Hafner et al., 2020, Dream to Control, appendix A, arXiv 1912.01603.

    >>> [tuple(out.shape) for out in DreamerActor(2, num_cells=8)(torch.zeros(5, 3), torch.zeros(5, 4))]
    [(5, 2), (5, 2)]
    """

    def __init__(
        self,
        out_features: int,
        depth: int = 4,
        num_cells: int | Sequence[int] = 200,
        activation_class: Callable[..., nn.Module] = nn.ELU,
        std_bias: float = 5.0,
        std_min_val: float = 1e-4,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.backbone = MLP(
            out_features=2 * out_features,
            depth=depth if isinstance(num_cells, int) else None,
            num_cells=num_cells,
            activation_class=activation_class,
            device=device,
        )
        self.extractor = NormalParamExtractor(f"biased_softplus_{std_bias}_{std_min_val}", scale_lb=std_min_val)

    def forward(self, state: Tensor, belief: Tensor) -> tuple[Tensor, Tensor]:
        """Location and scale [*B, A] before the squash, from [*B, S] and [*B, H]."""
        loc, scale = self.extractor(self.backbone(state, belief))
        return loc, scale


class DreamerV3DiscreteActor(ProbabilisticActor):
    """A policy of one-hot actions on state and belief, mixed with the uniform one.

    Args:
        in_features: sizes of all inputs together.
        out_features: number of actions.
        depth: hidden layers.
        num_cells: units of each.
        norm_eps: of the norms.
        unimix: uniform share of the policy.
        in_keys: "state" and "belief" unless given.
        action_key: of the action [*B, A], one-hot.
        logits_key: of the log-probabilities [*B, A].
        log_prob_key: of the action's log-probability [*B].
        device: of the parameters.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, page 7, arXiv 2301.04104.

    >>> DreamerV3DiscreteActor(7, 3, depth=1, num_cells=8).out_keys
    ['logits', 'action', 'action_log_prob']
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        depth: int = 3,
        num_cells: int = 1024,
        norm_eps: float = 1e-4,
        unimix: float = 0.01,
        in_keys: Sequence[Key] | None = None,
        action_key: Key = "action",
        logits_key: Key = "logits",
        log_prob_key: Key = "action_log_prob",
        device: torch.device | str | None = None,
    ) -> None:
        net = _DiscreteActorNet(in_features, out_features, depth, num_cells, norm_eps, unimix, device)
        super().__init__(
            SafeModule(net, in_keys=list(in_keys or ("state", "belief")), out_keys=[logits_key]),
            in_keys={"logits": logits_key},
            out_keys=[action_key],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
            log_prob_key=log_prob_key,
            default_interaction_type=ExplorationType.RANDOM,
        )


class _DiscreteActorNet(nn.Module):
    """Log-probabilities of actions."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        depth: int,
        num_cells: int,
        norm_eps: float,
        unimix: float,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        self.unimix = check_share(unimix, "DreamerV3DiscreteActor")
        # A small last layer: the first policy is nearly uniform.
        self.network = DreamerV3MLP(in_features, out_features, depth, num_cells, 0.01, norm_eps, device)

    def forward(self, *inputs: Tensor) -> Tensor:
        return mix_uniform(self.network(*inputs), self.unimix)
