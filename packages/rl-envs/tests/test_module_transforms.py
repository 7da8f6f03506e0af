"""Modules, hashes, tokens, noise, burnt-in states, ages and layouts of stored data, beliefs, novelty, records."""

import hashlib

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import Bounded, Compose, Composite, NonTensor, TransformedEnv, Unbounded, check_env_specs, recurrent_mode
from rl_core.errors import EnvError, KeyMissingError, ReplayBufferError, SpecError
from rl_core.testing import CountingEnv, GroupCountingEnv, TransformKit, overrides_check
from rl_envs import (
    BurnInTransform,
    FlattenTensorDict,
    Hash,
    MeanActionSelector,
    ModuleTransform,
    PinMemoryTransform,
    PolicyAgeFilter,
    RNDTransform,
    TensorDictRecorder,
    Tokenizer,
    UnaryTransform,
    gSDENoise,
)


class OurKit(TransformKit):
    distribution = "rl-envs"


def double():
    linear = nn.Linear(1, 1, bias=False)
    nn.init.constant_(linear.weight, 2.0)
    return linear


def encoder(in_key="observation", out_key="twice"):
    return TensorDictModule(double(), in_keys=[in_key], out_keys=[out_key])


class TestModuleKit(OurKit):
    offline = True

    def make_transform(self):
        return ModuleTransform(module=encoder(), no_grad=True)


class TestHashKit(OurKit):
    offline = True

    def make_transform(self):
        return Hash(["observation"], ["id"])


class TestRNDKit(OurKit):
    statistics = ("obs_moments", "reward_moments")

    def make_transform(self):
        torch.manual_seed(0)
        return RNDTransform(nn.Linear(1, 4), nn.Linear(1, 4))

    @overrides_check(reason="statistics are those of all rows, which have seen more by then; the plain one is checked")
    def test_a_reset_of_one_row_leaves_the_others_alone(self):
        assert TestPlainRNDKit


class TestPlainRNDKit(OurKit):
    offline = True

    def make_transform(self):
        torch.manual_seed(0)
        return RNDTransform(nn.Linear(1, 4), nn.Linear(1, 4), normalize_obs=False, normalize_reward=False)


class TestMeanActionKit(OurKit):
    offline = True

    def make_transform(self):
        return MeanActionSelector()

    @overrides_check(
        reason="a group takes the place of an entry, and there is nothing that a second batch goes on from"
    )
    def test_a_second_batch_of_stored_steps_goes_on_from_the_first(self):
        assert not self.make_transform().state_dict()


# -------------------------------------------------------------------- ModuleTransform
@pytest.mark.parametrize("batch", [[], [2]])
def test_a_module_runs_at_the_root_and_under_next_and_declares_what_it_writes(batch):
    env = TransformedEnv(CountingEnv(length=9, batch_size=batch), ModuleTransform(module=encoder()))
    assert env.observation_spec["twice"].shape == (*batch, 1)
    data = env.rollout(3).reshape(-1, 3)[0]
    assert data["twice"].flatten().tolist() == [0, 2, 4] and data["next", "twice"].flatten().tolist() == [2, 4, 6]
    assert data["next", "twice"].requires_grad
    frozen = TransformedEnv(CountingEnv(), ModuleTransform(module_factory=encoder, no_grad=True)).rollout(2)
    assert not frozen["next", "twice"].requires_grad


def test_a_module_may_write_a_reward_from_rewards_alone():
    module = TensorDictModule(lambda reward: reward * 3, in_keys=["reward"], out_keys=["reward"])
    env = TransformedEnv(CountingEnv(length=9), ModuleTransform(module=module))
    assert env.rollout(3)["next", "reward"].flatten().tolist() == [3, 6, 9]
    check_env_specs(env)


def test_a_module_may_act_on_the_way_in():
    module = TensorDictModule(lambda latent: latent.sum(-1, keepdim=True), in_keys=["latent"], out_keys=["action"])
    latent = Composite(latent=Bounded(-0.5, 0.5, (2,)))
    env = TransformedEnv(
        CountingEnv(), ModuleTransform(module=module, inverse=True, action_spec_transform=lambda spec: latent)
    )
    assert env.action_keys == ["latent"]
    check_env_specs(env)
    inward = env.transform.inv(TensorDict(latent=torch.tensor([0.25, 0.5])))
    assert inward["action"].item() == 0.75


def test_specs_may_be_declared():
    declared = Composite(observation=Unbounded((1,)), twice=Bounded(0, 99, (1,)))
    env = TransformedEnv(CountingEnv(), ModuleTransform(module=encoder(), observation_spec_transform=declared))
    assert env.observation_spec["twice"].high.item() == 99
    leaf = ModuleTransform(module=encoder(), observation_spec_transform=lambda spec: Bounded(0, 9, (1,)))
    assert TransformedEnv(CountingEnv(), leaf).observation_spec["twice"].high.item() == 9


def test_modules_run_on_groups_and_on_stored_data():
    module = encoder(("agents", "observation"), ("agents", "twice"))
    env = TransformedEnv(GroupCountingEnv([1, 3]), ModuleTransform(module=module, no_grad=True))
    check_env_specs(env)
    stored = ModuleTransform(module=encoder(), no_grad=True)(CountingEnv(length=9).rollout(3))
    assert stored["next", "twice"].flatten().tolist() == [2, 4, 6]


def test_what_a_module_lacks_is_named():
    with pytest.raises(KeyMissingError, match=r"ModuleTransform needs 'pixels', which its TensorDictModule reads"):
        TransformedEnv(CountingEnv(), ModuleTransform(module=encoder("pixels"))).rollout(1)
    with pytest.raises(ValueError, match="one of them"):
        ModuleTransform()
    with pytest.raises(ValueError, match="one of them"):
        ModuleTransform(module=encoder(), module_factory=encoder)


# -------------------------------------------------------------------- Hash
def test_the_hash_of_a_text_is_its_sha256():
    hashed = Hash(["text"], ["id"])(TensorDict(text=["a", "b"], batch_size=[2]))["id"]
    assert hashed.shape == (2, 32) and bytes(hashed[1].tolist()) == hashlib.sha256(b"b").digest()


def test_equal_rows_have_equal_hashes_and_a_seed_changes_them():
    data = TensorDict(x=torch.tensor([[1.0], [2.0], [1.0]]), batch_size=[3])
    plain, seeded = Hash(["x"], ["id"])(data.clone())["id"], Hash(["x"], ["id"], seed=3)(data.clone())["id"]
    assert torch.equal(plain[0], plain[2]) and not torch.equal(plain[0], plain[1])
    assert not torch.equal(plain[0], seeded[0])
    own = Hash(["x"], ["id"], hash_fn=lambda x: x.long())(data.clone())
    assert own["id"].flatten().tolist() == [1, 2, 1]


def test_a_hash_is_inverted_by_the_repertoire():
    repertoire = {}
    both = Hash(["text"], ["id"], ["move"], ["move_id"], repertoire=repertoire)
    hashed = both(TensorDict(text="e4"))["id"]
    assert both.inv(TensorDict(move_id=hashed))["move"] == "e4" and list(repertoire.values()) == ["e4"]
    with pytest.raises(KeyMissingError, match="never saw"):
        both.get_input_from_hash(hashed + 1)
    with pytest.raises(KeyMissingError, match="repertoire=\\{\\}"):
        Hash(["text"], ["id"]).get_input_from_hash(hashed)


class Texts(CountingEnv):
    """Observes a text, "x" repeated as often as there were steps."""

    def __init__(self, batch_size=()):
        super().__init__(length=9, batch_size=batch_size)
        self.observation_spec = Composite(
            text=NonTensor(shape=self.batch_size, example_data="x"), shape=self.batch_size
        )

    def _text(self, td):
        texts = ["x" * (int(n) + 1 + i) for i, n in enumerate(self.count.flatten())]
        td = td.exclude("observation")
        return td.set("text", texts) if self.batch_size else td.set_non_tensor("text", texts[0])

    def _reset(self, tensordict=None, **kwargs):
        return self._text(super()._reset(tensordict))

    def _step(self, tensordict):
        return self._text(super()._step(tensordict))


@pytest.mark.parametrize("batch", [[], [2]])
def test_texts_of_an_environment_are_hashed_and_mapped(batch):
    env = TransformedEnv(
        Texts(batch),
        Compose(Hash(["text"], ["id"]), UnaryTransform(["text"], ["size"], fn=lambda text: torch.tensor([len(text)]))),
    )
    check_env_specs(env)
    data = env.rollout(3)
    assert data["id"].shape == (*batch, 3, 32) and data["size"].reshape(-1, 3)[0].tolist() == [1, 2, 3]


# -------------------------------------------------------------------- Tokenizer
class Letters:
    """A token for each letter, 1 for "a"; 0 pads, 27 ends."""

    pad_token_id = 0
    added = ()

    def encode(self, text, add_special_tokens=False):
        return [ord(letter) - 96 for letter in text] + ([27] if add_special_tokens else [])

    def decode(self, tokens, skip_special_tokens=True):
        return "".join(
            "_$"[n == 27] if n in (0, 27) else chr(n + 96) for n in tokens if not (skip_special_tokens and n in (0, 27))
        )

    def add_tokens(self, tokens):
        self.added = tuple(tokens)


def test_a_single_text_has_a_mask_of_its_own_length():
    td = Tokenizer(["text"], ["tokens"], tokenizer=Letters())(TensorDict(text="abc"))
    assert td["tokens"].tolist() == [1, 2, 3] and td["attention_mask"].tolist() == [True] * 3
    td = Tokenizer(["text"], ["tokens"], tokenizer=Letters(), max_length=5)(TensorDict(text="abc"))
    assert td["tokens"].tolist() == [1, 2, 3, 0, 0] and td["attention_mask"].tolist() == [True] * 3 + [False] * 2


def test_texts_of_a_batch_are_padded_cut_and_ended():
    batch = TensorDict(text=["ab", "abcd"], batch_size=[2])
    td = Tokenizer(["text"], [("llm", "tokens")], tokenizer=Letters())(batch.clone())
    assert td["llm", "tokens"].tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert td["llm", "attention_mask"].tolist() == [[True, True, False, False], [True] * 4]
    td = Tokenizer(["text"], ["tokens"], tokenizer=Letters(), max_length=3, add_special_tokens=True)(batch.clone())
    assert td["tokens"].tolist() == [[1, 2, 27], [1, 2, 3]]
    with pytest.raises(SpecError, match="pad them"):
        Tokenizer(["text"], ["tokens"], tokenizer=Letters(), padding=False)(batch.clone())
    assert "attention_mask" not in Tokenizer(["text"], ["t"], tokenizer=Letters(), return_attention_mask=False)(batch)


def test_tokens_of_the_policy_become_text():
    tokens = TensorDict(answer=torch.tensor([[8, 9, 27], [1, 0, 0]]), batch_size=[2])
    back = Tokenizer(in_keys_inv=["text"], out_keys_inv=["answer"], tokenizer=Letters())
    assert back.inv(tokens)["text"] == ["hi", "a"]
    kept = Tokenizer(in_keys_inv=["text"], out_keys_inv=["answer"], tokenizer=Letters(), skip_special_tokens=False)
    assert kept.inv(tokens)["text"] == ["hi$", "a__"]


@pytest.mark.parametrize("batch", [[], [2]])
def test_texts_of_an_environment_are_tokenised(batch):
    env = TransformedEnv(Texts(batch), Tokenizer(["text"], ["tokens"], tokenizer=Letters(), max_length=6))
    check_env_specs(env)
    data = env.rollout(2)
    assert data["next", "tokens"].shape == (*batch, 2, 6)
    assert data["next", "attention_mask"].sum(-1).reshape(-1, 2)[0].tolist() == [2, 3]


def test_faulty_tokenizers_are_refused():
    with pytest.raises(ValueError, match="from_pretrained"):
        Tokenizer(["text"], ["tokens"], tokenizer="gpt2")
    letters = Letters()
    Tokenizer(["text"], ["tokens"], tokenizer=letters, additional_tokens=["<tool>"])
    assert letters.added == ("<tool>",)
    with pytest.raises(KeyMissingError, match="Tokenizer needs 'text'"):
        Tokenizer(["text"], ["tokens"], tokenizer=letters, missing_tolerance=False)._call(TensorDict(other="x"))


# -------------------------------------------------------------------- gSDENoise
def test_the_noise_stays_for_an_episode_and_is_drawn_anew_after_it():
    torch.manual_seed(0)
    env = TransformedEnv(CountingEnv(length=2, batch_size=[3]), gSDENoise(state_dim=4, action_dim=1))
    check_env_specs(env)
    noise = env.rollout(4, break_when_any_done=False)["_eps_gSDE"]
    assert noise.shape == (3, 4, 1, 4) and torch.equal(noise[:, 0], noise[:, 1])
    assert not torch.equal(noise[:, 1], noise[:, 2]) and not torch.equal(noise[0], noise[1])
    many = TransformedEnv(CountingEnv(), gSDENoise(shape=(100, 100))).reset()["_eps_gSDE"]
    assert abs(many.mean().item()) < 0.05 and abs(many.std().item() - 1) < 0.05
    with pytest.raises(ValueError, match="needs both"):
        gSDENoise(state_dim=3)


# -------------------------------------------------------------------- BurnInTransform
class Adder(nn.Module):
    """h' = h + x along the sequence, anew where an episode begins; reads sequences only in recurrent mode."""

    def forward(self, x, h, is_init):
        assert recurrent_mode() is True
        state, states = h[:, 0], []
        for t in range(x.shape[1]):
            state = torch.where(is_init[:, t], 0.0, state) + x[:, t]
            states.append(state)
        return states[-1].unsqueeze(1).expand_as(x) * 0, torch.stack(states, 1)


def adder():
    return TensorDictModule(Adder(), in_keys=["x", "h", "is_init"], out_keys=["out", ("next", "h")])


def sequences():
    x = torch.arange(1.0, 6.0).expand(2, 5).unsqueeze(-1)
    init = torch.zeros(2, 5, 1, dtype=torch.bool)
    init[1, 1] = True
    data = TensorDict(x=x, h=torch.full((2, 5, 1), 10.0), is_init=init, batch_size=[2, 5], names=[None, "time"])
    return data


def test_the_state_after_the_first_steps_stands_at_the_next_one():
    data = sequences()
    rest = BurnInTransform([adder()], burn_in=2)(data)
    assert rest.shape == (2, 3) and rest["x"][0].flatten().tolist() == [3, 4, 5]
    assert rest["h"].squeeze(-1).tolist() == [[13, 10, 10], [2, 10, 10]]  # 10 + 1 + 2, and 0 + 2 after the end
    assert not rest["h"].requires_grad and torch.equal(data["h"], torch.full((2, 5, 1), 10.0))
    assert "out" not in rest and BurnInTransform([adder()], burn_in=0)(data) is data


def test_faulty_burn_ins_are_refused():
    with pytest.raises(ValueError, match="burn_in is 5"):
        BurnInTransform([adder()], burn_in=5)(sequences())
    with pytest.raises(KeyMissingError, match="BurnInTransform needs 'x'"):
        BurnInTransform([adder()], burn_in=1)(sequences().exclude("x"))
    with pytest.raises(ValueError, match="found no state"):
        BurnInTransform([encoder()], burn_in=1)
    with pytest.raises(ValueError, match="0 or more"):
        BurnInTransform([adder()], burn_in=-1)


# -------------------------------------------------------------------- stored data
def test_old_rows_are_left_out_on_both_ways():
    data = TensorDict(policy_version=torch.arange(7), batch_size=[7])
    version = [5]
    keep = PolicyAgeFilter(lambda: version[0], 2)
    assert keep.inv(data)["policy_version"].tolist() == keep(data)["policy_version"].tolist() == [3, 4, 5, 6]
    version[0] = 50
    assert keep.inv(data) is None and len(keep(data)) == 0 and len(data) == 7


def test_a_sequence_is_as_old_as_its_oldest_step():
    data = TensorDict(policy_version=torch.tensor([[4, 5], [2, 5]]), batch_size=[2, 2])
    assert PolicyAgeFilter(5, 1)(data)["policy_version"].tolist() == [[4, 5]]


def test_data_without_versions_pass_or_not(caplog):
    data = TensorDict(x=torch.zeros(3), batch_size=[3])
    assert PolicyAgeFilter(5, 2).inv(data) is data and "track_policy_version" in caplog.text
    with pytest.raises(KeyMissingError, match="PolicyAgeFilter needs 'policy_version'"):
        PolicyAgeFilter(5, 2, strict=True).inv(data)
    with pytest.raises(ValueError, match="0 or more"):
        PolicyAgeFilter(5, -1)


def test_batch_dimensions_are_merged():
    data = TensorDict(x=torch.arange(6).reshape(2, 3), batch_size=[2, 3])
    assert FlattenTensorDict().inv(data)["x"].tolist() == [0, 1, 2, 3, 4, 5] and FlattenTensorDict()(data) is data
    assert FlattenTensorDict(inverse=False)(data).shape == (6,) and FlattenTensorDict(inverse=False).inv(data) is data


def test_pinned_memory_needs_a_device_that_reads_it(monkeypatch):
    data = TensorDict(x=torch.zeros(2), batch_size=[2])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ReplayBufferError, match="CUDA"):
        PinMemoryTransform()(data)


# -------------------------------------------------------------------- MeanActionSelector
def test_a_point_is_a_belief_without_spread_and_its_mean_acts():
    class Two(CountingEnv):
        seen = None

        def _step(self, tensordict):
            self.seen = tensordict["action"]
            return super()._step(tensordict)

    env = TransformedEnv(Two(length=9, batch_size=[2]), MeanActionSelector())
    check_env_specs(env)
    td = env.reset()
    assert td["observation", "mean"].shape == (2, 1) and td["observation", "var"].tolist() == [[[0.0]]] * 2
    belief = TensorDict(mean=torch.full((2, 1), 0.5), var=torch.ones(2, 1, 1), batch_size=[2])
    td = env.step(td.set("action", belief))
    assert env.base.seen.flatten().tolist() == [0.5, 0.5] and td["next", "observation", "mean"].flatten().tolist() == [
        1,
        1,
    ]
    with pytest.raises(KeyMissingError, match="'mean'"):
        env.transform.inv(TensorDict(action=TensorDict(loc=torch.ones(1))))
    with pytest.raises(KeyMissingError, match="needs the observation 'state'"):
        _ = TransformedEnv(CountingEnv(), MeanActionSelector("state")).observation_spec


# -------------------------------------------------------------------- RNDTransform
def linear(weight):
    layer = nn.Linear(1, 2, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def test_novelty_is_the_squared_distance_of_the_two_networks():
    rnd = RNDTransform(linear(1.0), linear(3.0), normalize_obs=False, normalize_reward=False)
    env = TransformedEnv(CountingEnv(length=9, batch_size=[2]), rnd)
    check_env_specs(env)
    data = env.rollout(3)  # 2 * (3 x - x)^2 for x = 1, 2, 3
    assert data["next", "intrinsic_reward"][0].flatten().tolist() == [8, 32, 72]
    assert data["next", "reward"][0].flatten().tolist() == [1, 2, 3] and "intrinsic_reward" not in data
    stored = rnd.clone()(CountingEnv(length=9).rollout(3))
    assert stored["next", "intrinsic_reward"].flatten().tolist() == [8, 32, 72]


def test_statistics_are_those_of_all_observations_so_far():
    rnd = RNDTransform(linear(1.0), linear(3.0))
    batches = [torch.tensor([[1.0], [2.0]]), torch.tensor([[4.0]]), torch.tensor([[9.0], [0.0], [3.0]])]
    for x in batches:
        rnd(TensorDict({("next", "observation"): x}, batch_size=[len(x)]))
    every = torch.cat(batches)
    count, mean, squares = rnd.obs_moments.flatten().tolist()
    assert count == 6 and mean == pytest.approx(every.mean().item())
    assert squares / count == pytest.approx(every.var(unbiased=False).item(), rel=1e-5)
    wanted = ((every - every.mean()) / every.std(unbiased=False)).clamp(-5, 5)
    assert torch.allclose(rnd.predictor_error(every), 2 * (2 * wanted) ** 2, rtol=1e-4, atol=1e-5)


def test_rewards_have_unit_spread_and_a_bound():
    torch.manual_seed(0)
    rnd = RNDTransform(linear(1.0), linear(3.0), normalize_obs=False, reward_clip=2.0)
    x = torch.randn(4000, 1)
    bonus = rnd(TensorDict({("next", "observation"): x}, batch_size=[4000]))["next", "intrinsic_reward"]
    raw = 8 * x**2
    assert torch.allclose(bonus, (raw / raw.std(unbiased=False)).clamp(-2, 2), rtol=1e-3)


def test_the_predictor_learns_and_the_target_does_not():
    rnd = RNDTransform(linear(1.0), linear(3.0), normalize_obs=False)
    rnd.predictor_error(torch.ones(4, 1)).mean().backward()
    assert rnd.predictor_network.weight.grad is not None and not rnd.target_network.weight.requires_grad
    assert not rnd._bonus(torch.ones(4, 1), 1).requires_grad


def test_evaluation_moves_no_statistics_and_saved_ones_are_taken_back():
    rnd = RNDTransform(linear(1.0), linear(3.0))
    data = TensorDict({("next", "observation"): torch.randn(5, 1)}, batch_size=[5])
    rnd(data.clone())
    rnd.eval()
    before = rnd.obs_moments.clone(), rnd.reward_moments.clone()
    rnd(data.clone())
    assert torch.equal(rnd.obs_moments, before[0]) and torch.equal(rnd.reward_moments, before[1])
    other = RNDTransform(linear(0.0), linear(0.0))
    other.load_state_dict(rnd.state_dict())
    assert torch.equal(other.obs_moments, before[0]) and torch.equal(
        other.predictor_network.weight, rnd.predictor_network.weight
    )
    with pytest.raises(ValueError, match="one observation"):
        RNDTransform(linear(1.0), linear(1.0), in_keys=["a", "b"], out_keys=["c", "d"])


# -------------------------------------------------------------------- TensorDictRecorder
def test_recorded_steps_are_read_back(tmp_path):
    env = TransformedEnv(CountingEnv(length=99, batch_size=[2]), TensorDictRecorder(tmp_path / "run", skip=2))
    check_env_specs(env)
    env.transform._kept.clear()
    env.transform.count = 0
    env.rollout(5)
    folder = env.transform.dump()
    read = TensorDict.load_memmap(folder)
    assert folder.name == "run_0" and read.shape == (2, 3)
    assert read["observation"].squeeze(-1).tolist() == [[1, 3, 5]] * 2
    with pytest.raises(EnvError, match="kept nothing"):
        env.transform.dump()


def test_resets_and_chosen_entries_are_recorded_if_asked(tmp_path):
    recorder = TensorDictRecorder(tmp_path / "run", skip_reset=False, skip=1, in_keys=["observation"])
    env = TransformedEnv(CountingEnv(length=99), recorder)
    env.rollout(2)
    read = TensorDict.load_memmap(env.transform.dump("last"))
    assert read["observation"].flatten().tolist() == [0, 1, 2] and set(read.keys()) == {"observation"}
    with pytest.raises(KeyMissingError, match="TensorDictRecorder needs 'pixels'"):
        TransformedEnv(CountingEnv(), TensorDictRecorder(tmp_path / "x", in_keys=["pixels"])).rollout(1)
