"""Packing of ragged sequences: positions, the mask, and the way back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.errors import SpecError
from rl_llm.policies.packing import pack, packed_from_padded, unpack_to_padded


def test_positions_start_anew_in_each_sequence():
    packed = pack([torch.tensor([4, 5, 6]), torch.tensor([7]), torch.tensor([8, 9])])
    assert packed.tokens.tolist() == [[4, 5, 6, 7, 8, 9]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 0, 0, 1]]
    assert packed.sequence_ids.tolist() == [0, 0, 0, 1, 2, 2]


def test_the_mask_is_causal_within_a_sequence_and_closed_between_sequences():
    mask = pack([torch.tensor([4, 5]), torch.tensor([6, 7])]).causal_mask()
    assert mask.shape == (1, 1, 4, 4)
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def test_the_additive_mask_is_zero_where_attention_is_allowed():
    packed = pack([torch.tensor([4, 5]), torch.tensor([6])])
    added = packed.additive_mask(torch.float32)
    assert torch.equal(added == 0, packed.causal_mask())
    assert added.min() == torch.finfo(torch.float32).min


def test_the_first_token_of_no_sequence_is_scored():
    packed = pack([torch.tensor([4, 5, 6]), torch.tensor([7]), torch.tensor([8, 9])])
    assert packed.scored().tolist() == [1, 2, 5]


def test_an_empty_sequence_takes_no_place_and_comes_back_empty():
    packed = pack([torch.tensor([4]), torch.zeros(0, dtype=torch.long), torch.tensor([5])])
    assert [part.tolist() for part in packed.split(packed.tokens[0])] == [[4], [], [5]]
    assert packed.causal_mask()[0, 0].int().tolist() == [[1, 0], [0, 1]]


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=5), left=st.booleans())
@settings(max_examples=50, deadline=None)
def test_padded_to_packed_and_back_is_the_identity_on_real_tokens(lengths, left):
    if not sum(lengths):
        lengths = [*lengths, 1]
    longest = max(lengths) + 1
    places = torch.arange(longest)
    mask = torch.stack([places >= longest - n if left else places < n for n in lengths])
    tokens = torch.arange(mask.numel()).view(mask.shape)
    packed = packed_from_padded(tokens, mask)
    assert packed.lengths.tolist() == lengths
    back = unpack_to_padded(packed.tokens[0].float(), mask, fill=-1.0)
    assert torch.equal(back, torch.where(mask, tokens.float(), -1.0))


def test_values_with_features_are_unpacked_too():
    mask = torch.tensor([[True, False], [True, True]])
    back = unpack_to_padded(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), mask)
    assert back.tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]


def test_nothing_to_pack_and_wrong_rows_are_refused():
    with pytest.raises(SpecError, match="no token to pack"):
        pack([torch.zeros(0, dtype=torch.long)])
    with pytest.raises(SpecError, match="sequence 1"):
        pack([torch.tensor([1]), torch.tensor([[1]])])
    with pytest.raises(SpecError, match="False everywhere"):
        packed_from_padded(torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.bool))
    with pytest.raises(SpecError, match="same shape"):
        packed_from_padded(torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool))
