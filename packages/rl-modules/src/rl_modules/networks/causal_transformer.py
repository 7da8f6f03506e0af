"""A causal transformer over a sequence of embedded tokens, with a mask for padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ACTIVATIONS", "CausalTransformer", "attention_mask"]

ACTIVATIONS: dict[str, type[nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "tanh": nn.Tanh}


class CausalTransformer(nn.Module):
    """Blocks of causal self-attention and a two-layer perceptron, each normalised first, with residual connections.

    Weights are drawn from N(0, 0.02), those that write into the residual stream from N(0, 0.02 / sqrt(2 n_layer)),
    as for GPT-2 (Radford et al., 2019, Language Models are Unsupervised Multitask Learners, section 2.3).

    Args:
        n_embd: features of a token, H.
        n_layer: number of blocks.
        n_head: attention heads; divides ``n_embd``.
        n_inner: hidden features of the perceptrons.
        activation: their activation: "relu", "gelu", "silu" or "tanh".
        resid_pdrop: dropout of what a block adds to the residual stream.
        attn_pdrop: dropout of attention weights.

    Raises:
        ValueError: if the heads do not divide the features, or the activation is unknown.
    """

    def __init__(
        self,
        n_embd: int,
        n_layer: int,
        n_head: int,
        n_inner: int,
        activation: str = "relu",
        resid_pdrop: float = 0.1,
        attn_pdrop: float = 0.1,
    ) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ValueError(f"n_head must divide n_embd; got n_embd={n_embd}, n_head={n_head}.")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation is one of {', '.join(map(repr, ACTIVATIONS))}; got {activation!r}.")
        self.blocks = nn.ModuleList(
            _Block(n_embd, n_head, n_inner, ACTIVATIONS[activation], resid_pdrop, attn_pdrop) for _ in range(n_layer)
        )
        self.norm = nn.LayerNorm(n_embd)
        self.apply(_draw_weights)
        for name, weight in self.named_parameters():
            if name.endswith(("write.weight", "contract.weight")):
                nn.init.normal_(weight, std=0.02 / (2 * n_layer) ** 0.5)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """One output for each token, which depends on it and on those before.

        Args:
            tokens: ``[B, L, H]``.
            mask: bool ``[B, L]``, True for tokens that count; None: all do. Outputs elsewhere are finite and without
                meaning.

        Returns:
            ``[B, L, H]``.
        """
        attends = None if mask is None else attention_mask(mask)
        for block in self.blocks:
            tokens = block(tokens, attends)
        output: Tensor = self.norm(tokens)
        return output


class _Block(nn.Module):
    """Attention, then a perceptron."""

    def __init__(
        self, width: int, heads: int, inner: int, activation: type[nn.Module], resid_pdrop: float, attn_pdrop: float
    ) -> None:
        super().__init__()
        self.heads, self.attn_pdrop = heads, attn_pdrop
        self.attention_norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, inner)
        self.activation = activation()
        self.contract = nn.Linear(inner, width)
        self.dropout = nn.Dropout(resid_pdrop)

    def forward(self, tokens: Tensor, attends: Tensor | None) -> Tensor:
        tokens = tokens + self.dropout(self.write(self._attend(self.attention_norm(tokens), attends)))
        hidden = self.activation(self.expand(self.mlp_norm(tokens)))
        output: Tensor = tokens + self.dropout(self.contract(hidden))
        return output

    def _attend(self, tokens: Tensor, attends: Tensor | None) -> Tensor:
        rows, length, width = tokens.shape
        joint = self.read(tokens).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = joint.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.attn_pdrop if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attends, dropout_p=dropout, is_causal=attends is None
        )
        return mixed.transpose(1, 2).reshape(rows, length, width)


def attention_mask(mask: Tensor) -> Tensor:
    """Which token may look at which: earlier ones that count, and each at itself.

    A token of the padding sees itself at least: over nothing the softmax would be NaN, and so would all gradients.

    Args:
        mask: bool ``[B, L]``, True for tokens that count.

    Returns:
        bool ``[B, 1, L, L]``, rows look at columns.

    >>> attention_mask(torch.tensor([[False, True, True]]))[0, 0].int()
    tensor([[1, 0, 0],
            [0, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    length = mask.shape[-1]
    ones = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    return ((ones.tril() & mask[:, None, :]) | ones.tril().triu()).unsqueeze(1)


def _draw_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
