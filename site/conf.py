"""Sphinx's settings. `make site` writes the sources with prepare.py first."""
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from prepare import settings  # noqa: E402

ours = settings()
project, author, copyright = "How sequence models became the Transformer", ours["author"], ours["copyright"]
version = release = ours["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton", "course_site"]
exclude_patterns = ["extra"]

nb_execution_mode = "off"                          # stored outputs are shown
nb_merge_streams = True
nb_number_source_lines = False
myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header", "ref.python"]      # a short name such as Clock may be in two modules

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring, napoleon_google_docstring = True, False
napoleon_custom_sections = ["Shapes"]
python_use_unqualified_type_names = True
add_module_names = False
default_role = "code"

html_theme = "sphinx_book_theme"
html_title = "Sequence models to Transformer"
html_math_renderer = "katex"
html_static_path = [str(HERE / "static"), str(HERE / "katex")]
html_css_files = ["katex.min.css", "course.css"]
html_js_files = [("course.js", {"defer": "defer"})]
html_baseurl = f"{ours['doc_host']}{ours['doc_baseurl']}/"
html_copy_source = html_show_sourcelink = False
html_permalinks_icon = "#"
html_theme_options = {
    "repository_url": ours["git_url"], "use_repository_button": True, "use_download_button": False,
    "use_fullscreen_button": False, "home_page_in_toc": False, "show_toc_level": 2, "show_navbar_depth": 1,
    "max_navbar_depth": 3, "navbar_persistent": [], "toc_title": "On this page",
}
copybutton_exclude = ".linenos, .gp"
