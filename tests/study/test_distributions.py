from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from zenith_tune.study.optuna_types import to_distribution
from zenith_tune.study.parameters import BoolParameter, CategoricalParameter, FloatParameter, IntParameter


@given(low=st.integers(-1000, 1000), width=st.integers(0, 1000), step=st.integers(1, 50))
def test_an_int_parameter_keeps_exactly_its_values(low: int, width: int, step: int) -> None:
    parameter = IntParameter(low, low + width, step=step)
    distribution = to_distribution(parameter)
    assert isinstance(distribution, IntDistribution)
    values = range(distribution.low, distribution.high + 1, distribution.step)
    assert list(values) == [value for value in range(low, low + width + 1) if parameter.contains(value)]


def test_a_float_parameter_keeps_its_range_and_scale() -> None:
    assert to_distribution(FloatParameter(0.5, 2.0)) == FloatDistribution(0.5, 2.0)
    assert to_distribution(FloatParameter(0.5, 2.0, log=True)) == FloatDistribution(0.5, 2.0, log=True)


def test_choices_keep_their_order_and_types() -> None:
    choices = to_distribution(CategoricalParameter([4, "x", 0.5, True]))
    assert isinstance(choices, CategoricalDistribution)
    assert [(type(choice), choice) for choice in choices.choices] == [(int, 4), (str, "x"), (float, 0.5), (bool, True)]
    assert to_distribution(BoolParameter()) == CategoricalDistribution([False, True])


@pytest.mark.parametrize("parameter", [IntParameter(3, 3), FloatParameter(0.5, 0.5), CategoricalParameter(["only"])])
def test_a_parameter_with_one_value_is_allowed(
    parameter: IntParameter | FloatParameter | CategoricalParameter,
) -> None:
    assert to_distribution(parameter).single()


def test_importing_the_module_does_not_import_optuna() -> None:
    code = "import sys, zenith_tune.study.optuna_types; print('optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
