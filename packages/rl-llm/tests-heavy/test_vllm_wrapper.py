"""A real vLLM engine in this process: the same numbers as Transformers, and live weight updates.

Needs vllm (``pip install 'rl-llm[vllm]'``); the engine starts once for all tests.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch
from tensordict import TensorDict

from rl_core import WeightSync
from rl_core.errors import CollectorError, PolicyError
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.containers import ChatHistory, Text, Tokens
from rl_llm.data.history import History
from rl_llm.policies.transformers import TransformersWrapper
from rl_llm.policies.vllm import vLLMWrapper
from rl_llm.policies.vllm_engine import make_vllm_engine
from rl_llm.testing.tiny import tiny_llama
from rl_llm.weights.vllm_sync import VLLMWeightSync

PROMPTS = ["abc", "a longer prompt", "x"]


@pytest.fixture(scope="module")
def tokenizer():
    return char_tokenizer()


@pytest.fixture(scope="module")
def fresh(tokenizer):
    return tiny_llama(tokenizer, hidden=128, initializer_range=0.2, context=128)


@pytest.fixture(scope="module")
def engine(fresh, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    fresh.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    state = torch.random.get_rng_state()
    engine = make_vllm_engine(str(folder), max_num_seqs=16)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ
    yield engine
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def model(fresh, engine):
    """The trained model, whose weights the engine has at the start of each test."""
    model = copy.deepcopy(fresh)
    VLLMWeightSync(vLLMWrapper(engine, input_mode="tokens")).send(model)
    return model


def policies(engine, model, tokenizer, **kwargs):
    kwargs = {"max_new_tokens": 8, **kwargs}
    ours = vLLMWrapper(engine, input_mode="text", generate_kwargs=kwargs)
    return ours, TransformersWrapper(model, tokenizer=tokenizer, input_mode="text", generate_kwargs=kwargs)


def texts(prompts=PROMPTS):
    return TensorDict({"text": Text(prompt=list(prompts), batch_size=[len(prompts)])}, batch_size=[len(prompts)])


def assert_same_log_probs(out, scorer, atol=1e-4):
    with torch.no_grad():
        log_prob, _ = scorer.log_probs(out)
    for scored, stored, mask in zip(log_prob, out["log_probs"].rows(), out["masks"].rows(), strict=True):
        torch.testing.assert_close(scored[: len(stored)][mask], stored[mask], atol=atol, rtol=0)
        assert (stored[~mask] == 0).all()


def change_(model, amount=0.1):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(amount * torch.randn_like(parameter))


@pytest.mark.parametrize(
    "how",
    [{}, {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.6}, {"top_k": 4}, {"temperature": 1.4, "top_p": 0.8}],
)
def test_log_probs_are_those_of_transformers_for_the_same_distribution(engine, model, tokenizer, how):
    ours, scorer = policies(engine, model, tokenizer, **how)
    torch.manual_seed(0)
    out = ours(texts())
    assert_same_log_probs(out, scorer)
    assert all(mask.any() for mask in out["masks"].rows())


def test_greedy_completions_are_those_of_transformers(engine, model, tokenizer):
    ours, theirs = policies(engine, model, tokenizer, temperature=0)
    one, two = ours(texts()), theirs(texts())
    for key in ("prompt", "response", "full"):
        for a, b in zip(one["tokens"].rows(key), two["tokens"].rows(key), strict=True):
            assert torch.equal(a, b)
    assert one["text"].texts("full") == two["text"].texts("full")
    assert all((row == 0).all() for row in one["log_probs"].rows())


def test_both_wrappers_write_the_same_containers(engine, model, tokenizer):
    history = History.from_chats([[{"role": "user", "content": "hi"}], [{"role": "user", "content": "yo"}]])
    outs = []
    for policy in (vLLMWrapper(engine), TransformersWrapper(model, tokenizer=tokenizer)):
        short = policy.get_new_version(generate_kwargs={"max_new_tokens": 4})
        outs.append(short(TensorDict({"history": ChatHistory(prompt=history, batch_size=[2])}, batch_size=[2])))
    assert set(outs[0].keys()) == set(outs[1].keys()) == {"history", "text", "tokens", "masks", "log_probs"}
    assert outs[0]["text"].texts("prompt") == outs[1]["text"].texts("prompt")
    assert [len(chat) for chat in outs[0]["history"].full.to_chats()] == [2, 2]


def test_prompts_are_read_as_token_ids(engine):
    ours = vLLMWrapper(engine, input_mode="tokens", generate_kwargs={"max_new_tokens": 4})
    rows = [torch.tensor([9, 10]), torch.tensor([11])]
    batch = TensorDict({"tokens": Tokens.from_rows(prompt=rows)}, batch_size=[2])
    full = ours(batch)["tokens"].rows("full")
    assert [row[: len(prompt)].tolist() for row, prompt in zip(full, rows, strict=True)] == [[9, 10], [11]]


def test_a_text_is_read_anew_where_the_tokens_beside_it_are_of_another_turn(engine, model, tokenizer):
    ours, _ = policies(engine, model, tokenizer)
    batch = texts(["abc"])
    batch["tokens"] = Tokens.from_rows(prompt=[torch.tensor([9, 10])])
    out = ours(batch)
    assert out["tokens"].rows("prompt")[0].tolist() == tokenizer("abc")["input_ids"]


def test_samples_of_a_prompt_stay_together(engine, model, tokenizer):
    ours, scorer = policies(engine, model, tokenizer, n=4)
    out = ours(texts())
    assert out.batch_size == (3, 4)
    for row, prompt in enumerate(PROMPTS):
        assert [out[row, sample]["text"].prompt for sample in range(4)] == [prompt] * 4
        assert_same_log_probs(out[row], scorer)


def test_torch_manual_seed_repeats_the_samples(engine, model, tokenizer):
    ours, _ = policies(engine, model, tokenizer)

    def sample(seed):
        torch.manual_seed(seed)
        return [row.tolist() for row in ours(texts())["tokens"].rows()]

    assert sample(3) == sample(3)
    assert sample(3) != sample(4)


def test_the_end_token_has_its_log_prob_and_its_place_in_the_mask(engine, model, tokenizer):
    with torch.no_grad():  # the head's row of the end token becomes the mean of the others: likely, not certain
        model.lm_head.weight.mul_(0.3)
    VLLMWeightSync(vLLMWrapper(engine, input_mode="tokens")).send(model)
    ours, scorer = policies(engine, model, tokenizer, max_new_tokens=100)
    torch.manual_seed(0)
    out = ours(texts(["ab"] * 16))
    ended = [row for row in range(16) if out["tokens"].rows("response")[row][-1] == tokenizer.eos_token_id]
    assert ended
    for row in ended:
        assert out["masks"].rows()[row][-1]
        assert out["log_probs"].rows()[row][-1] < 0
    assert_same_log_probs(out, scorer)


def test_a_long_prompt_is_refused_or_gets_the_room_that_is_left(engine, model, tokenizer):
    policy = vLLMWrapper(engine, input_mode="tokens", generate_kwargs={"max_new_tokens": 60, "temperature": 0})
    rows = [torch.full((128,), 9), torch.tensor([9])]
    with pytest.raises(PolicyError, match="row 0 has 128 tokens"):
        policy(TensorDict({"tokens": Tokens.from_rows(prompt=rows)}, batch_size=[2]))
    rows[0] = rows[0][:125]
    out = policy(TensorDict({"tokens": Tokens.from_rows(prompt=rows)}, batch_size=[2]))
    assert len(out["tokens"].rows("full")[0]) <= 128


def test_scoring_in_the_engine_equals_transformers_at_temperature_one(engine, model, tokenizer):
    ours, scorer = policies(engine, model, tokenizer)
    tokens = torch.randint(4, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[1, 6:] = False
    mask[2, :3] = False
    batch = TensorDict({"tokens": {"full": tokens}, "masks": {"all_attention_mask": mask}}, batch_size=[3])
    with torch.no_grad():
        torch.testing.assert_close(ours.log_probs(batch)[0], scorer.log_probs(batch)[0], atol=1e-4, rtol=0)
    with pytest.raises(PolicyError, match="entropies"):
        ours.log_probs(batch, with_entropy=True)
    with pytest.raises(PolicyError, match="temperature 1"):
        ours.get_new_version(generate_kwargs={"temperature": 0.5}).log_probs(batch)


def test_settings_that_the_engine_would_change_or_does_not_know_are_refused(engine):
    with pytest.raises(PolicyError, match=r"at least 0\.01"):
        vLLMWrapper(engine, generate_kwargs={"temperature": 0.001})
    with pytest.raises(PolicyError, match="use_cache"):
        vLLMWrapper(engine, input_mode="text", generate_kwargs={"use_cache": True})(texts())
    with pytest.raises(PolicyError, match=r"vllm\.LLM"):
        vLLMWrapper(3)


# ------------------------------------------------------------------------------------------------------ weight sync
def test_new_weights_are_used_at_once_and_counted(engine, model, tokenizer):
    ours, scorer = policies(engine, model, tokenizer)
    sync = VLLMWeightSync(ours)
    assert isinstance(sync, WeightSync)
    assert (sync.version, ours.policy_version) == (0, 0)
    for version in (1, 2):
        change_(model)
        assert sync.send(model) == version == sync.version == ours.policy_version
        sync.check(model)
        assert_same_log_probs(ours(texts()), scorer)
    assert ours.get_new_version(generate_kwargs={"n": 2}).policy_version == 2


def test_the_prefix_cache_does_not_outlive_the_weights(engine, model, tokenizer):
    prompts = ["the same long beginning of a prompt that fills several blocks of the cache, twice"]
    ours, scorer = policies(engine, model, tokenizer, max_new_tokens=4)
    ours(texts(prompts))
    change_(model)
    VLLMWeightSync(ours).send(model)
    assert_same_log_probs(ours(texts(prompts)), scorer)


def test_a_missed_sync_is_found_by_the_probe(engine, model, tokenizer):
    ours, scorer = policies(engine, model, tokenizer)
    sync = VLLMWeightSync(ours)
    sync.send(model)
    change_(model, 0.05)
    with pytest.raises(CollectorError, match="does not have the model's weights"):
        sync.check(scorer)
    sync.send(scorer)
    sync.check(scorer)


def test_a_missed_sync_is_found_by_the_version(engine, model, tokenizer):
    ours, _ = policies(engine, model, tokenizer)
    sync = VLLMWeightSync(ours)
    sync.send(model.state_dict())
    VLLMWeightSync(ours).send(model)  # another one, which counts for itself
    sync.send(model)
    engine.collective_rpc("rl_llm_update", args=(1, list(model.state_dict().items())))
    with pytest.raises(CollectorError, match="missed a weight sync"):
        sync.check()


def test_weights_of_another_model_or_a_part_of_them_are_refused(engine, model, tokenizer):
    ours, scorer = policies(engine, model, tokenizer)
    sync = VLLMWeightSync(ours)
    part = dict(list(model.state_dict().items())[1:])
    with pytest.raises(CollectorError, match="missing"):
        sync.send(part)
    with pytest.raises(CollectorError, match="another shape"):
        sync.send(tiny_llama(tokenizer, hidden=64))
    with pytest.raises(CollectorError, match="adapters"):
        sync.send({"base_model.model.lora_A.weight": torch.ones(1)})
    assert sync.version == 0
    sync.check(), assert_same_log_probs(ours(texts()), scorer)
