"""The router: text in, text out. Owns tokenisation, detokenisation and stop strings."""
