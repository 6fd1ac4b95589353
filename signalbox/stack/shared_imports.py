"""Imports what at least two of router, scheduler and worker need, before they are forked.

None of these modules starts a thread or keeps a file open. (The threads of numpy's BLAS end before
a fork, and start again when they are needed.)
"""

# ruff: noqa: F401

import signalbox_contract.structured_output.grammar
import signalbox_contract.updates
import signalbox_protos.scheduler.v1.scheduler_pb2_grpc
import signalbox_protos.worker.v1.worker_pb2_grpc
import signalbox_rpc.metrics.serving_metrics
import signalbox_rpc.telemetry.tracing
import signalbox_rpc.transport.channel
import signalbox_rpc.transport.reflection
import signalbox_rpc.transport.server
import signalbox_rpc.transport.shutdown
