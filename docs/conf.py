"""Settings of the documentation; ``make docs`` builds it with warnings as errors, offline."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("TQDM_DISABLE", "1")

from docutils import nodes  # noqa: E402
from docutils.utils.math import MathError  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402
from sphinx.util.math import get_node_equation_number  # noqa: E402

import botorch_transfer  # noqa: E402
from botorch_transfer.arguments import ConstructedFromDatasets  # noqa: E402

project = "botorch_transfer"
author = "The botorch_transfer developers"
copyright = author
version = release = botorch_transfer.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",
]
exclude_patterns = ["_build"]

# Notebooks are shown with the outputs they were saved with; tests run them. Sphinx reads only what
# lies below this folder, so they are copied here, see `links_of_the_site`.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, Any] = {}  # no scripts from the network: no widget is shown
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
COPIES = HERE / "tutorials"
shutil.rmtree(COPIES, ignore_errors=True)
COPIES.mkdir()
for notebook in sorted((HERE.parent / "tutorials").glob("*.ipynb")):
    shutil.copy(notebook, COPIES)

# ``__new__`` of the models takes any arguments; without it, the ones of ``__init__`` are shown.
del ConstructedFromDatasets.__new__
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
add_module_names = False
maximum_signature_line_length = 72
# Named in signatures instead of spelt out; the reference describes each one.
autodoc_type_aliases = {
    name: name for name in ("SourceData", "PriorOrData", "HyperpriorOrData", "History", "Space")
}

# Every reference within this package must lead to something that exists, be it documented or not;
# other projects are not asked for theirs, so that the site builds without a network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!botorch_transfer|~?\.).*")]


def leave_as_text(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Shows names of this package that exist, but are not in the reference, without a link."""
    module, _, name = node.get("reftarget", "").rpartition(".")
    if not module.startswith("botorch_transfer"):
        return None
    try:
        found = hasattr(importlib.import_module(module), name)
    except ImportError:
        return None
    return content if found else None


# Equations become MathML when the site is built: every browser shows it by itself, without scripts
# or a network. docutils knows a part of LaTeX; the rest stops the build with a message.
def _mathml(node: nodes.Element, **options: Any) -> str:
    try:
        return tex2mathml(node.astext(), **options)
    except MathError as error:
        raise ValueError(
            f"docutils cannot render the equation {node.astext()!r}: {error}"
        ) from error


def visit_inline_math(writer: Any, node: nodes.Element) -> None:
    """Writes an equation within a line."""
    writer.body.append(_mathml(node))
    raise nodes.SkipNode


def visit_displayed_math(writer: Any, node: nodes.Element) -> None:
    """Writes an equation that has lines of its own, with its number if it has one."""
    writer.body.append(writer.starttag(node, "div", CLASS="math notranslate"))
    if node["number"]:
        number = get_node_equation_number(writer, node)
        writer.body.append(f'<span class="eqno">({number})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append(_mathml(node, as_block=True) + "</div>\n")
    raise nodes.SkipNode


def short_types(*event: Any) -> tuple[str | None, str | None]:
    """Writes aliases within other types as their names, and leaves a private type out."""
    signature, returns = event[-2:]
    pattern = re.compile(r"TypeAliasForwardRef\('(\w+)'\)| \| ~?[\w.]*_DefaultType")
    return tuple(text and pattern.sub(r"\1", text) for text in (signature, returns))  # type: ignore


def links_of_the_site(app: Any, name: str, source: list[str]) -> None:
    """Changes links between this folder and ``tutorials`` to links within this folder."""
    source[0] = (
        source[0].replace("](../docs/", "](../").replace("](../../tutorials/", "](../tutorials/")
    )


def setup(app: Any) -> None:
    """Registers what this file adds to Sphinx."""
    app.connect("source-read", links_of_the_site)
    app.connect("missing-reference", leave_as_text)
    app.connect("autodoc-process-signature", short_types)
    app.add_html_math_renderer("mathml", (visit_inline_math, None), (visit_displayed_math, None))


html_math_renderer = "mathml"
html_theme = "furo"
pygments_dark_style = "a11y-high-contrast-dark"  # Furo's underlines imports, as if they were links
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"botorch_transfer {release}"
html_show_sourcelink = False
