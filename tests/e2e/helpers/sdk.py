"""The real client: vtrix-sandbox from PyPI, unmodified. Its module is called `src`."""

import asyncio

from src import Client, ClientOptions

ID = "e2e-sandbox"


def with_sandbox(agent, work, sandboxes=1, timeout=60):
    """Runs the coroutine function `work` with sandboxes that the SDK has attached."""

    async def run():
        async with Client(ClientOptions(base_url=f"http://127.0.0.1:{agent.port}")) as client:
            attached = [await client.attach(ID) for _ in range(sandboxes)]
            try:
                await asyncio.wait_for(work(*attached), timeout)
            finally:
                for sandbox in attached:
                    await sandbox.close()

    asyncio.run(run())
