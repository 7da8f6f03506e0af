"""The "Unreleased" section of a CHANGELOG.md: read, dated under its version, and opened anew."""

from __future__ import annotations

import re

__all__ = ["has_version", "release_section", "reopened", "unreleased"]

_HEADING = "## Unreleased"
_SECTION = re.compile(rf"^{_HEADING}[ \t]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def unreleased(text: str) -> str | None:
    """What stands under "Unreleased", stripped; None where there is no such section."""
    found = _SECTION.search(text)
    return None if found is None else found.group(1).strip()


def has_version(text: str, version: str) -> bool:
    """Whether a version has a section already."""
    return re.search(rf"^## {re.escape(version)}(?![\w.])", text, re.MULTILINE) is not None


def release_section(text: str, version: str, date: str) -> str:
    """The text with "Unreleased" renamed to "VERSION - DATE"."""
    return re.sub(rf"^{_HEADING}[ \t]*$", f"## {version} - {date}", text, count=1, flags=re.MULTILINE)


def reopened(text: str) -> str:
    """The text with a new, empty "Unreleased" section above the others."""
    before, heading, after = text.partition("\n## ")
    return f"{before.rstrip()}\n\n{_HEADING}\n{heading}{after}" if heading else f"{text.rstrip()}\n\n{_HEADING}\n"
