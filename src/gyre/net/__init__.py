"""HTTP server and ASGI plumbing shared by every process."""
