"""Makes vectors of hidden states: what a model's files say of them, and the pooler."""
