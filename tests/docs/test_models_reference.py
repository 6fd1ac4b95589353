"""docs/reference/models.md is what the registry and the tests say, and each row is compared."""

import pytest

from scripts import models_reference as reference
from scripts.models_reference import NATIVELY, comparisons, families
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow

skip_without_native_kernels()  # as modules of tests that it reads do


def test_the_page_is_what_registry_and_tests_say() -> None:
    text = reference.PAGE.read_text(encoding="utf-8")
    assert text == reference.text(), "python -m scripts.models_reference writes the page again"


@pytest.mark.parametrize("family", families(), ids=lambda one: str(one.names[0]))
def test_each_family_is_compared_as_it_is_computed(family: reference.Family) -> None:
    """A test that `pytest.mark.compares` marks has it among its parameters."""
    assert reference.compared(family.names)
    for spec in family.specs:
        if spec.generates:
            found = reference.compared([spec.architecture])
            assert found
            if spec.architecture in family.natively:
                assert any(one.startswith(NATIVELY) for one in found)


def test_each_gguf_architecture_and_each_text_part_is_compared() -> None:
    kinds = reference.gguf_architectures()
    assert [kind for kind in kinds if not reference.compared_files(kind)] == []
    assert [name for name in reference.text_parts() if not reference.compared([name])] == []


def test_a_mark_names_families() -> None:
    assert [one.test for one in comparisons() if not one.architectures] == []
    assert {kind for one in comparisons() for kind in one.gguf} <= {*reference.gguf_architectures()}
