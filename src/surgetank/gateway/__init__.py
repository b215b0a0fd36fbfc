"""The data plane: FlowControl on sockets."""
