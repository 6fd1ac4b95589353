"""Log probabilities of tokens that a request names, from each sampler that a CPU runs."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from signalbox_contract.sampling_params import SamplingParams
from signalbox_kernels.native import NativeUnavailable
from signalbox_worker.sampling.sampler import Sampler
from signalbox_worker.sampling.torch_sampler import TorchSampler
from tests.gpu_worker.generation import make_rows
from tests.gpu_worker.sampling.draws import make_logits

VOCAB = 5003


def make_torch() -> Sampler:
    return TorchSampler(vocab_size=VOCAB, device=torch.device("cpu"))


def make_native() -> Sampler:
    from signalbox_worker.sampling.native_sampler import CpuSampler
    from signalbox_worker.sampling.sampler_factory import NativeTensorSampler

    try:
        return NativeTensorSampler(CpuSampler(program=None, num_threads=2))
    except NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("make", [make_torch, make_native], ids=["torch", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_named_tokens_have_the_probability_of_the_whole_distribution(
    make: Callable[[], Sampler], dtype: torch.dtype
) -> None:
    named = [(7, 5002, 0), (), (3,), tuple(range(128)), (9, 9)]
    params = [
        SamplingParams(num_logprobs=0, logprob_token_ids=ids, temperature=i % 2, bad_words=((7,),))
        for i, ids in enumerate(named)
    ]
    params += [SamplingParams(num_logprobs=2), SamplingParams()]
    logits, logits_row = make_logits(10, VOCAB).to(dtype), np.array([9, 0, 4, 4, 1, 2, 3])
    rows = make_rows(
        params, token_index=range(7), tokens=[[1]] * 7, num_prompt=[1] * 7, vocab_size=VOCAB
    )
    distribution = torch.log_softmax(logits.double(), dim=-1)[logits_row]
    samples = make()(logits, rows, logits_row)
    assert [one.row for one in samples.logprobs] == [0, 1, 2, 3, 4, 5]
    for one in samples.logprobs:
        expected = distribution[one.row]
        if one.row == 5:
            assert one.top_token_ids == expected.topk(2).indices.tolist()
        else:
            assert one.top_token_ids == list(named[one.row])
        # Roundings of float32: of a sum over 5,003 tokens, and of logits of at most 16.
        assert one.top_logprobs == pytest.approx(expected[one.top_token_ids].tolist(), abs=1e-4)
        drawn = int(samples.token_ids[one.row])
        assert one.logprob == pytest.approx(float(expected[drawn]), abs=1e-4)
        assert one.rank == int((expected >= expected[drawn]).sum())


@pytest.mark.parametrize("make", [make_torch, make_native], ids=["torch", "native"])
def test_a_failed_row_reports_nothing_and_its_neighbours_their_tokens(
    make: Callable[[], Sampler],
) -> None:
    logits = make_logits(3, VOCAB)
    logits[1, 17] = float("nan")
    params = [SamplingParams(num_logprobs=0, logprob_token_ids=(i, 40)) for i in range(3)]
    samples = make()(logits, make_rows(params, token_index=range(3)))
    assert list(samples.failed) == [1]
    assert [(one.row, one.top_token_ids) for one in samples.logprobs] == [
        (0, [0, 40]),
        (2, [2, 40]),
    ]
