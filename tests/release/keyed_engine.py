"""The scripted engine as a service that asks for a key: `keyed_engine.py --port N --speculative-algorithm NAME`.

The key is in the environment as API_KEY, as hosts.yaml's `secrets` puts it there.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.bench.stub_server import Script, Stub


def argument(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


async def serve() -> None:
    algorithm = argument("--speculative-algorithm")
    stub = Stub(Script(api_key=os.environ["API_KEY"], algorithm=algorithm, nodes=15))
    server = await asyncio.start_server(stub.handle, "127.0.0.1", int(argument("--port")), backlog=512, limit=2**22)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
