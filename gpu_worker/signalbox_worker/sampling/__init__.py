"""Sampling of tokens: packed parameters, rules, grammars, and samplers."""
