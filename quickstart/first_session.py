#!/usr/bin/env python3
"""An agent's first minutes in a sandbox, with the published client `sandkasten` from PyPI.

Every step prints what it did, what came back and how long it took, and checks it: the program exits
with 1 at the first answer that is not what it should be. `make demo` runs it; by hand:

    SANDKASTEN_URL=http://127.0.0.1:8080 SANDKASTEN_API_KEY=… python quickstart/first_session.py
"""

import asyncio
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
from sandkasten import SandboxClient

URL = os.environ.get("SANDKASTEN_URL", "http://127.0.0.1:8080")
KEY = os.environ.get("SANDKASTEN_API_KEY", "")
WORKSPACE = f"first-session-{os.getpid()}"

CODE = """\
import statistics, sys
numbers = [int(line) for line in open(sys.argv[1])]
print(f"{len(numbers)} numbers, mean {statistics.mean(numbers)}")
"""

COUNTDOWN = "for n in 3 2 1; do echo $n; sleep 0.3; done; echo lift-off"


class Wrong(Exception):
    """An answer that is not what it should be."""


def check(what, found, wanted):
    if found != wanted:
        raise Wrong(f"{what} is {found!r}, and should be {wanted!r}")


def show(text):
    for line in str(text).rstrip("\n").split("\n"):
        print(f"    {line}", flush=True)


@contextmanager
def step(title):
    print(f"\n{title}", flush=True)
    start = time.perf_counter()
    yield
    print(f"    ({(time.perf_counter() - start) * 1000:.0f} ms)", flush=True)


async def run(session, cmd, output=None, exit_code=0):
    """Runs a command and shows it as a terminal would."""
    result = await session.exec(cmd)
    show(f"$ {cmd}")
    if result.output:
        show(result.output)
    check("the exit code", result.exit_code, exit_code)
    if output is not None:
        check("the output", result.output, output)
    return result


async def run_code(session):
    with step("Run code"):
        await run(session, "python3 -c 'print(sum(range(101)))'", "5050\n")
        await run(session, "whoami", "sandbox\n")
        await run(session, "ls /nowhere", exit_code=2)


async def keep_state(session):
    with step("Change directory; the shell keeps it, and variables too"):
        result = await run(session, "mkdir -p project && cd project && export NAME=sandkasten")
        check("the directory", result.cwd, "/workspace/project")
        await run(session, "pwd", "/workspace/project\n")
        await run(session, 'echo "hello from $NAME"', "hello from sandkasten\n")


async def stream(session):
    with step("Stream output while the command runs"):
        show(f"$ {COUNTDOWN}")
        start, output, first, last = time.perf_counter(), "", None, None
        async for chunk in session.exec_stream(COUNTDOWN):
            now = time.perf_counter() - start
            if chunk.done:
                last = chunk
            else:
                first = now if first is None else first
                output += chunk.output
                show(f"{chunk.output.rstrip()}  (after {now:.1f} s)")
        check("the output", output, "3\n2\n1\nlift-off\n")
        check("the stream's end", last is not None and last.exit_code, 0)
        check("that the first line came early", first < 0.5 and now > 0.8, True)


async def use_files(session):
    with step("Write a program, run it, read its result"):
        await session.write("/workspace/project/mean.py", CODE)
        await session.write("numbers.txt", "".join(f"{n}\n" for n in range(1, 11)))
        await run(session, "python3 mean.py /workspace/numbers.txt | tee mean.txt", "10 numbers, mean 5.5\n")
        read = await session.read("/workspace/project/mean.txt")
        check("the file", read.content, b"10 numbers, mean 5.5\n")
        every_byte = bytes(range(256)) * 256
        await session.write("every-byte.bin", every_byte)
        check("65536 bytes of every value", (await session.read("every-byte.bin")).content, every_byte)
        show("wrote and read 64 KiB of every byte there is")


async def upload(session):
    with step("Upload a file and analyse it"):
        with tempfile.TemporaryDirectory() as directory:
            local = Path(directory, "sales.csv")
            local.write_text("city,amount\nOslo,3\nRome,4\nOslo,5\n")
            paths = await session.upload(local, dest_path="/workspace/data")
        check("the path", paths, ["/workspace/data/sales.csv"])
        show(f"uploaded {paths[0]}")
        analysis = "import pandas as pd; print(pd.read_csv('/workspace/data/sales.csv').groupby('city').amount.sum().to_dict())"
        await run(session, f'python3 -c "{analysis}"', "{'Oslo': 8, 'Rome': 4}\n")


async def time_out(session):
    with step("A command that takes too long ends, and the session goes on"):
        show("$ sleep 60    (with a timeout of half a second)")
        result = await session.exec("sleep 60", timeout_ms=500)
        check("the exit code", result.exit_code, 124)
        check("that it took half a second", 500 <= result.duration_ms < 3000, True)
        await run(session, "pwd", "/workspace/project\n")


async def look_around(session):
    with step("The box is shut: no network, no other processes, no way to the host"):
        await run(session, "curl -s -m 2 http://192.0.2.1; echo curl says $?", "curl says 7\n")
        others = await run(session, "ps -e -o comm= | sort -u | tr '\\n' ' '")
        check("that only the box's own processes are seen", "systemd" in others.output, False)
        await run(session, "mount -t tmpfs none /mnt 2>/dev/null || echo refused", "refused\n")


async def see_stats(session):
    with step("See what it uses"):
        stats = await session.stats()
        memory = f"{stats.memory_bytes / 2**20:.1f} of {stats.memory_limit / 2**20:.0f} MiB"
        show(f"memory {memory}, processor {stats.cpu_usage_usec / 1e6:.2f} s")
        check("that memory is counted", 0 < stats.memory_bytes <= stats.memory_limit, True)
        check("that processor time is counted", stats.cpu_usage_usec > 0, True)


async def come_back(client):
    with step("Leave a note in a workspace, destroy the session, come back in a new one"):
        async with await client.create_session(workspace_id=WORKSPACE) as session:
            await run(session, "echo 'remember the milk' > note.txt")
            first = session.id
        async with await client.create_session(workspace_id=WORKSPACE) as session:
            check("that it is another session", session.id != first, True)
            await run(session, "cat note.txt", "remember the milk\n")
        listed = [workspace.id for workspace in await client.list_workspaces()]
        check("that the workspace is listed", WORKSPACE in listed, True)


async def destroy(client, session):
    with step("Destroy everything"):
        listed = {info.id: info.status for info in await client.list_sessions()}
        check("the session's status", listed.get(session.id), "running")
        await session.destroy()
        await client.delete_workspace(WORKSPACE)
        check("the session's status", (await session.info()).status, "destroyed")
        left = [info.id for info in await client.list_sessions()]
        check("that the session is listed", session.id in left, False)
        try:
            await session.exec("echo still here?")
            raise Wrong("a destroyed session ran a command")
        except httpx.HTTPStatusError as error:
            check("the answer for a destroyed session", error.response.status_code, 410)
        show("no session and no workspace is left")


async def story():
    async with SandboxClient(base_url=URL, api_key=KEY) as client:
        with step("Create a session"):
            session = await client.create_session(image="python")
            info = await session.info()
            check("the status", info.status, "running")
            show(f"{info.id}: image {info.image}, {info.status}, in {info.cwd}")
        # Whatever goes wrong below, the session goes; destroying it twice is no error.
        async with session:
            await run_code(session)
            await keep_state(session)
            await stream(session)
            await use_files(session)
            await upload(session)
            await time_out(session)
            await look_around(session)
            await see_stats(session)
            await come_back(client)
            await destroy(client, session)


def main():
    start = time.perf_counter()
    try:
        asyncio.run(story())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except Wrong as wrong:
        print(f"\nWRONG: {wrong}", file=sys.stderr)
        return 1
    except httpx.HTTPStatusError as error:
        print(f"\nWRONG: {error.response.status_code}: {error.response.text}", file=sys.stderr)
        return 1
    except httpx.HTTPError as error:
        print(f"\nWRONG: no answer from {URL}: {error!r}", file=sys.stderr)
        return 1
    print(f"\nAll as it should be, in {time.perf_counter() - start:.1f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
