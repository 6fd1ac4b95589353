"""OpenAI's HTTP API in the router process, with vLLM's extra fields."""
