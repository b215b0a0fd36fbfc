"""HTTP/1.1 framing, server-sent events and the OpenAI dialect, without sockets or clocks."""
