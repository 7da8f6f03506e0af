"""The action chunking transformer: a variational autoencoder of action chunks, given observations."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rl_core.errors import PolicyError, SpecError

__all__ = ["ACTNetwork"]


class ACTNetwork(nn.Module):
    """Three transformers: one reads a demonstrated chunk, one the observations, and one writes a chunk.

    The first reads a token of its own, the observation and the actions, and gives the mean and log-variance of the
    style z; images are left out of it. The second reads z, the observation and, with a backbone, the places of the
    images' feature maps; the third attends to what it makes of them, from one query for each action of the chunk.
    Positions are sinusoids, of rows and columns for images, whose maps lie side by side. Norms follow residuals.

    Args:
        observation_dim: numbers in the observation, such as joint positions.
        action_dim: numbers in an action.
        chunk_size: actions in a chunk, T.
        latent_dim: numbers in z.
        n_embd: features of a token, a multiple of 4 and of ``n_head``.
        n_head: attention heads.
        n_inner: hidden features of the perceptrons.
        n_encoder_layer: layers of the first transformer and of the second.
        n_decoder_layer: layers of the third.
        dropout: share of features dropped in training.
        backbone: network from an image ``[N, C, H, W]`` to its feature map ``[N, backbone_features, h, w]``, for all
            cameras; None: there are no images.
        backbone_features: channels of its feature maps.

    Raises:
        SpecError: the features are no such multiple, or one of the backbone's arguments is missing.

    Zhao et al., 2023, Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, section IV and appendix C,
    arXiv 2304.13705. The defaults are the paper's.

    >>> network = ACTNetwork(3, 2, 5, n_embd=8, n_head=2, n_inner=16, n_encoder_layer=1, n_decoder_layer=1)
    >>> network.decode(torch.zeros(7, 32), torch.zeros(7, 3)).shape
    torch.Size([7, 5, 2])
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        chunk_size: int = 100,
        *,
        latent_dim: int = 32,
        n_embd: int = 512,
        n_head: int = 8,
        n_inner: int = 3200,
        n_encoder_layer: int = 4,
        n_decoder_layer: int = 7,
        dropout: float = 0.1,
        backbone: nn.Module | None = None,
        backbone_features: int | None = None,
    ) -> None:
        super().__init__()
        if n_embd % 4 or n_embd % n_head:
            raise SpecError(f"n_embd is a multiple of 4 and of n_head={n_head}; got {n_embd}")
        if (backbone is None) != (backbone_features is None):
            raise SpecError("ACTNetwork needs backbone and backbone_features together, or neither of them")
        self.action_dim, self.chunk_size, self.latent_dim = action_dim, chunk_size, latent_dim

        def layers(kind: type[nn.Module], count: int) -> nn.ModuleList:
            return nn.ModuleList(kind(n_embd, n_head, n_inner, dropout, batch_first=True) for _ in range(count))

        self.style_token = nn.Parameter(torch.zeros(n_embd))
        self.style_observation = nn.Linear(observation_dim, n_embd)
        self.style_action = nn.Linear(action_dim, n_embd)
        self.style_layers = layers(nn.TransformerEncoderLayer, n_encoder_layer)
        self.style_head = nn.Linear(n_embd, 2 * latent_dim)
        self.backbone = backbone
        self.image_features = None if backbone_features is None else nn.Conv2d(backbone_features, n_embd, 1)
        self.latent = nn.Linear(latent_dim, n_embd)
        self.observation = nn.Linear(observation_dim, n_embd)
        self.token_kinds = nn.Parameter(torch.zeros(2, n_embd))
        self.encoder_layers = layers(nn.TransformerEncoderLayer, n_encoder_layer)
        self.decoder_layers = layers(nn.TransformerDecoderLayer, n_decoder_layer)
        self.norm = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, action_dim)
        self.positions: Tensor
        self.register_buffer("positions", sinusoids(chunk_size + 2, n_embd), persistent=False)
        for part in (self.style_layers, self.encoder_layers, self.decoder_layers):
            for weight in part.parameters():
                if weight.ndim > 1:
                    nn.init.xavier_uniform_(weight)
        nn.init.normal_(self.style_token, std=0.02)
        nn.init.normal_(self.token_kinds, std=0.02)

    def encode(
        self, action: Tensor, padding: Tensor | None, observation: Tensor, *images: Tensor
    ) -> tuple[Tensor, ...]:
        """Mean and log-variance of the style, ``[*B, Z]`` each.

        Args:
            action: ``[*B, T, A]``.
            padding: bool ``[*B, T]``, True for actions that are not to be read; None: all are.
            observation: ``[*B, F]``.
            *images: not read.

        Raises:
            PolicyError: the action is no such chunk.
        """
        lead = observation.shape[:-1]
        wanted = (*lead, self.chunk_size, self.action_dim)
        if action.shape != wanted:
            raise PolicyError(
                f"ACTNetwork: with an observation {list(observation.shape)} a chunk of actions is {list(wanted)}; got "
                f"{list(action.shape)}"
            )
        width = self.style_token.shape[0]
        chunk = self.style_action(action).reshape(-1, self.chunk_size, width)
        seen = self.style_observation(observation).reshape(-1, 1, width)
        tokens = torch.cat([self.style_token.expand_as(seen), seen, chunk], 1) + self.positions
        unread = None
        if padding is not None:
            unread = nn.functional.pad(padding.reshape(-1, self.chunk_size), (2, 0), value=False)
        for layer in self.style_layers:
            tokens = layer(tokens, src_key_padding_mask=unread)
        style: Tensor = self.style_head(tokens[:, 0])
        return style.reshape(*lead, -1).chunk(2, -1)

    def decode(self, latent: Tensor, observation: Tensor, *images: Tensor) -> Tensor:
        """A chunk of actions, ``[*B, T, A]``.

        Args:
            latent: z, ``[*B, Z]``.
            observation: ``[*B, F]``.
            *images: ``[*B, C, H, W]``, one for each camera, of one height.

        Raises:
            PolicyError: there are images without a backbone, or none for it.
        """
        lead = observation.shape[:-1]
        tokens = torch.stack([self.latent(latent), self.observation(observation)], -2) + self.token_kinds
        tokens = tokens.reshape(-1, *tokens.shape[-2:])
        if (self.backbone is None) != (not images):
            raise PolicyError(
                f"ACTNetwork {'without' if self.backbone is None else 'with'} a backbone got {len(images)} images"
            )
        if images:
            tokens = torch.cat([tokens, self._image_tokens(images)], 1)
        for layer in self.encoder_layers:
            tokens = layer(tokens)
        chunk = self.positions[: self.chunk_size].expand(tokens.shape[0], -1, -1)
        for layer in self.decoder_layers:
            chunk = layer(chunk, tokens)
        actions: Tensor = self.head(self.norm(chunk))
        return actions.reshape(*lead, self.chunk_size, self.action_dim)

    def _image_tokens(self, images: tuple[Tensor, ...]) -> Tensor:
        """One token for each place of the feature maps, ``[N, h * w, n_embd]``."""
        assert self.backbone is not None and self.image_features is not None
        maps = [self.backbone(image.reshape(-1, *image.shape[-3:])) for image in images]
        features: Tensor = self.image_features(torch.cat(maps, -1)).movedim(1, -1)
        height, width, size = features.shape[1:]
        rows, columns = (sinusoids(count, size // 2).to(features) for count in (height, width))
        rows, columns = rows.unsqueeze(1).expand(-1, width, -1), columns.expand(height, -1, -1)
        return (features + torch.cat([rows, columns], -1)).flatten(1, 2)


def sinusoids(count: int, width: int) -> Tensor:
    """Sines and cosines of positions, ``[count, width]`` (Vaswani et al., 2017, section 3.5, arXiv 1706.03762)."""
    rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000) / width))
    angles = torch.arange(count, dtype=torch.float64).unsqueeze(-1) * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).to(torch.get_default_dtype())
