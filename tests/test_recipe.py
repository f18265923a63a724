"""The schedules of the learning rate against their equations, step by step."""
import pytest

from transformer_course.training.schedules import inverse_sqrt, linear_decay, noam


def test_noam_is_equation_3():
    schedule = noam(512, warmup=4000)
    for step in (1, 17, 3999, 4000, 4001, 100_000):
        assert schedule(step, 0.3) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))
    assert max(range(1, 9000), key=lambda step: schedule(step, 0.0)) == 4000


def test_inverse_square_root_has_its_peak_where_it_says():
    schedule = inverse_sqrt(3e-3, warmup=50)
    assert schedule(50, 0.9) == pytest.approx(3e-3) and schedule(25, 0.0) == pytest.approx(1.5e-3)
    assert schedule(200, 0.0) == pytest.approx(1.5e-3)
    as_noam = noam(64, warmup=50)
    peak = as_noam(50, 0.0)
    assert all(inverse_sqrt(peak, 50)(step, 0.0) == pytest.approx(as_noam(step, 0.0)) for step in range(1, 300))


def test_linear_decay_rises_with_steps_and_falls_with_the_budget():
    schedule = linear_decay(2e-3, warmup=10)
    assert schedule(5, 0.0) == pytest.approx(1e-3) and schedule(500, 0.25) == pytest.approx(1.5e-3)
    assert schedule(500, 1.0) == 0.0 == schedule(500, 1.01)


@pytest.mark.parametrize("wrong", [lambda: noam(0), lambda: noam(8, 0), lambda: inverse_sqrt(0.0, 5), lambda: inverse_sqrt(1e-3, 0),
                                   lambda: linear_decay(-1.0, 5), lambda: linear_decay(1e-3, 0)])
def test_what_makes_no_schedule_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        wrong()
