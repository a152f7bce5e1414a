"""The API dialects that agent programs speak."""
