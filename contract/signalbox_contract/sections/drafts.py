"""Drafts in a step and in its result: tokens that a worker expects next, and computes early.

A draft is accepted if it equals the token that is drawn at its position, and all before it are.
"""

from enum import IntEnum
from typing import NamedTuple

from signalbox_contract.columns import Column, check_length, check_lowest, int32s, int64s
from signalbox_protos.worker.v1 import worker_pb2 as pb

MAX_DRAFT_TOKENS = 64
"""Most drafts of a sequence in one step that a worker may announce."""


class DraftSource(IntEnum):
    """Source of drafts; see worker.proto."""

    GRAMMAR = pb.DRAFT_SOURCE_GRAMMAR
    TEXT = pb.DRAFT_SOURCE_TEXT
    PREDICTION = pb.DRAFT_SOURCE_PREDICTION
    RECENT = pb.DRAFT_SOURCE_RECENT
    MODEL = pb.DRAFT_SOURCE_MODEL
    MTP = pb.DRAFT_SOURCE_MTP
    PACKAGE = pb.DRAFT_SOURCE_PACKAGE


class DraftLimits(NamedTuple):
    """Sequences that may compute drafts, and the most drafts of each, at least 1."""

    seq_ids: Column
    most: Column


class DraftCounts(NamedTuple):
    """Sequences that have computed drafts, how many each has, and their `DraftSource`."""

    seq_ids: Column
    num_drafts: Column
    sources: Column


def encode_draft_limits(limits: DraftLimits) -> pb.DraftLimits:
    return pb.DraftLimits(seq_ids=limits.seq_ids.pack(), most=limits.most.pack())


def decode_draft_limits(message: pb.DraftLimits) -> DraftLimits:
    """Raises InvalidArgument if the columns differ in length, or a limit is less than 1."""
    limits = DraftLimits(
        int64s(message.seq_ids, "draft_limits.seq_ids"), int32s(message.most, "draft_limits.most")
    )
    check_length("draft_limits.most", len(limits.most), len(limits.seq_ids))
    check_lowest("draft_limits.most", limits.most.tolist(), 1)
    return limits


def encode_draft_counts(counts: DraftCounts) -> pb.DraftCounts:
    return pb.DraftCounts(
        seq_ids=counts.seq_ids.pack(),
        num_drafts=counts.num_drafts.pack(),
        sources=counts.sources.pack(),
    )


def decode_draft_counts(message: pb.DraftCounts) -> DraftCounts:
    """Raises InvalidArgument if the columns differ in length, or a number is less than 1."""
    counts = DraftCounts(
        int64s(message.seq_ids, "drafts.seq_ids"),
        int32s(message.num_drafts, "drafts.num_drafts"),
        int32s(message.sources, "drafts.sources"),
    )
    check_length("drafts.num_drafts", len(counts.num_drafts), len(counts.seq_ids))
    check_length("drafts.sources", len(counts.sources), len(counts.seq_ids))
    check_lowest("drafts.num_drafts", counts.num_drafts.tolist(), 1)
    check_lowest("drafts.sources", counts.sources.tolist(), 1)
    return counts
