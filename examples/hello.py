import asyncio, socket
from src import Client, ClientOptions
async def main():
    sandbox = await Client(ClientOptions(base_url="http://localhost:4001")).attach(socket.gethostname())
    result = await sandbox.run_command("echo hello from $SANDBOX_ID; exit 3")
    print(result.output, result.exit_code)
asyncio.run(main())
