"""Renderers behind the Renderer port: messages to token ids and back, per model family."""
