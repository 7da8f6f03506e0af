"""TransformersWrapper: what it writes, and that stored log-probabilities are those of the sampling distribution."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pickle
import sys
import warnings

import pytest
import torch
from tensordict import TensorDict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rl_core.errors import KeyMissingError, PluginNotInstalledError, PolicyError, SpecError
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.containers import ChatHistory, LogProbs, Masks, Text, Tokens
from rl_llm.data.history import History
from rl_llm.policies.transformers import TransformersWrapper
from rl_llm.policies.vllm_engine import make_vllm_engine
from rl_llm.testing.tiny import tiny_llama

PROMPTS = ["abc", "a longer prompt", "x"]


@pytest.fixture(scope="module")
def tokenizer():
    return char_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_llama(tokenizer, initializer_range=0.15, context=64)


@pytest.fixture
def policy(model, tokenizer):
    torch.manual_seed(0)
    return TransformersWrapper(
        model, tokenizer=tokenizer, input_mode="text", generate_kwargs={"max_new_tokens": 6, "temperature": 0.8}
    )


def texts(prompts=PROMPTS):
    return TensorDict({"text": Text(prompt=list(prompts), batch_size=[len(prompts)])}, batch_size=[len(prompts)])


def chats():
    history = History.from_chats(
        [
            [{"role": "user", "content": "hi"}],
            [
                {"role": "user", "content": "yo"},
                {"role": "assistant", "content": "u"},
                {"role": "user", "content": "k"},
            ],
        ]
    )
    return TensorDict({"history": ChatHistory(prompt=history, batch_size=[2])}, batch_size=[2])


def ids(*rows):
    return TensorDict({"tokens": Tokens.from_rows(prompt=[torch.tensor(row) for row in rows])}, batch_size=[len(rows)])


def reference(model, row, temperature=1.0, top_p=1.0):
    """Log-probability of each token of one sequence, alone, in float64, with the nucleus found by a plain loop."""
    twin = copy.deepcopy(model).double()
    with torch.no_grad():
        logits = twin(input_ids=row[None]).logits[0]
    out = [0.0]
    for position in range(1, len(row)):
        p = (logits[position - 1] / temperature).softmax(-1)
        order = p.argsort(descending=True).tolist()
        kept, mass = [], 0.0
        for token in order:
            if mass >= top_p:
                break
            kept.append(token)
            mass += p[token].item()
        token = int(row[position])
        out.append((p[token] / p[kept].sum()).log().item() if token in kept else -float("inf"))
    return torch.tensor(out, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ what is written
def test_history_in_messages_texts_tokens_masks_and_log_probs_out(model, tokenizer):
    torch.manual_seed(0)
    policy = TransformersWrapper(model, tokenizer=tokenizer, generate_kwargs={"max_new_tokens": 5})
    batch = chats()
    out = policy(batch)
    assert out is batch
    assert set(out.keys()) == {"history", "text", "tokens", "masks", "log_probs"}
    prompts, responses, fulls = (out["tokens"].rows(name) for name in ("prompt", "response", "full"))
    rendered = batch["history"].prompt.apply_chat_template(tokenizer=tokenizer, tokenize=False)
    for row in range(2):
        assert tokenizer.decode(prompts[row].tolist()) == rendered[row]
        assert torch.equal(fulls[row], torch.cat((prompts[row], responses[row])))
        length, before = len(fulls[row]), len(prompts[row])
        assert out["masks"].rows("all_attention_mask")[row].tolist() == [True] * length
        assert out["masks"].rows()[row].tolist() == [False] * before + [True] * (length - before)
        assert out["log_probs"].rows("full")[row].tolist()[:before] == [0.0] * before
        assert torch.equal(out["log_probs"].rows("full")[row][before:], out["log_probs"].rows("response")[row])
        text = out["text"][row]
        assert text.full == text.prompt + text.response == tokenizer.decode(fulls[row].tolist())
    answers = out["history"].response.to_chats()
    assert [len(chat) for chat in out["history"].full.to_chats()] == [2, 4]
    assert [answer[0]["role"] for answer in answers] == ["assistant", "assistant"]
    assert out["history"].full.to_chats()[1][-1] == answers[1][0]


@pytest.mark.parametrize(
    ("mode", "written"),
    [("text", {"text", "tokens", "masks", "log_probs"}), ("tokens", {"tokens", "masks", "log_probs"})],
)
def test_the_mode_says_what_is_written(model, tokenizer, mode, written):
    policy = TransformersWrapper(model, tokenizer=tokenizer, input_mode=mode, generate_kwargs={"max_new_tokens": 2})
    out = policy(texts() if mode == "text" else ids([5, 6], [7]))
    assert set(out.keys()) == written
    assert policy.in_keys == [(mode, "prompt")]
    for key in policy.out_keys:
        assert out.get(key[0]).get(key[1], as_list=True) is not None


def test_without_log_probs_none_are_written(model, tokenizer):
    policy = TransformersWrapper(
        model, tokenizer=tokenizer, input_mode="text", return_log_probs=False, generate_kwargs={"max_new_tokens": 2}
    )
    assert "log_probs" not in policy(texts()).keys()  # noqa: SIM118


def test_containers_may_have_other_names(model):
    policy = TransformersWrapper(
        model,
        input_mode="tokens",
        tokens_key="ids",
        masks_key="who",
        log_probs_key="scores",
        generate_kwargs={"max_new_tokens": 2},
    )
    batch = TensorDict({"ids": Tokens.from_rows(prompt=[torch.tensor([5])])}, batch_size=[1])
    assert set(policy(batch).keys()) == {"ids", "who", "scores"}
    assert policy.log_probs(batch)[0].shape[0] == 1


def test_dense_outputs_pad_prompts_on_the_left_and_the_rest_on_the_right(policy, tokenizer):
    dense = policy.get_new_version(pad_output=True)
    out = dense(texts())
    lengths = [len(tokenizer(text)["input_ids"]) for text in PROMPTS]
    prompt = out["tokens"].prompt
    assert prompt.shape == (3, max(lengths))
    assert [tokenizer.decode(row[-n:].tolist()) for row, n in zip(prompt, lengths, strict=True)] == PROMPTS
    attention = out["masks"].all_attention_mask
    assert out["tokens"].full.shape == attention.shape == out["log_probs"].full.shape
    assert (attention.int().diff(dim=-1) <= 0).all()  # real tokens first, then padding
    assert (attention.sum(-1) - out["masks"].all_assistant_mask.sum(-1)).tolist() == lengths
    assert (out["log_probs"].full[~out["masks"].all_assistant_mask] == 0).all()


def test_a_copy_is_written_where_inplace_is_false(policy):
    batch = texts()
    out = policy.get_new_version(inplace=False)(batch)
    assert set(batch.keys()) == {"text"}
    assert batch["text"].get("response", None) is None
    assert "tokens" in out.keys()  # noqa: SIM118


@pytest.mark.parametrize("shape", [(), (2,), (2, 2)])
def test_any_batch_size_is_kept(model, tokenizer, shape):
    policy = TransformersWrapper(model, input_mode="tokens", generate_kwargs={"max_new_tokens": 3})
    count = 2 ** len(shape)
    rows = Tokens.from_rows(prompt=[torch.tensor([5 + i]) for i in range(count)])
    batch = TensorDict({"tokens": rows}, batch_size=[count]).reshape(shape) if shape else ids([5])[0]
    out = policy(batch)
    assert out.batch_size == torch.Size(shape)
    assert out["log_probs"].batch_size == torch.Size(shape)


def test_several_samples_add_a_dimension_in_the_order_of_the_prompts(policy):
    torch.manual_seed(3)
    batch = texts()
    out = policy.get_new_version(num_samples=4)(batch)
    assert out.batch_size == (3, 4)
    assert "tokens" not in batch.keys()  # noqa: SIM118
    for row, prompt in enumerate(PROMPTS):
        assert [out[row, sample]["text"].prompt for sample in range(4)] == [prompt] * 4
    assert len({tuple(out[1, sample]["tokens"].response.tolist()) for sample in range(4)}) > 1
    log_prob, _ = policy.log_probs(out)
    assert log_prob.shape[:2] == (3, 4)
    for row in range(3):
        for sample in range(4):
            stored = out[row, sample]["log_probs"].full
            scored = log_prob[row, sample, : len(stored)].detach()
            torch.testing.assert_close(torch.where(stored != 0, scored, 0.0), stored, atol=1e-4, rtol=0)


# ---------------------------------------------------------------------------------------- stored log-probabilities
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 0.9), (0.6, 1.0), (1.3, 0.7)])
def test_every_generated_token_has_the_log_prob_of_the_distribution_it_was_drawn_from(
    model, tokenizer, temperature, top_p
):
    torch.manual_seed(1)
    policy = TransformersWrapper(
        model,
        tokenizer=tokenizer,
        input_mode="text",
        generate_kwargs={"max_new_tokens": 6, "temperature": temperature, "top_p": top_p},
    )
    out = policy(texts())
    for row, stored, mask in zip(out["tokens"].rows(), out["log_probs"].rows(), out["masks"].rows(), strict=True):
        expected = reference(model, row, temperature, top_p)
        torch.testing.assert_close(stored[mask].double(), expected[mask], atol=1e-4, rtol=0)
        first = int(mask.int().argmax())
        if top_p == 1.0:
            assert stored[first] < 0  # the first one of the response among them


@pytest.mark.parametrize("options", [{"temperature": 0.5, "top_p": 0.9}, {"temperature": 1.0}, {"top_k": 3}])
def test_a_fresh_batch_has_ratio_one_at_every_generated_token(policy, options):
    torch.manual_seed(2)
    sampler = policy.get_new_version(generate_kwargs={"max_new_tokens": 8, **options}, pad_output=True)
    out = sampler(texts())
    log_prob, _ = sampler.log_probs(out)
    ratio = (log_prob - out["log_probs"].full).exp()[out["masks"].all_assistant_mask]
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-4, rtol=0)


def test_a_greedy_policy_stores_zeros_and_refuses_to_be_trained(policy):
    greedy = policy.get_new_version(generate_kwargs={"max_new_tokens": 4, "temperature": 0})
    one, two = greedy(texts()), greedy(texts())
    for a, b in zip(one["tokens"].rows(), two["tokens"].rows(), strict=True):
        assert torch.equal(a, b)
    assert all((row == 0).all() for row in one["log_probs"].rows())
    with pytest.raises(PolicyError, match="temperature > 0"):
        greedy.log_probs(one)


def test_torch_manual_seed_repeats_the_samples(policy):
    def sample(seed):
        torch.manual_seed(seed)
        return [row.tolist() for row in policy(texts())["tokens"].rows()]

    assert sample(5) == sample(5)
    assert sample(5) != sample(6)


def test_the_models_own_generation_configuration_changes_nothing(model, tokenizer, policy):
    def sample():
        torch.manual_seed(7)
        return [row.tolist() for row in policy(texts())["tokens"].rows()]

    before = sample()
    kept = model.generation_config
    model.generation_config = GenerationConfig(
        top_k=1, temperature=0.1, repetition_penalty=9.0, do_sample=True, eos_token_id=tokenizer.eos_token_id
    )
    try:
        assert sample() == before
        assert model.generation_config.top_k == 1
    finally:
        model.generation_config = kept


def test_a_repetition_penalty_is_in_the_stored_log_probs_and_scoring_refuses_it(policy):
    penalised = policy.get_new_version(generate_kwargs={"max_new_tokens": 6, "repetition_penalty": 2.0})
    out = penalised(texts())
    assert all(torch.isfinite(row).all() for row in out["log_probs"].rows())
    with pytest.raises(PolicyError, match="repetition_penalty"):
        penalised.log_probs(out)


def test_what_would_be_applied_after_the_log_probs_is_refused(policy):
    with pytest.raises(PolicyError, match="min_p"):
        policy.get_new_version(generate_kwargs={"min_p": 0.1})(texts())


# --------------------------------------------------------------------------------------------- ends of completions
def with_end_forced(model, tokenizer, at=0):
    """The same weights, with the end-of-turn token all but certain from the at-th completion token on."""
    twin = copy.deepcopy(model)
    calls = []

    def more(module, inputs, output):
        calls.append(0)
        if len(calls) > at:
            output[..., tokenizer.eos_token_id] += 1000.0
        return output

    twin.lm_head.register_forward_hook(more)
    return twin


def test_an_empty_answer_is_its_end_token_alone(model, tokenizer):
    policy = TransformersWrapper(with_end_forced(model, tokenizer), tokenizer=tokenizer)
    out = policy(chats())
    for row in range(2):
        assert out["tokens"].rows("response")[row].tolist() == [tokenizer.eos_token_id]
        assert out["masks"].rows()[row].tolist()[-1] is True
        assert out["log_probs"].rows("response")[row].tolist() == [0.0]
    assert out["history"].response.to_chats() == [[{"role": "assistant", "content": ""}]] * 2


def test_an_answer_cut_by_the_limit_is_not_complete(model, tokenizer):
    twin = copy.deepcopy(model)
    twin.lm_head.register_forward_hook(lambda m, i, output: output.index_fill(-1, torch.tensor([3]), -1000.0))
    policy = TransformersWrapper(twin, tokenizer=tokenizer, generate_kwargs={"max_new_tokens": 3})
    out = policy(chats())
    assert [len(row) for row in out["tokens"].rows("response")] == [3, 3]
    assert [chat[0]["is_complete"] for chat in out["history"].response.to_chats()] == [False, False]


@pytest.mark.parametrize("pad", ["eos", None])
def test_a_pad_token_that_is_the_end_token_or_absent_does_not_hide_the_end(model, pad):
    tokenizer = char_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token if pad == "eos" else None
    forced = with_end_forced(model, tokenizer, at=2)
    policy = TransformersWrapper(
        forced, tokenizer=tokenizer, input_mode="text", pad_output=True, generate_kwargs={"max_new_tokens": 9}
    )
    out = policy(texts())
    end = tokenizer.eos_token_id
    mask, tokens = out["masks"].all_assistant_mask, out["tokens"].full
    for row in range(3):
        response = tokens[row][mask[row]]
        assert response[-1] == end
        assert (response == end).sum() == 1
        assert out["masks"].all_attention_mask[row].sum() == len(PROMPTS[row]) + len(response)


def test_the_end_token_keeps_its_log_prob_where_pad_is_eos(tokenizer):
    pair = char_tokenizer()
    pair.pad_token = pair.eos_token
    small = tiny_llama(pair, seed=3, initializer_range=0.05)
    with torch.no_grad():  # the end is likely, not certain
        small.lm_head.weight[pair.eos_token_id] *= 0
        small.lm_head.weight *= 0.1
    small.lm_head.register_forward_hook(
        lambda m, i, output: output.index_add(
            -1, torch.tensor([pair.eos_token_id]), torch.full((*output.shape[:-1], 1), 3.0)
        )
    )
    policy = TransformersWrapper(
        small, tokenizer=pair, input_mode="text", pad_output=True, generate_kwargs={"max_new_tokens": 12}
    )
    torch.manual_seed(0)
    out = policy(texts(["ab"] * 8))
    ended = [row[mask][-1].item() == pair.eos_token_id for row, mask in _rows(out)]
    assert any(ended)
    log_prob, _ = policy.log_probs(out)
    mask = out["masks"].all_assistant_mask
    torch.testing.assert_close(log_prob[mask].detach(), out["log_probs"].full[mask], atol=1e-5, rtol=0)
    ends = mask & (out["tokens"].full == pair.eos_token_id)
    assert (out["log_probs"].full[ends] < -0.01).all()


def _rows(out):
    return zip(out["tokens"].full, out["masks"].all_assistant_mask, strict=True)


def test_a_stop_string_ends_a_completion_and_stays_in_it(model, tokenizer):
    twin = copy.deepcopy(model)
    letter = tokenizer.convert_tokens_to_ids("z")
    twin.lm_head.register_forward_hook(lambda m, i, output: output.index_fill(-1, torch.tensor([letter]), 1000.0))
    policy = TransformersWrapper(
        twin, tokenizer=tokenizer, input_mode="text", generate_kwargs={"max_new_tokens": 9, "stop": "zzz"}
    )
    out = policy(texts())
    assert out["text"].texts("response") == ["zzz"] * 3
    assert all((row == 0).all() for row in out["log_probs"].rows())


def test_a_prompt_without_room_for_a_token_is_refused_and_one_with_little_room_gets_little(model, tokenizer):
    policy = TransformersWrapper(model, input_mode="tokens", generate_kwargs={"max_new_tokens": 50})
    with pytest.raises(PolicyError, match="row 1 has 64 tokens, the model sees at most 64"):
        policy(ids([5], [6] * 64))
    twin = copy.deepcopy(model)
    twin.lm_head.register_forward_hook(lambda m, i, output: output.index_fill(-1, torch.tensor([3]), -1000.0))
    out = TransformersWrapper(twin, input_mode="tokens", generate_kwargs={"max_new_tokens": 50})(ids([5], [6] * 62))
    assert [len(row) for row in out["tokens"].rows("response")] == [50, 2]


# ------------------------------------------------------------------------------------------------------- scoring
def ragged(seed=0, lengths=(7, 3, 1, 12)):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, 60, (length,), generator=generator) for length in lengths]


def padded(rows, side="right", pad_id=0, extra=0):
    longest = max(map(len, rows)) + extra
    tokens = torch.full((len(rows), longest), pad_id)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    for index, row in enumerate(rows):
        places = slice(longest - len(row), None) if side == "left" else slice(0, len(row))
        tokens[index, places], mask[index, places] = row, True
    return TensorDict({"tokens": {"full": tokens}, "masks": {"all_attention_mask": mask}}, batch_size=[len(rows)])


def test_packed_padded_and_single_sequences_have_the_same_log_probs(policy, model):
    rows = ragged()
    packed_policy = policy.get_new_version(pad_model_input=False)
    one, two = padded(rows), padded(rows)
    with torch.no_grad():
        pad_score, pad_entropy = policy.log_probs(one, with_entropy=True)
        pack_score, pack_entropy = packed_policy.log_probs(two, with_entropy=True)
    torch.testing.assert_close(pad_score, pack_score, atol=1e-5, rtol=0)
    torch.testing.assert_close(pad_entropy, pack_entropy, atol=1e-5, rtol=0)
    for index, row in enumerate(rows):
        expected = reference(model, row, 0.8)
        torch.testing.assert_close(pack_score[index, : len(row)].double(), expected, atol=1e-4, rtol=0)
        assert (pack_score[index, len(row) :] == 0).all()
        with torch.no_grad():
            single, _ = policy.log_probs(padded([row]))
        torch.testing.assert_close(single[0], pack_score[index, : len(row)], atol=1e-5, rtol=0)


def test_the_first_token_of_every_packed_sequence_has_no_log_prob(policy):
    score, entropy = policy.get_new_version(pad_model_input=False).log_probs(padded(ragged()), with_entropy=True)
    assert (score[:, 0] == 0).all()
    assert (entropy[:, 0] == 0).all()
    assert (score[0, 1:7] < 0).all()


@pytest.mark.parametrize("packed", [False, True])
def test_padding_side_pad_id_and_order_of_rows_change_nothing(policy, packed):
    scorer = policy.get_new_version(pad_model_input=not packed)
    rows = ragged(1)
    with torch.no_grad():
        right, _ = scorer.log_probs(padded(rows))
        left, _ = scorer.log_probs(padded(rows, "left", pad_id=-100, extra=3))
        turned, _ = scorer.log_probs(padded(rows[::-1]))
    for index, row in enumerate(rows):
        torch.testing.assert_close(left[index, -len(row) :], right[index, : len(row)], atol=1e-5, rtol=0)
        torch.testing.assert_close(turned[-1 - index, : len(row)], right[index, : len(row)], atol=1e-5, rtol=0)


def test_gradients_are_the_same_packed_and_padded(model, tokenizer):
    grads = []
    for pad in (True, False):
        twin = copy.deepcopy(model)
        policy = TransformersWrapper(twin, tokenizer=tokenizer, pad_model_input=pad)
        score, entropy = policy.log_probs(padded(ragged(2)), with_entropy=True)
        (score.sum() + entropy.sum()).backward()
        grads.append([parameter.grad for parameter in twin.parameters()])
    for one, two in zip(*grads, strict=True):
        assert one.abs().sum() > 0
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_an_empty_row_and_a_batch_without_tokens_are_zero_and_harmless(model, tokenizer):
    twin = copy.deepcopy(model)
    for pad in (True, False):
        policy = TransformersWrapper(twin, tokenizer=tokenizer, pad_model_input=pad)
        batch = padded([*ragged(3), torch.zeros(0, dtype=torch.long)])
        score, _ = policy.log_probs(batch)
        assert (score[-1] == 0).all()
        score.sum().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in twin.parameters())
        batch["masks", "all_attention_mask"].fill_(False)
        nothing, entropy = policy.log_probs(batch, with_entropy=True)
        assert (nothing == 0).all() and (entropy == 0).all()


def test_only_wanted_tokens_are_scored(policy):
    batch = padded(ragged(4))
    wanted = torch.zeros_like(batch["masks", "all_attention_mask"])
    wanted[0, 3:6] = True
    batch["masks", "all_assistant_mask"] = wanted
    with torch.no_grad():
        some, _ = policy.log_probs(batch, wanted_key=("masks", "all_assistant_mask"))
        every, _ = policy.log_probs(batch)
    torch.testing.assert_close(some, torch.where(wanted, every, 0.0))
    with pytest.raises(KeyMissingError, match="bool mask of shape"):
        policy.log_probs(batch, wanted_key="nowhere")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packing_works_with_each_attention(tokenizer, attention):
    model = tiny_llama(tokenizer, initializer_range=0.3)
    model.set_attn_implementation(attention)
    policy = TransformersWrapper(model, tokenizer=tokenizer)
    with torch.no_grad():
        one, _ = policy.log_probs(padded(ragged(5)))
        two, _ = policy.get_new_version(pad_model_input=False).log_probs(padded(ragged(5)))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_packed_positions_start_anew_where_positions_are_absolute():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=60, n_positions=32, n_embd=32, n_layer=2, n_head=4, initializer_range=0.15)
    policy = TransformersWrapper(GPT2LMHeadModel(config).eval(), input_mode="tokens")
    with torch.no_grad():
        one, _ = policy.log_probs(padded(ragged(5), "left"))
        two, _ = policy.get_new_version(pad_model_input=False).log_probs(padded(ragged(5), "left"))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_a_head_with_something_behind_it_is_scored_through_its_logits(tokenizer):
    model = tiny_llama(tokenizer, initializer_range=0.3)
    model.lm_head.register_forward_hook(lambda module, inputs, output: 2 * torch.tanh(output / 2))
    policy = TransformersWrapper(model, tokenizer=tokenizer)
    row = ragged(6)[0]
    with torch.no_grad():
        score, _ = policy.log_probs(padded([row]))
    torch.testing.assert_close(score[0].double(), reference(model, row), atol=1e-4, rtol=0)


def test_a_sliding_window_is_not_opened_by_packing():
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        sliding_window=5,
    )
    policy = TransformersWrapper(MistralForCausalLM(config).eval(), input_mode="tokens", pad_model_input=False)
    with pytest.raises(PolicyError, match="attention window of 5"):
        policy.log_probs(padded(ragged(7)))
    short = padded(ragged(7, (4, 3)))
    with torch.no_grad():
        one, _ = policy.log_probs(short)
        two, _ = policy.get_new_version(pad_model_input=True).log_probs(short)
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_a_row_longer_than_the_context_is_refused(policy):
    with pytest.raises(PolicyError, match="row 1 has 65 tokens"):
        policy.log_probs(padded(ragged(8, (3, 65))))


def test_dense_tokens_need_their_mask(policy):
    batch = padded(ragged(9))
    with pytest.raises(KeyMissingError, match="all_attention_mask"):
        policy.log_probs(batch.select("tokens"))
    with pytest.raises(KeyMissingError, match="are not there"):
        policy.log_probs(batch.select("masks"))


@pytest.mark.parametrize("mode", ["history", "text", "tokens"])
def test_scoring_mode_writes_the_log_probs_of_whole_sequences(policy, model, tokenizer, mode):
    full = chats()["history"].prompt
    rendered = full.apply_chat_template(tokenizer=tokenizer, add_generation_prompt=False, tokenize=False)
    rows = [torch.tensor(tokenizer(text)["input_ids"]) for text in rendered]
    batch = TensorDict(
        {
            "history": ChatHistory(full=full, batch_size=[2]),
            "text": Text(full=rendered, batch_size=[2]),
            "tokens": Tokens.from_rows(full=rows),
        },
        batch_size=[2],
    ).select(mode)
    scorer = TransformersWrapper(model, tokenizer=tokenizer, input_mode=mode, generate=False)
    assert scorer.in_keys == [(mode, "full")]
    with torch.no_grad():
        out = scorer(batch)
    for stored, row in zip(out["log_probs"].rows(), rows, strict=True):
        torch.testing.assert_close(stored.double(), reference(model, row), atol=1e-4, rtol=0)


def test_dense_tokens_are_scored_in_their_places(policy):
    scorer = policy.get_new_version(generate=False, input_mode="tokens")
    batch = padded(ragged(10), "left")
    with torch.no_grad():
        expected, _ = scorer.log_probs(batch)
        out = scorer(batch)
    assert torch.equal(out["log_probs"].full, expected)


# ------------------------------------------------------------------------------------- tokens in, tokens out (C36)
def merging_tokenizer():
    """ "he" and "llo" are tokens, and so is "hello", which they decode to."""
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    vocabulary = ["<end>", "h", "e", "l", "o", "he", "ll", "llo", "hello", " ", "t", "r"]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Split(" ", behavior="isolated")
    bpe.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>")


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_the_second_turn_reads_the_tokens_that_the_first_one_sampled(temperature, micro_batch):
    tokenizer = merging_tokenizer()
    he, llo, hello = (tokenizer.convert_tokens_to_ids(token) for token in ("he", "llo", "hello"))
    assert tokenizer.decode([he, llo]) == "hello"
    assert tokenizer.encode("hello", add_special_tokens=False) == [hello]
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    policy = TransformersWrapper(
        LlamaForCausalLM(config).eval(),
        tokenizer=tokenizer,
        input_mode="text",
        generate_kwargs={"max_new_tokens": 5, "temperature": temperature},
    )
    turn_1 = [torch.tensor([9, he, llo]) + 0 for _ in range(4)]
    batch = texts([tokenizer.decode(row.tolist()) for row in turn_1])
    batch["tokens"] = Tokens.from_rows(prompt=turn_1)
    first = policy(batch)
    assert [row.tolist() for row in first["tokens"].rows("prompt")] == [row.tolist() for row in turn_1]

    tool = torch.tensor([9, 10, 11])
    prompts = [torch.cat((row, tool)) for row in first["tokens"].rows("full")]
    generated = [torch.cat((mask, torch.zeros(3, dtype=torch.bool))) for mask in first["masks"].rows()]
    scores = [torch.cat((row, torch.zeros(3))) for row in first["log_probs"].rows()]
    again = texts([tokenizer.decode(row.tolist()) for row in prompts])
    again["tokens"] = Tokens.from_rows(prompt=prompts)
    again["masks"] = Masks.from_rows(prompt_assistant_mask=generated)
    again["log_probs"] = LogProbs.from_rows(prompt=scores)
    second = policy(again)

    for row in range(4):
        tokens, mask, stored = (
            second["tokens"].rows()[row],
            second["masks"].rows()[row],
            second["log_probs"].rows()[row],
        )
        assert len(tokens) == len(mask) == len(stored)
        assert torch.equal(tokens[: len(prompts[row])], prompts[row])
        assert torch.equal(mask[: len(prompts[row])], generated[row])
        assert not mask[len(prompts[row]) - 3 : len(prompts[row])].any()  # the tool's
        assert mask[len(prompts[row]) :].all()
    for start in range(0, 4, micro_batch):
        part = second[start : start + micro_batch]
        with torch.no_grad():
            log_prob, _ = policy.log_probs(part)
        for scored, stored, mask in zip(log_prob, part["log_probs"].rows(), part["masks"].rows(), strict=True):
            ratio = (scored[: len(stored)] - stored).exp()[mask]
            torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-4, rtol=0)


def test_without_earlier_log_probs_only_this_turn_is_called_generated(policy):
    batch = texts([policy.tokenizer.decode([5, 6, 7])])
    batch["tokens"] = Tokens.from_rows(prompt=[torch.tensor([5, 6, 7])])
    batch["masks"] = Masks.from_rows(prompt_assistant_mask=[torch.tensor([False, True, False])])
    out = policy(batch)
    assert out["masks"].rows()[0][:3].tolist() == [False, False, False]


def test_tokens_are_made_anew_where_they_are_not_preferred(policy, tokenizer):
    batch = texts(["abc"])
    batch["tokens"] = Tokens.from_rows(prompt=[torch.tensor([5, 6])])
    out = policy.get_new_version(prefer_tokens=False)(batch)
    assert out["tokens"].rows("prompt")[0].tolist() == tokenizer("abc")["input_ids"]


def test_a_text_is_read_anew_where_the_tokens_beside_it_are_of_another_turn(policy, tokenizer):
    batch = policy(texts(["abc"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy(batch)  # the same prompt once more
        batch["text"] = Text(prompt=["abd"], batch_size=[1])
        out = policy(batch)
    assert out["tokens"].rows("prompt")[0].tolist() == tokenizer("abd")["input_ids"]
    assert out["text"].texts("prompt") == ["abd"]


def test_tokens_of_another_turn_than_the_messages_are_warned_of(model, tokenizer):
    chat = TransformersWrapper(model, tokenizer=tokenizer, generate_kwargs={"max_new_tokens": 3})
    batch = chat(chats())
    more = History.from_chats([[{"role": "user", "content": "hi"}]] * 2)
    batch["history"] = ChatHistory(prompt=batch["history"].full.extend(more, inplace=False, dim=-1), batch_size=[2])
    with pytest.warns(UserWarning, match="prefer_tokens=False"):
        chat(batch)


def test_dense_prompts_are_cut_by_the_attention_mask(model):
    policy = TransformersWrapper(model, input_mode="tokens", generate_kwargs={"max_new_tokens": 2})
    batch = TensorDict(
        {
            "tokens": {"prompt": torch.tensor([[0, 5, 6], [7, 8, 9]])},
            "attention_mask": torch.tensor([[False, True, True], [True, True, True]]),
        },
        batch_size=[2],
    )
    assert [row.tolist() for row in policy(batch)["tokens"].rows("prompt")] == [[5, 6], [7, 8, 9]]


# --------------------------------------------------------------------------------------------- versions and copies
def test_a_new_version_keeps_everything_but_what_is_changed(model, tokenizer):
    given = {
        "input_mode": "text",
        "input_key": ("text", "prompt"),
        "attention_mask_key": "am",
        "generate_kwargs": {"max_new_tokens": 3, "temperature": 0.3},
        "tokenizer_kwargs": {"truncation": False},
        "pad_output": True,
        "pad_model_input": False,
        "inplace": False,
        "device": "cpu",
        "layout": torch.strided,
        "num_samples": 1,
        "chat_template_name": "chatml_format",
        "chat_template": "x",
        "return_log_probs": True,
        "history_key": "h",
        "text_key": "text",
        "tokens_key": "k",
        "masks_key": "m",
        "log_probs_key": "l",
        "prefer_tokens": False,
    }
    policy = TransformersWrapper(model, tokenizer=tokenizer, **given)
    new = policy.get_new_version(generate=False, input_key=("text", "full"))
    assert set(given) | {"generate"} == {field.name for field in dataclasses.fields(policy.options)}
    for name, value in given.items():
        assert getattr(new.options, name) == (("text", "full") if name == "input_key" else value)
    assert new.model is policy.model and new.tokenizer is tokenizer
    assert new.options.generate is False
    assert new.settings == policy.settings
    assert new.engine_state is policy.engine_state


def test_a_new_number_of_samples_replaces_the_old_one(policy):
    four = policy.get_new_version(generate_kwargs={"n": 4, "max_new_tokens": 2})
    assert four.settings.num_samples == 4
    assert four.get_new_version(num_samples=2).settings.num_samples == 2
    assert four.get_new_version(generate_kwargs={"max_new_tokens": 2}).settings.num_samples == 1


def test_a_policy_can_be_copied_and_pickled(policy):
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        torch.manual_seed(0)
        one = [row.tolist() for row in policy(texts())["tokens"].rows()]
        torch.manual_seed(0)
        assert [row.tolist() for row in twin(texts())["tokens"].rows()] == one
        assert twin.model is not policy.model


def test_parameters_are_the_models(policy, model):
    assert {id(parameter) for parameter in policy.parameters()} == {id(parameter) for parameter in model.parameters()}


def test_generating_leaves_the_mode_of_the_model_alone(policy, model):
    model.train()
    try:
        policy(texts())
        assert model.training and model.lm_head.training
    finally:
        model.eval()


def test_a_path_loads_model_and_tokenizer(tmp_path, model, tokenizer):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    policy = TransformersWrapper(str(tmp_path), input_mode="text", generate_kwargs={"max_new_tokens": 2})
    assert policy.tokenizer.eos_token_id == tokenizer.eos_token_id
    with torch.no_grad():
        one, _ = policy.log_probs(padded(ragged()))
        two, _ = TransformersWrapper(model, tokenizer=tokenizer).log_probs(padded(ragged()))
    torch.testing.assert_close(one, two)


# ---------------------------------------------------------------------------------------------------------- errors
def test_options_that_contradict_each_other_are_refused(model, tokenizer):
    def make(**options):
        return TransformersWrapper(model, **{"tokenizer": tokenizer, **options})

    with pytest.raises(PolicyError, match="input_mode is one of"):
        make(input_mode="chat")
    with pytest.raises(PolicyError, match="leaves nothing to do"):
        make(generate=False, return_log_probs=False)
    with pytest.raises(PolicyError, match="cannot be written in place"):
        make(num_samples=2, inplace=True)
    with pytest.raises(PolicyError, match="needs a tokenizer"):
        make(tokenizer=None)
    with pytest.raises(PolicyError, match="layout"):
        make(layout=torch.jagged)
    with pytest.raises(PolicyError, match="name or path"):
        TransformersWrapper(3, tokenizer=tokenizer)


def test_a_missing_or_wrong_input_is_named(policy, model, tokenizer):
    empty = TensorDict({}, batch_size=[1])
    with pytest.raises(KeyMissingError, match=r"\('text', 'prompt'\)"):
        policy(empty)
    with pytest.raises(KeyMissingError, match=r"\('history', 'prompt'\)"):
        TransformersWrapper(model, tokenizer=tokenizer)(empty)
    with pytest.raises(KeyMissingError, match=r"\('tokens', 'prompt'\)"):
        TransformersWrapper(model, input_mode="tokens")(empty)
    with pytest.raises(SpecError, match="row 1"):
        TransformersWrapper(model, input_mode="tokens")(ids([5], torch.zeros(0, dtype=torch.long).tolist()))


def test_transformers_where_it_is_absent_is_answered_with_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "rl_llm.policies.library", raising=False)
    with pytest.raises(PluginNotInstalledError, match=r"pip install 'rl-llm\[transformers\]'"):
        importlib.import_module("rl_llm.policies.library")


def test_vllm_where_it_is_absent_is_answered_with_the_pip_command_when_an_engine_is_wanted(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(PluginNotInstalledError, match=r"pip install 'rl-llm\[vllm\]'"):
        make_vllm_engine("a-model")
