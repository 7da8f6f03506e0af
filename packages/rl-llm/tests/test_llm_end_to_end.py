"""The parts together: chat, policy, collector, buffer and loss, from questions to gradients."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import Transform, registry
from rl_llm.advantage import MCAdvantage
from rl_llm.collectors.llm_collector import LLMCollector
from rl_llm.data.char_tokenizer import char_tokenizer
from rl_llm.data.history import History
from rl_llm.envs.chat import ChatEnv
from rl_llm.envs.dataset import DataLoadingPrimer, DatasetChatEnv
from rl_llm.losses.grpo import GRPOLoss
from rl_llm.policies.completion import Completion
from rl_llm.policies.transformers import TransformersWrapper
from rl_llm.testing.tiny import tiny_llama

TOKENIZER = char_tokenizer()
EOS = TOKENIZER.eos_token_id


class Tool(Transform):
    """Answers every turn that does not end the dialog; knows nothing of tokens."""

    def _step(self, tensordict, next_tensordict):
        chats = next_tensordict["history"].prompt.to_chats()
        if not bool(next_tensordict["done"].all()):
            turns = [{"role": "tool", "content": f"you said {len(chat[-1]['content'])} characters"} for chat in chats]
            next_tensordict["history"].prompt.append(History.from_chats(turns))
        return next_tensordict


class Recorded(TransformersWrapper):
    """Keeps what the model was given and what it drew."""

    def sample(self, prompts, limits):
        completions = super().sample(prompts, limits)
        self.__dict__.setdefault("seen", []).append(list(zip(prompts, completions, strict=True)))
        return completions


class Fixed(TransformersWrapper):
    """Says fixed ids, with their true log-probabilities left at -1."""

    def sample(self, prompts, limits):
        said = self.__dict__["said"]
        return [Completion(torch.tensor(ids, dtype=torch.int64), torch.full((len(ids),), -1.0), False) for ids in said]


class Scores(nn.Module):
    """A policy whose log-probabilities are a leaf: their gradient shows which tokens are trained."""

    in_keys = [("tokens", "full")]

    def log_probs(self, batch, with_entropy=False):
        tokens = batch["tokens", "full"]
        self.leaf = batch["log_probs", "full"].detach().clone().requires_grad_()
        assert self.leaf.shape == tokens.shape
        return self.leaf, None


def policy(kind=TransformersWrapper, mode="history", **generation):
    model = tiny_llama(TOKENIZER, initializer_range=0.2)
    return kind(model, tokenizer=TOKENIZER, input_mode=mode, generate_kwargs={"max_new_tokens": 6, **generation})


def length_reward(completion):
    return float(len(completion))


def letter_reward(completion):
    return sum(map(ord, completion)) / 1000


# --------------------------------------------------------------------------------------------------- calls of a README
def readme(turns):
    """An environment, a policy, a loss with a critic, and an optimiser."""
    model = tiny_llama(TOKENIZER)
    env = (
        ChatEnv(tokenizer=TOKENIZER, system_prompt="You can use a tool.", batch_size=[1], max_turns=turns)
        .append_transform(Tool())
        .append_transform(Rewarding())
        .append_transform(DataLoadingPrimer([["What is 2 + 2?"], ["What is 3 + 3?"]]))
    )
    llm = TransformersWrapper(
        model=model, tokenizer=TOKENIZER, input_mode="history", generate_kwargs={"max_new_tokens": 4}
    )
    critic = TensorDictModule(
        nn.Sequential(nn.Embedding(len(TOKENIZER), 8), nn.Linear(8, 1)), [("tokens", "full")], ["state_value"]
    )
    parameters = [*model.parameters(), *critic.parameters()]
    return env, llm, critic, parameters, torch.optim.Adam(parameters, lr=1e-3)


def train(collector, loss_fn, parameters, optimizer):
    before = [parameter.clone() for parameter in parameters]
    for data in collector:
        loss = loss_fn(data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.isfinite(loss.total_loss) and loss.loss_critic > 0
        yield data
    assert all(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True))


def test_the_calls_of_the_readme_run():
    env, llm, critic, parameters, optimizer = readme(turns=1)
    loss_fn = GRPOLoss(llm, critic, gamma=0.99)
    collector = LLMCollector(env, llm, frames_per_batch=4, total_frames=8)
    batches = list(train(collector, loss_fn, parameters, optimizer))
    assert [tuple(data.shape) for data in batches] == [(1, 4), (1, 4)]


def test_whole_dialogs_of_two_turns_train_a_policy_and_its_critic():
    env, llm, critic, parameters, optimizer = readme(turns=2)
    loss_fn = GRPOLoss(llm, critic, gamma=0.99)
    collector = LLMCollector(env, llm, frames_per_batch=4, total_frames=8, yield_completed_trajectories=True)
    for data in train(collector, loss_fn, parameters, optimizer):
        assert data["next", "done"].flatten().tolist() == [False, True, False, True]


class Rewarding(Transform):
    """Pays one for every turn."""

    def _step(self, tensordict, next_tensordict):
        return next_tensordict.set("reward", torch.ones(*tensordict.batch_size, 1))


# ------------------------------------------------------------------------------------------------------------- tokens
def two_turns(kind=Recorded):
    env = DatasetChatEnv(
        dataset=["2+2?", "the other, longer question"],
        shuffle=False,
        num_envs=2,
        repeats=2,
        group_repeats=True,
        max_steps=2,
        tokenizer=TOKENIZER,
    )
    env.append_transform(Tool()).append_transform(Rewarding())
    acting = policy(kind)
    collector = LLMCollector(env, acting, dialog_turns_per_batch=8, yield_completed_trajectories=True)
    torch.manual_seed(0)
    return collector.next(), acting


def test_the_tokens_of_two_turns_are_those_that_the_model_saw():
    batch, acting = two_turns()
    first, second = acting.seen
    assert len(batch) == 8
    for chat in range(4):
        one, two = batch[2 * chat], batch[2 * chat + 1]
        for row, (prompt, completion) in ((one, first[chat]), (two, second[chat])):
            assert row["tokens", "prompt"].tolist() == prompt.tolist()
            assert row["tokens", "full"].tolist() == prompt.tolist() + completion.tokens.tolist()
        begun, size = one["tokens", "full"].tolist(), len(one["tokens", "full"])
        assert two["tokens", "full"].tolist()[:size] == begun  # the second prompt goes on from the very first tokens
        between = TOKENIZER.decode(two["tokens", "prompt"][size:].tolist())
        assert "<|im_start|>tool\nyou said" in between and between.endswith("<|im_start|>assistant\n")


def test_every_token_of_the_policy_is_marked_and_no_other():
    batch, acting = two_turns()
    first, second = acting.seen
    for chat in range(4):
        two = batch[2 * chat + 1]
        mask, log_probs = two["masks", "all_assistant_mask"], two["log_probs", "full"]
        said = [*first[chat][1].tokens.tolist(), *second[chat][1].tokens.tolist()]
        assert two["tokens", "full"][mask].tolist() == said
        drawn = torch.cat([first[chat][1].log_probs, second[chat][1].log_probs])
        torch.testing.assert_close(log_probs[mask], drawn)
        assert (log_probs[~mask] == 0).all()


def test_only_the_policys_tokens_are_trained_and_each_of_them_once():
    batch, acting = two_turns()
    advantage = torch.arange(1.0, 9.0).unsqueeze(-1)
    actor = Scores()
    loss = GRPOLoss(actor)
    loss(batch.set("advantage", advantage)).backward()
    sampled = [completion for turn in zip(*acting.seen, strict=True) for _, completion in turn]
    for row, (gradient, completion) in enumerate(zip(actor.leaf.grad, sampled, strict=True)):
        size, said = len(batch[row]["tokens", "prompt"]), len(completion.tokens)
        trained = gradient.nonzero().flatten().tolist()
        assert trained == list(range(size, size + said))
    assert int(loss.count_items(batch)) == sum(len(completion.tokens) for completion in sampled)


# ------------------------------------------------------------------------------------------------------------- ratios
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("mode", ["history", "text", "tokens"])
def test_a_fresh_batch_has_ratio_one_through_the_whole_pipeline(mode, temperature):
    env = registry.envs.make(
        "chat:letters", tokenizer=TOKENIZER, num_envs=3, repeats=4, input_mode=mode, reward=[letter_reward], seed=0
    )
    acting = policy(mode=mode, temperature=temperature)
    buffer = registry.buffers.get("tensordict_replay")(
        storage=registry.storages.get("list")(24),
        sampler=registry.samplers.get("without_replacement")(),
        transform=MCAdvantage(4),
        batch_size=24,
    )
    collector = LLMCollector(env, acting, dialog_turns_per_batch=12, yield_completed_trajectories=True)
    torch.manual_seed(1)
    buffer.extend(collector.next())
    buffer.extend(collector.next())
    losses = GRPOLoss(acting)(buffer.sample())
    for name in ("mean_ratio", "max_ratio", "ESS"):
        assert losses[name].item() == pytest.approx(1.0, abs=1e-4), name
    assert losses["clip_fraction"] == 0 and abs(losses["kl_approx"].item()) < 1e-5
    losses.backward()
    assert sum(p.grad.abs().sum() for p in acting.model.parameters()) > 0
    with torch.no_grad():
        for parameter in acting.model.parameters():
            parameter.mul_(1.05)
    assert GRPOLoss(acting)(buffer.sample())["ESS"] < 0.9999


# -------------------------------------------------------------------------------------------------------- rough edges
def said_ids(ids, **env_options):
    """A batch in which every chat's policy said fixed ids."""
    env = registry.envs.make(
        "chat:letters", tokenizer=TOKENIZER, num_envs=2, repeats=2, input_mode="text", seed=0, **env_options
    )
    acting = policy(Fixed, mode="text")
    acting.__dict__["said"] = ids
    collector = LLMCollector(env, acting, dialog_turns_per_batch=4, yield_completed_trajectories=True)
    return MCAdvantage(2)(collector.next()), acting


def test_a_batch_in_which_every_answer_was_cut_is_trained_or_left_out_as_told():
    batch, acting = said_ids([TOKENIZER.encode("abcdef", add_special_tokens=False)] * 4, reward=[length_reward])
    assert batch["next", "reward"].flatten().tolist() == [6.0] * 4  # of a dead group, too
    batch.set("advantage", torch.ones(4, 1)).set("cut_answer", torch.ones(4, 1, dtype=torch.bool))
    trained = GRPOLoss(acting)(batch)
    assert trained.total_loss.isfinite() and trained.total_loss != 0
    left_out = GRPOLoss(acting, ignore_cut_answers=True)(batch)
    left_out.backward()
    assert left_out.total_loss == 0 and left_out["cut_answers"] == 1
    assert all(p.grad is None or (p.grad == 0).all() for p in acting.model.parameters())


def test_an_empty_completion_is_worth_its_reward_and_trains_nothing():
    letters = TOKENIZER.encode("abc", add_special_tokens=False)
    batch, acting = said_ids([[], [*letters, EOS], [EOS], []], reward=[length_reward])
    assert batch["next", "reward"].flatten().tolist() == [0.0, 3.0, 0.0, 0.0]
    assert [len(row["tokens", "response"]) for row in batch.unbind(0)] == [0, 4, 1, 0]
    losses = GRPOLoss(acting)(batch)
    losses.backward()
    assert losses.total_loss.isfinite() and losses["answer_length"] == 2.5  # of answers that have tokens
    assert all(p.grad is None or p.grad.isfinite().all() for p in acting.model.parameters())


def test_a_batch_of_empty_completions_has_no_loss_and_no_nan():
    batch, acting = said_ids([[], [], [], []], reward=[length_reward])
    losses = GRPOLoss(acting)(batch)
    assert losses.total_loss == 0 and all(torch.isfinite(value).all() for value in losses.values())


# ----------------------------------------------------------------------------------------------------------- learning
def test_a_few_updates_raise_the_reward():
    torch.manual_seed(0)
    letters = "abcd"
    tokenizer = char_tokenizer(letters)
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
        "{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
    )
    tokenizer.chat_template = template
    model = tiny_llama(tokenizer, hidden=32, layers=1, initializer_range=0.1)
    env = registry.envs.make(
        "chat:letters",
        dataset=[{"query": letter, "answer": letter} for letter in letters],
        tokenizer=tokenizer,
        num_envs=8,
        repeats=8,
        input_mode="text",
        seed=0,
    )
    acting = TransformersWrapper(model, tokenizer=tokenizer, input_mode="text", generate_kwargs={"max_new_tokens": 4})
    loss, advantage = GRPOLoss(acting, clip_epsilon=(0.2, 0.28)), MCAdvantage(8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rewards = []
    for batch in LLMCollector(
        env, acting, dialog_turns_per_batch=64, total_dialog_turns=64 * 15, yield_completed_trajectories=True
    ):
        rewards.append(batch["next", "reward"].mean().item())
        batch = advantage(batch)
        for _ in range(2):
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
    assert rewards[0] < 0.35  # one letter of four, or the end of the text
    assert sum(rewards[-3:]) / 3 > 0.8


def test_a_batch_can_be_scored_by_a_reference():
    env = registry.envs.make("chat:letters", tokenizer=TOKENIZER, num_envs=2, repeats=2, input_mode="text", seed=0)
    acting = policy(mode="text")
    collector = LLMCollector(env, acting, dialog_turns_per_batch=4, yield_completed_trajectories=True)
    batch = MCAdvantage(2)(collector.next())
    reference = acting.get_new_version(input_mode="tokens", generate=False, log_probs_key="ref_log_probs")
    with torch.no_grad():
        batch = reference(batch)
    losses = GRPOLoss(acting, kl_to_ref_coeff=0.1)(batch)
    assert losses["kl_to_ref"].item() == pytest.approx(0.0, abs=1e-6)


def test_rows_of_a_batch_are_plain_tensordicts():
    batch, _ = said_ids([[EOS]] * 4)
    assert isinstance(batch[0], TensorDict) and batch[0].batch_size == ()
