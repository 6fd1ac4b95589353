"""Which token a sequence draws: packed draws, rules and grammars, and those who draw."""
