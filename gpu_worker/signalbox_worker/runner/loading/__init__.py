"""Finding a model and reading what it is made of: configuration, weights, tokenizer."""
