"""llama.cpp's own HTTP server, from the xllamacpp wheel, as a program of its own.

Rule: one thread always (two on a busy machine fell from 23 to 1.5 tokens/s), one READY line with
the address once it listens or one FAILED line with the reason, and it ends on SIGTERM, SIGINT, or
when its parent is gone.

    python -m surgetank.adapters.llamacpp.server MODEL --port 0 --parallel 8 --ctx 2048
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final

from surgetank.adapters.llamacpp.model import missing_extra

_PR_SET_PDEATHSIG: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop; exit 2 when the `demo` extra is absent or the model is unusable."""
    options = _parser().parse_args(arguments)
    parent = os.getppid()
    stop = {signal.SIGTERM, signal.SIGINT}
    # Blocked before the server's threads exist, so that they inherit it and sigwait gets them all.
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    _end_with_parent(parent)
    try:
        import xllamacpp  # noqa: PLC0415  (an extra, and 0.3 s to load)
    except ImportError as error:
        return _fail(missing_extra(error))
    try:
        server = xllamacpp.Server(_parameters(xllamacpp, options))
    except RuntimeError as error:
        return _fail(f"{options.model}: llama.cpp cannot serve it: {error}")
    sys.stdout.write(f"READY {server.listening_address}\n")
    sys.stdout.flush()
    signal.sigwait(stop)
    # The wheel's destructor waits for every running stream; a stopped server must stop now.
    os._exit(0)


def _fail(why: str) -> int:
    # Not on stderr: llama.cpp writes its log there from a thread, before or after this line.
    sys.stdout.write(f"FAILED {why}\n")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m surgetank.adapters.llamacpp.server")
    parser.add_argument("model", help="the GGUF file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--parallel", type=int, default=8, help="slots")
    parser.add_argument("--ctx", type=int, default=2048, help="tokens of KV over all slots")
    parser.add_argument("--alias", default="tiny", help="the model's name")
    parser.add_argument(
        "--kv",
        choices=("unified", "split"),
        default="unified",
        help="unified: slots share the KV; split: each has ctx / parallel tokens",
    )
    parser.add_argument("--http-threads", type=int, default=-1, help="-1: llama.cpp's own choice")
    parser.add_argument("--verbosity", type=int, default=1, help="llama.cpp's log level")
    return parser


def _parameters(xllamacpp: Any, options: argparse.Namespace) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = options.model
    parameters.model_alias = [options.alias]
    parameters.hostnames = [options.host]
    parameters.port = options.port
    parameters.n_parallel = options.parallel
    parameters.n_ctx = options.ctx
    parameters.kv_unified = options.kv == "unified"
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.n_threads_http = options.http_threads
    parameters.n_gpu_layers = 0
    parameters.cont_batching = True
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    parameters.verbosity = options.verbosity
    return parameters


def _end_with_parent(parent: int) -> None:
    """Ask Linux for SIGTERM when the parent dies, so that a killed demo leaves nothing behind."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the request was made
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
