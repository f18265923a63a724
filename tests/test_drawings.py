"""The drawings of the lessons: what they say, whether it can be read, and that the bytes are always the same."""
import inspect
import io
import itertools
import re
import xml.etree.ElementTree as ElementTree

import matplotlib as mpl
import numpy as np
import pytest

from transformer_course.drawing import (attention as diagrams_attention, parts as drawings, plots,
                                        recurrent as diagrams_recurrent, transformer as diagrams_transformer)
from transformer_course.drawing.legibility import problems
from transformer_course.drawing.parts import (ROLES, SMALLEST, Drawing, arrow, box, cells, dot, frame, label,
                                              sheet, spread, tint)

DIAGRAMS = {name: getattr(module, name) for module in (diagrams_recurrent, diagrams_attention, diagrams_transformer)
            for name in module.__all__ if name.islower()}
SVG = "{http://www.w3.org/2000/svg}"
OTHER = {       # arguments that differ from the defaults, and words that must then be seen
    "unrolled_rnn": ({"words": ("I", "see", "a", "dog"), "outputs": (None, "a", "dog", "EOS")}, "I see a dog EOS"),
    "lstm_cell": ({}, "forget input output proposal carry"),
    "gru_cell": ({"reset": "before"}, "reset update proposal before"),
    "gradient_flow": ({"kept": 0.5, "carried": 0.9, "steps": 4}, "100% 50% 25% 12% 90% 81% 73%"),
    "encoder_decoder": ({"source": ("red", "book"), "target": ("laal", "kitaab")}, "red book laal kitaab BOS EOS"),
    "beam_tree": ({"table": {(): {"x": -1.0, "y": -0.25}, ("y",): {"z": -0.5}}, "beam": 1}, "x y z −1.0 −0.2"),
    "empty_word": ({"source": ("merii", "kitaab"), "target": ("book",), "links": [(1, 0)]}, "merii kitaab book"),
    "additive_step": ({"source": ("a", "b", "c"), "weights": (0.25, 0.5, 0.25), "previous": "p", "word": "w"},
                      "a b c 0.25 0.50 p w"),
    "who_knows_when": ({"words": ("laal", "kitaab")}, "laal kitaab weights context state"),
    "look_up": ({"kind": "layer", "words": ("old", "red", "book"), "weights": (0.25, 0.5, 0.25)},
                "old red book 0.25 0.50 residual norm"),
    "query_key_value": ({"words": ("she", "reads", "old", "books"), "weights": (0.1, 0.2, 0.3, 0.4), "asker": 3},
                        "she reads old books 0.10 0.20 0.30 0.40"),
    "multi_head": ({"heads": 4, "d_model": 12, "length": 5}, "(5, 12) (12, 12) (5, 3) head"),
    "split_heads": ({"heads": 3, "width": 4, "length": 2}, "queries keys values head 3"),
    "attention_masks": ({"words": ("a", "b", "c", "d"), "padding": 1}, "a b c d pad"),
    "clocks": ({"positions": 6, "speeds": (1.0, 0.5, 0.2, 0.1), "shown": 0}, "0.5 0.2 0.1 5"),
    "rotation": ({"places": (0, 2, 11), "shift": 5, "speed": 0.3}, "1.5 16 11"),
    "residual_blocks": ({}, "norm attention feed-forward"),
    "transformer": ({"source": ("red",), "target": (), "word": "laal", "layers": 2}, "red laal BOS 2"),
    "training_and_writing": ({"words": ("laal", "kitaab")}, "BOS laal kitaab EOS"),
    "cache_filling": ({"words": ("BOS", "laal")}, "BOS laal 3"),
}


@pytest.fixture(params=[(name, other) for name in DIAGRAMS for other in (False, True)], ids=str)
def made(request):
    """A drawing, made twice, and the words that must be seen in it."""
    name, other = request.param
    make, options = DIAGRAMS[name], OTHER[name][0] if other else {}
    given = [v for p in inspect.signature(make).parameters.values() if isinstance(p.default, tuple) for v in p.default]
    words = OTHER[name][1].split() if other else [word for word in given if isinstance(word, str)]
    return make(**options), make(**options), words


def test_every_drawing_is_tried():
    assert set(OTHER) == set(DIAGRAMS) and len(DIAGRAMS) == 20
    for name in DIAGRAMS:
        assert inspect.getdoc(DIAGRAMS[name]).split("\n\nParameters\n")[0].split("\n\nShapes\n")[0].endswith((".", ")"))


def test_drawing(made):
    first, second, words = made
    svg, said = first._repr_svg_(), " ".join(first.words)
    assert problems(first) == []
    assert [word for word in words if word not in said] == []
    assert svg == first._repr_svg_() == second._repr_svg_()
    assert len(svg.encode()) < 66_000
    root = ElementTree.fromstring(svg)
    described = " ".join(root.findtext(SVG + "desc").split())
    assert root.tag == SVG + "svg" and root.findtext(SVG + "title") == first.title
    assert [word for word in words if word not in described] == []
    assert root.get("width") == f"{first.width * 0.75:g}pt" and first.width == 800


def test_a_look_up_changes_its_names_and_nothing_else():
    words = {kind: set(diagrams_attention.look_up(kind).words) for kind in diagrams_attention.LOOK_UPS}
    assert all(problems(diagrams_attention.look_up(kind)) == [] for kind in words)
    assert {"words", "scores", "weights", "mixture", "Ram", "0.70"} <= set.intersection(*words.values())
    assert "network" in words["additive"] and "query" not in words["additive"]
    assert all({"query", "q · k", "keys, values"} <= words[kind] for kind in ("cross", "self", "layer"))
    with pytest.raises(ValueError, match="kind='product' is unknown: choose one of additive, cross, self, layer"):
        diagrams_attention.look_up("product")


def test_bytes_do_not_depend_on_settings():
    lstm_cell = diagrams_recurrent.lstm_cell
    before, png = lstm_cell()._repr_svg_(), lstm_cell()._repr_png_()
    with mpl.rc_context():
        plots.use_style()
        assert (lstm_cell()._repr_svg_(), lstm_cell()._repr_png_()) == (before, png)
    with mpl.style.context("dark_background"), mpl.rc_context({"font.size": 5, "lines.linewidth": 7}):
        assert (lstm_cell()._repr_svg_(), lstm_cell()._repr_png_()) == (before, png)


@pytest.mark.filterwarnings("error")
def test_pixels_after_svg_give_no_warning_under_the_course_style():
    """Saving restores a figure's layout from the settings: a constrained one would warn at the next picture."""
    with mpl.rc_context():
        plots.use_style()
        drawing = diagrams_recurrent.lstm_cell()
        assert drawing._repr_svg_() and drawing._repr_png_() and drawing.figure.get_layout_engine() is None


def test_background_is_white_and_opaque(tmp_path):
    (tmp_path / "cell.png").write_bytes(diagrams_recurrent.gru_cell()._repr_png_())
    pixels = mpl.image.imread(tmp_path / "cell.png")
    assert pixels.shape[:2] == (380, 800) and (pixels[..., 3:] == 1).all()
    assert (pixels[[0, 0, -1, -1], [0, -1, 0, -1]] == 1).all()
    first = ElementTree.fromstring(diagrams_recurrent.gru_cell()._repr_svg_()).find(f".//{SVG}path[@style]")
    assert "fill: #ffffff" in first.get("style")


def test_shorter_svg_draws_the_same():
    """Sizes stay as matplotlib wrote them; places move by less than a hundredth of a point."""
    d = diagrams_recurrent.beam_tree()
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "drawings", "svg.fonttype": "path"}):
        d.figure.savefig(file, format="svg")
    whole, short = file.getvalue(), d._repr_svg_()
    scales = [re.findall(r"scale\(([^)]*)\)", svg) for svg in (whole, short)]
    assert scales[0] == scales[1] and {"0.015625", "0.095 -0.095"} <= set(scales[1])
    paths = [[re.findall(r"-?[\d.]+", path) for path in re.findall(r' d="([^"]*)"', svg)] for svg in (whole, short)]
    assert [len(path) for path in paths[0]] == [len(path) for path in paths[1]]
    assert all(np.allclose(np.array(a, float), np.array(b, float), atol=0.006) for a, b in zip(*paths))
    shifts = re.findall(r'<use [^>]*translate\((\S+) 0\)', whole)
    assert np.allclose(np.array(shifts, float), np.array(re.findall(r'<use [^>]*x="(\S+)"', short), float), atol=0.006)


def test_repr_has_no_address():
    assert repr(Drawing(300, 200, "A thing")) == "Drawing('A thing', 300 × 200)"


def test_beam_keeps_what_search_keeps():
    """The boxes that are not grey are the prefixes of a beam search by hand."""
    table = {(): {"a": -1.0, "b": -1.5, "c": -0.5}, ("a",): {"d": -0.1, "e": -3.0}, ("c",): {"d": -2.0, "e": -1.0}}
    d = diagrams_recurrent.beam_tree(table, beam=2)
    texts = [text.split("\n") for text in d.words if "−" in text]
    assert texts == [["a", "−1.0"], ["b", "−1.5"], ["c", "−0.5"], ["best: d", "−1.0 − 0.1 = −1.1"],
                     ["e", "−1.0 − 3.0 = −4.0"], ["d", "−0.5 − 2.0 = −2.5"], ["e", "−0.5 − 1.0 = −1.5"]]
    dashed = [patch.get_linestyle() != "-" and patch.get_linestyle() != "solid" for patch in d.ax.patches
              if isinstance(patch, mpl.patches.FancyBboxPatch)]
    assert dashed == [False, False, True, False, False, True, True, False]       # the first box is the start


def test_masks_say_who_may_look():
    """Ticks are counted: three of four columns, a triangle, and both."""
    ticks = diagrams_attention.attention_masks(("x", "y", "z"), padding=1).words.count("✓")
    assert ticks == 4 * 3 + (1 + 2 + 3 + 4) + (1 + 2 + 3 + 3) + 1                # and one in the legend


def test_gradient_shares_are_powers():
    shares = [text for text in diagrams_recurrent.gradient_flow(0.5, 1.0, 4).words if text.endswith("%")]
    assert shares == ["100%", "50%", "25%", "12%", *["100%"] * 4]


def test_rotation_turns_all_hands_alike():
    """The field between the two hands is as wide at every place, and ends at the later hand."""
    d = diagrams_transformer.rotation(places=(2, 7), shift=3, speed=0.25)
    fields = [patch for patch in d.ax.patches if isinstance(patch, mpl.patches.Wedge)]
    assert [round(w.theta2 - w.theta1, 6) for w in fields] == [round(np.degrees(0.75), 6)] * 2
    assert [round(w.theta1, 6) for w in fields] == [round(90 - np.degrees(0.25 * p), 6) for p in (5, 10)]


@pytest.mark.parametrize("make, message", [
    (lambda: diagrams_recurrent.gru_cell("sideways"), "sideways"),
    (lambda: diagrams_attention.additive_step(("a", "b"), (1.0,)), "weights has 1 entries, and must have 2"),
    (lambda: diagrams_attention.query_key_value(("a", "b"), (0.2, 0.3, 0.5)), "weights has 3 entries, and must have 2"),
    (lambda: diagrams_attention.query_key_value("abcde", (0.2,) * 5), "5 parts need"),
    (lambda: diagrams_attention.multi_head(3, 8), "multiple of heads=3"),
    (lambda: diagrams_attention.attention_masks(("Donaudampfschifffahrt", "schiff")), "do not fit"),
    (lambda: diagrams_recurrent.encoder_decoder(["word"] * 20), "fewer or shorter words"),
    (lambda: tint("mauve"), "role='mauve' is unknown"),
    (lambda: label(Drawing(99, 99, "small"), 9, 9, "tiny", size=6), "size=6 is too small"),
])
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()


# The judge of legibility must itself be judged

def drawn(*steps):
    """The kinds of problem that `problems` sees in a small drawing."""
    d = Drawing(400, 100, "a trial")
    for step in steps:
        step(d)
    return sorted({problem.split("' ", 1)[1].split(" '")[0] for problem in problems(d)})


@pytest.mark.parametrize("steps, found", [
    ([lambda d: label(d, 200, 50, "well")], []),
    ([lambda d: label(d, 395, 50, "off the right")], ["leaves the sheet"]),
    ([lambda d: label(d, 200, 3, "low")], ["leaves the sheet"]),
    ([lambda d: box(d, 200, 50, "wider than its box", w=40)], ["leaves its box"]),
    ([lambda d: box(d, 200, 50, "two\nlines", h=20)], ["leaves its box"]),
    ([lambda d: label(d, 200, 50, "one"), lambda d: label(d, 210, 54, "other")], ["overlaps"]),
    ([lambda d: label(d, 200, 50, "one"), lambda d: label(d, 200, 70, "above")], []),
    ([lambda d: box(d, 200, 50, ""), lambda d: label(d, 205, 50, "on it")], ["overlaps a box"]),
    ([lambda d: cells(d, 200, 50, [1, 0]), lambda d: label(d, 205, 50, "on it")], ["overlaps a box"]),
    ([lambda d: sheet(d, 200, 50, 2, 3), lambda d: label(d, 205, 50, "on it")], ["overlaps a box"]),
    ([lambda d: dot(d, 200, 50, ""), lambda d: label(d, 205, 50, "on it")], ["overlaps a box"]),
    ([lambda d: frame(d, 200, 50, 100, 60), lambda d: label(d, 150, 50, "over the edge")], ["crosses a border"]),
    ([lambda d: frame(d, 200, 50, 150, 60), lambda d: label(d, 200, 50, "inside")], []),
    ([lambda d: arrow(d, (100, 50), (300, 50)), lambda d: label(d, 200, 50, "under it")], ["lies on an arrow"]),
    ([lambda d: arrow(d, (100, 20), (300, 20), via=((200, 90),)), lambda d: label(d, 200, 80, "at its corner")],
     ["lies on an arrow"]),
    ([lambda d: arrow(d, (100, 50), (300, 50)), lambda d: label(d, 200, 62, "above it")], []),
])
def test_problems_are_seen(steps, found):
    assert drawn(*steps) == found


def test_small_text_is_seen():
    d = Drawing(400, 100, "a trial")
    label(d, 200, 50, "small")
    d.texts[0][0].set_size(SMALLEST - 1)
    assert problems(d) == ["'small' has 8 points"]


def test_spread_leaves_equal_gaps():
    xs = spread([20, 60, 40], 100, 300)
    assert xs == [110, 190, 280]                # gaps of 40 between 100-120, 160-220, 260-300
    assert spread([50], 0, 100) == [50]


def test_arrow_starts_and_ends_at_borders():
    d = Drawing(400, 200, "two boxes")
    arrow(d, box(d, 100, 50, "", w=40, h=20), box(d, 300, 50, "", w=60, h=20))
    arrow(d, box(d, 100, 150, "", w=40, h=20), (100, 50), via=((300, 150), (300, 50)))
    (start, end), turning = d.lines
    assert np.allclose([start, end], [(122, 50), (267, 50)])
    assert np.allclose(turning, [(122, 150), (300, 150), (300, 50), (100, 50)])


# Colours

TOLERANCE = 15          # CIELAB; about 2 is just noticeable
VISION = {"all cones": np.eye(3),               # Machado et al. 2009: what a colour is mistaken for
          "no green cones": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
          "no red cones": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]}


def cielab(colour, vision):
    """The CIELAB coordinates of a colour as somebody with this vision sees it."""
    rgb = np.array(mpl.colors.to_rgb(colour))
    light = np.clip(VISION[vision] @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in matrix @ light / matrix.sum(axis=1)]
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_roles_stay_apart(vision):
    """Every two roles that have a colour; the greys say only that something has no role."""
    coloured = [role for role in ROLES if role not in ("plain", "off")]
    near = {(a, b): np.linalg.norm(cielab(ROLES[a][0], vision) - cielab(ROLES[b][0], vision))
            for a, b in itertools.combinations(coloured, 2)}
    assert {pair: round(far) for pair, far in near.items() if far < TOLERANCE} == {}


def test_text_shows_on_every_field():
    """Contrast of 4.5 to 1 between letters and the fullest field that carries words, as WCAG asks."""
    def light(colour):
        rgb = np.array(mpl.colors.to_rgb(colour))
        return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
    assert min((light(tint(role, 1.5)) + 0.05) / (light(drawings.INK) + 0.05) for role in ROLES) > 4.5
