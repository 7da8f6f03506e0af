"""Chat templates: the built-in one, a registry of further ones, and which one a tokenizer gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rl_core.errors import SpecError, UnknownNameError
from rl_llm.data.parsing import parse_chatml
from rl_llm.data.tokenizer_protocol import Tokenizer

__all__ = [
    "CHATML_FORMAT",
    "CHATML_TEMPLATE",
    "add_chat_template",
    "chat_template_names",
    "has_generation_marks",
    "inverse_parser",
    "remove_chat_template",
    "resolve_template",
]

CHATML_FORMAT = "chatml_format"
"""The name of the built-in template."""

CHATML_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{{- '<|im_start|>assistant\\n' -}}"
    "{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}"
    "{{- '\\n' -}}"
    "{%- else -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""ChatML with generation marks around what an assistant says and the token that ends its turn."""

Parser = Callable[[str], list[dict[str, object]]]

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class _Entry:
    template: str
    inverse_parser: Parser | None
    keywords: tuple[str, ...]


_BUILT_IN = _Entry(CHATML_TEMPLATE, parse_chatml, ())
_registered: dict[str, _Entry] = {}


def has_generation_marks(template: str) -> bool:
    """Whether a template says, with ``{% generation %}`` blocks, what an assistant generates."""
    return _MARKS.search(template) is not None


def add_chat_template(
    template_name: str,
    template: str,
    inverse_parser: Parser | None = None,
    model_family_keywords: Sequence[str] | None = None,
) -> None:
    """Make a template known by name in this process.

    Args:
        template_name: the name to use as ``chat_template_name``.
        template: a jinja template with ``{% generation %}`` blocks around what an assistant generates.
        inverse_parser: a function from a rendered text to a list of message dicts.
        model_family_keywords: parts of ``tokenizer.name_or_path`` for which this template is chosen by itself.

    Raises:
        SpecError: the template has no generation block, or the name is taken by another template.
    """
    if not has_generation_marks(template):
        raise SpecError(
            f"the template {template_name!r} has no generation block, so nothing would say which tokens to train: put "
            "{% generation %} ... {% endgeneration %} around what the assistant says, its end-of-turn token included"
        )
    entry = _Entry(template, inverse_parser, tuple(keyword.lower() for keyword in model_family_keywords or ()))
    if template_name == CHATML_FORMAT or _registered.get(template_name, entry).template != template:
        raise SpecError(
            f"the template name {template_name!r} is taken; choose another name, or remove_chat_template first"
        )
    _registered[template_name] = entry


def remove_chat_template(template_name: str) -> None:
    """Forget a template that :func:`add_chat_template` made known.

    Raises:
        UnknownNameError: there is none of that name.
    """
    _entry(template_name)
    _registered.pop(template_name, None)


def chat_template_names() -> list[str]:
    """The names that ``chat_template_name`` admits."""
    return [CHATML_FORMAT, *sorted(_registered)]


def resolve_template(
    tokenizer: Tokenizer | None, chat_template: str | None = None, chat_template_name: str | None = None
) -> str:
    """The template given, else the one named, else the family's, else the tokenizer's own, else the built-in one.

    Raises:
        UnknownNameError: no template of that name.
        SpecError: the tokenizer has several templates and no name was given.
    """
    if chat_template is not None:
        return chat_template
    if chat_template_name is not None:
        return _entry(chat_template_name).template
    family = _family(tokenizer)
    if family is not None:
        return family.template
    own = None if tokenizer is None else tokenizer.chat_template
    if isinstance(own, dict):
        if "default" not in own:
            raise SpecError(
                f"the tokenizer has the templates {sorted(own)} and none named 'default'; pass one as chat_template"
            )
        own = own["default"]
    return CHATML_TEMPLATE if own is None else str(own)


def inverse_parser(chat_template_name: str | None = None, tokenizer: Tokenizer | None = None) -> Parser:
    """The function from a rendered text to messages.

    Raises:
        UnknownNameError: no template of that name.
        SpecError: the template was registered without an inverse.
    """
    family = _family(tokenizer)
    entry = _entry(chat_template_name) if chat_template_name is not None else family or _BUILT_IN
    if entry.inverse_parser is None:
        raise SpecError(
            f"the template {chat_template_name or 'of this family'!r} has no inverse; register one with "
            "add_chat_template(..., inverse_parser=function)"
        )
    return entry.inverse_parser


def _entry(name: str) -> _Entry:
    if name == CHATML_FORMAT:
        return _BUILT_IN
    if name not in _registered:
        raise UnknownNameError(
            f"no chat template is named {name!r}; there are {', '.join(chat_template_names())}. Add one with "
            "add_chat_template(name, template)"
        )
    return _registered[name]


def _family(tokenizer: Tokenizer | None) -> _Entry | None:
    """The registered template whose keyword is in the tokenizer's name; the first registered wins."""
    if tokenizer is None or not _registered:
        return None
    name = str(getattr(tokenizer, "name_or_path", "")).lower()
    for entry in _registered.values():
        if any(keyword in name for keyword in entry.keywords):
            return entry
    return None
