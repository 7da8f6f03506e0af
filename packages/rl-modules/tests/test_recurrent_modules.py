"""Recurrent modules: sequences equal steps on ragged data, resets, states, keys, and the errors."""

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import nn

from rl_core import carried_state, reads_sequences, recurrent_burn_in, with_carried_state
from rl_core.errors import KeyMissingError, PolicyError
from rl_core.losses.targets import frozen_copy
from rl_core.testing import CountingEnv
from rl_modules import (
    GRUModule,
    LSTMModule,
    SafeModule,
    SafeSequential,
    recurrent_mode,
    set_recurrent_mode,
)
from rl_modules.recurrent.pieces import Pieces, run_chunks, run_packed

CELLS = {"lstm": (LSTMModule, 2), "gru": (GRUModule, 1)}


def make(cell, layers=2, **kwargs):
    torch.manual_seed(0)
    return CELLS[cell][0](3, 5, num_layers=layers, in_key="observation", out_key="features", **kwargs)


def batch_of(cell, flags, layers=2):
    """Random inputs and random stored states everywhere, also where they must not be read."""
    torch.manual_seed(1)
    lead = flags.shape
    states = [torch.randn(*lead, layers, 5) for _ in range(CELLS[cell][1])]
    return torch.randn(*lead, 3), states, flags.unsqueeze(-1)


def step_by_step(module, value, states, flags):
    """The definition: rows one after the other, each from what the last one left, zero where a flag stands."""
    carried, outputs, after = [state[:, 0] for state in states], [], []
    for t in range(value.shape[1]):
        carried = [torch.where(flags[:, t].unsqueeze(-1), 0.0, state) for state in carried]
        output, *carried = module.forward_tensors(value[:, t], *carried, torch.zeros_like(flags[:, t]))
        outputs.append(output)
        after.append(carried)
    return torch.stack(outputs, 1), [torch.stack(states, 1) for states in zip(*after, strict=True)]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_step_is_that_of_torchs_network(cell, bias):
    module = make(cell, bias=bias)
    value, states, flags = batch_of(cell, torch.zeros(4, 1, dtype=torch.bool))
    output, *after = module.forward_tensors(value[:, 0], *(state[:, 0] for state in states), flags[:, 0])
    begin = [state[:, 0].transpose(0, 1).contiguous() for state in states]
    wanted, end = module.network(value, tuple(begin) if cell == "lstm" else begin[0])
    torch.testing.assert_close(output, wanted[:, 0])
    for found, state in zip(after, end if cell == "lstm" else [end], strict=True):
        torch.testing.assert_close(found, state.transpose(0, 1))


@pytest.mark.parametrize("cell", CELLS)
def test_a_flagged_step_starts_from_zero_whatever_is_stored(cell):
    module = make(cell)
    value, states, flags = batch_of(cell, torch.tensor([[True], [False]]))
    now = [state[:, 0] for state in states]
    found = module.forward_tensors(value[:, 0], *now, flags[:, 0])
    emptied = [state * torch.tensor([0.0, 1.0]).reshape(2, 1, 1) for state in now]
    wanted = module.forward_tensors(value[:, 0], *emptied, torch.zeros_like(flags[:, 0]))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("cell", CELLS)
def test_a_reset_at_step_three_starts_both_pieces_where_they_should(cell):
    """Five steps, flags at 0 and 3, and a second row that is a slice from the middle of an episode."""
    flags = torch.tensor([[True, False, False, True, False], [False, False, False, False, False]])
    module = make(cell)
    value, states, flags = batch_of(cell, flags)
    with set_recurrent_mode(True):
        output, *ends = module.forward_tensors(value, *states, flags)
    wanted, after = step_by_step(module, value, states, flags)
    torch.testing.assert_close(output, wanted, atol=1e-5, rtol=0)
    for found, state in zip(ends, after, strict=True):
        for row, t in ((0, 2), (0, 4), (1, 4)):  # the last step of each piece
            torch.testing.assert_close(found[row, t], state[row, t], atol=1e-5, rtol=0)
        assert not found[0, [0, 1, 3]].any() and not found[1, :4].any()


@pytest.mark.parametrize("cell", CELLS)
def test_a_flagged_slice_starts_from_zero_and_not_from_the_slice_before(cell):
    module = make(cell)
    value, states, flags = batch_of(cell, torch.tensor([[True, False], [True, False]]))
    with set_recurrent_mode(True):
        apart, *_ = module.forward_tensors(value, *states, flags)
        joined, *_ = module.forward_tensors(
            value.flatten(0, 1), *(state.flatten(0, 1) for state in states), flags.flatten(0, 1)
        )
    torch.testing.assert_close(joined.reshape(apart.shape), apart)
    zero = [torch.zeros_like(state) for state in states]
    with set_recurrent_mode(True):
        torch.testing.assert_close(apart, module.forward_tensors(value, *zero, flags)[0])


@settings(deadline=None, max_examples=40)
@given(
    cell=st.sampled_from(list(CELLS)),
    rows=st.integers(1, 4),
    steps=st.integers(1, 11),
    density=st.floats(0, 1),
    layers=st.integers(1, 3),
    grad=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sequences_equal_steps_wherever_the_flags_stand(cell, rows, steps, density, layers, grad, seed):
    flags = torch.rand(rows, steps, generator=torch.Generator().manual_seed(seed)) < density
    module = make(cell, layers)
    value, states, flags = batch_of(cell, flags, layers)
    with torch.set_grad_enabled(grad):
        with set_recurrent_mode(True):
            output, *ends = module.forward_tensors(value, *states, flags)
        wanted, after = step_by_step(module, value, states, flags)
    torch.testing.assert_close(output, wanted, atol=1e-5, rtol=0)
    last = torch.cat([flags[:, 1:, 0], torch.ones(rows, 1, dtype=torch.bool)], 1)
    for found, state in zip(ends, after, strict=True):
        torch.testing.assert_close(found[last], state[last], atol=1e-5, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_sequences_are_those_of_steps(cell):
    flags = torch.tensor([[False, False, True, False, False, True, False], [True] + [False] * 6])
    module = make(cell).double()
    value, states, flags = batch_of(cell, flags)
    value, states = value.double(), [state.double() for state in states]
    with set_recurrent_mode(True):
        module.forward_tensors(value, *states, flags)[0].square().sum().backward()
    found = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    step_by_step(module, value, states, flags)[0].square().sum().backward()
    for gradient, parameter in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.parametrize("flag", [1, 3, 4])
@pytest.mark.parametrize("cell", CELLS)
def test_no_gradient_flows_through_a_burn_in(cell, flag):
    module = make(cell)
    flags = torch.zeros(3, 7, dtype=torch.bool)
    flags[0, flag] = flags[1, 5] = True
    value, states, is_init = batch_of(cell, flags)
    value.requires_grad_()
    with set_recurrent_mode(True, burn_in=3):
        output, *after = module.forward_tensors(value, *states, is_init)
    with set_recurrent_mode(False):
        carried, outputs = [state[:, 0] for state in states], []
        for t in range(7):
            carried = [torch.where(flags[:, t].reshape(-1, 1, 1), 0.0, state) for state in carried]
            carried = [state.detach() for state in carried] if t == 3 else carried
            step, *carried = module.forward_tensors(value[:, t], *carried, torch.zeros_like(flags[:, t]))
            outputs.append(step)
    wanted = torch.stack(outputs, 1)
    torch.testing.assert_close(output, wanted)
    for found, last in zip(after, carried, strict=True):
        torch.testing.assert_close(found[:, -1], last)
    inputs = [value, *module.parameters()]
    scale = torch.randn(3, 4, 5)
    found, expected = (torch.autograd.grad((out[:, 3:] * scale).sum(), inputs) for out in (output, wanted))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert not bool(found[0][:, :3].any()) and bool(found[0][:, 3:].any())


@pytest.mark.parametrize("cell", CELLS)
def test_both_ways_to_run_pieces_agree(cell):
    module = make(cell)
    flags = torch.rand(5, 21) < 0.2
    value, states, _ = batch_of(cell, flags)
    pieces = Pieces(flags)
    begin = [s.flatten(0, 1).index_select(0, pieces.first).transpose(0, 1).contiguous() for s in states]
    rows = value.flatten(0, 1)
    packed, chunked = (run(module._run_network, rows, begin, pieces) for run in (run_packed, run_chunks))
    torch.testing.assert_close(packed[0], chunked[0])
    torch.testing.assert_close(packed[1], chunked[1])


def test_more_than_one_batch_dimension_before_time():
    module = make("gru")
    flags = torch.rand(2, 3, 4) < 0.4
    value, states, flags = batch_of("gru", flags)
    with set_recurrent_mode(True):
        output = module.forward_tensors(value, *states, flags)[0]
        flat = module.forward_tensors(value.flatten(0, 1), *(s.flatten(0, 1) for s in states), flags.flatten(0, 1))[0]
    torch.testing.assert_close(output.flatten(0, 1), flat)


def test_dropout_acts_between_layers_in_training_only():
    torch.manual_seed(0)
    module = LSTMModule(3, 5, num_layers=2, dropout=0.5, in_key="observation", out_key="features")
    value, states, flags = batch_of("lstm", torch.zeros(1, 1, dtype=torch.bool))
    inputs = (value[:, 0], *(state[:, 0] for state in states), flags[:, 0])
    assert any(not torch.equal(module(*inputs)[0], module(*inputs)[0]) for _ in range(5))
    module.eval()
    assert torch.equal(module(*inputs)[0], module(*inputs)[0])


def test_weights_have_the_names_of_torchs_network():
    assert set(make("lstm", 1).state_dict()) == {f"lstm.{name}" for name in nn.LSTM(3, 5).state_dict()}
    network = nn.GRU(3, 5, batch_first=True)
    assert GRUModule(gru=network, in_key="a", out_key="b").gru is network


# ---------------------------------------------------------------- mode
def test_the_mode_is_a_context_a_decorator_and_each_threads_own():
    @set_recurrent_mode(True)
    def mode():
        return recurrent_mode()

    assert mode() is True and recurrent_mode() is None
    seen = []
    with set_recurrent_mode("recurrent"), set_recurrent_mode("sequential"):
        assert recurrent_mode() is False
        thread = threading.Thread(target=lambda: seen.append(recurrent_mode()))
        thread.start()
        thread.join()
    assert seen == [None] and recurrent_mode() is None


def test_a_burn_in_holds_within_its_context():
    with set_recurrent_mode(True, burn_in=2):
        assert recurrent_burn_in() == 2
        with set_recurrent_mode(True):
            assert recurrent_burn_in() == 0
        assert recurrent_burn_in() == 2
    assert recurrent_burn_in() == 0
    with pytest.raises(ValueError, match="burn_in of 0 steps or more; got -1"):
        set_recurrent_mode(True, burn_in=-1)


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="'seqential'"):
        set_recurrent_mode("seqential")


def test_a_default_mode_holds_outside_of_contexts():
    module = make("gru", default_recurrent_mode=True)
    assert reads_sequences(SafeSequential(module))
    with set_recurrent_mode(False):
        assert not module.reads_sequences()


# ---------------------------------------------------------------- keys and state
def test_keys_of_all_entries_can_be_chosen():
    module = LSTMModule(
        3, 5, in_keys=["x", "h", ("c", "d"), "start"], out_keys=["y", ("next", "h"), ("next", "c", "d")]
    )
    assert module.in_keys == ["x", "h", ("c", "d"), "start"]
    assert module.out_keys == ["y", ("next", "h"), ("next", "c", "d")]
    assert carried_state(module).init_keys == ["start"]
    assert LSTMModule(3, 5, in_keys=["x", "h", "c"], out_keys=["y", "h", "c"]).out_keys[1:] == [
        ("next", "h"),
        ("next", "c"),
    ]


def test_states_that_would_not_be_read_again_are_refused():
    with pytest.raises(ValueError, match="next step"):
        GRUModule(3, 5, in_keys=["x", "h"], out_keys=["y", ("next", "other")])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"in_key": "x"}, "out_key"),
        ({"in_key": "x", "in_keys": ["x", "h"], "out_key": "y"}, "in_key"),
        ({"in_keys": ["x"], "out_key": "y"}, "recurrent_state"),
        ({"in_key": "x", "out_key": "y", "bidirectional": True}, "bidirectional"),
        ({"in_key": "x", "out_key": "y", "batch_first": False}, "batch_first"),
        ({"in_key": "x", "out_key": "y", "recurrent_backend": "cuda"}, "recurrent_backend"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        GRUModule(3, 5, **arguments)


def test_a_policy_declares_the_state_of_all_its_modules():
    chain = SafeSequential(
        LSTMModule(3, 5, in_key="observation", out_key="a"),
        GRUModule(5, 4, in_key="a", out_key="b"),
    )
    state = carried_state(chain)
    assert {key: tuple(spec.shape) for key, spec in state.specs.items()} == {
        "recurrent_state_h": (1, 5),
        "recurrent_state_c": (1, 5),
        "recurrent_state": (1, 4),
    }
    assert state.init_keys == ["is_init"]


def test_two_modules_do_not_share_one_state():
    chain = SafeSequential(GRUModule(3, 5, in_key="observation", out_key="a"), GRUModule(5, 5, in_key="a", out_key="b"))
    with pytest.raises(PolicyError, match="'recurrent_state'"):
        carried_state(chain)


def test_a_policy_without_state_needs_nothing():
    env = CountingEnv()
    assert with_carried_state(env, SafeModule(nn.Linear(1, 1), ["observation"], ["action"])) is env
    assert with_carried_state(env, None) is env
    assert not reads_sequences(SafeModule(nn.Linear(1, 1), ["observation"], ["action"]))


def test_a_missing_state_is_an_error_that_names_the_cure():
    policy = SafeSequential(make("gru"), SafeModule(nn.Linear(5, 1), ["features"], ["action"]))
    td = TensorDict({"observation": torch.zeros(2, 3), "is_init": torch.ones(2, 1, dtype=torch.bool)}, [2])
    with pytest.raises(KeyMissingError, match=r"'recurrent_state'.*get_env_transforms_from_module"):
        policy(td)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"observation": torch.zeros(2, 4)}, "input_size=3"),
        ({"recurrent_state": torch.zeros(2, 1, 5)}, r"\[2, 2, 5\]"),
        ({"is_init": torch.zeros(2, 1)}, "bool"),
    ],
)
def test_shapes_that_would_be_broadcast_are_refused(change, match):
    entries = {
        "observation": torch.zeros(2, 3),
        "recurrent_state": torch.zeros(2, 2, 5),
        "is_init": torch.zeros(2, 1, dtype=torch.bool),
    }
    with pytest.raises(PolicyError, match=match):
        make("gru")(TensorDict({**entries, **change}, [2]))


def test_a_sequence_needs_a_time_dimension():
    value, states, flags = batch_of("gru", torch.zeros(1, 1, dtype=torch.bool))
    with set_recurrent_mode(True), pytest.raises(PolicyError, match="time dimension"):
        make("gru").forward_tensors(value[0, 0], states[0][0, 0], flags[0, 0])


def test_a_frozen_target_declares_the_same_state():
    network = make("lstm")
    target = frozen_copy(network, "value_network")
    assert not list(target.parameters())
    assert carried_state(target).specs.keys() == carried_state(network).specs.keys()
