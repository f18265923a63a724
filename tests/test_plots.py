"""Plots: what was drawn, read back from the artists (pixels are not compared), and the paper that pictures bring."""
import base64
import io
import json
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import notebooks
import numpy as np
import pytest
import torch
from PIL import Image

from transformer_course.drawing import plots


@pytest.fixture(autouse=True)
def no_figures_left():
    with matplotlib.rc_context():
        plt.switch_backend("agg")
        yield
        plt.close("all")


def test_importing_changes_no_settings_and_use_style_does():
    code = "from matplotlib import rcParams; before = dict(rcParams); import transformer_course.drawing.plots; assert before == dict(rcParams)"
    subprocess.run([sys.executable, "-c", code], check=True)                 # other tests of this process may have set a style
    assert plt.rcParamsDefault["image.cmap"] != plots.AMOUNTS
    plots.use_style(dpi=90)
    assert plt.rcParams["image.cmap"] == plots.AMOUNTS and plt.rcParams["figure.dpi"] == 90
    assert plt.rcParams["axes.prop_cycle"].by_key()["color"] == list(plots.PALETTE)
    assert len(set(plots.PALETTE)) == 8


def test_heat_map_takes_tensors_and_outlines_gold():
    weights = torch.softmax(torch.randn(3, 5, requires_grad=True), -1)
    ax = plots.heat_map(weights, list("abcde"), list("xyz"), gold=[(4, 0), (1, 2)], values=True, title="t")
    corners = [p.get_xy() for p in ax.patches if p.get_gid() == "gold"]
    assert corners == [(0.5, 1.5), (3.5, -0.5)]
    assert np.allclose(ax.images[0].get_array(), weights.detach()) and ax.images[0].get_clim() == (0, 1)
    assert len(ax.texts) == 15 and ax.texts[0].get_text() == f"{weights[0, 0]:.2f}" and ax.get_title() == "t"
    assert [t.get_text() for t in ax.get_yticklabels()] == ["x", "y", "z"]


def test_heat_map_limits_and_given_axes():
    first, second = plots.grid(2)
    ax = plots.heat_map([[2.0, 5.0]], ["a", "b"], ["x"], ax=second, limits=None)
    assert ax is second and ax.images[0].get_clim() == (2, 5) and not first.images


def test_line_plot_spread_and_scales():
    ax = plots.line_plot([1, 2, 4], {"a": [1, 2, 3], "b": torch.tensor([3.0, 2.0, 1.0])}, "x", "y", log="x",
                         spread={"b": ([2.5, 1.5, 0.5], [4, 3, 2])})
    assert [line.get_ydata().tolist() for line in ax.get_lines()] == [[1, 2, 3], [3, 2, 1]]
    band = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == 0.5 and band.max() == 4 and ax.get_xscale() == "log"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("x", "y")
    assert plots.line_plot([1], {"one": [2]}, "x", "y").get_legend() is None


def test_bars_histogram_and_strip():
    ax = plots.bar_plot(["p", "q"], {"a": [1, 2], "b": [3, 4]}, "y", spread={"b": [0.5, 0.5]}, form="{:.0f}")
    assert [bar.get_height() for bar in ax.patches] == [1, 2, 3, 4] and [t.get_text() for t in ax.texts] == list("1234")
    assert [t.get_text() for t in ax.get_xticklabels()] == ["p", "q"]
    ax = plots.histogram({"a": [1, 1, 2], "b": [5]}, "x", bins=[0, 1.5, 3, 6], share=False)
    assert [p.get_data().values.tolist() for p in ax.patches] == [[2, 1, 0], [0, 0, 1]]
    ax = plots.token_strip(["▁a", "b", "c"], [0, 5, 10])
    assert [t.get_text() for t in ax.texts] == ["▁a", "b", "c"]
    ends = plt.get_cmap(plots.AMOUNTS)([0.0, 1.0])
    assert np.allclose([ax.patches[0].get_facecolor(), ax.patches[2].get_facecolor()], ends)


@pytest.mark.parametrize("n, columns, shape", [(1, 4, (1, 1)), (5, 3, (2, 3)), (4, 4, (1, 4))])
def test_grid_leaves_no_empty_axes(n, columns, shape):
    axes = plots.grid(n, columns)
    assert len(axes) == n == len(axes[0].figure.axes)
    assert axes[0].get_gridspec().get_geometry() == shape


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_save_writes_closes_and_repeats(tmp_path, ending):
    files = [plots.save(plots.bar_plot(["a"], {"s": [1]}, "y"), tmp_path / "new" / f"{i}.{ending}") for i in range(2)]
    assert files[0].stat().st_size > 500 and not plt.get_fignums()
    if ending == "png":
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("action, message", [
    (lambda: plots.heat_map(np.zeros((2, 3)), "ab", "xy"), "columns has 2 entries, and must have 3"),
    (lambda: plots.heat_map(np.zeros((2, 3)), "abc", "xyz"), "rows has 3 entries, and must have 2"),
    (lambda: plots.heat_map(np.zeros((1, 2, 3)), "abc", "xy"), "weights has shape (1, 2, 3)"),
    (lambda: plots.heat_map(np.zeros((2, 3)), "abc", "xy", gold=[(2, 2)]), "gold link (2, 2) lies outside 3 columns and 2 rows"),
    (lambda: plots.line_plot([1, 2], {"a": [1]}, "x", "y"), "series 'a' has 1 entries, and must have 2"),
    (lambda: plots.line_plot([1, 2], {"a": [1, 2]}, "x", "y", spread={"b": [1, 2]}), "spread names ['b']"),
    (lambda: plots.line_plot([1], {"a": [1]}, "x", "y", log="z"), "log='z' is unknown"),
    (lambda: plots.bar_plot(["p"], {"a": [1, 2]}, "y"), "series 'a' has 2 entries, and must have 1"),
    (lambda: plots.bar_plot(["p"], {"a": [1]}, "y", spread={"b": [1]}), "spread names ['b']"),
    (lambda: plots.histogram({"a": [1], "b": []}, "x"), "series without values: ['b']"),
    (lambda: plots.histogram({}, "x"), "series without values: none given"),
    (lambda: plots.token_strip(["a"], [1, 2]), "amounts has 2 entries, and must have 1"),
    (lambda: plots.token_strip([], []), "tokens is empty"),
    (lambda: plots.grid(0), "n=0 and columns=4"),
    (lambda: plots.save(plt.figure(), "a.txt"), "path='a.txt' has no known ending"),
])
def test_what_does_not_fit_is_refused_in_one_line(action, message):
    with pytest.raises(ValueError) as error:
        action()
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("before", [{"figure.facecolor": "none", "savefig.transparent": True}, "dark_background"])
def test_a_picture_brings_white_paper_and_black_letters(before):
    """Whatever the user's own style is: on a dark page a transparent picture would lose its letters."""
    plt.style.use(before)
    plots.use_style()
    ax, file = plots.line_plot([1, 2, 3], {"a": [1, 2, 4], "b": [4, 2, 1]}, "words", "loss", title="t"), io.BytesIO()
    ax.figure.savefig(file, format="png")
    pixels = np.asarray(Image.open(file).convert("RGBA"))
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (edge == 255).all() and (pixels[..., 3] == 255).all()
    letters = [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels(), *ax.get_legend().get_texts()]
    assert {matplotlib.colors.to_hex(text.get_color()) for text in letters} == {"#000000"}


LESSONS = [path for path in notebooks.notebooks() if path.stem != "03f_legibility"]      # which shows what cannot be read


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_stored_picture_is_a_sheet_of_white_paper(path):
    """Opaque, white along its edge, and with a margin around all that is drawn: on a dark page the edge can be seen."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = [output["data"]["image/png"] for cell in cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    for stored in found:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode("".join(stored)))).convert("RGBA")).astype(int)
        assert (pixels[..., 3] == 255).all(), "transparent"
        drawn = pixels[..., :3].min(-1) < 200
        margin = drawn.copy()
        margin[2:-2, 2:-2] = False
        assert not margin.any(), "drawn up to the edge"
