"""Makes what a scheduler is asked of a live request, and a client's error of its failure."""

from signalbox_contract.errors import RpcError, from_code
from signalbox_contract.request import Request
from signalbox_contract.updates import RequestFailure
from signalbox_contract.wording import counted
from signalbox_router.prompt.chat.length_errors import ContextOverflow
from signalbox_router.requests.active_request import ActiveRequest


def request_of(active: ActiveRequest) -> Request:
    """Returns the next attempt; a later one continues after the output of those before it."""
    params = active.params
    traceparent, tracestate = active.trace_context
    is_resumed = active.attempt > 0
    return Request(
        handle=active.handle,
        request_id=active.request_id,
        prompt_token_ids=active.prompt_token_ids,
        params=params.sampling,
        max_tokens=params.max_tokens,
        # A request with tokens was admitted with its present max_tokens.
        max_tokens_is_default=params.max_tokens_is_default and not active.num_generated_tokens,
        num_sequences=params.num_sequences,
        beam_search=params.beam_search,
        timeout_ns=active.remaining_ns,
        tenant=active.tenant,
        payer=active.payer.address,  # empty if the tenant pays
        priority=active.priority,
        cache_salt=active.cache_salt,
        adapter=active.adapter,
        traceparent=traceparent,
        tracestate=tracestate,
        nonce=active.nonce,
        attempt=active.attempt,
        age_ns=active.age_ns if is_resumed else 0,
        delivered=active.delivered if is_resumed else (),
        pooling=active.pooling,
        num_delivered_prompt_logprobs=active.num_prompt_logprobs if is_resumed else 0,
        snapshot_positions=active.snapshot_positions,
        prewarm=active.prewarm,
        no_speculation=not params.speculation,
        prediction=params.prediction,
        model_wait_ns=active.model_wait_ns,
        session=active.session,
        keep_ns=active.keep_ns,
        prefix=None if active.watch is None else active.watch.comparison,
    )


def error_of(failure: RequestFailure, request: ActiveRequest) -> RpcError:
    """Returns the error of a failed request, in the client's terms."""
    if (window := failure.exceeded_window) is not None:
        what = f"a prompt of {counted(len(request.prompt_token_ids), 'token')}"
        most = window if request.pooling is not None else window - 1
        return ContextOverflow(request.prompt_field, what, f"at most {most}", window=window)
    return from_code(failure.code, failure.message, failure.retry_after_s)
