"""A server in asyncio: answers each message with its bytes in reverse, and ends when a client sends
an empty one.

python3 server.py [PATH]
"""
import asyncio
import sys

import adma.aio


async def serve(connection: adma.aio.Connection, over: asyncio.Event) -> None:
    try:
        while True:
            message = await connection.read()
            if not message:
                over.set()
                return
            message.reverse()
            await connection.write(message)
    except BrokenPipeError:
        pass  # the client has closed
    finally:
        connection.close()


async def accept(
    listener: adma.aio.Listener, over: asyncio.Event, tasks: "set[asyncio.Task[None]]"
) -> None:
    while True:
        connection = await listener.accept()
        task = asyncio.create_task(serve(connection, over))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def main(path: str) -> None:
    over = asyncio.Event()
    tasks: "set[asyncio.Task[None]]" = set()
    with adma.aio.listen(path) as listener:
        accepting = asyncio.create_task(accept(listener, over, tasks))
        await over.wait()
        accepting.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "/tmp/adma-example"))
