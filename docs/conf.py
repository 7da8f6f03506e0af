"""Sphinx settings; the API pages are made from the packages' stubs and metadata by ``_ext``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_ext"))

from api_pages import write_pages  # noqa: E402

project = "rl-suite"
author = "The rl-suite authors"
project_copyright = "2026, The rl-suite authors"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "plain_docstrings",
]

# Written before Sphinx looks for sources, so that autosummary finds them.
write_pages(HERE.parent / "packages", HERE / "api" / "generated")

templates_path = ["_templates"]
exclude_patterns = ["_build"]
suppress_warnings = ["autosummary.import_cycle"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "rl-suite"
html_show_sourcelink = False
html_static_path: list[str] = []
html_theme_options = {
    "show_prev_next": True,
    "navigation_depth": 3,
    "show_toc_level": 2,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
}
