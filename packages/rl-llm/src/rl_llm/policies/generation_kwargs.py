"""Generation settings read from the names that engines use, with conflicts and bad ranges refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_core.errors import PolicyError
from rl_llm.policies.sampling import SamplingDistribution

__all__ = ["GenerationSettings", "read_generation_kwargs"]

ALIASES = {
    "max_tokens": "max_new_tokens",
    "n": "num_return_sequences",
    "stop": "stop_strings",
    "stop_sequences": "stop_strings",
}
"""Other names of a setting, and ours."""

RESHAPING = frozenset(
    {
        "bad_words",
        "bad_words_ids",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "frequency_penalty",
        "guidance_scale",
        "logit_bias",
        "min_length",
        "min_new_tokens",
        "min_p",
        "min_tokens",
        "no_repeat_ngram_size",
        "presence_penalty",
        "repetition_penalty",
        "sequence_bias",
        "suppress_tokens",
        "top_h",
        "typical_p",
    }
)
"""Settings of engines that change the distribution in a way that scoring does not repeat."""


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What to generate: from which distribution, how much, how many times.

    Raises:
        ValueError: a number outside of its range.
    """

    distribution: SamplingDistribution = field(default_factory=SamplingDistribution)
    max_new_tokens: int = 256
    """The most tokens of one completion, the end-of-text token among them."""
    num_samples: int = 1
    """Completions of each prompt."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion; they stay in it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Settings handed to the engine under its own names."""

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "num_samples"):
            value = getattr(self, name)
            if isinstance(value, bool) or int(value) != value or value < 1:
                raise ValueError(f"{name} is a whole number >= 1, got {value!r}")
        if "" in self.stop_strings:
            raise ValueError("an empty text among stop_strings would end every completion at once")
        penalty = self.extra.get("repetition_penalty", 1.0)
        if not penalty > 0:
            raise ValueError(f"repetition_penalty is > 0, 1 being off, got {penalty!r}")

    @property
    def reshaped_by(self) -> list[str]:
        """Settings that make the distribution one that scoring cannot repeat."""
        off = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_p": 0.0}
        return sorted(name for name in RESHAPING & set(self.extra) if self.extra[name] not in (None, off.get(name)))

    def check_scoring(self) -> SamplingDistribution:
        """The distribution, where scoring gives the same log-probabilities as sampling.

        Raises:
            PolicyError: it does not.
        """
        if self.reshaped_by:
            raise PolicyError(
                f"the policy samples with {', '.join(self.reshaped_by)}, which scoring does not repeat, so that ratios "
                "would be wrong before any update: leave it out for training (temperature, top_p and top_k are "
                "repeated), or score with policy.get_new_version(generate_kwargs={...})"
            )
        return self.distribution


def read_generation_kwargs(
    kwargs: Mapping[str, Any] | None = None, num_samples: int | None = None
) -> GenerationSettings:
    """Read generation settings under the names of Transformers or of vLLM.

    Args:
        kwargs: ``max_new_tokens`` (``max_tokens``; 256 by default), ``num_return_sequences`` (``n``), ``temperature``
            (1.0), ``top_p`` (1.0), ``top_k`` (0 or -1: off), ``do_sample``, ``stop_strings`` (``stop``), and others
            that the engine gets as they are.
        num_samples: the same as num_return_sequences.

    Raises:
        PolicyError: two names of one setting; do_sample that contradicts the temperature; beam search.
        ValueError: a number outside of its range.

    >>> settings = read_generation_kwargs({"max_tokens": 8, "n": 4, "top_k": -1, "temperature": 0.5})
    >>> settings.max_new_tokens, settings.num_samples, settings.distribution.top_k
    (8, 4, 0)
    """
    given = _renamed(dict(kwargs or {}))
    if num_samples is not None:
        if given.get("num_return_sequences", num_samples) != num_samples:
            raise PolicyError(
                f"num_samples={num_samples} and num_return_sequences={given['num_return_sequences']} (or n) say "
                "different things: give one of them"
            )
        given["num_return_sequences"] = num_samples
    if given.pop("num_beams", 1) not in (1, None):
        raise PolicyError("beam search draws from no distribution that has log-probabilities: leave num_beams out")
    temperature = _temperature(given)
    distribution = SamplingDistribution(
        temperature=temperature, top_p=_number(given, "top_p", 1.0), top_k=_number(given, "top_k", 0)
    )
    stop = given.pop("stop_strings", None) or ()
    return GenerationSettings(
        distribution=distribution,
        max_new_tokens=_number(given, "max_new_tokens", 256),
        num_samples=_number(given, "num_return_sequences", 1),
        stop_strings=(stop,) if isinstance(stop, str) else tuple(stop),
        extra=given,
    )


def _renamed(kwargs: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in kwargs.items():
        ours = ALIASES.get(name, name)
        if ours in origin:
            raise PolicyError(
                f"generate_kwargs has {origin[ours]}={given[ours]!r} and {name}={value!r}, two names of one setting: "
                f"keep {ours}"
            )
        given[ours], origin[ours] = value, name
    return given


def _number(given: dict[str, Any], name: str, default: Any) -> Any:
    value = given.pop(name, None)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is a number, got {value!r}")
    return value


def _temperature(given: dict[str, Any]) -> float:
    asked = given.get("temperature")
    temperature = float(_number(given, "temperature", 1.0))
    do_sample = given.pop("do_sample", None)
    if do_sample is None:
        return temperature
    if do_sample and temperature == 0:
        raise PolicyError("do_sample=True and temperature=0 contradict each other: a temperature of 0 is greedy")
    if not do_sample and asked not in (None, 0):
        raise PolicyError(
            f"do_sample=False is greedy, but temperature={asked} is given: leave do_sample out to sample, or take "
            "temperature=0"
        )
    return temperature if do_sample else 0.0
