"""Whole native programs of every storage, arithmetic and set against their meaning in doubles."""

import subprocess
import sys

import numpy as np
import pytest

from signalbox_kernels.native import Isa
from signalbox_kernels.structs import Element, Row
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.small_decoder import Form, SmallDecoder, digest, forms_of


def allowed_error(form: Form) -> float:
    """Returns the error that is allowed, as a part of the logits' root mean square.

    Each of five products in sequence adds errors of its left side. In float32 these are of sums
    of 256 terms in random signs: at most gamma(256) times 16 sizes of the result, 2.4e-4. An
    element of bfloat16 is rounded by 2^-9, some ten times on the way. A code in 8 bits is wrong by
    1/254 of the largest of 32 numbers, some 1 % of their root mean square, and one in 16 bits by
    4e-5 of it; gates multiply two. K and V in 8 bits are wrong by 1/254 of a head's largest, in
    E4M3 by 2^-4 of themselves at most.
    """
    if form.factors is Row.CODES:
        return 0.2
    if form.kv_element is Element.FP8_E4M3:
        return 0.2
    narrow = (Element.BFLOAT16, Element.INT8)
    return 0.05 if form.element in narrow or form.kv_element in narrow else 5 * 2.4e-4


@pytest.mark.parametrize(
    ("isa", "form"),
    [pytest.param(isa, form, id=f"{isa.name}-{form}") for isa in ISAS for form in forms_of(isa)],
)
def test_logits_are_those_of_the_weights(isa: Isa, form: Form) -> None:
    decoder = SmallDecoder(form)
    logits, pool = decoder.logits(isa)
    exact = decoder.exact_logits()
    error = np.sqrt(((logits - exact) ** 2).mean() / (exact**2).mean())
    assert error <= allowed_error(form)
    assert digest(logits, pool) == digest(*decoder.logits(isa, num_threads=1))


@pytest.mark.parametrize(
    ("isa", "form"),
    [pytest.param(isa, form, id=f"{isa.name}-{form}") for isa in ISAS for form in forms_of(isa)],
)
def test_adapters_add_their_products_to_every_form(isa: Isa, form: Form) -> None:
    decoder = SmallDecoder(form, has_adapters=True)
    logits, pool = decoder.logits(isa)
    exact, base = decoder.exact_logits(), SmallDecoder(form).exact_logits()
    is_adapted = decoder.adapters > 0
    assert np.abs(exact - base)[is_adapted].max(axis=1).min() > 0.1
    error = np.sqrt(((logits - exact) ** 2).mean() / (exact**2).mean())
    assert error <= allowed_error(form)
    assert digest(logits, pool) == digest(*decoder.logits(isa, num_threads=1))


@pytest.mark.parametrize("isa", ISAS, ids=str)
def test_a_batch_without_adapters_is_computed_as_without_their_memory(isa: Isa) -> None:
    for form in forms_of(isa):
        decoder = SmallDecoder(form, has_adapters=True)
        decoder.adapters[:] = -1
        assert digest(*decoder.logits(isa)) == digest(*SmallDecoder(form).logits(isa))


@pytest.mark.parametrize("num_threads", [4, 8, 16, 64])  # more than there are tiles, too
def test_any_number_of_threads_gives_the_same_bits(num_threads: int) -> None:
    isa = ISAS[-1]
    for form in forms_of(isa):
        decoder = SmallDecoder(form)
        one = digest(*decoder.logits(isa, num_threads=1))
        assert digest(*decoder.logits(isa, num_threads=num_threads)) == one


def test_more_threads_than_the_system_permits_are_an_error_and_not_the_end_of_the_process() -> None:
    """Address space for few stacks stands for a container's limit of processes."""
    script = (
        "import resource; from pathlib import Path;"
        "from tests.kernels.native.instruction_sets import ISAS;"
        "from tests.kernels.native.small_decoder import SmallDecoder, forms_of;"
        "from signalbox_kernels.native import NativeUnavailable;"
        "decoder = SmallDecoder(next(forms_of(ISAS[-1]))); decoder.program(ISAS[-1], 1);"
        "resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.RLIM_INFINITY));"
        "pages = int(Path('/proc/self/statm').read_text().split()[0]);"
        "most = pages * resource.getpagesize() + (512 << 20);"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "try: decoder.program(ISAS[-1], 1000)\n"
        "except NativeUnavailable as error: print(error)\n"
        "print(decoder.program(ISAS[-1], 2).isa)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lower num_threads" in done.stdout
