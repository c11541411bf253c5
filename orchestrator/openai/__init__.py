"""Talking to OpenAI-compatible servers and to SGLang's native endpoints: client, event stream, smoke suite."""
