"""The documentation site: `sphinx-build -W docs build/site`, with the extra ``docs`` installed.

The pages are the Markdown files that are also read in the repository. Tutorials are executed, examples of the gallery
are run, and the reference is written from the docstrings (`_ext/reference.py`). Nothing is fetched while the site is
built or read, so there is no link to other projects' inventories, and no formula that needs a script of another server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # pages are executed beside each other (`-j auto`)

import reference

import gigagp

project = "gigagp"
author = "gigagp developers"
project_copyright = author
version = release = gigagp.__version__

# Pages that are made from other files have to be there before Sphinx looks for pages.
reference.write_pages(HERE / "reference")
reference.write_changed(HERE / "changelog.md", (HERE.parent / "CHANGELOG.md").read_text(encoding="utf-8"))

extensions = [
    "myst_nb",
    "numpydoc",
    "reference",
    "repository_pages",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
# Beside the page of an example, sphinx-gallery leaves the same example in other forms, which MyST-NB would read too.
_OTHER_FORMS = [f"examples/*.{suffix}" for suffix in ("ipynb", "json", "md5", "py", "zip")]
exclude_patterns = ["README.md", "_ext", "gallery/*.rst", "gallery/*.py", *_OTHER_FORMS]
templates_path = ["_templates"]
default_role = "py:obj"
nitpicky = False

# Pages and tutorials
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 900
nb_merge_streams = True

# Reference
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_xref_param_type = False

# Gallery
sphinx_gallery_conf = {
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["examples"],
    "copyfile_regex": r"GALLERY_HEADER\.rst",
    "abort_on_example_error": True,
    "parallel": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "within_subsection_order": "FileNameSortKey",
    "write_computation_times": False,  # that page asks other servers for scripts
}

# Looks
html_theme = "pydata_sphinx_theme"
html_title = "gigagp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "footer_start": ["copyright"],
    "footer_end": [],
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
}
html_sidebars = {"changelog": [], "search": []}
