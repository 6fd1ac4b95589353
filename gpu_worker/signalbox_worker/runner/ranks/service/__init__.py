"""RankService, over which the ranks of a worker talk: messages, codec, servicers and clients."""
