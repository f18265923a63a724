"""CONTRIBUTING's picture and table of the modules are what the code gives, and the layout keeps its promises."""
import module_map
import numpy as np
import pytest

GRAPH = module_map.reduced(module_map.imports())


def test_picture_and_table_are_in_step_with_the_code():
    assert module_map.check() == [], "run `python tests/module_map.py`"


def test_only_imports_that_say_something_new_are_drawn():
    graph = {"a": set(), "b": {"a"}, "c": {"a", "b"}, "d": {"a", "c"}, "e": {"a"}}
    assert module_map.reduced(graph) == {"a": set(), "b": {"a"}, "c": {"b"}, "d": {"c"}, "e": {"a"}}


def test_every_module_stands_below_what_it_imports_and_in_its_band():
    place = module_map.rows_of(GRAPH)
    assert place.keys() == GRAPH.keys()
    assert all(place[other] < place[module] for module, direct in GRAPH.items() for other in direct)
    in_order = [module_map.band(module) for module in sorted(place, key=place.get)]
    assert in_order == sorted(in_order)
    assert max(map(list(place.values()).count, place.values())) <= module_map.IN_A_ROW


def test_every_import_is_a_way_down():
    ends = {}
    for row in module_map.spots(GRAPH):
        for spot in row:
            sources = {spot.module} if not spot.above else {upper.module for upper in spot.above}
            ends.setdefault(spot.module, set()).update(sources if spot.box else ())
            assert all(lower.row == spot.row + 1 for lower in spot.below)
            assert spot.box or len(spot.above) == 1 and spot.above[0].module == spot.module and spot.below
    assert {module: sources - {module} for module, sources in ends.items()} == GRAPH


def test_places_are_the_nearest_ones_that_leave_room():
    Q = np.array([[2.0, -1.0, 0.0], [-1.0, 3.0, -1.0], [0.0, -1.0, 2.0]])
    x = module_map._least_squares_apart(Q, {(0, 1): 1.0, (1, 2): 2.0})
    assert x[1] - x[0] == pytest.approx(1.0) and x[2] - x[1] == pytest.approx(2.0)
    tries = x + np.random.default_rng(1).normal(size=(200, 3))
    tries = tries[(tries[:, 1] - tries[:, 0] >= 1) & (tries[:, 2] - tries[:, 1] >= 2)]
    assert len(tries) > 5 and all(x @ Q @ x <= y @ Q @ y for y in tries)


def test_text_is_cut_to_its_box():
    lines = module_map.wrapped("one two three four five six seven eight nine ten eleven twelve", 0.8, 8, 2)
    assert len(lines) == 2 and lines[1].endswith(" …") and module_map.wrapped("short", 2.0, 8, 2) == ["short"]
